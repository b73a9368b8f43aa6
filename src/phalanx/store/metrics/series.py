"""Rows of roll-ups: one for each metric and rank of a job, and the pages of its levels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from sqlalchemy import bindparam, select, text

from phalanx.core.curves.rollups import (
    INTERVAL,
    PAGE,
    Intervals,
    pack_intervals,
    unpack_intervals,
    width_of,
)
from phalanx.errors import StoreCorrupt
from phalanx.store.database import Tx, columns_of
from phalanx.store.schema.metrics import metric_pages, metric_series

SeriesKey = tuple[int, str, int]
"""(job, name, rank)."""
_PAGES = metric_pages.c
_ONE = (
    select(_PAGES.data)
    .where(
        _PAGES.job == bindparam("_job"),
        _PAGES.name == bindparam("_name"),
        _PAGES.rank == bindparam("_rank"),
        _PAGES.level == bindparam("_level"),
        _PAGES.page.between(bindparam("_first"), bindparam("_last")),
    )
    .order_by(_PAGES.page)
)
# As text, because it is the same for both databases.
_PUT_PAGE = text(
    "INSERT INTO metric_pages (job, name, rank, level, page, data) "
    "VALUES (:job, :name, :rank, :level, :page, :data) "
    "ON CONFLICT (job, name, rank, level, page) DO UPDATE SET data = excluded.data"
)
_SERIES = tuple(column.name for column in metric_series.columns)
_PUT_SERIES = text(
    f"INSERT INTO metric_series ({', '.join(_SERIES)}) "  # noqa: S608 - own names
    f"VALUES ({', '.join(f':{one}' for one in _SERIES)}) ON CONFLICT (job, name, rank) DO UPDATE SET "
    + ", ".join(f"{one} = excluded.{one}" for one in _SERIES[3:])
)
# Names of jobs in one statement.
_MOST_JOBS = 500


@dataclass(frozen=True, slots=True)
class SeriesRow:
    """What is known of one metric of one rank, as far as its chunks are folded."""

    job: int  # job number
    name: str  # of the metric
    rank: int  # in the gang
    stride: int  # usual distance between two steps
    levels: int  # of its roll-ups; 0: `samples` has all of it
    first_step: int  # lowest
    last_step: int  # highest
    count: int  # steps that have a value
    samples: bytes | None = field(repr=False, default=None)  # of a short series
    min_value: float | None = None  # the least finite value that was reported
    max_value: float | None = None  # the most

    @property
    def key(self) -> SeriesKey:
        """(job, name, rank)."""
        return self.job, self.name, self.rank


def find(
    tx: Tx, nums: Sequence[int], names: Sequence[str] = (), ranks: Sequence[int] = ()
) -> list[SeriesRow]:
    """The series of some jobs, optionally of some metrics and ranks only."""
    here = metric_series.c
    found: list[SeriesRow] = []
    for start in range(0, len(nums), _MOST_JOBS):
        query = select(metric_series).where(here.job.in_(nums[start : start + _MOST_JOBS]))
        query = query.where(here.name.in_(list(names))) if names else query
        query = query.where(here.rank.in_(list(ranks))) if ranks else query
        found += [SeriesRow(*row) for row in tx.conn.execute(query)]
    return found


def put(tx: Tx, rows: Sequence[SeriesRow]) -> None:
    """Store rows, in place of those with the same keys."""
    if rows:
        tx.conn.execute(_PUT_SERIES, [columns_of(one) for one in rows])


def intervals(tx: Tx, key: SeriesKey, level: int, first: int, last: int) -> Intervals:
    """The intervals of a level with numbers from those of the page of `first` to that of `last`."""
    rows = tx.conn.execute(_ONE, _place(key, level, first // PAGE, last // PAGE)).scalars()
    return _whole(key, list(rows))


def put_intervals(tx: Tx, key: SeriesKey, level: int, found: Intervals, width: int) -> None:
    """Store the intervals of whole pages, in place of what these pages have."""
    pages = found["last_step"] // width // PAGE
    starts = np.flatnonzero(np.diff(pages, prepend=pages[0] - 1))
    named = dict(zip(("job", "name", "rank"), key, strict=True)) | {"level": level}
    rows = [
        named | {"page": int(pages[start]), "data": pack_intervals(part)}
        for start, part in zip(starts, np.split(found, starts[1:]), strict=True)
    ]
    tx.conn.execute(_PUT_PAGE, rows)


def intervals_of_many(
    tx: Tx, rows: Sequence[SeriesRow], level: int, first: int, last: int
) -> dict[SeriesKey, Intervals]:
    """The intervals of one level between two steps, of many series, a few statements in all."""
    found: dict[SeriesKey, list[bytes]] = {}
    wanted = {one.key: one for one in rows}
    nums = sorted({one.job for one in rows})
    names, ranks = sorted({one.name for one in rows}), sorted({one.rank for one in rows})
    columns = (_PAGES.job, _PAGES.name, _PAGES.rank, _PAGES.page, _PAGES.data)
    pages = [_pages(one, level, first, last) for one in rows]
    between = _PAGES.page.between(min(one[0] for one in pages), max(one[1] for one in pages))
    for start in range(0, len(nums), _MOST_JOBS):
        query = select(*columns).where(
            _PAGES.job.in_(nums[start : start + _MOST_JOBS]),
            _PAGES.name.in_(names),
            _PAGES.rank.in_(ranks),
            _PAGES.level == level,
            between,
        )
        order = (_PAGES.job, _PAGES.name, _PAGES.rank, _PAGES.page)
        for job, name, rank, _, data in tx.conn.execute(query.order_by(*order)):
            if (job, name, rank) in wanted:
                found.setdefault((job, name, rank), []).append(data)
    return {key: _whole(key, parts) for key, parts in found.items()}


def _pages(row: SeriesRow, level: int, first: int, last: int) -> tuple[int, int]:
    width = width_of(row.stride, level) * PAGE
    return max(first, row.first_step) // width, min(last, row.last_step) // width


def _place(key: SeriesKey, level: int, first: int, last: int) -> dict[str, Any]:
    job, name, rank = key
    place = {"_job": job, "_name": name, "_rank": rank, "_level": level}
    return place | {"_first": first, "_last": last}


def _whole(key: SeriesKey, parts: Sequence[bytes]) -> Intervals:
    try:
        found = [unpack_intervals(one) for one in parts]
    except ValueError as error:
        raise StoreCorrupt(f"metric {key[1]!r} of job {key[0]}: {error}") from error
    if len(found) == 1:
        return found[0]
    return np.concatenate(found) if found else np.empty(0, INTERVAL)
