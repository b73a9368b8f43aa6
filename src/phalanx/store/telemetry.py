"""Log segments: bulk data outside the event log, read by cursor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
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

from phalanx.core.logs.segments import LogSegment, StreamKey
from phalanx.store.database import (
    Tx,
    columns_of,
    read,
    take_numbers,
)
from phalanx.store.logs import packs
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
    """What is known of one output stream of one rank in one generation.

    Every byte before `received` is stored, expired, or in the range that the job's limit deleted.
    """

    job: int  # job number
    attempt: int  # number in the job
    generation: int  # number in the attempt
    rank: int  # global rank
    stream: str  # `out` or `err`
    received: int  # bytes up to here were received once
    size: int | None  # all that the rank wrote; None: not known, or all was received
    expired: int  # bytes before this offset were deleted because of their age
    by_quota: int = 0  # the last ones of these were deleted by the quota of all jobs: their number
    end_id: int = 0  # the place of `size` in the order of arrival; 0: it was not said
    end_at: int = 0  # when it was said, µs UTC
    end_lost: int = 0  # bytes that were lost before the end
    packed: int = 0  # bytes before this offset are in packs, as far as they are stored
    #: bytes from here to `cut_end` were deleted because of the job's limit
    cut_begin: int = 0
    cut_end: int = 0  # see `cut_begin`
    cut_lost: int = 0  # bytes that were lost in the deleted range, and are in no offset

    @property
    def key(self) -> StreamKey:
        """(attempt, generation, rank, stream)."""
        return self.attempt, self.generation, self.rank, self.stream

    def told_before(self, end: int) -> int:
        """`end`, up to which everything is stored or told; 0 where all of that has expired."""
        return 0 if self.expired >= end else end


@dataclass(frozen=True, slots=True)
class CutPlace:
    """The place in a job's output where its limit deleted a range."""

    id: int  # the last segment that was deleted; 0: none was
    at: int  # µs UTC


def log_stream(tx: Tx, job: int, key: StreamKey) -> LogStream | None:
    """Read what is known of one stream."""
    row = tx.conn.execute(select(log_streams).where(_is_stream(job, key))).mappings().first()
    return None if row is None else LogStream(**row)


def log_streams_of(tx: Tx, job: int, attempt: int) -> list[LogStream]:
    """Read what is known of the streams of an attempt."""
    here = log_streams.c
    return read(tx, LogStream, select(log_streams).where(here.job == job, here.attempt == attempt))


def streams_of(tx: Tx, job: int, keys: Collection[StreamKey]) -> dict[StreamKey, LogStream]:
    """Read what is known of some streams of a job."""
    here = log_streams.c
    query = select(log_streams).where(
        here.job == job,
        here.attempt.in_({key[0] for key in keys}),
        here.generation.in_({key[1] for key in keys}),
        here.rank.between(
            min((key[2] for key in keys), default=0), max((key[2] for key in keys), default=0)
        ),
    )
    return {one.key: one for one in read(tx, LogStream, query)}


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
    number = _insert(tx, fresh, offset, dropped, data)
    _put_stream(tx, fresh.job, key, known, received=offset + len(data))
    _grow(tx, replace(fresh, id=number, data=data), max_bytes)


def end_log(tx: Tx, end: LogSegment) -> None:
    """Record that a stream has ended at `end.offset`, whether or not all of it was received.

    Later bytes may still fill the gap.
    """
    key = (end.attempt, end.generation, end.rank, end.stream)
    known = log_stream(tx, end.job, key)
    received = 0 if known is None else known.received
    if known is not None and known.size is not None and known.size >= end.offset:
        return
    if received >= end.offset and not end.dropped:
        return
    lost = end.dropped if known is None else known.end_lost + end.dropped
    place = {"end_id": take_numbers(tx, "log"), "end_at": end.at, "end_lost": lost}
    tx.touched.topics.add(logs_topic(end.job))
    _put_stream(tx, end.job, key, known, size=end.offset, **place)
    of_job = log_volumes.update().where(log_volumes.c.job == end.job)
    tx.conn.execute(of_job.values(newest_id=place["end_id"]))


def _insert(tx: Tx, fresh: LogSegment, offset: int, dropped: int, data: bytes) -> int:
    number = take_numbers(tx, "log")
    added = {"id": number, "data": data, "offset": offset, "dropped": dropped}
    tx.conn.execute(log_segments.insert(), columns_of(fresh) | added)
    tx.touched.topics.add(logs_topic(fresh.job))
    return number


def _grow(tx: Tx, added: LogSegment, max_bytes: int | None) -> None:
    """Count the bytes of a segment, and delete the oldest ones above the limit."""
    here, job = log_volumes.c, added.job
    grown = {
        "stored_bytes": here.stored_bytes + len(added.data),
        "loose_bytes": here.loose_bytes + len(added.data),
        "newest_at": added.at,
        "newest_id": added.id,
    }
    grow = log_volumes.update().where(here.job == job).values(**grown)
    grow = grow.returning(here.stored_bytes, here.head_id, here.cut_id)
    row = tx.conn.execute(grow).first()
    if row is None:
        # Supervisors of one job may add the first segments at the same time.
        insert = text(
            "INSERT INTO log_volumes (job, stored_bytes, head_id) VALUES (:job, 0, 0) "
            "ON CONFLICT DO NOTHING"
        )
        tx.conn.execute(insert, {"job": job})
        row = tx.conn.execute(grow).one()
    stored, head_id, cut_id = row
    if max_bytes is None:
        return
    if stored <= max_bytes * _HEAD_SHARE and not cut_id:
        tx.conn.execute(log_volumes.update().where(here.job == job).values(head_id=added.id))
    elif stored > max_bytes:
        _shrink(tx, job, head_id, stored - round(max_bytes * (1 - _SLACK)), added.at)


def _shrink(tx: Tx, job: int, head_id: int, num_bytes: int, now: int) -> None:
    """Delete the oldest packs and segments behind the protected beginning, at least `num_bytes` of them.

    What each stream loses is one range, which its row tells: it begins where the protected beginning ends,
    and grows with every call.
    """
    cuts = _Cuts(head_id)
    for pack in packs.of_job(tx, job, after=head_id):
        if cuts.num_bytes >= num_bytes:
            break
        if pack.first_id <= cuts.head_id and not cuts.names:
            cuts.head_id = pack.last_id  # a pack is protected whole
            continue
        cuts.names.append(pack.name)
        cuts.end(pack.last_id, pack.num_bytes)
        for part in pack.streams:
            cuts.add(part.key, part.before, part.end, part.lost)
    packs.give_up(tx, cuts.names, now)
    pack_bytes = cuts.num_bytes
    if cuts.num_bytes < num_bytes:
        _drop_oldest(tx, job, cuts, num_bytes)
    for key, (before, end, lost) in cuts.streams.items():
        known = log_stream(tx, job, key)
        assert known is not None  # it has had segments
        begin = known.cut_begin if known.cut_end else before
        whole = {"cut_begin": begin, "cut_end": end, "cut_lost": known.cut_lost + lost}
        _put_stream(tx, job, key, known, **whole)
    here = log_volumes.c
    less: dict[str, Any] = {
        "stored_bytes": here.stored_bytes - cuts.num_bytes,
        "loose_bytes": here.loose_bytes - (cuts.num_bytes - pack_bytes),
    }
    if cuts.last_id:
        less |= {"head_id": cuts.head_id, "cut_id": cuts.last_id, "cut_at": now}
    tx.conn.execute(log_volumes.update().where(here.job == job).values(**less))


@dataclass(slots=True)
class _Cuts:
    """What one call deletes: packs by name, and of each stream where it begins and ends, and lost bytes."""

    head_id: int
    names: list[str] = field(default_factory=list)
    streams: dict[StreamKey, tuple[int, int, int]] = field(default_factory=dict)
    last_id: int = 0
    num_bytes: int = 0

    def end(self, last_id: int, num_bytes: int) -> None:
        """Count a pack or segment."""
        self.last_id = last_id
        self.num_bytes += num_bytes

    def add(self, key: StreamKey, before: int, end: int, lost: int) -> None:
        """Add the next bytes of a stream."""
        begin, _, sum_lost = self.streams.get(key, (before, 0, 0))
        self.streams[key] = (begin, end, sum_lost + lost)


def _drop_oldest(tx: Tx, job: int, cuts: _Cuts, num_bytes: int) -> None:
    """Delete the oldest segments that are in no pack, until `num_bytes` are deleted in all."""
    here = log_segments.c
    size = func.length(here.data)
    key = (here.attempt, here.generation, here.rank, here.stream)
    query = select(here.id, size, here.offset, here.dropped, *key)
    query = query.where(here.job == job, here.id > cuts.head_id).order_by(here.id)
    found = []
    with tx.conn.execute(query, execution_options=_FEW_AT_A_TIME) as rows:
        for row in rows:
            if cuts.num_bytes >= num_bytes:
                break
            found.append(row)
            cuts.end(row[0], row[1])
    for _, length, offset, dropped, *stream in found:
        one = (stream[0], stream[1], stream[2], stream[3])
        before = 0 if one in cuts.streams else told_before(tx, job, one, offset)
        cuts.add(one, before, offset + length, dropped)
    gone = [row[0] for row in found]
    for start in range(0, len(gone), _BATCH):
        _drop(tx, log_segments, gone[start : start + _BATCH])


def _lessen(tx: Tx, job: int, num_bytes: int) -> None:
    """Count bytes of segments that were deleted."""
    here = log_volumes.c
    less = {
        "stored_bytes": here.stored_bytes - num_bytes,
        "loose_bytes": here.loose_bytes - num_bytes,
    }
    tx.conn.execute(log_volumes.update().where(here.job == job).values(**less))


def cut_place(tx: Tx, job: int) -> CutPlace:
    """Where the limit of a job has deleted output."""
    here = log_volumes.c
    found = tx.conn.execute(select(here.cut_id, here.cut_at).where(here.job == job)).first()
    return CutPlace(0, 0) if found is None else CutPlace(int(found[0]), int(found[1]))


def _some(job: int, ranks: Sequence[int], stream: str | None) -> Select[Any]:
    query = select(log_streams).where(log_streams.c.job == job)
    if ranks:
        query = query.where(log_streams.c.rank.in_(list(ranks)))
    return query if stream is None else query.where(log_streams.c.stream == stream)


def cut_streams(
    tx: Tx, job: int, *, ranks: Sequence[int] = (), stream: str | None = None
) -> list[LogStream]:
    """The streams of which the limit of a job has deleted a range."""
    return read(tx, LogStream, _some(job, ranks, stream).where(log_streams.c.cut_end > 0))


def ended_streams(
    tx: Tx,
    job: int,
    *,
    after: int,
    up_to: int,
    ranks: Sequence[int] = (),
    stream: str | None = None,
) -> list[LogStream]:
    """The streams of which an end without all bytes was said between two places of a job's output."""
    here = log_streams.c
    return read(
        tx, LogStream, _some(job, ranks, stream).where(here.end_id > after, here.end_id <= up_to)
    )


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
    """The cursor after the newest segment, end or deletion."""
    query = select(func.max(log_segments.c.id)).where(log_segments.c.job == job)
    newest = int(tx.conn.execute(query).scalar() or 0) or packs.last_id(tx, job)
    ends = select(func.max(log_streams.c.end_id)).where(log_streams.c.job == job)
    return max(newest, int(tx.conn.execute(ends).scalar() or 0), cut_place(tx, job).id)


def drop_logs(
    tx: Tx, *, before: int, limit: int, among: Select[Any] | None = None
) -> tuple[int, int]:
    """Delete up to `limit` of the oldest packs, and as many segments, from before a time.

    Returns their number and bytes. They are numbered as they come, so those to go are the first ones.
    `among` is a query for the numbers of jobs; None: all jobs.
    """
    packs.take_turn(tx)
    num_packs, pack_bytes = _drop_packs(tx, before, limit, among)
    if num_packs == limit:
        return num_packs, pack_bytes  # what is older goes first
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
        _expire(tx, row.job, (row.attempt, row.generation, row.rank, row.stream), row.end)
    for job, size in sizes.items():
        _lessen(tx, job, size)
    num_rows = _drop(tx, log_segments, [row.id for row in old])
    return num_rows + num_packs, sum(sizes.values()) + pack_bytes


def _drop_packs(tx: Tx, before: int, limit: int, among: Select[Any] | None) -> tuple[int, int]:
    found = packs.old(tx, before=before, limit=limit, among=among)
    for pack in found:
        for part in pack.streams:
            _expire(tx, pack.job, part.key, part.end)
        less = log_volumes.c.stored_bytes - pack.num_bytes
        of_job = log_volumes.update().where(log_volumes.c.job == pack.job)
        tx.conn.execute(of_job.values(stored_bytes=less))
    packs.give_up(tx, [pack.name for pack in found], before)
    return len(found), sum(pack.num_bytes for pack in found)


def _expire(tx: Tx, job: int, key: StreamKey, end: int) -> None:
    is_later = and_(_is_stream(job, key), log_streams.c.expired < end)
    # What the quota deleted before is older than what expires now.
    tx.conn.execute(log_streams.update().where(is_later).values(expired=end, by_quota=0))


def drop_for_quota(tx: Tx, job: int, now: int) -> tuple[int, int]:
    """Delete all stored output of a job; returns the number of packs and segments, and their bytes."""
    packs.take_turn(tx)
    num_packs = packs.give_up_all(tx, job, now)
    here, volume = log_streams.c, log_volumes.c
    num_rows = tx.conn.execute(log_segments.delete().where(log_segments.c.job == job)).rowcount
    left = and_(here.job == job, here.expired < here.received)
    gone = {"expired": here.received, "by_quota": here.by_quota + here.received - here.expired}
    tx.conn.execute(log_streams.update().where(left).values(**gone))
    query = select(volume.stored_bytes).where(volume.job == job)
    num_bytes = int(tx.conn.execute(query).scalar() or 0)
    nothing = log_volumes.update().where(volume.job == job)
    tx.conn.execute(nothing.values(stored_bytes=0, loose_bytes=0))
    return num_packs + num_rows, num_bytes


def stored_bytes(tx: Tx, among: Select[Any] | None = None) -> int:
    """Bytes of stored output of all jobs, or of some."""
    query = select(func.coalesce(func.sum(log_volumes.c.stored_bytes), 0))
    if among is not None:
        query = query.where(log_volumes.c.job.in_(among))
    return int(tx.conn.execute(query).scalar_one())


def old_logs(tx: Tx, *, before: int, among: Select[Any]) -> tuple[int, int]:
    """The number and the bytes of segments from before a time, of some jobs."""
    here = log_segments.c
    size = func.coalesce(func.sum(func.length(here.data)), 0)
    query = select(func.count(), size).where(here.at < before, here.job.in_(among))
    found = tx.conn.execute(query).one()
    num_packs, pack_bytes = packs.count_old(tx, before=before, among=among)
    return int(found[0]) + num_packs, int(found[1]) + pack_bytes


def _drop(tx: Tx, table: Table, ids: Sequence[int]) -> int:
    if ids:
        tx.conn.execute(table.delete().where(table.c.id.in_(ids)))
    return len(ids)


def stream_segments(
    tx: Tx, job: int, key: StreamKey, *, start: int, up_to: int
) -> list[LogSegment]:
    """The segments of one stream that are in no pack, with bytes from offset `start`, up to one of them."""
    query = select(log_segments).where(
        _of_stream(job, key), log_segments.c.id <= up_to, start < _END
    )
    return _up_to(tx, query.order_by(log_segments.c.offset), _MAX_LINE_START_BYTES)


def joined_from(pieces: Iterable[LogSegment], start: int) -> tuple[int, bytes]:
    """Bytes of one stream from offset `start`, of segments in their order, and where they begin.

    They begin later than `start` where bytes in between are not stored any more.
    """
    found = bytearray()
    for one in pieces:
        if one.end <= start + len(found):
            continue
        if one.offset > start + len(found):
            start, found = one.offset, bytearray()
        found += one.data[max(0, start + len(found) - one.offset) :]
        # The cursor comes from outside, and may name the beginning of a long stream.
        if len(found) > _MAX_LINE_START_BYTES:
            break
    return start, bytes(found)


def line_start(tx: Tx, job: int, key: StreamKey, *, start: int, up_to: int) -> tuple[int, bytes]:
    """Bytes of one stream from offset `start`, as far as segment `up_to`, of segments in no pack."""
    return joined_from(stream_segments(tx, job, key, start=start, up_to=up_to), start)


def told_before(tx: Tx, job: int, key: StreamKey, offset: int) -> int:
    """Up to where the bytes of a stream before a segment at `offset` are stored or told; 0: all expired."""
    here = log_segments.c
    query = select(_END).where(_of_stream(job, key), here.offset < offset)
    query = query.order_by(here.offset.desc()).limit(1)
    found = int(tx.conn.execute(query).scalar() or 0)
    known = log_stream(tx, job, key)
    return found if known is None else told(known, offset, found)


def told(known: LogStream, offset: int, stored: int = 0) -> int:
    """Up to where the bytes before an offset are stored or told; `stored`: up to there they are."""
    ends = (stored, known.packed, known.cut_end)
    return known.told_before(max((one for one in ends if one <= offset), default=0))
