"""Marks that users put on jobs: archived, which hides a job from listings, and pinned, which keeps it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from sqlalchemy import select

from phalanx.store.database import Tx, columns_of, read
from phalanx.store.schema.retention import job_marks

_HERE = job_marks.c
_BATCH = 500


class MarkKind(StrEnum):
    """What a mark on a job says."""

    ARCHIVED = "archived"
    PINNED = "pinned"


@dataclass(frozen=True, slots=True)
class JobMark:
    """One mark: what set it, and when (µs UTC)."""

    kind: str
    job: int
    at: int
    by: str


def put(tx: Tx, mark: JobMark) -> bool:
    """Set a mark; False where the job has it already, which stays as it is."""
    same = (_HERE.kind == mark.kind) & (_HERE.job == mark.job)
    if tx.conn.execute(select(_HERE.at).where(same)).first() is not None:
        return False
    tx.conn.execute(job_marks.insert(), columns_of(mark))
    return True


def drop(tx: Tx, kind: MarkKind, job: int) -> bool:
    """Take a mark away; False where the job does not have it."""
    same = (_HERE.kind == kind.value) & (_HERE.job == job)
    return bool(tx.conn.execute(job_marks.delete().where(same)).rowcount)


def of_jobs(tx: Tx, nums: Sequence[int]) -> dict[int, dict[MarkKind, JobMark]]:
    """The marks of some jobs; jobs without one are left out."""
    found: dict[int, dict[MarkKind, JobMark]] = {}
    for start in range(0, len(nums), _BATCH):
        query = select(job_marks).where(_HERE.job.in_(list(nums[start : start + _BATCH])))
        for one in read(tx, JobMark, query):
            found.setdefault(one.job, {})[MarkKind(one.kind)] = one
    return found


def of_job(tx: Tx, num: int) -> dict[MarkKind, JobMark]:
    """The marks of one job."""
    return of_jobs(tx, [num]).get(num, {})
