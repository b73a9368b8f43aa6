"""The distribution of samples over classes and ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from phalanx.core.training.batches import cut


@dataclass(frozen=True, slots=True)
class Skew:
    """The spread of counts. `largest_to_mean` is 1.0 when all are equal."""

    smallest: int
    largest: int
    mean: float
    largest_to_mean: float


def skew(counts: Mapping[object, int] | Iterable[int]) -> Skew:
    """Return the spread of counts, by class or by rank. Raises ValueError when there are none."""
    numbers = list(counts.values() if isinstance(counts, Mapping) else counts)
    if not numbers:
        raise ValueError("there are no counts")
    mean = sum(numbers) / len(numbers)
    return Skew(min(numbers), max(numbers), mean, max(numbers) / mean if mean else 1.0)


def rank_counts(num_samples: int, micro_batch: int, world_size: int) -> list[int]:
    """Return the samples per rank in one epoch, as the loader cuts each micro-batch over the ranks.

    Raises ValueError for numbers below 1.
    """
    if min(micro_batch, world_size) < 1 or num_samples < 0:
        raise ValueError("micro_batch and world_size must be at least 1")
    full, rest = divmod(num_samples, micro_batch)
    counts = []
    for rank in range(world_size):
        lo, hi = cut(0, micro_batch, rank, world_size)
        last_lo, last_hi = cut(0, rest, rank, world_size)
        counts.append(full * (hi - lo) + last_hi - last_lo)
    return counts
