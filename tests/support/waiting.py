"""Waiting for other processes and threads: one loop, with a guard that only ends a hang."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
HANG_GUARD_S = 240.0


def wait_until(
    condition: Callable[[], T],
    what: str = "what was waited for",
    guard_s: float = HANG_GUARD_S,
    every_s: float = 0.01,
) -> T:
    """Return the first true value of `condition`; fail with `what` when `guard_s` seconds have passed."""
    deadline = time.monotonic() + guard_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"{what}: not within {guard_s:.0f} s"
        time.sleep(every_s)
    return value
