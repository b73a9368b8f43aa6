"""Waiting for other processes and threads: one loop, with a guard that only ends a hang."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
HANG_GUARD_S = 240.0
# A look that takes long, such as a request to a control plane, leaves most of the processors to the
# processes that are waited for: they do the work.
PAUSE_PER_LOOK = 4.0
MOST_PAUSE_S = 0.25


def wait_until(
    condition: Callable[[], T],
    what: str = "what was waited for",
    guard_s: float = HANG_GUARD_S,
    every_s: float = 0.01,
) -> T:
    """Return the first true value of `condition`; fail with `what` when `guard_s` seconds have passed."""
    begun = time.monotonic()
    looked = begun
    while not (value := condition()):
        now = time.monotonic()
        assert now < begun + guard_s, f"{what}: not within {guard_s:.0f} s"
        time.sleep(max(every_s, min(PAUSE_PER_LOOK * (now - looked), MOST_PAUSE_S)))
        looked = time.monotonic()
    return value
