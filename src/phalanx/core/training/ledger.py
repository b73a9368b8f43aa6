"""The ledger of consumed samples: positions of each epoch, how often, by which generations.

Ranks report the slice of every committed step. `merge` folds slices into few rows that keep
multiplicity (so a sample used twice stays visible); it may be applied again to its own output, in any
grouping. `audit` follows the lineage of the final weights: work behind the point where a later
generation took up again was rolled back, and is counted as redone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Point = tuple[int, int]
"""(epoch, position): a place in the stream of data."""


@dataclass(frozen=True, slots=True, order=True)
class Consumed:
    """Positions `lo` to `hi` of one epoch's order, each consumed `times` times."""

    epoch: int
    lo: int
    hi: int
    times: int = 1


@dataclass(frozen=True, slots=True)
class GenerationLedger:
    """The samples that one generation consumed.

    `began` is its first position: (0, 0) for a fresh start, None when it ended before the position was
    known. `all_reported`: no report of it was lost with a node.
    """

    attempt: int
    generation: int
    began: Point | None
    rows: tuple[Consumed, ...]
    all_reported: bool = True


@dataclass(frozen=True, slots=True)
class LedgerSummary:
    """Counts of samples. Exactly once means that `missed`, `duplicated` and `unreported` are 0.

    Samples are `unreported` of where no report of them arrived because a node was lost with it: whether
    they were consumed is unknown.
    """

    missed: int
    duplicated: int
    redone: int
    consumed: int
    unreported: int = 0

    @property
    def exactly_once(self) -> bool:
        """Whether each (epoch, sample) is in exactly one ancestor step of the final weights."""
        return self.missed == 0 and self.duplicated == 0 and self.unreported == 0


def merge(rows: Iterable[Consumed]) -> tuple[Consumed, ...]:
    """Disjoint rows, sorted, equal neighbours joined; multiplicities add up."""
    edges: dict[int, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for row in rows:
        if row.hi > row.lo and row.times:
            edges[row.epoch][row.lo] += row.times
            edges[row.epoch][row.hi] -= row.times
    merged: list[Consumed] = []
    for epoch in sorted(edges):
        times, since = 0, 0
        for at in sorted(edges[epoch]):
            change = edges[epoch][at]
            if change == 0:
                continue
            if times:
                merged.append(Consumed(epoch, since, at, times))
            times, since = times + change, at
    return tuple(merged)


def split(
    rows: Iterable[Consumed], point: Point
) -> tuple[tuple[Consumed, ...], tuple[Consumed, ...]]:
    """Rows before `point` and rows from it on."""
    before: list[Consumed] = []
    after: list[Consumed] = []
    for row in rows:
        cut = (
            row.hi
            if row.epoch < point[0]
            else row.lo
            if row.epoch > point[0]
            else min(max(point[1], row.lo), row.hi)
        )
        if cut > row.lo:
            before.append(Consumed(row.epoch, row.lo, cut, row.times))
        if cut < row.hi:
            after.append(Consumed(row.epoch, cut, row.hi, row.times))
    return tuple(before), tuple(after)


def audit(
    generations: Sequence[GenerationLedger], *, num_samples: int, until: Point
) -> LedgerSummary:
    """Count the samples that the lineage of the final weights consumed.

    `num_samples` positions per epoch; `until` is the point the final weights have reached, (epochs, 0)
    for a finished run. Generations may come in any order.
    """
    kept: list[Consumed] = []
    redone = 0
    limit = until
    doubted: list[tuple[Point, Point]] = []
    doubt = False
    for one in sorted(generations, key=lambda g: (g.attempt, g.generation), reverse=True):
        before, after = split(merge(one.rows), limit)
        kept.extend(before)
        redone += _count(after)
        # A generation that did not report its start may have consumed any part of the earlier data.
        doubt = doubt or not one.all_reported
        if one.began is not None:
            if doubt and one.began < limit:
                doubted.append((one.began, limit))
            limit, doubt = min(limit, one.began), False
    rows = merge(kept)
    covered = _covered(rows)
    unreported = sum(_gaps(rows, begin, end, num_samples) for begin, end in doubted)
    return LedgerSummary(
        missed=_place(until, num_samples) - covered - unreported,
        duplicated=sum((row.hi - row.lo) * (row.times - 1) for row in rows),
        redone=redone,
        consumed=covered,
        unreported=unreported,
    )


def _place(point: Point, num_samples: int) -> int:
    return point[0] * num_samples + point[1]


def _gaps(rows: Iterable[Consumed], begin: Point, end: Point, num_samples: int) -> int:
    """Positions between two points that are in no row."""
    inside, _ = split(split(rows, begin)[1], end)
    return _place(end, num_samples) - _place(begin, num_samples) - _covered(inside)


def _covered(rows: Iterable[Consumed]) -> int:
    return sum(row.hi - row.lo for row in rows)


def _count(rows: Iterable[Consumed]) -> int:
    return sum((row.hi - row.lo) * row.times for row in rows)
