"""The queue of checkpoints that are marked as removed, until their files are deleted.

A row is stored in the transaction that marks the checkpoint, and deleted when its files and its copy are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import func, select

from phalanx.store.database import Tx, read
from phalanx.store.retention.deletions import DELETIONS
from phalanx.store.schema.retention import checkpoint_removals

_HERE = checkpoint_removals.c


@dataclass(frozen=True, slots=True)
class CheckpointRemoval:
    """A checkpoint with files that are to be deleted."""

    job: int  # job number
    path: str  # directory or URL
    size_bytes: int  # of all its files, as it was reported
    queued_at: int  # µs UTC
    tries: int  # that failed
    not_before: int  # of the next try, µs UTC
    error: str | None  # of the last try

    @property
    def name(self) -> str:
        """The name of the checkpoint's folder."""
        return self.path.rpartition("/")[2]


def add(tx: Tx, job: int, doomed: Sequence[tuple[str, int]], now: int) -> None:
    """Queue checkpoints of a job, each a path and its size; those that are queued already stay so."""
    known = set(tx.conn.execute(select(_HERE.path).where(_HERE.job == job)).scalars())
    fresh = [
        {
            "job": job,
            "path": path,
            "size_bytes": size,
            "queued_at": now,
            "tries": 0,
            "not_before": now,
            "error": None,
        }
        for path, size in doomed
        if path not in known
    ]
    if fresh:
        tx.conn.execute(checkpoint_removals.insert(), fresh)
        tx.touched.topics.add(DELETIONS)


def due(tx: Tx, now: int, *, limit: int) -> dict[int, list[CheckpointRemoval]]:
    """Checkpoints with a try that is due, by job, the oldest first."""
    query = select(checkpoint_removals).where(_HERE.not_before <= now)
    found: dict[int, list[CheckpointRemoval]] = {}
    ordered = query.order_by(_HERE.not_before, _HERE.job, _HERE.path).limit(limit)
    for one in read(tx, CheckpointRemoval, ordered):
        found.setdefault(one.job, []).append(one)
    return found


def finish(tx: Tx, job: int, paths: Sequence[str]) -> None:
    """Take checkpoints out of the queue."""
    same = (_HERE.job == job) & _HERE.path.in_(list(paths))
    tx.conn.execute(checkpoint_removals.delete().where(same))


def retry(
    tx: Tx, job: int, paths: Sequence[str], *, tries: int, not_before: int, error: str
) -> None:
    """Note that a try failed, and when the next one is due."""
    same = (_HERE.job == job) & _HERE.path.in_(list(paths))
    values = {"tries": tries, "not_before": not_before, "error": error}
    tx.conn.execute(checkpoint_removals.update().where(same).values(**values))


def next_at(tx: Tx) -> int | None:
    """When the next try is due, in µs UTC."""
    found = tx.conn.execute(select(func.min(_HERE.not_before))).scalar()
    return None if found is None else int(found)


def count(tx: Tx) -> int:
    """The number of checkpoints in the queue."""
    query = select(func.count()).select_from(checkpoint_removals)
    return int(tx.conn.execute(query).scalar_one())
