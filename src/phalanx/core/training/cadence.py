"""The automatic interval between saves, from the costs of a save and of a failure."""

from __future__ import annotations

import math

# Assumed before anything is known: one failure a day.
PRIOR_S = 86_400.0
FIRST_S = 60.0  # the first save shows what saves cost
LEAST_S, MOST_S = 10.0, 3600.0
_WRITES = 4.0  # a disk that is always busy with checkpoints would serve nothing else


def mean_time_between_failures_s(num_failures: int, run_s: float) -> float:
    """From a job's own history, on top of one failure in `PRIOR_S` that every job is credited with."""
    return (PRIOR_S + max(0.0, run_s)) / (1 + num_failures)


def interval_s(stall_s: float, write_s: float, between_failures_s: float) -> float:
    """Seconds between saves that lose the least training time, after Young (1974) and Daly (2006).

    `stall_s` is what training waits for one save, `write_s` what all of its writing takes. With a stall
    C and a time M between failures, half an interval is lost at each failure, so the optimum is near
    sqrt(2 C M); Daly's terms matter where C is not small against M.
    """
    stall_s, mean = max(stall_s, 1e-4), between_failures_s
    part = stall_s / (2 * mean)
    best = mean
    if part < 1:
        best = math.sqrt(2 * stall_s * mean) * (1 + math.sqrt(part) / 3 + part / 9) - stall_s
    return min(MOST_S, max(LEAST_S, _WRITES * write_s, best))
