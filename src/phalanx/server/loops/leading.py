"""Runs the loops while this process leads, and says all the time that it lives."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence

from phalanx.errors import Conflict, LeaseLost, NotSupported, PlatformError
from phalanx.server.context import Context, Threads, in_thread
from phalanx.server.leadership import RENEW_S
from phalanx.server.loops.runner import run_loop
from phalanx.server.loops.steps import all_loops
from phalanx.server.notifier import wait_for
from phalanx.services.platform import Platform
from phalanx.services.timekeeping import Timekeeper
from phalanx.store import outbox
from phalanx.store.leadership import leases
from phalanx.store.leadership.leases import Lease
from phalanx.store.leadership.replicas import ReplicaRow

_LOG = logging.getLogger(__name__)


async def lead(context: Context) -> None:
    """Run the loops whenever this process has the lease, until the notifier closes."""
    if context.leadership.me is None:
        await _run(context, context.platform, context.notifier.ended())
        return
    with context.notifier.subscribe(leases.TOPIC) as woken:
        while not context.notifier.closed:
            lease = await _take(context)
            if lease is not None:
                await _term(context, lease)
            # Others first, where this process has just lost the lease or given it up.
            await wait_for(woken, RENEW_S)


async def _take(context: Context) -> Lease | None:
    try:
        if await in_thread(_hanging, context, pool=Threads.LEASE):
            return None
        return await in_thread(context.leadership.take, pool=Threads.LEASE)
    except PlatformError as error:
        _LOG.warning("the lease cannot be taken: %s", error)
    except Exception:
        _LOG.exception("the lease cannot be taken")
    return None


async def _term(context: Context, lease: Lease) -> None:
    """Run the loops under one lease until it is lost or the server stops; then no step of them runs."""
    platform = context.leadership.platform_of(context.platform, lease)
    try:
        # Nothing that an earlier leader left is known to this process.
        platform.scheduler_cache.start_fresh()
        platform.studies.start_fresh()
        await in_thread(platform.store.transact, outbox.free_all, pool=Threads.LEASE)
        await _run(context, platform, _renew(context, lease))
    except PlatformError as error:
        _LOG.warning("%s", error)
    except Exception:
        _LOG.exception("the loops ended")
    finally:
        await in_thread(context.leadership.stand_by, pool=Threads.LEASE)


async def _renew(context: Context, lease: Lease) -> None:
    """Renew the lease until it is lost, the server stops, or a loop hangs and another replica may lead.

    A step that hangs is not ended, as nothing can end a thread: what it writes later is refused.
    """
    while not context.notifier.closed:
        await context.notifier.pause(RENEW_S)
        try:
            if hanging := await in_thread(_hanging, context, pool=Threads.LEASE):
                _LOG.error("%s: a step does not end; another control plane may lead", hanging)
                await in_thread(context.leadership.stand_by, pool=Threads.LEASE)
                return
            await in_thread(context.leadership.renew, lease, pool=Threads.LEASE)
        except LeaseLost as error:
            _LOG.warning("%s", error)
            return
        except PlatformError as error:
            _LOG.warning("the other control planes are not known: %s", error)


def _hanging(context: Context) -> str:
    """The loops with a step that has taken too long, where another replica could go on; else nothing."""
    began = context.clock.monotonic() - context.settings.loops.hanging_after_s
    found = ", ".join(sorted({name for name, at in list(context.steps.values()) if at < began}))
    return found if found and context.leadership.has_others() else ""


async def _run(context: Context, platform: Platform, until: Awaitable[None]) -> None:
    """Run all loops until `until` ends; a step that is under way is waited for."""
    tasks = [
        asyncio.create_task(run_loop(context, loop), name=loop.name)
        for loop in all_loops(context, platform)
    ]
    try:
        await until
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        context.beats.clear()


async def live(context: Context, publish: Callable[[Sequence[ReplicaRow]], None]) -> None:
    """Say that this replica lives, and follow what others change, until the notifier closes.

    A replica that may not go on beside the others ends.
    """
    if context.leadership.me is None:
        return
    keeper = Timekeeper(context.platform.store, context.clock)

    def step() -> None:
        publish(context.leadership.beat())
        keeper.follow()
        _follow_token(context)

    while not context.notifier.closed:
        try:
            await in_thread(step, pool=Threads.LEASE)
        except (Conflict, NotSupported) as error:
            _LOG.error("this control plane ends: %s", error)
            context.stopping.set()
        except (PlatformError, OSError) as error:
            _LOG.warning("this replica gives no sign of life: %s", error)
        await context.notifier.pause(RENEW_S)


def _follow_token(context: Context) -> None:
    """Use the token of the home that another replica has given it."""
    with contextlib.suppress(FileNotFoundError):
        context.admin.token = context.platform.home.token_file.read_text().strip()


async def follow_clusters(context: Context) -> None:
    """Connect to clusters that were added on another replica, and forget those that were removed."""
    while context.leadership.me is not None and not context.notifier.closed:
        try:
            await in_thread(context.platform.clusters.refresh, pool=Threads.LOOPS)
        except (PlatformError, OSError) as error:
            _LOG.warning("the clusters of the home cannot be read: %s", error)
        await context.notifier.pause(RENEW_S)
