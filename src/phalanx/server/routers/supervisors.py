"""Routes for supervisors: the sync call, and code for nodes without access to the home."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Request, Response
from fastapi.responses import FileResponse

from phalanx.schemas.wire.report_bytes import ACCEPTED
from phalanx.schemas.wire.supervision import SecretValues, SyncRequest, SyncResponse
from phalanx.server.access import ATTEMPT, ATTEMPT_AUDITED, bearer_token
from phalanx.server.context import Here, in_thread
from phalanx.server.strict_requests import SupervisorKey, SupervisorRoute
from phalanx.server.sync_batches import SyncBatches
from phalanx.services.lifecycle.commit import job_topic
from phalanx.services.lifecycle.sync import (
    orders_for,
    supervisor_code,
    supervisor_secrets,
)

router = APIRouter(prefix="/api/v1/supervisors", tags=["supervisors"], route_class=SupervisorRoute)


@router.post("/sync", openapi_extra=ATTEMPT, response_model=SyncResponse)
async def post_sync(here: Here, sync: SyncRequest, request: Request) -> Response:
    """Reports up, orders down; with `wait_s` it returns when the orders change.

    `Accept-Post` names the types of bodies: JSON, and bytes with metrics in columns.
    """
    batches = request.app.state.sync_batches
    assert isinstance(batches, SyncBatches)
    answer = await batches.sync(sync, bearer_token(request.headers))
    if answer.news or sync.wait_s <= 0:
        return _said(answer.response)
    orders = await here.poll_until(
        (job_topic(sync.job),),
        sync.wait_s,
        lambda: orders_for(here.platform, sync, here.clock.now()),
        lambda found: found.version != sync.seen,
    )
    return _said(
        answer.response.model_copy(update={"orders": orders, "server_now": here.clock.now()})
    )


def _said(response: SyncResponse) -> Response:
    """An answer that the framework need not check again."""
    return Response(
        response.model_dump_json(),
        media_type="application/json",
        headers={"Accept-Post": ACCEPTED},
    )


@router.get("/code/{digest}", openapi_extra=ATTEMPT_AUDITED)
async def get_code(
    here: Here,
    request: Request,
    digest: Annotated[str, Path(pattern=r"^[0-9a-f]{64}$")],
    key: SupervisorKey,
) -> FileResponse:
    """The archive of a job's code, for a supervisor of its live attempt."""
    token = bearer_token(request.headers)
    path = await in_thread(lambda: supervisor_code(here.platform, key, digest, token))
    return FileResponse(path, media_type="application/x-tar")


@router.get("/secrets", openapi_extra=ATTEMPT_AUDITED)
async def get_secrets(
    here: Here,
    request: Request,
    response: Response,
    key: SupervisorKey,
) -> SecretValues:
    """The values of a job's secrets, for a supervisor of its live attempt that is starting."""
    token = bearer_token(request.headers)
    values = await in_thread(lambda: supervisor_secrets(here.platform, key, token))
    response.headers["Cache-Control"] = "no-store"
    return SecretValues(values=values)
