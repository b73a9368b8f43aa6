"""One step of the timers: back-offs, time limits and overdue stops whose moment has come."""

from __future__ import annotations

from phalanx.core.jobs.timers import due
from phalanx.services.commit import commit_events
from phalanx.services.platform import Platform
from phalanx.store import jobs
from phalanx.store.database import Tx


def timers_step(platform: Platform, now: int) -> int | None:
    """Fire what is due; returns when the next timer is, or None."""
    if platform.store.view(lambda tx: jobs.waking(tx, now)):
        platform.store.transact(lambda tx: _fire(tx, now))
    return platform.store.view(jobs.next_wake_at)


def _fire(tx: Tx, now: int) -> None:
    for num in jobs.waking(tx, now):
        stored = jobs.load(tx, num)
        for event in due(stored.job, now):
            commit_events(tx, num, [event], now, "timer")
