"""Log segments: bulk data outside the event log, read by cursor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Select,
    Table,
    and_,
    func,
    select,
    text,
)

from phalanx.store.database import (
    Tx,
    columns_of,
    read,
    take_numbers,
)
from phalanx.store.tables import (
    log_segments,
    log_streams,
    log_volumes,
)

# Readers return a longer line in pieces, so the start of one is shorter.
_MAX_LINE_START_BYTES = 4 << 20
_END = log_segments.c.offset + func.length(log_segments.c.data)
# Of the bytes that a job may have stored, this share belongs to the beginning of its output.
_HEAD_SHARE = 1 / 8
# How far below the limit a job is brought at once.
_SLACK = 1 / 16
_BATCH = 500
# For one statement: as options of the connection they would turn its later statements into cursors too,
# which PostgreSQL refuses for a DELETE.
_FEW_AT_A_TIME = {"yield_per": 4}

StreamKey = tuple[int, int, int, str]
"""(attempt, generation, rank, stream)."""


@dataclass(frozen=True, slots=True)
class LogSegment:
    """Bytes [offset, offset + len(data)) of one rank's stream in one generation.

    Without data: the stream has ended at `offset`.
    """

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


def logs_topic(job: int) -> str:
    """The notification topic of new log segments of a job."""
    return f"logs:{job}"


def _of_stream(job: int, key: StreamKey) -> ColumnElement[bool]:
    """The segments of one stream; `key` is (attempt, generation, rank, stream)."""
    here = log_segments.c
    attempt, generation, rank, stream = key
    gang = and_(here.job == job, here.attempt == attempt, here.generation == generation)
    return and_(gang, here.rank == rank, here.stream == stream)


@dataclass(frozen=True, slots=True)
class LogStream:
    """What is known of one output stream of one rank in one generation."""

    job: int  # job number
    attempt: int  # number in the job
    generation: int  # number in the attempt
    rank: int  # global rank
    stream: str  # `out` or `err`
    received: int  # bytes up to here were received once
    size: int | None  # all that the rank wrote; None: not known, or all was received
    expired: int  # bytes before this offset were deleted because of their age

    @property
    def key(self) -> StreamKey:
        """(attempt, generation, rank, stream)."""
        return self.attempt, self.generation, self.rank, self.stream


def log_stream(tx: Tx, job: int, key: StreamKey) -> LogStream | None:
    """Read what is known of one stream."""
    row = tx.conn.execute(select(log_streams).where(_is_stream(job, key))).mappings().first()
    return None if row is None else LogStream(**row)


def log_streams_of(tx: Tx, job: int, attempt: int) -> list[LogStream]:
    """Read what is known of the streams of an attempt."""
    here = log_streams.c
    return read(tx, LogStream, select(log_streams).where(here.job == job, here.attempt == attempt))


def _is_stream(job: int, key: StreamKey) -> ColumnElement[bool]:
    here = log_streams.c
    attempt, generation, rank, stream = key
    gang = and_(here.job == job, here.attempt == attempt, here.generation == generation)
    return and_(gang, here.rank == rank, here.stream == stream)


def _put_stream(tx: Tx, job: int, key: StreamKey, known: LogStream | None, **values: int) -> None:
    if known is not None:
        tx.conn.execute(log_streams.update().where(_is_stream(job, key)).values(**values))
        return
    attempt, generation, rank, stream = key
    row = {"job": job, "attempt": attempt, "generation": generation, "rank": rank}
    tx.conn.execute(log_streams.insert(), {**row, "stream": stream, "received": 0, **values})


def add_log(tx: Tx, fresh: LogSegment, max_bytes: int | None = None) -> None:
    """Append a segment; its `id` is given here. Bytes that were received before are left out.

    After a lost answer a supervisor reads its files again, and may cut them differently. When the job has
    more than `max_bytes` stored, its oldest segments behind the beginning are deleted.
    """
    key = (fresh.attempt, fresh.generation, fresh.rank, fresh.stream)
    known = log_stream(tx, fresh.job, key)
    received = 0 if known is None else known.received
    data = fresh.data[max(0, received - fresh.offset) :]
    if not data:
        return
    offset = fresh.offset + len(fresh.data) - len(data)
    # Lost bytes lie before the segment: they were stored with its first part.
    dropped = fresh.dropped if offset == fresh.offset else 0
    if known is not None:
        _drop_mark(tx, fresh.job, key, offset)
    number = _insert(tx, fresh, offset, dropped, data)
    _put_stream(tx, fresh.job, key, known, received=offset + len(data))
    _grow(tx, fresh.job, number, len(data), max_bytes)


def end_log(tx: Tx, end: LogSegment) -> None:
    """Record that a stream has ended at `end.offset`, whether or not all of it was received.

    Stored as a segment without data, where bytes before it are missing; later bytes may still fill the gap.
    """
    key = (end.attempt, end.generation, end.rank, end.stream)
    known = log_stream(tx, end.job, key)
    received = 0 if known is None else known.received
    if known is not None and known.size is not None and known.size >= end.offset:
        return
    if received >= end.offset and not end.dropped:
        return
    _insert(tx, end, end.offset, end.dropped, b"")
    _put_stream(tx, end.job, key, known, size=end.offset)


def _insert(tx: Tx, fresh: LogSegment, offset: int, dropped: int, data: bytes) -> int:
    number = take_numbers(tx, "log")
    added = {"id": number, "data": data, "offset": offset, "dropped": dropped}
    tx.conn.execute(log_segments.insert(), columns_of(fresh) | added)
    tx.touched.topics.add(logs_topic(fresh.job))
    return number


def _drop_mark(tx: Tx, job: int, key: StreamKey, offset: int) -> None:
    """Delete the mark at an offset where more bytes follow."""
    here = log_segments.c
    same = and_(_of_stream(job, key), here.offset == offset, func.length(here.data) == 0)
    tx.conn.execute(log_segments.delete().where(same))


def _grow(tx: Tx, job: int, number: int, num_bytes: int, max_bytes: int | None) -> None:
    """Count the bytes of segment `number`, and delete the oldest ones above the limit."""
    here = log_volumes.c
    added = here.stored_bytes + num_bytes
    grow = log_volumes.update().where(here.job == job).values(stored_bytes=added)
    row = tx.conn.execute(grow.returning(here.stored_bytes, here.head_id)).first()
    if row is None:
        # Supervisors of one job may add the first segments at the same time.
        insert = text(
            "INSERT INTO log_volumes (job, stored_bytes, head_id) VALUES (:job, 0, 0) "
            "ON CONFLICT DO NOTHING"
        )
        tx.conn.execute(insert, {"job": job})
        row = tx.conn.execute(grow.returning(here.stored_bytes, here.head_id)).one()
    stored, head_id = row
    if max_bytes is None:
        return
    if stored <= max_bytes * _HEAD_SHARE:
        tx.conn.execute(log_volumes.update().where(here.job == job).values(head_id=number))
    elif stored > max_bytes:
        _shrink(tx, job, head_id, stored - round(max_bytes * (1 - _SLACK)))


def _shrink(tx: Tx, job: int, head_id: int, num_bytes: int) -> None:
    """Delete the oldest segments behind the protected beginning, at least `num_bytes` of them.

    The last segment of a stream stays as a mark without data: readers find the end of what is missing.
    """
    here = log_segments.c
    size = func.length(here.data)
    key = (here.attempt, here.generation, here.rank, here.stream)
    query = select(here.id, size, _END, *key)
    query = query.where(here.job == job, here.id > head_id, size > 0).order_by(here.id)
    gone: list[int] = []
    ends: dict[StreamKey, tuple[int, int]] = {}
    freed = 0
    with tx.conn.execute(query, execution_options=_FEW_AT_A_TIME) as rows:
        for number, length, end, *stream in rows:
            if freed >= num_bytes:
                break
            gone.append(number)
            ends[stream[0], stream[1], stream[2], stream[3]] = number, end
            freed += length
    for stream_key, (number, end) in ends.items():
        known = log_stream(tx, job, stream_key)
        if known is not None and known.received == end != known.size:
            gone.remove(number)
            mark = log_segments.update().where(here.id == number)
            tx.conn.execute(mark.values(offset=end, data=b"", dropped=0))
    for start in range(0, len(gone), _BATCH):
        _drop(tx, log_segments, gone[start : start + _BATCH])
    less = log_volumes.c.stored_bytes - freed
    tx.conn.execute(log_volumes.update().where(log_volumes.c.job == job).values(stored_bytes=less))


def expired_streams(tx: Tx, job: int) -> list[LogStream]:
    """The streams of which nothing is stored any more because of their age."""
    here = log_streams.c
    gone = and_(here.job == job, here.expired > 0, here.expired >= here.received)
    return read(tx, LogStream, select(log_streams).where(gone).order_by(*log_streams.primary_key))


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
    # A segment may have a megabyte: few are read ahead.
    with tx.conn.execute(query, execution_options=_FEW_AT_A_TIME) as rows:
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


def drop_logs(
    tx: Tx, *, before: int, limit: int, among: Select[Any] | None = None
) -> tuple[int, int]:
    """Delete up to `limit` of the oldest segments from before a time; returns their number and bytes.

    They are numbered as they come, so those to go are the first ones. `among` is a query for the numbers of
    jobs; None: all jobs.
    """
    here = log_segments.c
    columns = (here.id, here.at, here.job, here.attempt, here.generation, here.rank, here.stream)
    query = select(*columns, _END.label("end"), func.length(here.data).label("size"))
    if among is not None:
        query = query.where(here.job.in_(among))
    rows = tx.conn.execute(query.order_by(here.id).limit(limit)).all()
    old = [row for row in rows if row.at < before]
    sizes: Counter[int] = Counter()
    for row in old:
        sizes[row.job] += row.size
        key = (row.attempt, row.generation, row.rank, row.stream)
        is_later = and_(_is_stream(row.job, key), log_streams.c.expired < row.end)
        tx.conn.execute(log_streams.update().where(is_later).values(expired=row.end))
    for job, size in sizes.items():
        less = log_volumes.c.stored_bytes - size
        is_job = log_volumes.c.job == job
        tx.conn.execute(log_volumes.update().where(is_job).values(stored_bytes=less))
    return _drop(tx, log_segments, [row.id for row in old]), sum(sizes.values())


def old_logs(tx: Tx, *, before: int, among: Select[Any]) -> tuple[int, int]:
    """The number and the bytes of segments from before a time, of some jobs."""
    here = log_segments.c
    size = func.coalesce(func.sum(func.length(here.data)), 0)
    query = select(func.count(), size).where(here.at < before, here.job.in_(among))
    found = tx.conn.execute(query).one()
    return int(found[0]), int(found[1])


def _drop(tx: Tx, table: Table, ids: Sequence[int]) -> int:
    if ids:
        tx.conn.execute(table.delete().where(table.c.id.in_(ids)))
    return len(ids)


def line_start(tx: Tx, job: int, key: StreamKey, *, start: int, up_to: int) -> tuple[int, bytes]:
    """Bytes of one stream from offset `start`, as far as segment `up_to`, and where they begin.

    They begin later than `start` where bytes in between are not stored any more.
    """
    here = log_segments.c
    query = (
        select(here.offset, here.data)
        .where(_of_stream(job, key), here.id <= up_to, start < _END)
        .order_by(here.offset)
    )
    found = bytearray()
    with tx.conn.execute(query, execution_options=_FEW_AT_A_TIME) as rows:
        for offset, data in rows:
            if offset > start + len(found):
                start, found = offset, bytearray()
            found += data[max(0, start - offset) :] if not found else data
            # The cursor comes from outside, and may name the beginning of a long stream.
            if len(found) > _MAX_LINE_START_BYTES:
                break
    return start, bytes(found)


def end_before(tx: Tx, job: int, key: StreamKey, offset: int) -> int:
    """Where the stored segment of one stream before `offset` ends; 0 where there is none."""
    here = log_segments.c
    query = select(_END).where(_of_stream(job, key), here.offset < offset)
    query = query.order_by(here.offset.desc()).limit(1)
    return int(tx.conn.execute(query).scalar() or 0)
