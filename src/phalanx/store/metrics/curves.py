"""Curves of metrics of many jobs: from roll-ups, and from chunks where those are not fine enough.

What is not folded yet is laid over the roll-ups, so that an answer is always complete.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import select

from phalanx.core.curves import Reduce, rollups
from phalanx.core.curves.columns import NO_SAMPLES, Samples, joined
from phalanx.core.curves.rollups import Intervals, width_of
from phalanx.store.database import Tx
from phalanx.store.metrics import series
from phalanx.store.metrics.arrivals import columns_between
from phalanx.store.metrics.folding import StoredSamples
from phalanx.store.metrics.series import SeriesKey, SeriesRow
from phalanx.store.schema.metrics import metric_chunks

LAST_STEP = 2**63 - 1
_NO_INTERVALS = rollups.intervals_of(NO_SAMPLES)


@dataclass(frozen=True, slots=True)
class CurveQuery:
    """What is wanted of each curve."""

    names: tuple[str, ...] = ()  # of metrics; empty: all
    ranks: tuple[int, ...] = ()  # empty: all
    first: int = 0  # lowest step
    last: int = LAST_STEP  # highest step
    max_points: int = 1000
    #: a curve with up to this many samples is read from chunks where its roll-ups have too few intervals
    exact_up_to: int = 0
    reduce: Reduce = "extremes"


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """One metric of one rank. `count` is the number of samples that it stands for."""

    job: int
    name: str
    rank: int
    samples: Samples
    count: int

    @property
    def downsampled(self) -> bool:
        """Whether samples were left out."""
        return self.count > len(self.samples)


def curves(tx: Tx, nums: Sequence[int], query: CurveQuery) -> list[Curve]:
    """The curves of some jobs by job, name and rank; those without a sample are left out."""
    rows = {one.key: one for one in series.find(tx, nums, query.names, query.ranks)}
    fresh = _not_folded(tx, nums, query)
    levels = {key: _level(row, query) for key, row in rows.items() if _is_in(row, query)}
    pages: dict[SeriesKey, Intervals] = {}
    for level in sorted({one for one in levels.values() if one is not None}):
        same = [rows[key] for key, one in levels.items() if one == level]
        pages |= series.intervals_of_many(tx, same, level, query.first, query.last)
    readers: dict[int, StoredSamples] = {}
    found = []
    for key in sorted({*levels, *fresh}):
        job = key[0]
        if job not in readers:
            names = query.names or sorted({one for other, one, _ in rows if other == job})
            readers[job] = StoredSamples(tx, job, names)
        newer = fresh.get(key, NO_SAMPLES)
        row, at = rows.get(key), levels.get(key)
        if row is not None and at is not None:
            known = pages.get(key, _NO_INTERVALS)
            found.append(_of_intervals(row, at, known, newer, readers[job], query))
            continue
        before = NO_SAMPLES
        if row is not None and key in levels:
            before = _exact(row, readers[job], query)
        samples = joined([before, newer]).newest().between(query.first, query.last)
        thin = rollups.thinned(samples, query.max_points, query.reduce)
        found.append(Curve(*key, thin, len(samples)))
    return [one for one in found if len(one.samples)]


def _is_in(row: SeriesRow, query: CurveQuery) -> bool:
    return row.last_step >= query.first and row.first_step <= query.last


def _level(row: SeriesRow, query: CurveQuery) -> int | None:
    """The level that a curve is read from; None: from its samples."""
    if not row.levels:
        return None
    steps = min(query.last, row.last_step) - max(query.first, row.first_step) + 1
    about = row.count * steps / (row.last_step - row.first_step + 1)
    wanted = (query.max_points - 2) // 2 if query.reduce == "extremes" else query.max_points
    for level in reversed(range(row.levels)):
        if steps // width_of(row.stride, level) >= wanted:
            return level
    return None if about <= max(query.max_points, query.exact_up_to) else 0


def _exact(row: SeriesRow, stored: StoredSamples, query: CurveQuery) -> Samples:
    if not row.levels:
        return rollups.unpack_samples(row.samples or b"")
    return stored.of(row.key)(query.first, query.last)


def _not_folded(tx: Tx, nums: Sequence[int], query: CurveQuery) -> dict[SeriesKey, Samples]:
    """The samples in chunks that are not folded, by series."""
    parts: dict[SeriesKey, list[Samples]] = {}
    for job in _with_fresh(tx, nums):
        found = columns_between(
            tx,
            job,
            names=query.names,
            ranks=query.ranks,
            first=query.first,
            last=query.last,
            folded=0,
        )
        for columns in found:
            for (rank, name), samples in columns.series(query.names).items():
                if not query.ranks or rank in query.ranks:
                    parts.setdefault((job, name, rank), []).append(samples)
    whole = {key: joined(found).newest() for key, found in parts.items()}
    return {key: one.between(query.first, query.last) for key, one in whole.items()}


def _with_fresh(tx: Tx, nums: Sequence[int]) -> list[int]:
    here = metric_chunks.c
    found: list[int] = []
    for start in range(0, len(nums), 500):
        query = select(here.job).where(here.folded == 0, here.job.in_(nums[start : start + 500]))
        found += tx.conn.execute(query.distinct()).scalars()
    return found


def _of_intervals(
    row: SeriesRow,
    level: int,
    known: Intervals,
    newer: Samples,
    stored: StoredSamples,
    query: CurveQuery,
) -> Curve:
    """A curve of one level, with newer samples laid over it."""
    width = width_of(row.stride, level)
    if len(newer):
        renewed = rollups.renewed(known, newer, width, row.last_step, stored.of(row.key))
        known = rollups.replaced(known, renewed, width)
    inside = (known["last_step"] >= query.first) & (known["first_step"] <= query.last)
    known = known[inside] if not inside.all() else known
    samples = rollups.narrowed(known, width, query.max_points, query.reduce)
    count = int(known["count"].sum(dtype="i8"))
    return Curve(*row.key, samples.between(query.first, query.last), count)
