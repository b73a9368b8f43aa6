"""Detection of slow ranks from the time that each spends computing.

Whole steps take equally long on all ranks, because all wait for the slowest: only time up to the last
gradient of a rank's own tells them apart. A score is the fastest rank's time over one's own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

THRESHOLD = 0.75


def scores(compute_s: Sequence[float]) -> list[float]:
    """Each rank's score from 0 to 1; 1 is the fastest. Ranks without a time count as fast."""
    known = [one for one in compute_s if one > 0]
    if not known:
        return [1.0] * len(compute_s)
    return [min(known) / one if one > 0 else 1.0 for one in compute_s]


class StragglerWatch:
    """Names a rank that scored below the threshold in `least` of its last `windows` windows."""

    def __init__(self, windows: int = 5, least: int = 3, threshold: float = THRESHOLD) -> None:
        self._least, self._threshold = least, threshold
        self._slow: deque[frozenset[int]] = deque(maxlen=windows)

    def observe(self, compute_s: Sequence[float]) -> list[int]:
        """One window's times by rank; the stragglers, in rank order."""
        found = scores(compute_s)
        self._slow.append(
            frozenset(rank for rank, one in enumerate(found) if one < self._threshold)
        )
        counts = [sum(rank in slow for slow in self._slow) for rank in range(len(compute_s))]
        return [rank for rank, count in enumerate(counts) if count >= self._least]
