"""Exponential backoff as a pure function."""

from __future__ import annotations

import random


def backoff_s(
    failures: int, *, first_s: float = 1.0, factor: float = 2.0, max_s: float = 60.0,
    rng: random.Random | None = None,
) -> float:  # fmt: skip
    """Seconds to wait after `failures` failures in a row (0 failures: 0 seconds).

    With an `rng` the result is drawn from the upper half of the interval, so that many waiters spread.
    """
    if failures <= 0:
        return 0.0
    ceiling: float = min(max_s, first_s * factor ** min(failures - 1, 64))
    return ceiling if rng is None else ceiling * (0.5 + rng.random() / 2)
