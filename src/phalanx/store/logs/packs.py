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


def begin(tx: Tx, row: PackRow, bits: bytes, now: int) -> None:
    """Store a pack before its file is written."""
    streams = [[*one.key, one.before, one.begin, one.end, one.lost] for one in row.streams]
    values = {one.name: getattr(row, one.name) for one in fields(PackRow)}
    values |= {"levels": dict(row.levels), "streams": streams, "grams": bits}
    state = {"state": PackState.WRITING.value, "changed_at": now}
    tx.conn.execute(log_packs.insert(), values | state)


def finish(tx: Tx, row: PackRow, num_segments: int, now: int) -> bool:
    """Let the pack take the place of its segments, which are deleted; its file is on the disk.

    False, and nothing changes, where segments were deleted meanwhile, or the pack was given up.
    """
    take_turn(tx)
    here = log_segments.c
    mine = and_(here.job == row.job, here.id >= row.first_id, here.id <= row.last_id)
    size = func.coalesce(func.sum(func.length(here.data)), 0)
    found = tx.conn.execute(select(func.count(), size).where(mine)).one()
    if tuple(map(int, found)) != (num_segments, row.num_bytes):
        return False
    written = and_(_HERE.name == row.name, _HERE.state == PackState.WRITING.value)
    ready = {"state": PackState.READY.value, "changed_at": now}
    if tx.conn.execute(log_packs.update().where(written).values(**ready)).rowcount != 1:
        return False
    tx.conn.execute(delete(log_segments).where(mine))
    names = ("attempt", "generation", "rank", "stream")
    ends = [
        {f"_{name}": one for name, one in zip(names, part.key, strict=True)}
        | {"_job": row.job, "_end": part.end}
        for part in row.streams
    ]
    tx.conn.execute(_PACKED, ends)
    less = log_volumes.c.loose_bytes - row.num_bytes
    of_job = log_volumes.update().where(log_volumes.c.job == row.job)
    tx.conn.execute(of_job.values(loose_bytes=less))
    return True


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
    here = log_segments.c
    query = select(log_segments).where(here.job == job).order_by(here.id).limit(max_segments)
    found: list[LogSegment] = []
    size = 0
    with tx.conn.execute(query, execution_options={"yield_per": 16}) as rows:
        for row in rows.mappings():
            found.append(LogSegment(**row))
            size += len(row["data"])
            if size >= max_bytes:
                break
    return found
