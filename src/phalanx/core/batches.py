"""How one epoch's order is cut into global batches, and each of them into ranks' shares.

Pure arithmetic on positions of the epoch's order, so that every world size sees the same global
batches in the same order. A *micro-batch* is what one call of the loader yields over all ranks; an
optimizer step uses `accumulate` of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Share:
    """One rank's part of one micro-batch: positions `lo` to `hi`, and what its gradient counts.

    A spare rank (more ranks than samples) gets one position of its neighbour with weight 0: it takes
    part in every collective and adds nothing. `last` marks the micro-batch that ends a step; `end` is
    the position all ranks together have reached after it.
    """

    lo: int
    hi: int
    weight: float
    last: bool
    end: int

    @property
    def spare(self) -> bool:
        """Whether this rank only keeps the others company."""
        return self.weight == 0.0


@dataclass(frozen=True, slots=True)
class Plan:
    """The cutting of every epoch: `num_samples` positions, `micro_batch` to a unit of accumulation.

    Where a unit does not fit into memory each is given out in `pieces` loader calls; the global batch
    of a step stays what it was.
    """

    num_samples: int
    micro_batch: int
    accumulate: int = 1
    drop_last: bool = False
    pieces: int = 1

    def __post_init__(self) -> None:
        if min(self.micro_batch, self.accumulate, self.pieces) < 1 or self.num_samples < 0:
            raise ValueError("a batch plan needs positive sizes")

    @property
    def usable(self) -> int:
        """Positions that an epoch visits: all, or without the incomplete last micro-batch."""
        return self.num_samples - (self.num_samples % self.micro_batch if self.drop_last else 0)

    @property
    def num_micro_batches(self) -> int:
        """Loader calls per epoch that yield something."""
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
        """What `rank` does from position `start` (a step's first) to the end of the epoch.

        Steps that touch an interval of `skip` are left out as a whole.
        """
        for step_lo in range(start, self.usable, self.step_batch):
            step_hi = min(step_lo + self.step_batch, self.usable)
            if any(lo < step_hi and step_lo < hi for lo, hi in skip):
                continue
            for lo, hi in self._calls(step_lo, step_hi):
                mine_lo, mine_hi = cut(lo, hi, rank, world_size)
                last = hi == step_hi
                if mine_lo == mine_hi:
                    yield Share(hi - 1, hi, 0.0, last, hi)
                else:
                    count = mine_hi - mine_lo
                    yield Share(
                        mine_lo, mine_hi, count * world_size / (step_hi - step_lo), last, hi
                    )

    def _calls(self, step_lo: int, step_hi: int) -> Iterator[tuple[int, int]]:
        """What the loader's calls of one step give out over all ranks."""
        for lo in range(step_lo, step_hi, self.micro_batch):
            hi = min(lo + self.micro_batch, step_hi)
            pieces = min(self.pieces, hi - lo)
            for piece in range(pieces):
                yield cut(lo, hi, piece, pieces)


def cut(lo: int, hi: int, rank: int, world_size: int) -> tuple[int, int]:
    """Contiguous part of `[lo, hi)` for one rank; the first ranks carry the remainder."""
    size, extra = divmod(hi - lo, world_size)
    start = lo + rank * size + min(rank, extra)
    return start, start + size + (1 if rank < extra else 0)
