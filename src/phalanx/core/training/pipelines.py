"""Arithmetic of pipeline stages: cuts of the model and of the batch, and idle time of stages."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

SCHEDULES = ("1f1b", "gpipe", "interleaved")
CHUNKS = 2
"""Pieces of the model that a rank of an interleaved schedule holds."""


def chunks(schedule: str) -> int:
    """Stages for each rank of a pipeline."""
    return CHUNKS if schedule == "interleaved" else 1


def cuts(weights: Sequence[int], num_stages: int) -> list[int]:
    """Where each stage begins, so that the heaviest weighs as little as possible. Every stage gets a layer.

    `weights` are those of consecutive layers. Raises ValueError where there are too few.
    """
    num = len(weights)
    if num < num_stages:
        raise ValueError(f"{num} layers are too few for {num_stages} stages")
    sums = [0]
    for weight in weights:
        sums.append(sums[-1] + weight)

    @cache
    def best(begin: int, stages: int) -> tuple[int, int]:
        """(weight of the heaviest stage, end of the first) of the layers from `begin` on."""
        if stages == 1:
            return sums[num] - sums[begin], num
        ends = range(begin + 1, num - stages + 2)
        return min((max(sums[end] - sums[begin], best(end, stages - 1)[0]), end) for end in ends)

    found, at = [], 0
    for stages in range(num_stages, 0, -1):
        found.append(at)
        at = best(at, stages)[1]
    return found


def num_micro_batches(batch: int, wanted: int) -> int:
    """The most equal pieces that a batch of so many samples has, up to `wanted`."""
    return next(num for num in range(min(batch, wanted), 0, -1) if batch % num == 0)


def bubble(schedule: str, num_ranks: int, micro_batches: int) -> float:
    """The part of a step for which a rank waits, where all stages take equally long.

    GPipe and 1F1B: (p - 1) / (m + p - 1). Interleaved: (p - 1) / (v·m + p - 1) with v stages on a rank.
    """
    work = chunks(schedule) * micro_batches
    return (num_ranks - 1) / (work + num_ranks - 1)
