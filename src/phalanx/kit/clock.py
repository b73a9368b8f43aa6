"""Clocks and backoff.

The core never reads a clock: programs pass `clock.now()` down as integer microseconds UTC.
"""

from __future__ import annotations

import random
import time
from typing import Protocol


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
