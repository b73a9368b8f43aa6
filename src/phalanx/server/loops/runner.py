"""Runs service steps in loops, and ends an idle control plane.

A step runs when its topics are published, when the time it returned has come, and at every tick.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from phalanx.errors import Bug, PlatformError, StoreError
from phalanx.kit.clock import backoff_s
from phalanx.server.context import Context, Threads, in_thread
from phalanx.server.notifier import wait_for
from phalanx.store import jobs
from phalanx.store.schedules.rows import count_active
from phalanx.store.studies import rows

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServiceLoop:
    """A named step with its topics. `step(now)` returns when it must run again at the latest, or None.

    `pause_s(took_s)` is the minimum pause after a step of that duration. A step that costs nearly the same
    for one job as for hundreds then handles a single job at once and many jobs in batches.
    """

    name: str
    step: Callable[[int], int | None]
    topics: tuple[str, ...]
    tick_s: float
    pause_s: Callable[[float], float] = lambda took_s: 0.0
    needed: bool = True
    """Whether jobs wait for this loop: a leader in which a step of it hangs lets another one lead."""


async def run_loop(context: Context, loop: ServiceLoop) -> None:
    """Run until the notifier closes. After an error the loop waits with back-off and tries again."""
    failures = 0
    with context.notifier.subscribe(*loop.topics) as woken:
        context.beats[loop.name] = context.clock.monotonic()
        while not context.notifier.closed:
            woken.clear()
            began = context.clock.monotonic()
            try:
                wake_at = await in_thread(_step, context, loop, pool=Threads.LOOPS)
                failures = 0
                context.beats[loop.name] = context.clock.monotonic()
            except PlatformError as error:
                failures, wake_at = failures + 1, None
                level = logging.ERROR if isinstance(error, Bug) else logging.WARNING
                if failures == 1 or isinstance(error, Bug):
                    _LOG.log(level, "%s: %s", loop.name, error)
            except Exception:
                failures, wake_at = failures + 1, None
                _LOG.exception("%s failed", loop.name)
            pause_s = loop.pause_s(context.clock.monotonic() - began)
            if pause_s > 0:
                await context.notifier.pause(pause_s)
            await wait_for(woken, _wait_s(context, loop, wake_at, failures))


def _step(context: Context, loop: ServiceLoop) -> int | None:
    """One step in this thread, which goes on when its loop is cancelled."""
    me = threading.get_ident()
    if loop.needed:
        context.steps[me] = (loop.name, context.clock.monotonic())
    try:
        return loop.step(context.clock.now())
    finally:
        context.steps.pop(me, None)


def _wait_s(context: Context, loop: ServiceLoop, wake_at: int | None, failures: int) -> float:
    if failures:
        return backoff_s(failures, first_s=0.2, max_s=30.0)
    if wake_at is None:
        return loop.tick_s
    left_s = (wake_at - context.clock.now()) / 1e6
    return min(loop.tick_s, max(0.001, left_s))


async def until_idle(context: Context, idle_exit_s: float) -> None:
    """Return after `idle_exit_s` seconds without a client and without a live job.

    A home directory that was deleted counts as idle at once.
    """
    busy_at = context.clock.monotonic()
    home = context.platform.home.root
    had_home = home.exists()
    while _exists(home) or not had_home:
        presence = context.presence
        if presence.num_open or await _has_work(context):
            busy_at = context.clock.monotonic()
        quiet_s = context.clock.monotonic() - max(busy_at, presence.last_seen)
        if quiet_s >= idle_exit_s:
            return
        await asyncio.sleep(min(1.0, max(0.01, (idle_exit_s - quiet_s) / 2)))


def _exists(home: Path) -> bool:
    """Whether the home is there; one that cannot be looked at at present counts as there."""
    try:
        return home.exists()
    except OSError:
        return True


async def _has_work(context: Context) -> bool:
    """Whether a job or study is live or a schedule will be due; an unavailable database counts as yes."""
    try:
        num_live: int = await in_thread(
            context.platform.store.view,
            lambda tx: jobs.count_live(tx) + rows.count_working(tx) + count_active(tx),
            pool=Threads.LOOPS,
        )
        return num_live > 0
    except StoreError:
        return True
