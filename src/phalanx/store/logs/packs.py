"""Rows of packs: which segments of a job are in which file, and what a search need not read.

The row is stored before its file is written, and deleted after its file is: a process that is killed in
between leaves no file that no row names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, bindparam, delete, func, select

from phalanx.core.logs.segments import LogSegment, StreamKey
from phalanx.store.database import Tx, take_numbers
from phalanx.store.engines.many_rows import run_many
from phalanx.store.schema.logs import log_packs
from phalanx.store.tables import log_segments, log_streams, log_volumes

_HERE = log_packs.c
_BATCH = 500


class PackState(StrEnum):
    """The life of a pack."""

    WRITING = "writing"  # its file may exist; its segments are rows
    READY = "ready"  # its file has its segments
    GONE = "gone"  # nothing reads it any more; its file is to be deleted


@dataclass(frozen=True, slots=True)
class StreamPart:
    """The part of one stream in a pack."""

    key: StreamKey
    before: int  # up to where the bytes before it are stored elsewhere or told
    begin: int  # offset of its first byte
    end: int
    lost: int  # bytes that were lost between its segments, and are in no offset


@dataclass(frozen=True, slots=True)
class PackRow:
    """One pack, without its bits."""

    name: str  # of its file, in the folder of the job
    job: int  # job number
    first_id: int  # of its segments
    last_id: int  # the newest of its segments
    first_at: int  # µs UTC
    last_at: int  # µs UTC
    num_bytes: int  # of output
    file_bytes: int  # size of the file, compressed
    num_lines: int  # ends of lines
    levels: Mapping[str, int]  # number of lines by level, those that are open at its end included
    streams: tuple[StreamPart, ...]  # the parts of streams in it

    def has(self, ranks: Sequence[int], stream: str | None) -> bool:
        """Whether it has output of one of these ranks (none: of any) and this stream."""
        return any(
            (not ranks or one.key[2] in ranks) and stream in (None, one.key[3])
            for one in self.streams
        )


_COLUMNS = tuple(_HERE[one.name] for one in fields(PackRow))
_READY = _HERE.state == PackState.READY.value


_PACKED = (
    log_streams.update()
    .where(
        log_streams.c.job == bindparam("_job"),
        log_streams.c.attempt == bindparam("_attempt"),
        log_streams.c.generation == bindparam("_generation"),
        log_streams.c.rank == bindparam("_rank"),
        log_streams.c.stream == bindparam("_stream"),
        log_streams.c.packed < bindparam("_end"),
    )
    .values(packed=bindparam("_end"))
)


_INSERT = log_packs.insert()
_FIELDS = tuple(one.name for one in fields(PackRow))
_WRITTEN = select(_HERE.name).where(
    _HERE.name.in_(bindparam("_names", expanding=True)), _HERE.state == PackState.WRITING.value
)
_SET_READY = (
    log_packs.update()
    .where(_HERE.name.in_(bindparam("_names", expanding=True)))
    .values(state=PackState.READY.value, changed_at=bindparam("_now"))
)
_IN_PACK = and_(
    log_segments.c.job == bindparam("_job"),
    log_segments.c.id >= bindparam("_first"),
    log_segments.c.id <= bindparam("_last"),
)
_COUNT_SEGMENTS = select(
    func.count(), func.coalesce(func.sum(func.length(log_segments.c.data)), 0)
).where(_IN_PACK)
_DROP_SEGMENTS = delete(log_segments).where(_IN_PACK)
_SEGMENTS = select(log_segments).where(_IN_PACK).order_by(log_segments.c.id)
_SIZES = (
    select(log_segments.c.id, func.length(log_segments.c.data))
    .where(log_segments.c.job == bindparam("_job"))
    .order_by(log_segments.c.id)
    .limit(bindparam("_limit"))
)
_LESS_LOOSE = (
    log_volumes.update()
    .where(log_volumes.c.job == bindparam("_job"))
    .values(loose_bytes=log_volumes.c.loose_bytes - bindparam("_bytes"))
)


def _row(found: Mapping[Any, Any]) -> PackRow:
    parts = [StreamPart((a, g, r, s), *rest) for a, g, r, s, *rest in found["streams"]]
    return PackRow(**{**found, "streams": tuple(parts)})


def _rows(tx: Tx, query: Select[Any]) -> list[PackRow]:
    return [_row(one) for one in tx.conn.execute(query).mappings()]


def of_job(tx: Tx, job: int, *, after: int = 0, limit: int | None = None) -> list[PackRow]:
    """The packs of a job with segments behind number `after`, the oldest first."""
    query = select(*_COLUMNS).where(_HERE.job == job, _HERE.last_id > after, _READY)
    return _rows(tx, query.order_by(_HERE.last_id).limit(limit))


def newest(tx: Tx, job: int, *, up_to: int | None = None, limit: int = 1) -> list[PackRow]:
    """The last packs of a job, the newest first; those that begin with segment `up_to` at the latest."""
    query = select(*_COLUMNS).where(_HERE.job == job, _READY)
    if up_to is not None:
        query = query.where(_HERE.first_id <= up_to)
    return _rows(tx, query.order_by(_HERE.last_id.desc()).limit(limit))


def last_id(tx: Tx, job: int) -> int:
    """The last segment of a job that is in a pack; 0: none is."""
    query = select(func.max(_HERE.last_id)).where(_HERE.job == job, _READY)
    return int(tx.conn.execute(query).scalar() or 0)


def bytes_behind(tx: Tx, job: int, after: int) -> tuple[int, int]:
    """Bytes of output behind a segment, about, and those of all of the job's output."""
    behind = select(func.coalesce(func.sum(_HERE.num_bytes), 0))
    behind = behind.where(_HERE.job == job, _HERE.last_id > after, _READY)
    whole = select(log_volumes.c.loose_bytes, log_volumes.c.stored_bytes)
    found = tx.conn.execute(whole.where(log_volumes.c.job == job)).first()
    loose, stored = (0, 0) if found is None else found
    return int(tx.conn.execute(behind).scalar_one()) + int(loose), int(stored)


def grams_of_job(tx: Tx, job: int, *, after: int, limit: int) -> list[tuple[int, bytes]]:
    """The bits of the packs of a job with segments behind number `after`, by the last of each."""
    query = select(_HERE.last_id, _HERE.grams).where(
        _HERE.job == job, _HERE.last_id > after, _READY
    )
    return [
        (int(one), bits)
        for one, bits in tx.conn.execute(query.order_by(_HERE.last_id).limit(limit))
    ]


def with_last(tx: Tx, job: int, ids: Sequence[int]) -> list[PackRow]:
    """The packs of a job that end with some segments, the oldest first."""
    found: list[PackRow] = []
    for start in range(0, len(ids), _BATCH):
        some = _HERE.last_id.in_(list(ids[start : start + _BATCH]))
        query = select(*_COLUMNS).where(_HERE.job == job, some, _READY)
        found += _rows(tx, query.order_by(_HERE.last_id))
    return found


def begin(tx: Tx, rows: Sequence[tuple[PackRow, bytes]], now: int) -> None:
    """Store packs, with their bits, before their files are written."""
    state = {"state": PackState.WRITING.value, "changed_at": now}
    values = []
    for row, bits in rows:
        streams = [[*one.key, one.before, one.begin, one.end, one.lost] for one in row.streams]
        found = {one: getattr(row, one) for one in _FIELDS}
        found |= {"levels": dict(row.levels), "streams": streams, "grams": bits}
        values.append(found | state)
    run_many(tx.conn, _INSERT, values)


def finish(tx: Tx, rows: Sequence[PackRow], num_segments: Sequence[int], now: int) -> int:
    """Let packs of one job take the place of their segments, which are deleted; their files are written.

    Returns how many of the first ones do. The others change nothing: of one of them segments were deleted
    meanwhile, or the pack was given up.
    """
    take_turn(tx)
    job = rows[0].job
    written = set(tx.conn.execute(_WRITTEN, {"_names": [one.name for one in rows]}).scalars())
    done = list[PackRow]()
    for row, many in zip(rows, num_segments, strict=True):
        mine = {"_job": job, "_first": row.first_id, "_last": row.last_id}
        found = tuple(map(int, tx.conn.execute(_COUNT_SEGMENTS, mine).one()))
        if found != (many, row.num_bytes) or row.name not in written:
            break
        done.append(row)
    if not done:
        return 0
    ready = {"_names": [one.name for one in done], "_now": now}
    tx.conn.execute(_SET_READY, ready)
    mine = {"_job": job, "_first": done[0].first_id, "_last": done[-1].last_id}
    tx.conn.execute(_DROP_SEGMENTS, mine)
    ends: dict[StreamKey, int] = {}
    for row in done:
        for part in row.streams:
            ends[part.key] = max(part.end, ends.get(part.key, 0))
    names = ("_attempt", "_generation", "_rank", "_stream")
    packed = [
        dict(zip(names, key, strict=True)) | {"_job": job, "_end": end} for key, end in ends.items()
    ]
    tx.conn.execute(_PACKED, packed)
    tx.conn.execute(_LESS_LOOSE, {"_job": job, "_bytes": sum(one.num_bytes for one in done)})
    return len(done)


def take_turn(tx: Tx) -> None:
    """Wait for other transactions that add or delete output: each takes a number, or its turn, first."""
    take_numbers(tx, "log", 0)


def is_ready(tx: Tx, name: str) -> bool:
    """Whether readers still use a pack."""
    return tx.conn.execute(select(_HERE.name).where(_HERE.name == name, _READY)).first() is not None


def give_up(tx: Tx, names: Sequence[str], now: int) -> None:
    """Let nothing read these packs any more; their files are deleted later."""
    for start in range(0, len(names), _BATCH):
        some = _HERE.name.in_(list(names[start : start + _BATCH]))
        gone = {"state": PackState.GONE.value, "changed_at": now}
        tx.conn.execute(log_packs.update().where(some).values(**gone))


def give_up_all(tx: Tx, job: int, now: int) -> int:
    """Let nothing read the packs of a job any more; returns their number."""
    gone = {"state": PackState.GONE.value, "changed_at": now}
    ready = log_packs.update().where(_HERE.job == job, _READY).values(**gone)
    return tx.conn.execute(ready).rowcount


def abandon(tx: Tx, names: Sequence[str], now: int) -> list[str]:
    """Give up packs among `names` without a file in time; returns all among them that are given up."""
    mine = _HERE.name.in_(list(names))
    unfinished = and_(mine, _HERE.state == PackState.WRITING.value)
    gone = {"state": PackState.GONE.value, "changed_at": now}
    tx.conn.execute(log_packs.update().where(unfinished).values(**gone))
    query = select(_HERE.name).where(mine, _HERE.state == PackState.GONE.value)
    return list(tx.conn.execute(query).scalars())


def left_over(tx: Tx, *, before: int, limit: int) -> list[tuple[int, str]]:
    """Packs with files to delete, as (job, name): given up, or being written since before a time."""
    stuck = and_(_HERE.state == PackState.WRITING.value, _HERE.changed_at < before)
    query = select(_HERE.job, _HERE.name).where((_HERE.state == PackState.GONE.value) | stuck)
    return [(int(job), str(name)) for job, name in tx.conn.execute(query.limit(limit))]


def names_of(tx: Tx, job: int) -> list[str]:
    """The names of all packs of a job, in every state."""
    return list(tx.conn.execute(select(_HERE.name).where(_HERE.job == job)).scalars())


def forget(tx: Tx, names: Iterable[str]) -> None:
    """Delete the rows of packs without files."""
    tx.conn.execute(delete(log_packs).where(_HERE.name.in_(list(names)), ~_READY))


def old(tx: Tx, *, before: int, limit: int, among: Select[Any] | None) -> list[PackRow]:
    """The oldest packs with nothing from after a time."""
    query = select(*_COLUMNS).where(_of_before(before, among))
    return _rows(tx, query.order_by(_HERE.last_id).limit(limit))


def count_old(tx: Tx, *, before: int, among: Select[Any] | None) -> tuple[int, int]:
    """The number of packs with nothing from after a time, and the bytes of output in them."""
    query = select(func.count(), func.coalesce(func.sum(_HERE.num_bytes), 0))
    found = tx.conn.execute(query.where(_of_before(before, among))).one()
    return int(found[0]), int(found[1])


def _of_before(before: int, among: Select[Any] | None) -> ColumnElement[bool]:
    wanted = and_(_READY, _HERE.last_at < before)
    return wanted if among is None else and_(wanted, _HERE.job.in_(among))


def due(tx: Tx, *, least_bytes: int, idle_bytes: int, idle_since: int, limit: int) -> list[int]:
    """Jobs with many bytes in no pack, or with some of which nothing has arrived since a time."""
    here = log_volumes.c
    idle = and_(here.loose_bytes >= idle_bytes, here.newest_at < idle_since)
    query = select(here.job).where((here.loose_bytes >= least_bytes) | idle)
    query = query.order_by(here.loose_bytes.desc(), here.job).limit(limit)
    return [int(one) for one in tx.conn.execute(query).scalars()]


def oldest_segments(tx: Tx, job: int, *, max_bytes: int, max_segments: int) -> list[LogSegment]:
    """The first segments of a job that are in no pack, about `max_bytes` in total."""
    size, ids = 0, list[int]()
    for number, length in tx.conn.execute(_SIZES, {"_job": job, "_limit": max_segments}):
        ids.append(number)
        size += length
        if size >= max_bytes:
            break
    if not ids:
        return []
    # Only these: a page of rows that are not needed takes as long to read as the packs to make.
    mine = {"_job": job, "_first": ids[0], "_last": ids[-1]}
    return [LogSegment(**row) for row in tx.conn.execute(_SEGMENTS, mine).mappings()]
