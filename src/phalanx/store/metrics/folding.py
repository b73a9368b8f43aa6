"""Join the chunks of reports into larger ones, and bring the roll-ups of a job up to date with them.

One transaction folds one job. Curves are right before and after it: what is not folded is read from chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sqlalchemy import Row, select, text

from phalanx.core.curves import chunks, rollups
from phalanx.core.curves.columns import NO_SAMPLES, MetricColumns, Samples, joined, stacked
from phalanx.core.curves.rollups import width_of
from phalanx.store.database import Tx
from phalanx.store.metrics import series
from phalanx.store.metrics.arrivals import columns_between, decoded
from phalanx.store.metrics.series import SeriesRow
from phalanx.store.schema.metrics import chunk_row, metric_chunks

# Limits of one transaction, and of the points in a joined chunk.
_MOST, _MOST_ROWS, _JOINED_ROWS = 512, 50_000, 16_384
_HERE = metric_chunks.c
# Any number that other programs in the same database hardly use.
_LOCK = text("SELECT pg_try_advisory_xact_lock(1886547820, :job)")


def fold(tx: Tx, job: int) -> bool:
    """Fold the oldest reports of a job, of one generation; returns whether some are left."""
    if not _is_alone(tx, job):
        return False
    query = select(metric_chunks).where(_HERE.job == job, _HERE.folded == 0).order_by(_HERE.id)
    found = tx.conn.execute(query.limit(_MOST + 1)).all()
    if not found:
        return False
    taken = _taken(found)
    parts = [decoded(row.id, row.data).columns for row in taken]
    fresh = stacked(parts)
    batch = {(job, name, rank): one.newest() for (rank, name), one in fresh.series().items()}
    _roll_up(tx, job, batch)
    _join(tx, job, taken, [part.num_rows for part in parts], fresh)
    return len(taken) < len(found)


def _is_alone(tx: Tx, job: int) -> bool:
    """Whether no other transaction folds this job; SQLite has one writer in all."""
    if tx.conn.dialect.name != "postgresql":
        return True
    return bool(tx.conn.execute(_LOCK, {"job": job % 2**31}).scalar())


def _taken(found: Sequence[Row[Any]]) -> list[Row[Any]]:
    """The first rows that are of one generation, up to the limits."""
    taken: list[Row[Any]] = []
    num_rows = 0
    for row in found[:_MOST]:
        num_rows += row.num_rows
        same = not taken or row[3:5] == taken[0][3:5]
        if not same or (taken and num_rows > _MOST_ROWS):
            break
        taken.append(row)
    return taken


def _join(
    tx: Tx, job: int, taken: Sequence[Row[Any]], sizes: Sequence[int], fresh: MetricColumns
) -> None:
    """Write what was taken as one chunk, together with the one before while that is small."""
    query = select(metric_chunks).where(_HERE.job == job, _HERE.folded == 1)
    before = tx.conn.execute(query.order_by(_HERE.last_id.desc()).limit(1)).first()
    rows = list(taken)
    arrivals = [(int(row.id), size) for row, size in zip(taken, sizes, strict=True)]
    same = before is not None and before[3:5] == taken[0][3:5]
    if before is not None and same and before.num_rows + fresh.num_rows <= _JOINED_ROWS:
        chunk = decoded(before.id, before.data)
        known = chunk.arrivals or [(int(before.id), chunk.columns.num_rows)]
        fresh, arrivals = stacked([chunk.columns, fresh]), [*known, *arrivals]
        rows = [before, *rows]
    tx.conn.execute(metric_chunks.delete().where(_HERE.id.in_([row.id for row in rows])))
    row = chunk_row(fresh, chunks.encode(fresh, arrivals))
    numbers = {"id": min(one.id for one in rows), "last_id": max(one.last_id for one in rows)}
    gang = {"job": job, "attempt": taken[0].attempt, "generation": taken[0].generation}
    tx.conn.execute(metric_chunks.insert(), row | numbers | gang | {"folded": 1})


def _roll_up(tx: Tx, job: int, batch: dict[series.SeriesKey, Samples]) -> None:
    names = sorted({name for _, name, _ in batch})
    known = [one for one in series.find(tx, [job], names) if one.key in batch]
    by_key = {one.key: one for one in known}
    stored = StoredSamples(tx, job, names)
    rows = [
        _summarized(_grown(tx, by_key.get(key), key, samples, stored), by_key.get(key), samples)
        for key, samples in sorted(batch.items())
    ]
    series.put(tx, rows)


def _summarized(row: SeriesRow, known: SeriesRow | None, fresh: Samples) -> SeriesRow:
    """The row with the least and the most finite value of before and of fresh samples."""
    values = fresh.values[np.isfinite(fresh.values)]
    before = row if known is None else known
    least, most = before.min_value, before.max_value
    if len(values):
        lowest, highest = float(values.min()), float(values.max())
        least = lowest if least is None else min(least, lowest)
        most = highest if most is None else max(most, highest)
    return replace(row, min_value=least, max_value=most)


@dataclass(slots=True)
class StoredSamples:
    """Samples of folded chunks between two steps. The last range is kept: series of a job share it."""

    tx: Tx
    job: int
    names: Sequence[str]
    _range: tuple[int, int] = (0, -1)
    _found: dict[tuple[int, str], list[Samples]] | None = None

    def of(self, key: series.SeriesKey) -> Callable[[int, int], Samples]:
        """A reader of one series."""

        def read(first: int, last: int) -> Samples:
            if self._found is None or (first, last) != self._range:
                self._range, self._found = (first, last), {}
                found = columns_between(
                    self.tx, self.job, names=self.names, first=first, last=last, folded=1
                )
                for columns in found:
                    for one, samples in columns.series(self.names).items():
                        self._found.setdefault(one, []).append(samples.between(first, last))
            return joined(self._found.get((key[2], key[1]), [NO_SAMPLES])).newest()

        return read


def _grown(
    tx: Tx, known: SeriesRow | None, key: series.SeriesKey, fresh: Samples, stored: StoredSamples
) -> SeriesRow:
    """The row of a series with newer samples; pages are written here."""
    first, last = int(fresh.steps[0]), int(fresh.steps[-1])
    if known is not None and known.levels:
        whole = replace(
            known, first_step=min(first, known.first_step), last_step=max(last, known.last_step)
        )
        return _lengthened(tx, whole, known.last_step, fresh, stored)
    before = NO_SAMPLES if known is None else rollups.unpack_samples(known.samples or b"")
    samples = joined([before, fresh]).newest()
    row = SeriesRow(
        *key,
        stride=rollups.stride_of(samples),
        levels=0,
        first_step=int(samples.steps[0]),
        last_step=int(samples.steps[-1]),
        count=len(samples),
        samples=rollups.pack_samples(samples) if len(samples) <= rollups.SHORT else None,
    )
    if row.samples is not None:
        return row
    return _lengthened(tx, replace(row, count=0), first - 1, samples, stored)


def _lengthened(
    tx: Tx, row: SeriesRow, rolled_to: int, fresh: Samples, stored: StoredSamples
) -> SeriesRow:
    """Write the intervals of all levels that newer samples are in."""
    width = width_of(row.stride, 0)
    first, last = int(fresh.steps[0]), int(fresh.steps[-1])
    begin, end = first // width, last // width
    known = series.intervals(tx, row.key, 0, begin, end)
    if not row.levels:
        rolled_to = first - 1
    renewed = rollups.renewed(known, fresh, width, rolled_to, stored.of(row.key))
    numbers = known["last_step"] // width
    less = int(known["count"][(numbers >= begin) & (numbers <= end)].sum())
    count = row.count - less + int(renewed["count"].sum())
    series.put_intervals(tx, row.key, 0, rollups.replaced(known, renewed, width), width)
    level = 0
    while row.first_step // (width * rollups.PAGE) != row.last_step // (width * rollups.PAGE):
        level += 1
        width *= rollups.FACTOR
        # A level that did not exist begins with the series.
        since = first if level < row.levels else row.first_step
        _write_level(tx, row, level, since // width, last // width)
    return replace(row, count=count, levels=max(level + 1, row.levels))


def _write_level(tx: Tx, row: SeriesRow, level: int, begin: int, end: int) -> None:
    """Make the intervals of a level with these numbers of those of the level below."""
    width = width_of(row.stride, level)
    below = (begin * rollups.FACTOR, (end + 1) * rollups.FACTOR - 1)
    fine = series.intervals(tx, row.key, level - 1, *below)
    numbers = fine["last_step"] // width
    renewed = rollups.by_step(fine[(numbers >= begin) & (numbers <= end)], width)
    known = series.intervals(tx, row.key, level, begin, end)
    if not len(known):
        known = np.empty(0, rollups.INTERVAL)
    series.put_intervals(tx, row.key, level, rollups.replaced(known, renewed, width), width)
