"""Runs one step of a service again and again: when woken, when its time has come, and by a tick."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from phalanx.errors import Bug, PlatformError
from phalanx.kit.clock import backoff_s
from phalanx.server.context import Context, in_thread
from phalanx.server.notifier import wait_for

_LOG = logging.getLogger(__name__)


def no_rest(took_s: float) -> float:
    """For steps that cost as much as what they find to do."""
    return 0.0


@dataclass(frozen=True, slots=True)
class Loop:
    """`step(now)` returns the time at which it wants to run again at the latest, or None.

    `rest_s(took_s)`: how long the next step waits at least after one that took so long, however often
    the loop is woken meanwhile. A step that costs nearly the same for one job as for hundreds then
    serves at once while there is little to do, and many at a time when there is much.
    """

    name: str
    step: Callable[[int], int | None]
    topics: tuple[str, ...]
    tick_s: float
    rest_s: Callable[[float], float] = no_rest


async def run_loop(context: Context, loop: Loop) -> None:
    """Run until the notifier closes. An error never ends a loop: it waits, and tries again."""
    failures = 0
    with context.notifier.subscribe(*loop.topics) as woken:
        while not context.notifier.closed:
            woken.clear()
            began = context.clock.monotonic()
            try:
                wake_at = await in_thread(loop.step, context.clock.now())
                failures = 0
            except PlatformError as error:
                failures, wake_at = failures + 1, None
                level = logging.ERROR if isinstance(error, Bug) else logging.WARNING
                if failures == 1 or isinstance(error, Bug):
                    _LOG.log(level, "%s: %s", loop.name, error)
            except Exception:
                failures, wake_at = failures + 1, None
                _LOG.exception("%s failed", loop.name)
            rest_s = loop.rest_s(context.clock.monotonic() - began)
            if rest_s > 0:
                await context.notifier.pause(rest_s)
            await wait_for(woken, _wait_s(context, loop, wake_at, failures))


def _wait_s(context: Context, loop: Loop, wake_at: int | None, failures: int) -> float:
    if failures:
        return backoff_s(failures, first_s=0.2, max_s=30.0)
    if wake_at is None:
        return loop.tick_s
    left_s = (wake_at - context.clock.now()) / 1e6
    return min(loop.tick_s, max(0.001, left_s))
