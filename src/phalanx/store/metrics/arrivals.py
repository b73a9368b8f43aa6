"""Points of metrics in the order of their arrival: appended by report, read by cursor or by steps.

A chunk is one report, or several that were joined; readers see the reports either way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from sqlalchemy import ColumnElement, Row, Select, and_, bindparam, func, or_, select, text

from phalanx.core.contract.records import MetricPoint
from phalanx.errors import StoreCorrupt
from phalanx.store.database import Tx, take_numbers
from phalanx.store.engines.many_rows import run_many
from phalanx.store.metrics import last_values
from phalanx.store.schema.listings import job_listing
from phalanx.store.schema.metrics import (
    chunk_row,
    metric_chunks,
    metric_last,
    metric_names,
    metric_pages,
    metric_series,
)

if TYPE_CHECKING:
    from phalanx.core.curves.chunks import DecodedChunk
    from phalanx.core.curves.columns import MetricColumns

MetricsKey: TypeAlias = tuple[int, int, int]
"""(job, attempt, generation)."""
FULL = 64
"""Reports of a job that are folded together, at least, while it goes on reporting."""
FULL_ROWS = 10_000
"""Points of a job that are folded together, at least, while it goes on reporting."""
IDLE_US = 30 * 1_000_000
"""A job that has reported nothing for this long is folded whatever it has."""
_HERE = metric_chunks.c
# Points that are read at once, about: a joined chunk has thousands.
_MOST_ROWS = 50_000
_FEW_AT_A_TIME = {"yield_per": 4}
# Statements that run for each report are made once: to make one costs more than to run it.
_ADD = metric_chunks.insert()
_NAMES = select(metric_names.c.name).where(metric_names.c.job == bindparam("_job"))
_NAMES_OF_MANY = select(metric_names.c.job, metric_names.c.name).where(
    metric_names.c.job.in_(bindparam("_jobs", expanding=True))
)
_ENDED = (
    select(_HERE.job)
    .join(job_listing, job_listing.c.num == _HERE.job)
    .where(_HERE.folded == 0, job_listing.c.ended_at.is_not(None))
    .distinct()
    .order_by(_HERE.job)
)
_ADD_NAME = text("INSERT INTO metric_names (job, name) VALUES (:job, :name) ON CONFLICT DO NOTHING")


@dataclass(frozen=True, slots=True, eq=False)
class MetricChunk:
    """The points of one report of a supervisor; their times are on the control plane's clock."""

    id: int
    job: int
    attempt: int
    generation: int
    columns: MetricColumns = field(repr=False)

    @property
    def points(self) -> list[MetricPoint]:
        """The points one by one, which are made anew at each call."""
        return self.columns.points(0, self.columns.num_rows)


def metrics_topic(job: int) -> str:
    """The notification topic of new metrics of a job."""
    return f"metrics:{job}"


def add_points(tx: Tx, key: MetricsKey, points: Sequence[MetricPoint]) -> None:
    """Append the points of one report. Raises OverflowError for a step or a time of more than 64 bits."""
    add_columns(tx, [(key, columns) for columns in columns_in(points)])


def columns_in(points: Sequence[MetricPoint]) -> list[MetricColumns]:
    """The columns of some points, in parts that fit in a chunk. Raises OverflowError, as `add_points`."""
    if not points:
        return []
    from phalanx.core.curves import chunks
    from phalanx.core.curves.columns import columns_of

    columns = columns_of(points)
    if columns.num_rows > chunks.MAX_ROWS or columns.num_values > chunks.MAX_VALUES:
        half = len(points) // 2
        return columns_in(points[:half]) + columns_in(points[half:])
    return [columns]


def add_columns(tx: Tx, reports: Sequence[tuple[MetricsKey, MetricColumns]]) -> None:
    """Append reports, in a few statements; each has a row at least, and no more than fit in a chunk."""
    if not reports:
        return
    from phalanx.core.curves import chunks

    first = take_numbers(tx, "metric", len(reports))
    rows, names = list[dict[str, Any]](), dict[int, set[str]]()
    for number, ((job, attempt, generation), columns) in enumerate(reports, first):
        row = chunk_row(columns, chunks.encode_report(columns))
        row |= {"job": job, "attempt": attempt, "generation": generation}
        rows.append(row | {"id": number, "last_id": number, "folded": 0})
        tx.touched.topics.add(metrics_topic(job))
        names.setdefault(job, set()).update(columns.values)
    run_many(tx.conn, _ADD, rows)
    counts = _add_names(tx, names)
    full = {job for job, many in counts.items() if many > last_values.MAX_NAMES}
    last_values.put(tx, [(key[0], columns) for key, columns in reports], full)


def _add_names(tx: Tx, names: Mapping[int, set[str]]) -> Counter[int]:
    """Note names of metrics of some jobs, and return the number of names of each."""
    known = {(job, name) for job, name in tx.conn.execute(_NAMES_OF_MANY, {"_jobs": list(names)})}
    fresh = {(job, name) for job, some in names.items() for name in some} - known
    if fresh:
        # Supervisors of one job may add the same name at the same time.
        rows = [{"job": job, "name": name} for job, name in sorted(fresh)]
        tx.conn.execute(_ADD_NAME, rows)
    return Counter(job for job, _ in known | fresh)


def names_of(tx: Tx, job: int) -> list[str]:
    """The names of all metrics that a job has reported."""
    return list(tx.conn.execute(_NAMES, {"_job": job}).scalars())


def decoded(number: int, data: bytes, names: Sequence[str] = ()) -> DecodedChunk:
    """Read the bytes of a chunk. Raises StoreCorrupt."""
    from phalanx.core.curves import chunks

    try:
        return chunks.decode(data, names or None)
    except ValueError as error:
        raise StoreCorrupt(f"metric chunk {number}: {error}") from error


def columns_between(
    tx: Tx,
    job: int,
    *,
    names: Sequence[str] = (),
    ranks: Sequence[int] = (),
    first: int,
    last: int,
    folded: int,
) -> Iterator[MetricColumns]:
    """The chunks of a job that may hold these metrics, ranks and steps, in the order of arrival.

    Rows are read as the iterator advances, inside the transaction: a long job has many.
    """
    query = chunk_query(job, ranks=ranks, first=first, last=last, folded=folded)
    with tx.conn.execute(query, execution_options=_FEW_AT_A_TIME) as rows:
        for row in rows:
            yield decoded(row.id, row.data, names).columns


def chunk_query(
    job: int, *, ranks: Sequence[int] = (), first: int, last: int, folded: int
) -> Select[Any]:
    """The chunks that may hold points of these ranks and steps."""
    steps = and_(_HERE.last_step >= first, _HERE.first_step <= last)
    query = select(_HERE.id, _HERE.data).where(_HERE.job == job, steps, _HERE.folded == folded)
    if ranks:
        query = query.where(_HERE.first_rank <= max(ranks), _HERE.last_rank >= min(ranks))
    return query.order_by(_HERE.id)


def last_chunks(
    tx: Tx,
    job: int,
    *,
    num_chunks: int = 4,
    rank: int | None = None,
    names: Sequence[str] = (),
) -> list[MetricChunk]:
    """The newest reports of a job, oldest first; with `rank`, those that may have points of it.

    With `names`, their points have the values of these metrics only.
    """
    query = select(metric_chunks).where(_HERE.job == job).order_by(_HERE.last_id.desc())
    if rank is not None:
        query = query.where(_HERE.first_rank <= rank, _HERE.last_rank >= rank)
    found: list[MetricChunk] = []
    with tx.conn.execute(query.limit(num_chunks), execution_options=_FEW_AT_A_TIME) as rows:
        for row in rows:
            found = _reports(row, newest=num_chunks - len(found), names=names) + found
            if len(found) >= num_chunks:
                break
    return found


def chunks_after(tx: Tx, after: int, *, limit: int) -> tuple[list[MetricChunk], bool]:
    """The reports of all jobs after a number, in order, and whether more follow."""
    return _after(tx, after, limit, None)


def chunks_of(tx: Tx, job: int, *, after: int, limit: int) -> tuple[list[MetricChunk], bool]:
    """The reports of one job after a number, in order, and whether more follow."""
    return _after(tx, after, limit, _HERE.job == job)


def _after(
    tx: Tx, after: int, limit: int, among: ColumnElement[bool] | None
) -> tuple[list[MetricChunk], bool]:
    """A page ends before the first report that a chunk behind it may hold: joined chunks overlap."""
    straddling = select(metric_chunks).where(_HERE.last_id > after, _HERE.id <= after)
    fresh = select(metric_chunks).where(_HERE.id > after).order_by(_HERE.id)
    if among is not None:
        straddling, fresh = straddling.where(among), fresh.where(among)
    rows: list[Row[Any]] = []
    last, num_rows = None, 0
    with tx.conn.execute(fresh.limit(limit), execution_options=_FEW_AT_A_TIME) as stored:
        for row in stored:
            rows.append(row)
            num_rows += row.num_rows
            if len(rows) == limit or num_rows >= _MOST_ROWS:
                last = int(row.id)
                break
    rows += tx.conn.execute(straddling).all()
    found = [one for row in rows for one in _reports(row, after, last)]
    return sorted(found, key=lambda one: one.id), last is not None


def _reports(
    row: Row[Any],
    after: int = 0,
    last: int | None = None,
    newest: int | None = None,
    names: Sequence[str] = (),
) -> list[MetricChunk]:
    """The reports in a chunk with numbers above `after`, up to `last`; at most the `newest` of them."""
    chunk = decoded(row.id, row.data, names)
    begin, places = 0, []
    for number, many in chunk.arrivals or [(row.id, chunk.columns.num_rows)]:
        if number > after and (last is None or number <= last):
            places.append((number, begin, begin + many))
        begin += many
    return [
        MetricChunk(number, row.job, row.attempt, row.generation, chunk.columns.part(begin, end))
        for number, begin, end in (places if newest is None else places[-newest:])
    ]


def last_chunk_id(tx: Tx) -> int:
    """The number of the newest report of any job."""
    return int(tx.conn.execute(select(func.max(_HERE.last_id))).scalar() or 0)


def due(tx: Tx, now: int, *, limit: int) -> list[int]:
    """Jobs with enough reports to fold, or with some that are not recent; first those that have ended."""
    over = list(tx.conn.execute(_ENDED.limit(limit)).scalars())
    many, rows = func.count(), func.sum(_HERE.num_rows)
    idle = func.max(_HERE.newest_at) < now - IDLE_US
    query = select(_HERE.job).where(_HERE.folded == 0).group_by(_HERE.job)
    query = query.having(or_(many >= FULL, rows >= FULL_ROWS, idle))
    found = tx.conn.execute(query.order_by(_HERE.job).limit(limit)).scalars()
    return list(dict.fromkeys([*over, *found]))[:limit]


def with_points(tx: Tx, nums: Sequence[int]) -> list[int]:
    """Those of these jobs that have metrics."""
    return list(tx.conn.execute(select(_HERE.job).where(_HERE.job.in_(nums)).distinct()).scalars())


def drop_points(tx: Tx, nums: Sequence[int], *, limit: int) -> int:
    """Delete up to `limit` metric chunks of these jobs, the rest with the last; returns their number."""
    if not nums:
        return 0
    query = select(_HERE.id).where(_HERE.job.in_(nums)).limit(limit)
    gone = list(tx.conn.execute(query).scalars())
    if gone:
        tx.conn.execute(metric_chunks.delete().where(_HERE.id.in_(gone)))
    if len(gone) < limit:
        for table in (metric_pages, metric_series, metric_last, metric_names):
            tx.conn.execute(table.delete().where(table.c.job.in_(nums)))
    return len(gone)
