"""One step of the timers: back-offs, time limits and overdue stops whose moment has come."""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.core.jobs.timers import due
from phalanx.services.lifecycle.commit import commit_events, each_for_itself
from phalanx.services.platform import Platform
from phalanx.store import jobs
from phalanx.store.database import Tx


def timers_step(platform: Platform, now: int) -> int | None:
    """Fire what is due; returns when the next timer is, or None.

    Raises the Bug that one of the jobs runs into, after the others have been served.
    """
    waking = platform.store.view(lambda tx: jobs.waking(tx, now))
    each_for_itself(waking, lambda some: platform.store.transact(lambda tx: _fire(tx, some, now)))
    return platform.store.view(jobs.next_wake_at)


def _fire(tx: Tx, waking: Sequence[int], now: int) -> None:
    for num in waking:
        stored = jobs.load(tx, num)
        for event in due(stored.job, now):
            commit_events(tx, num, [event], now, "timer")
