"""What jobs keep in stores, from when to when.

Times never lie before the end of what is settled: the lock orders writers among the steps that settle.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, and_, func, or_, select

from phalanx.core.cost.storage import LOGS, NODES, ObjectKind, StoredObject
from phalanx.store.database import Tx, take_numbers
from phalanx.store.schema.storage import stored_objects
from phalanx.store.tables import checkpoints, counters, jobs, log_volumes

Group = tuple[str, str, str]
"""Project, owner and store."""
SETTLED = "storage_settled"
"""The counter with the time up to which the sums by day are complete."""
_HERE = stored_objects.c
_OBJECT = (_HERE.store, _HERE.kind, _HERE.size_bytes, _HERE.from_at, _HERE.to_at)
_GROUP = (_HERE.project, _HERE.owner, _HERE.store)
_BATCH = 500
_LOG_ROWS = 2000


def settled_to(tx: Tx) -> int:
    """The time up to which the sums by day are complete; 0: nothing is."""
    query = select(counters.c.value).where(counters.c.name == SETTLED)
    return int(tx.conn.execute(query).scalar() or 0)


def lock(tx: Tx) -> int:
    """Order this transaction among those that write or settle; returns `settled_to`."""
    take_numbers(tx, "stored_object", 0)
    return settled_to(tx)


def set_settled(tx: Tx, at: int) -> None:
    """Note that the sums by day are complete up to a time."""
    tx.conn.execute(counters.update().where(counters.c.name == SETTLED).values(value=at))


def first_begin(tx: Tx) -> int | None:
    """The begin of the oldest object."""
    found = tx.conn.execute(select(func.min(_HERE.from_at))).scalar()
    return None if found is None else int(found)


def end_of_some(tx: Tx, begin: int, end: int, most: int) -> int:
    """The latest time up to `end` before which `most` objects at most begin, and as many end.

    Objects of one moment are not divided. It is later than `begin` where `end` is.
    """
    for column in (_HERE.from_at, _HERE.to_at):
        query = select(column).where(column > begin, column < end).order_by(column).offset(most)
        found = tx.conn.execute(query.limit(1)).scalar()
        end = end if found is None else int(found)
    return end


def keep(tx: Tx, job: int, path: str, now: int, *, size: int | None = None) -> None:
    """Note that a checkpoint is kept: at its path, or with `size`, its copy in the store of its job.

    A checkpoint that is noted already, and one of an unknown job, change nothing.
    """
    far = size is not None or "://" in path
    kind = ObjectKind.REMOTE if far else ObjectKind.NEAR
    same = (_HERE.job == job, _HERE.path == path, _HERE.kind == kind.value)
    if tx.conn.execute(select(_HERE.id).where(*same)).first() is None:
        _add(tx, job, path, kind, size, now)


def read(tx: Tx, job: int, path: str, now: int) -> None:
    """Note that a restore has read a checkpoint from the store of its job."""
    _add(tx, job, path, ObjectKind.READ, None, now)


def _add(tx: Tx, job: int, path: str, kind: ObjectKind, size: int | None, now: int) -> None:
    owned = (jobs.c.project, jobs.c.owner, jobs.c.spec["checkpoint"]["store"].as_string())
    here = (checkpoints.c.job == job) & (checkpoints.c.path == path)
    known = tx.conn.execute(select(*owned).where(jobs.c.num == job)).first()
    if known is None:
        return
    if not size:
        size = tx.conn.execute(select(checkpoints.c.size_bytes).where(here)).scalar() or 0
    at = max(now, lock(tx))
    near = kind is ObjectKind.NEAR
    row = {
        "id": take_numbers(tx, "stored_object"),
        "job": job,
        "project": known[0],
        "owner": known[1],
        "store": NODES if near else (known[2] or path.rpartition("/")[0])[:256],
        "kind": kind.value,
        "path": path,
        "size_bytes": size,
        "from_at": at,
        "to_at": at if kind is ObjectKind.READ else None,
    }
    tx.conn.execute(stored_objects.insert(), row)


def end(tx: Tx, job: int, paths: Sequence[str], now: int) -> None:
    """Note that checkpoints are kept no longer, neither at their paths nor as copies."""
    if paths:
        at = max(now, lock(tx))
        mine = (_HERE.job == job, _HERE.path.in_(list(paths)), _HERE.to_at.is_(None))
        tx.conn.execute(stored_objects.update().where(*mine).values(to_at=at))


def note_logs(tx: Tx, now: int, before: int) -> None:
    """Note the present size of stored output that changed, where it was last noted before a time.

    What belongs to a job that was deleted ends.
    """
    at = max(now, lock(tx))
    gone = select(_HERE.id).where(_HERE.to_at.is_(None), _HERE.job.not_in(select(jobs.c.num)))
    _end_ids(tx, tx.conn.execute(gone).scalars().all(), at)
    log, mine = log_volumes.c, and_(_HERE.job == log_volumes.c.job, _HERE.kind == LOGS)
    joined = log_volumes.join(jobs, jobs.c.num == log.job).outerjoin(
        stored_objects, mine & _HERE.to_at.is_(None)
    )
    changed = or_(
        and_(_HERE.id.is_(None), log.stored_bytes > 0),
        and_(_HERE.size_bytes != log.stored_bytes, _HERE.from_at < before),
    )
    columns = (log.job, jobs.c.project, jobs.c.owner, log.stored_bytes, _HERE.id)
    query = select(*columns).select_from(joined).where(changed).order_by(log.job).limit(_LOG_ROWS)
    found = tx.conn.execute(query).all()
    _end_ids(tx, [row.id for row in found if row.id is not None], at)
    fresh = [row for row in found if row.stored_bytes > 0]
    if fresh:
        first = take_numbers(tx, "stored_object", len(fresh))
        table = [
            {
                "id": first + index,
                **{name: getattr(row, name) for name in ("job", "project", "owner")},
                "store": LOGS,
                "kind": ObjectKind.LOGS.value,
                "path": "",
                "size_bytes": row.stored_bytes,
                "from_at": at,
                "to_at": None,
            }
            for index, row in enumerate(fresh)
        ]
        tx.conn.execute(stored_objects.insert(), table)


def _end_ids(tx: Tx, ids: Sequence[int], at: int) -> None:
    for start in range(0, len(ids), _BATCH):
        mine = _HERE.id.in_(list(ids[start : start + _BATCH]))
        tx.conn.execute(stored_objects.update().where(mine).values(to_at=at))


def of_jobs(tx: Tx, nums: Collection[int]) -> dict[int, list[StoredObject]]:
    """The objects of some jobs, by job."""
    found: dict[int, list[StoredObject]] = {}
    every = sorted(nums)
    for start in range(0, len(every), _BATCH):
        mine = _HERE.job.in_(every[start : start + _BATCH])
        for row in tx.conn.execute(select(_HERE.job, *_OBJECT).where(mine)).mappings():
            found.setdefault(row["job"], []).append(_object(row))
    return found


def checkpoints_kept(tx: Tx, nums: Collection[int]) -> dict[int, dict[str, int]]:
    """The bytes of checkpoints that some jobs keep now, by job and store."""
    found: dict[int, dict[str, int]] = {}
    every, kinds = sorted(nums), (ObjectKind.NEAR.value, ObjectKind.REMOTE.value)
    for start in range(0, len(every), _BATCH):
        query = select(_HERE.job, _HERE.store, func.sum(_HERE.size_bytes)).where(
            _HERE.job.in_(every[start : start + _BATCH]),
            _HERE.to_at.is_(None),
            _HERE.kind.in_(kinds),
        )
        for job, store, size in tx.conn.execute(query.group_by(_HERE.job, _HERE.store)):
            found.setdefault(job, {})[store] = int(size)
    return found


def kept_bytes(tx: Tx) -> dict[Group, int]:
    """The bytes that are kept now."""
    query = select(*_GROUP, func.sum(_HERE.size_bytes)).where(_HERE.to_at.is_(None))
    return {(a, b, c): int(size) for a, b, c, size in tx.conn.execute(query.group_by(*_GROUP))}


def kept_throughout(tx: Tx, begin: int, end: int) -> dict[Group, int]:
    """The bytes that are kept in the whole of a time."""
    begun = (_HERE.from_at <= begin, _HERE.kind != ObjectKind.READ)
    query = select(*_GROUP, func.sum(_HERE.size_bytes)).where(*begun).group_by(*_GROUP)
    found: dict[Group, int] = {}
    # Two queries, each a range of one index.
    for lasting in (_HERE.to_at.is_(None), _HERE.to_at >= end):
        for project, owner, store, size in tx.conn.execute(query.where(lasting)):
            key = (project, owner, store)
            found[key] = found.get(key, 0) + int(size)
    return found


def kept_in_part(tx: Tx, begin: int, end: int) -> list[tuple[Group, StoredObject]]:
    """The objects that are kept in a part of a time only."""
    begun = and_(_HERE.from_at > begin, _HERE.from_at < end)
    ended = and_(_HERE.from_at <= begin, _HERE.to_at > begin, _HERE.to_at < end)
    return _grouped(tx, and_(_HERE.kind != ObjectKind.READ, or_(begun, ended)))


def moved(tx: Tx, begin: int, end: int) -> list[tuple[Group, StoredObject]]:
    """The objects that were uploaded or read in a time."""
    kinds = (ObjectKind.REMOTE.value, ObjectKind.READ.value)
    among = and_(_HERE.from_at >= begin, _HERE.from_at < end, _HERE.kind.in_(kinds))
    return _grouped(tx, among)


def _grouped(tx: Tx, where: ColumnElement[bool]) -> list[tuple[Group, StoredObject]]:
    query = select(_HERE.project, _HERE.owner, *_OBJECT).where(where)
    return [
        ((row["project"], row["owner"], row["store"]), _object(row))
        for row in tx.conn.execute(query).mappings()
    ]


def _object(row: Mapping[Any, Any]) -> StoredObject:
    return StoredObject(
        row["store"], ObjectKind(row["kind"]), row["size_bytes"], row["from_at"], row["to_at"]
    )
