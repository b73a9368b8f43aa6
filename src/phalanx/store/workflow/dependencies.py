"""The index of open dependencies, by the job that is waited for.

The jobs' own events say what they wait for; this table only finds them. A row is deleted with the event
that tells the waiting job, in one transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sqlalchemy import bindparam, select

from phalanx.core.jobs.dependencies import Dependency, DependencyKind
from phalanx.core.jobs.model import JobState
from phalanx.store.database import Tx
from phalanx.store.tables import job_dependencies, jobs

_BATCH = 500
_HERE = job_dependencies.c
# Made once: `take` runs in every transaction in which a job starts or ends.
_SETTLED = _HERE.on_job.in_(bindparam("_nums", expanding=True)) & _HERE.kind.in_(
    bindparam("_kinds", expanding=True)
)
_FIND = select(_HERE.job, _HERE.on_job, _HERE.kind).where(_SETTLED)
_DELETE = job_dependencies.delete().where(_SETTLED)


@dataclass(frozen=True, slots=True)
class OtherJob:
    """What a dependency depends on."""

    num: int
    project: str
    state: JobState
    started: bool


def add(tx: Tx, waiting: Iterable[tuple[int, Sequence[Dependency]]]) -> None:
    """Store the open dependencies of new jobs."""
    rows = [
        {"job": num, "on_job": one.job, "kind": one.kind.value}
        for num, open_ones in waiting
        for one in dict.fromkeys(open_ones)
    ]
    if rows:
        tx.conn.execute(job_dependencies.insert(), rows)


def take(
    tx: Tx, started: Sequence[int], ended: Sequence[int]
) -> list[tuple[int, int, DependencyKind]]:
    """Remove and return the rows that these starts and ends settle: (job, other job, kind), by job.

    A start settles `after` alone, an end every kind.
    """
    found: list[tuple[int, int, DependencyKind]] = []
    for nums, kinds in ((started, (DependencyKind.AFTER,)), (ended, tuple(DependencyKind))):
        for at in range(0, len(nums), _BATCH):
            here = {"_nums": nums[at : at + _BATCH], "_kinds": [kind.value for kind in kinds]}
            rows = tx.conn.execute(_FIND, here).all()
            if rows:
                tx.conn.execute(_DELETE, here)
            found += [(job, on_job, DependencyKind(kind)) for job, on_job, kind in rows]
    return sorted(found)


def elements(tx: Tx, array: int) -> list[int]:
    """The numbers of the jobs of an array."""
    query = select(jobs.c.num).where(jobs.c.array == array).order_by(jobs.c.num)
    return list(tx.conn.execute(query).scalars())


def others(tx: Tx, nums: Iterable[int]) -> dict[int, OtherJob]:
    """The jobs of `nums` that exist; a write transaction locks them, so that none ends unseen meanwhile."""
    found: dict[int, OtherJob] = {}
    wanted = sorted(set(nums))
    query = select(jobs.c.num, jobs.c.project, jobs.c.state, jobs.c.started_at).order_by(jobs.c.num)
    if not tx.read_only:
        query = query.with_for_update()
    for at in range(0, len(wanted), _BATCH):
        some = query.where(jobs.c.num.in_(wanted[at : at + _BATCH]))
        for num, project, state, started_at in tx.conn.execute(some):
            found[num] = OtherJob(num, project, JobState(state), started_at is not None)
    return found
