"""A machine with a wall clock that can be set while its monotonic clock goes on."""

from __future__ import annotations


class SettableClock:
    """The clocks of such a machine; both move by `advance` alone."""

    def __init__(self) -> None:
        self.wall_s = 1_700_000_000.0
        self.monotonic_s = 1000.0

    def now(self) -> int:
        """The wall clock, in integer microseconds."""
        return round(self.wall_s * 1e6)

    def monotonic(self) -> float:
        """The monotonic clock, in seconds."""
        return self.monotonic_s

    def advance(self, seconds: float) -> int:
        """Let time pass, and return the new `now`."""
        self.monotonic_s += seconds
        self.wall_s += seconds
        return self.now()

    def set(self, seconds: float) -> None:
        """Set the wall clock by so many seconds."""
        self.wall_s += seconds
