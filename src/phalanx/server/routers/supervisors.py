"""The supervisors' one call."""

from __future__ import annotations

from fastapi import APIRouter, Request

from phalanx.schemas.supervision import Orders, SyncRequest, SyncResponse
from phalanx.server.context import Here, in_thread
from phalanx.services.sync import orders_for, supervisor_sync, sync_topic

router = APIRouter(prefix="/api/v1/supervisors", tags=["supervisors"])


@router.post("/sync")
async def post_sync(here: Here, sync: SyncRequest, request: Request) -> SyncResponse:
    """Reports up, orders down; with `wait_s` it returns when the orders change."""
    token = request.headers.get("authorization", "").removeprefix("Bearer ").strip()
    now = here.clock.now()
    synced = await in_thread(lambda: supervisor_sync(here.platform, sync, token, now))
    if synced.news or sync.wait_s <= 0:
        return synced.response

    async def look() -> Orders:
        return await in_thread(lambda: orders_for(here.platform, sync, here.clock.now()))

    orders = await here.poll_until(
        (sync_topic(sync),), sync.wait_s, look, lambda found: found.version != sync.seen
    )
    return synced.response.model_copy(update={"orders": orders, "server_now": here.clock.now()})
