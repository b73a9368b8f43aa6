"""The control plane's time: it never jumps while jobs depend on it, also across restarts.

All deadlines are stored as times of this clock, so a wall clock that is set ends or freezes nothing. See
`docs/decisions/0044-steady-time.md`.
"""

from __future__ import annotations

import hashlib
import logging

from phalanx.kit.clock import Clock, SteadyClock
from phalanx.launch.identity import boot_id
from phalanx.store import clock as stored
from phalanx.store import jobs
from phalanx.store.clock import ClockReading
from phalanx.store.database import Store

_LOG = logging.getLogger(__name__)
MOST_DOWN_S = 86_400.0
"""After a boot, no more than this of the time that the wall clock shows as passed is counted."""
SAVE_EVERY_S = 60.0
# Difference to the wall clock that is told in the log.
_TELL_S = 2.0


def open_clock(store: Store, source: Clock, boot: str | None = None) -> SteadyClock:
    """The steady clock of a database, which goes on where the last control plane's clock would be now.

    Where no job is live, it begins at the wall clock. `boot` identifies the boot of this machine.
    """
    reading = store.view(stored.load)
    live = store.view(jobs.count_live) > 0
    if reading is None or not live:
        return SteadyClock(source)
    return SteadyClock(source, continued(reading, source, _number(boot)))


def continued(reading: ClockReading, source: Clock, boot: int) -> int:
    """The time now on the clock of an earlier process that stored `reading`.

    On the same boot of the machine the monotonic clock tells how much time has passed. After another one
    only the wall clock does, which may have been set: what it says is bounded.
    """
    if reading.boot == boot:
        passed = round(source.monotonic() * 1e6) - reading.monotonic
    else:
        passed = min(source.now() - reading.wall, round(MOST_DOWN_S * 1e6))
    return reading.now + max(0, passed)


class Timekeeper:
    """Stores readings of the clock, and lets it catch up with the wall clock while no job is live."""

    def __init__(self, store: Store, clock: Clock, boot: str | None = None) -> None:
        self._store, self._clock, self._boot = store, clock, boot
        self._saved_s = float("-inf")
        self._told = False

    def step(self, now: int) -> int | None:
        """One step of the loop `clock`."""
        clock = self._clock
        if isinstance(clock, SteadyClock) and (
            self.follow() or clock.monotonic() - self._saved_s >= SAVE_EVERY_S
        ):
            self.save()
        return None

    def follow(self) -> bool:
        """Catch up with the wall clock if that was set and no job is live; returns whether it did."""
        clock = self._clock
        if not isinstance(clock, SteadyClock):
            return False
        ahead_s = clock.ahead_s
        if abs(ahead_s) > _TELL_S and not self._told:
            _LOG.warning(
                "the clock of this machine was set: times are shown on a clock that differs by %.0f s "
                "and approaches it slowly, since deadlines of jobs depend on it",
                ahead_s,
            )
        self._told = abs(ahead_s) > _TELL_S
        if self._told and self._store.view(jobs.count_live) == 0:
            clock.catch_up()
            return True
        return False

    def save(self) -> None:
        """Store a reading, from which a later process goes on."""
        clock = self._clock
        if isinstance(clock, SteadyClock):
            self._saved_s = clock.monotonic()
            reading = ClockReading(
                clock.now(), clock.source.now(), round(self._saved_s * 1e6), _number(self._boot)
            )
            self._store.transact(lambda tx: stored.save(tx, reading))


def _number(boot: str | None) -> int:
    """A boot's identity as a number that fits a column."""
    text = boot_id() if boot is None else boot
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7])
