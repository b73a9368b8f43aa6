"""Metric chunks and log segments: bulk data outside the event log, read by cursor."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    ColumnElement,
    RowMapping,
    Select,
    Table,
    Text,
    and_,
    cast,
    func,
    or_,
    select,
    text,
)

from phalanx.core.contract.records import MetricPoint
from phalanx.store.database import Tx, columns_of, take_numbers, to_json
from phalanx.store.tables import log_segments, metric_chunks, metric_names

_END = log_segments.c.offset + func.length(log_segments.c.data)


@dataclass(frozen=True, slots=True)
class LogSegment:
    """Bytes [offset, offset + len(data)) of one rank's stream in one generation."""

    id: int  # order of arrival
    job: int  # job number
    attempt: int  # number in the job
    generation: int  # number in the attempt
    rank: int  # global rank
    stream: str  # `out` or `err`
    offset: int  # of the first byte in the stream
    dropped: int  # bytes lost before this segment
    at: int  # µs UTC
    data: bytes  # raw output


@dataclass(frozen=True, slots=True)
class MetricChunk:
    """The points of one report of a supervisor; their times are on the control plane's clock."""

    id: int
    job: int
    attempt: int
    generation: int
    points: list[MetricPoint]


def logs_topic(job: int) -> str:
    """The notification topic of new log segments of a job."""
    return f"logs:{job}"


def _of_stream(job: int, key: tuple[int, int, int, str]) -> ColumnElement[bool]:
    """The segments of one stream; `key` is (attempt, generation, rank, stream)."""
    here = log_segments.c
    attempt, generation, rank, stream = key
    gang = and_(here.job == job, here.attempt == attempt, here.generation == generation)
    return and_(gang, here.rank == rank, here.stream == stream)


def add_log(tx: Tx, fresh: LogSegment) -> None:
    """Append a segment; its `id` is given here. Bytes that are known by their offset are left out.

    After a lost answer a supervisor reads its files again, and may cut them differently.
    """
    same = _of_stream(fresh.job, (fresh.attempt, fresh.generation, fresh.rank, fresh.stream))
    # Segments of a stream do not overlap, so the newest ends last; the index leads straight to it.
    newest = select(_END).where(same).order_by(log_segments.c.offset.desc()).limit(1)
    known = tx.conn.execute(newest).scalar()
    data = fresh.data[max(0, (known or 0) - fresh.offset) :]
    if not data:
        return
    offset = fresh.offset + len(fresh.data) - len(data)
    added = {"id": take_numbers(tx, "log"), "data": data, "offset": offset}
    tx.conn.execute(log_segments.insert(), columns_of(fresh) | added)
    tx.touched.topics.add(logs_topic(fresh.job))


def logs_after(
    tx: Tx,
    job: int,
    *,
    cursor: int,
    ranks: Sequence[int] = (),
    stream: str | None = None,
    max_bytes: int = 4 << 20,
) -> list[LogSegment]:
    """Read segments after `cursor`, oldest first, about `max_bytes` in total."""
    query = _logs(job, ranks, stream).where(log_segments.c.id > cursor).order_by(log_segments.c.id)
    return _up_to(tx, query, max_bytes)


def last_logs(
    tx: Tx,
    job: int,
    *,
    ranks: Sequence[int] = (),
    stream: str | None = None,
    max_bytes: int = 4 << 20,
) -> list[LogSegment]:
    """Read the newest segments, oldest first, about `max_bytes` in total."""
    query = _logs(job, ranks, stream).order_by(log_segments.c.id.desc())
    return _up_to(tx, query, max_bytes)[::-1]


def _logs(job: int, ranks: Sequence[int], stream: str | None) -> Any:
    query = select(log_segments).where(log_segments.c.job == job)
    if ranks:
        query = query.where(log_segments.c.rank.in_(list(ranks)))
    return query if stream is None else query.where(log_segments.c.stream == stream)


def _up_to(tx: Tx, query: Any, max_bytes: int) -> list[LogSegment]:
    found: list[LogSegment] = []
    size = 0
    with tx.conn.execution_options(yield_per=32).execute(query) as rows:
        for row in rows.mappings():
            found.append(LogSegment(**row))
            size += len(row["data"])
            if size >= max_bytes:
                break
    return found


def last_log_id(tx: Tx, job: int) -> int:
    """The cursor after the newest segment."""
    query = select(func.max(log_segments.c.id)).where(log_segments.c.job == job)
    return int(tx.conn.execute(query).scalar() or 0)


def add_points(
    tx: Tx, key: tuple[int, int, int], node_rank: int, points: Sequence[MetricPoint]
) -> None:
    """Append one chunk of points; `key` is (job, attempt, generation)."""
    if not points:
        return
    job, attempt, generation = key
    ranks = [point.rank for point in points]
    row = {
        "id": take_numbers(tx, "metric"),
        "job": job,
        "attempt": attempt,
        "generation": generation,
        "node_rank": node_rank,
        "first_step": min(point.step for point in points),
        "last_step": max(point.step for point in points),
        "points": [[*one[:3], _plain(one.values)] for one in points],
        "first_rank": min(ranks),
        "last_rank": max(ranks),
    }
    tx.conn.execute(metric_chunks.insert(), row)
    _add_names(tx, job, {name for point in points for name in point.values})


def _add_names(tx: Tx, job: int, names: set[str]) -> None:
    fresh = names.difference(names_of(tx, job))
    if fresh:
        # Supervisors of one job may add the same name at the same time.
        insert = text(
            "INSERT INTO metric_names (job, name) VALUES (:job, :name) ON CONFLICT DO NOTHING"
        )
        tx.conn.execute(insert, [{"job": job, "name": name} for name in sorted(fresh)])


def names_of(tx: Tx, job: int) -> list[str]:
    """The names of all metrics that a job has reported."""
    query = select(metric_names.c.name).where(metric_names.c.job == job)
    return list(tx.conn.execute(query).scalars())


def points_of(
    tx: Tx, job: int, *, names: Sequence[str] = (), ranks: Sequence[int] = (), after_step: int = -1
) -> Iterator[MetricPoint]:
    """A job's points after step `after_step` in the order of arrival, optionally of some ranks only.

    With `names`, points without any of these metrics may be left out. Rows are read as the iterator
    advances, inside the transaction: a long job has many.
    """
    query = chunk_query(job, names=names, ranks=ranks, after_step=after_step)
    wanted = frozenset(ranks)
    with tx.conn.execution_options(yield_per=32).execute(query) as rows:
        for row in rows.mappings():
            for rank, step, at, values in row["points"]:
                if step > after_step and (not wanted or rank in wanted):
                    yield MetricPoint(rank, step, at, _floats(values))


def chunk_query(
    job: int, *, names: Sequence[str] = (), ranks: Sequence[int] = (), after_step: int = -1
) -> Select[Any]:
    """The chunks that may hold points of these metrics and ranks after a step, in order of arrival."""
    here = metric_chunks.c
    query = select(here.points).where(here.job == job, here.last_step > after_step)
    if ranks:
        query = query.where(here.first_rank <= max(ranks), here.last_rank >= min(ranks))
    if names:
        stored = cast(here.points, Text)
        keys = [stored.contains(to_json(name), autoescape=True) for name in names]
        query = query.where(or_(*keys))
    return query.order_by(here.id)


def last_chunks(tx: Tx, job: int, *, num_chunks: int = 4) -> list[MetricChunk]:
    """The newest chunks of a job, oldest first."""
    query = (
        select(metric_chunks)
        .where(metric_chunks.c.job == job)
        .order_by(metric_chunks.c.id.desc())
        .limit(num_chunks)
    )
    return [_chunk(row) for row in tx.conn.execute(query).mappings()][::-1]


def chunks_after(tx: Tx, after: int, *, limit: int) -> list[MetricChunk]:
    """Read the chunks of all jobs after a chunk id, in order."""
    query = (
        select(metric_chunks)
        .where(metric_chunks.c.id > after)
        .order_by(metric_chunks.c.id)
        .limit(limit)
    )
    return [_chunk(row) for row in tx.conn.execute(query).mappings()]


def _chunk(row: RowMapping) -> MetricChunk:
    points = [
        MetricPoint(rank, step, at, _floats(values)) for rank, step, at, values in row["points"]
    ]
    return MetricChunk(row["id"], row["job"], row["attempt"], row["generation"], points)


def last_chunk_id(tx: Tx) -> int:
    """The id of the newest chunk of any job."""
    return int(tx.conn.execute(select(func.max(metric_chunks.c.id))).scalar() or 0)


def drop_logs(tx: Tx, *, before: int, limit: int) -> int:
    """Delete up to `limit` of the oldest segments from before a time and return their number.

    They are numbered as they come, so those to go are the first ones.
    """
    here = log_segments.c
    oldest = tx.conn.execute(select(here.id, here.at).order_by(here.id).limit(limit))
    return _drop(tx, log_segments, [number for number, at in oldest if at < before])


def drop_points(tx: Tx, nums: Sequence[int], *, limit: int) -> int:
    """Delete up to `limit` metric chunks of these jobs and return their number."""
    if not nums:
        return 0
    here = metric_chunks.c
    query = select(here.id).where(here.job.in_(nums)).limit(limit)
    gone = _drop(tx, metric_chunks, list(tx.conn.execute(query).scalars()))
    if gone < limit:
        tx.conn.execute(metric_names.delete().where(metric_names.c.job.in_(nums)))
    return gone


def _drop(tx: Tx, table: Table, ids: Sequence[int]) -> int:
    if ids:
        tx.conn.execute(table.delete().where(table.c.id.in_(ids)))
    return len(ids)


def _plain(values: dict[str, float]) -> dict[str, float | str]:
    """JSON has no NaN and no infinity: they are stored as text."""
    return {key: one if math.isfinite(one) else str(one) for key, one in values.items()}


def _floats(values: dict[str, float | str]) -> dict[str, float]:
    return {key: float(one) for key, one in values.items()}


def line_start(
    tx: Tx, job: int, key: tuple[int, int, int, str], *, start: int, up_to: int
) -> bytes:
    """Bytes from offset `start` of one stream, as far as segment `up_to`.

    `key` is (attempt, generation, rank, stream).
    """
    here = log_segments.c
    query = (
        select(here.offset, here.data)
        .where(_of_stream(job, key), here.id <= up_to, start < _END)
        .order_by(here.offset)
    )
    return b"".join(data[max(0, start - offset) :] for offset, data in tx.conn.execute(query))
