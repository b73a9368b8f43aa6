"""Clocks and backoff.

The core never reads a clock: programs pass `clock.now()` down as integer microseconds UTC.
"""

from __future__ import annotations

import random
import threading
import time
from typing import Protocol

APPROACH = 0.01
"""How much faster or slower than true time a steady clock may go while it approaches the wall clock."""


class Clock(Protocol):
    """The two readings of time that programs use."""

    def now(self) -> int:
        """Wall-clock time: integer microseconds since the epoch, UTC."""
        ...

    def monotonic(self) -> float:
        """Seconds on a clock that never jumps; only differences are meaningful."""
        ...


class SystemClock:
    """The clocks of this machine."""

    def now(self) -> int:
        """Wall-clock time: integer microseconds since the epoch, UTC."""
        return time.time_ns() // 1000

    def monotonic(self) -> float:
        """Seconds on CLOCK_MONOTONIC, the same for every process of one machine."""
        return time.monotonic()


class SteadyClock:
    """A clock that follows the monotonic clock of `source`: when the wall clock is set, it does not jump.

    It goes at most `approach` faster or slower than true time, in the direction of the wall clock. `now`
    never goes back. Safe for several threads.
    """

    def __init__(self, source: Clock, now: int | None = None, approach: float = APPROACH) -> None:
        """Begin at `now`; None: at the time of the wall clock."""
        self.source = source
        self._approach = approach
        self._lock = threading.Lock()
        self._read_s = source.monotonic()
        self._now = float(source.now() if now is None else now)

    def now(self) -> int:
        """Integer microseconds UTC, near the wall clock unless that was set."""
        with self._lock:
            self._advance(self._approach)
            return int(self._now)

    def monotonic(self) -> float:
        """The monotonic clock of the source."""
        return self.source.monotonic()

    @property
    def ahead_s(self) -> float:
        """Seconds by which this clock is ahead of the wall clock; negative where it is behind."""
        return (self.now() - self.source.now()) / 1e6

    def catch_up(self) -> None:
        """Approach the wall clock as fast as possible without going back: nothing depends on durations now.

        Time since the last reading counts half where this clock is ahead; where it is behind, it is set.
        """
        with self._lock:
            self._advance(0.5)
            self._now = max(self._now, float(self.source.now()))

    def _advance(self, approach: float) -> None:
        read_s = self.source.monotonic()
        passed = max(0.0, read_s - self._read_s) * 1e6
        self._read_s = read_s
        self._now += passed
        off = self.source.now() - self._now
        most = approach * passed
        self._now += max(-most, min(most, off))


class ManualClock:
    """A clock that moves only by `advance`, for tests and simulations."""

    def __init__(self, now: int = 1_700_000_000_000_000) -> None:
        self._now = now

    def now(self) -> int:
        """The time that it was last set to, in integer microseconds."""
        return self._now

    def monotonic(self) -> float:
        """The same time in seconds."""
        return self._now / 1e6

    def advance(self, seconds: float) -> int:
        """Move forward by `seconds` and return the new `now`."""
        self._now += round(seconds * 1e6)
        return self._now


def backoff_s(
    failures: int,
    *,
    first_s: float = 1.0,
    factor: float = 2.0,
    max_s: float = 60.0,
    rng: random.Random | None = None,
) -> float:
    """Seconds to wait after `failures` failures in a row (0 failures: 0 seconds).

    With an `rng` the result is drawn from the upper half of the interval, which spreads the retries of
    many clients.
    """
    if failures <= 0:
        return 0.0
    ceiling: float = min(max_s, first_s * factor ** min(failures - 1, 64))
    return ceiling if rng is None else ceiling * (0.5 + rng.random() / 2)
