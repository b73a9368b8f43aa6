"""One step of the timers: apply due back-offs, time limits and stop deadlines."""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.core.jobs.timers import due
from phalanx.services.lifecycle.commit import commit_events, isolate_bugs
from phalanx.services.platform import Platform
from phalanx.store import jobs
from phalanx.store.database import Tx


def timers_step(platform: Platform, now: int) -> int | None:
    """Apply due timers; returns when the next one is due, or None.

    Raises a Bug that one of the jobs runs into after the other jobs are done.
    """
    waking = platform.store.view(lambda tx: jobs.waking(tx, now))
    isolate_bugs(waking, lambda some: platform.store.transact(lambda tx: _fire(tx, some, now)))
    return platform.store.view(jobs.next_wake_at)


def _fire(tx: Tx, waking: Sequence[int], now: int) -> None:
    for num in waking:
        stored = jobs.load(tx, num)
        for event in due(stored.job, now):
            commit_events(tx, num, [event], now, "timer")
