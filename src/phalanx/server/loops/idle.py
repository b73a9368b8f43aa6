"""An embedded control plane leaves when nobody needs it."""

from __future__ import annotations

import asyncio

from phalanx.errors import StoreError
from phalanx.server.context import Context, in_thread
from phalanx.store import jobs


async def until_idle(context: Context, idle_exit_s: float) -> None:
    """Return once there was no client for `idle_exit_s` seconds and there is no live job.

    A home that was deleted under the server has neither.
    """
    busy_at = context.clock.monotonic()
    home = context.platform.home.root
    had_home = home.exists()
    while home.exists() or not had_home:
        presence = context.presence
        if presence.num_open or await _has_work(context):
            busy_at = context.clock.monotonic()
        quiet_s = context.clock.monotonic() - max(busy_at, presence.last_seen)
        if quiet_s >= idle_exit_s:
            return
        await asyncio.sleep(min(1.0, max(0.01, (idle_exit_s - quiet_s) / 2)))


async def _has_work(context: Context) -> bool:
    """Whether a job may need us: a database that cannot be asked for a moment does not say no."""
    try:
        return await in_thread(context.platform.store.view, jobs.count_live) > 0
    except StoreError:
        return True
