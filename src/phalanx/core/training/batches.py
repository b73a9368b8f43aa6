"""Division of an epoch's order into global batches, and of each batch into ranks' shares.

Pure arithmetic on positions of the epoch's order, so that every world size sees the same global
batches in the same order. A *micro-batch* is what one call of the loader yields over all ranks; an
optimizer step uses `accumulate` of them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate as running_total
from itertools import pairwise

SHARE_UNITS = 1000
LEAST_SHARE, LARGEST_SHARE = 0.25, 4.0
WORTH_CHANGING = 0.05


@dataclass(frozen=True, slots=True)
class Share:
    """One rank's part of one micro-batch: positions `lo` to `hi`, and the weight of its gradient.

    With more ranks than samples a spare rank gets one position of its neighbour with weight 0: it takes
    part in every collective and adds nothing. `last` marks the micro-batch that ends a step; `end` is
    the position of the run after it.
    """

    lo: int
    hi: int
    weight: float
    last: bool
    end: int

    @property
    def spare(self) -> bool:
        """Whether this rank only takes part in the collectives."""
        return self.weight == 0.0


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """The division of every epoch: `num_samples` positions in micro-batches of `micro_batch`.

    A micro-batch that does not fit into memory is divided over `pieces` loader calls; the global batch
    of a step stays the same. `bounds` are the ends of the micro-batches where a batch sampler makes
    them, else empty; `micro_batch` is then the largest. `parts` are the ranks' relative shares, empty
    for even ones; they are used only if there are as many ranks.
    """

    num_samples: int
    micro_batch: int
    accumulate: int = 1
    drop_last: bool = False
    pieces: int = 1
    bounds: tuple[int, ...] = ()
    parts: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if any(part < 1 for part in self.parts):
            raise ValueError("every rank's share must be at least 1")
        if min(self.micro_batch, self.accumulate, self.pieces) < 1 or self.num_samples < 0:
            raise ValueError("a batch plan needs positive sizes")

    @property
    def usable(self) -> int:
        """Positions that an epoch visits: all, or without the incomplete last micro-batch."""
        if self.bounds:
            return self.bounds[-1]
        return self.num_samples - (self.num_samples % self.micro_batch if self.drop_last else 0)

    @property
    def num_micro_batches(self) -> int:
        """Loader calls per epoch that yield something."""
        if self.bounds:
            return sum(min(self.pieces, hi - lo) for lo, hi in pairwise((0, *self.bounds)))
        whole, rest = divmod(self.usable, self.micro_batch)
        return whole * min(self.pieces, self.micro_batch) + min(self.pieces, rest)

    @property
    def accumulates(self) -> bool:
        """Whether a step takes several loader calls."""
        return self.accumulate * self.pieces > 1

    @property
    def step_batch(self) -> int:
        """Samples of one full optimizer step over all ranks."""
        return self.micro_batch * self.accumulate

    def shares(
        self, start: int, rank: int, world_size: int, skip: Sequence[tuple[int, int]] = ()
    ) -> Iterator[Share]:
        """The shares of `rank` from position `start`, the first of a step, to the end of the epoch.

        Steps that overlap an interval of `skip` are skipped as a whole.
        """
        parts = self.parts if len(self.parts) == world_size else (1,) * world_size
        for units in self._steps(start):
            step_lo, step_hi = units[0][0], units[-1][1]
            if any(lo < step_hi and step_lo < hi for lo, hi in skip):
                continue
            for lo, hi in self._calls(units):
                mine_lo, mine_hi = cut_by(lo, hi, rank, parts)
                last = hi == step_hi
                if mine_lo == mine_hi:
                    yield Share(hi - 1, hi, 0.0, last, hi)
                else:
                    count = mine_hi - mine_lo
                    yield Share(
                        mine_lo, mine_hi, count * world_size / (step_hi - step_lo), last, hi
                    )

    def largest_share(self, world_size: int) -> int:
        """Samples of a whole micro-batch that the rank with the largest share gets."""
        if len(self.parts) != world_size:
            return -(-self.micro_batch // world_size)
        cuts = (cut_by(0, self.micro_batch, rank, self.parts) for rank in range(world_size))
        return max(hi - lo for lo, hi in cuts)

    def _steps(self, start: int) -> Iterator[list[tuple[int, int]]]:
        """The micro-batches of every step from position `start` on."""
        if self.bounds:
            edges = (0, *self.bounds)
            first = bisect_left(edges, start)
            for at in range(first, len(edges) - 1, self.accumulate):
                yield list(pairwise(edges[at : at + self.accumulate + 1]))
            return
        for step_lo in range(start, self.usable, self.step_batch):
            step_hi = min(step_lo + self.step_batch, self.usable)
            starts = range(step_lo, step_hi, self.micro_batch)
            yield [(lo, min(lo + self.micro_batch, step_hi)) for lo in starts]

    def _calls(self, units: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
        """What the loader's calls of one step give out over all ranks."""
        for lo, hi in units:
            pieces = min(self.pieces, hi - lo)
            for piece in range(pieces):
                yield cut(lo, hi, piece, pieces)


def cut(lo: int, hi: int, rank: int, world_size: int) -> tuple[int, int]:
    """Contiguous part of `[lo, hi)` for one rank; the first ranks carry the remainder."""
    size, extra = divmod(hi - lo, world_size)
    start = lo + rank * size + min(rank, extra)
    return start, start + size + (1 if rank < extra else 0)


def cut_by(lo: int, hi: int, rank: int, parts: Sequence[int]) -> tuple[int, int]:
    """Contiguous part of `[lo, hi)` for one rank, in proportion to `parts`; equal ones are as `cut`.

    Where there is a sample for every rank, every rank gets one.
    """
    if min(parts) == max(parts):
        return cut(lo, hi, rank, len(parts))
    spread = hi - lo
    ensured = 1 if spread >= len(parts) else 0
    free = spread - ensured * len(parts)
    edges = (0, *running_total(parts))
    begin, end = (
        lo + at * ensured + (2 * free * edges[at] + edges[-1]) // (2 * edges[-1])
        for at in (rank, rank + 1)
    )
    return begin, end


def even_parts(world_size: int) -> tuple[int, ...]:
    """The same share for every rank."""
    return (SHARE_UNITS,) * world_size


def parts_of(shares: Sequence[float]) -> tuple[int, ...]:
    """Declared shares as whole numbers with a mean of about `SHARE_UNITS`. Raises ValueError."""
    if not shares or min(shares) <= 0:
        raise ValueError("every rank's share must be above 0")
    mean = sum(shares) / len(shares)
    return tuple(max(1, round(SHARE_UNITS * one / mean)) for one in shares)


def rebalanced(parts: Sequence[int], compute_s: Sequence[float]) -> tuple[int, ...]:
    """Shares in proportion to speed, from the compute times that ranks needed for shares `parts`.

    A rank's speed is its share over its time. No share leaves 1/4 to 4 times the even one; differences
    below 5 % change nothing, nor do times that not all ranks have.
    """
    if len(parts) != len(compute_s) or min(compute_s) <= 0:
        return tuple(parts)
    speeds = [part / took for part, took in zip(parts, compute_s, strict=True)]
    mean = sum(speeds) / len(speeds)
    fresh = [min(LARGEST_SHARE, max(LEAST_SHARE, speed / mean)) for speed in speeds]
    found = parts_of(fresh)
    changes = (abs(new - old) / old for new, old in zip(found, parts, strict=True))
    return found if max(changes) > WORTH_CHANGING else tuple(parts)
