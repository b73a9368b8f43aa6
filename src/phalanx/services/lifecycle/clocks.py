"""How far a supervisor's clock is from ours, from one-way delays that are never negative."""

from __future__ import annotations

_MAX_DRIFT = 100e-6  # seconds per second: what a quartz may be off
_STEP_US = 10_000_000


def estimate_offset(
    known: int | None, *, sent_at: int, received_at: int, since_last_us: int
) -> int:
    """Microseconds to add to the sender's clock to get ours.

    A sample is the offset plus the delay of one message, so the smallest one is the best. Old minima
    age by the drift of clocks; a sample that is more than 10 s above means that a clock was set.
    """
    sample = received_at - sent_at
    if known is None or sample - known > _STEP_US:
        return sample
    return min(sample, known + round(max(0, since_last_us) * _MAX_DRIFT))
