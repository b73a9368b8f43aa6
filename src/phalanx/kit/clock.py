"""Clocks. The core never reads one: programs pass `clock.now()` down as integer microseconds UTC."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What a program needs to know of time."""

    def now(self) -> int:
        """Wall-clock time: integer microseconds since the epoch, UTC."""
        ...

    def monotonic(self) -> float:
        """Seconds on a clock that never jumps; only differences mean anything."""
        ...


class SystemClock:
    """The machine's own clocks."""

    def now(self) -> int:
        """Wall-clock time: integer microseconds since the epoch, UTC."""
        return time.time_ns() // 1000

    def monotonic(self) -> float:
        """Seconds on CLOCK_MONOTONIC, the same for every process of one machine."""
        return time.monotonic()


class ManualClock:
    """A clock that moves only when told to: for tests and simulations."""

    def __init__(self, now: int = 1_700_000_000_000_000) -> None:
        self._now = now

    def now(self) -> int:
        """The time it was last set to, integer microseconds."""
        return self._now

    def monotonic(self) -> float:
        """The same time in seconds."""
        return self._now / 1e6

    def advance(self, seconds: float) -> int:
        """Move forward by `seconds`; returns the new `now`."""
        self._now += round(seconds * 1e6)
        return self._now
