"""What needs a job: the facts of `core.retention.holds.JobUse`, read for many jobs at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import BigInteger, Column, cast, func, select

from phalanx.core.retention.holds import JobUse
from phalanx.store.database import Tx
from phalanx.store.retention.marks import MarkKind, of_jobs
from phalanx.store.studies.checkpoint_pins import is_of_study
from phalanx.store.studies.rows import LIVE
from phalanx.store.tables import (
    checkpoint_pins,
    commands,
    job_dependencies,
    jobs,
    studies,
)

_SOURCES = tuple(
    cast(jobs.c.contract[path].as_string(), BigInteger)
    for path in (("trial", "fork_of", "job"), ("resume", "job"))
)


def uses_of(tx: Tx, nums: Sequence[int]) -> dict[int, JobUse]:
    """What is known of the use of these jobs, by number; those that do not exist are left out.

    A caller that deletes has locked the rows of the jobs before: everything that comes to need one locks
    its row, too.
    """
    wanted = sorted(set(nums))
    if not wanted:
        return {}
    marks = of_jobs(tx, wanted)
    leaving = set(_numbers(tx, commands.c.job, wanted, commands.c.done_at.is_(None)))
    pins, needed = _pins(tx, wanted)
    forks = forks_of(tx, wanted)
    waiting = _pairs(tx, job_dependencies.c.on_job, job_dependencies.c.job, wanted)
    query = select(jobs.c.num, jobs.c.ended_at, jobs.c.study).where(jobs.c.num.in_(wanted))
    rows = tx.conn.execute(query).all()
    live = _live_studies(tx, {row.study for row in rows if row.study is not None})
    found: dict[int, JobUse] = {}
    for num, ended_at, study in rows:
        pinned = marks.get(num, {}).get(MarkKind.PINNED)
        found[num] = JobUse(
            num=num,
            is_over=ended_at is not None,
            is_leaving=num in leaving,
            pinned_by=None if pinned is None else pinned.by,
            pinned_checkpoints=pins.get(num, 0),
            studies=tuple(sorted(needed[num] | ({study} & live))),
            forks=tuple(sorted(forks[num])),
            waiting=tuple(sorted(waiting[num])),
        )
    return found


def _numbers(tx: Tx, column: object, nums: Sequence[int], *terms: object) -> Iterable[int]:
    query = select(column).where(column.in_(nums), *terms).distinct()  # type: ignore
    return [int(one) for one in tx.conn.execute(query).scalars()]


def _pairs(
    tx: Tx, key: Column[Any], value: Column[Any], nums: Sequence[int]
) -> dict[int, set[int]]:
    found: dict[int, set[int]] = defaultdict(set)
    for one, other in tx.conn.execute(select(key, value).where(key.in_(nums))):
        found[one].add(other)
    return found


def forks_of(tx: Tx, nums: Sequence[int]) -> dict[int, set[int]]:
    """The jobs that have not ended and begin from a checkpoint of these, by the latter."""
    found: dict[int, set[int]] = defaultdict(set)
    for one in _SOURCES:
        query = select(one, jobs.c.num).where(jobs.c.ended_at.is_(None), one.in_(nums))
        for source, num in tx.conn.execute(query):
            found[source].add(num)
    return found


def fork_paths(tx: Tx, num: int) -> set[str]:
    """Paths of a job's checkpoints from which jobs begin that have not ended."""
    paths = (("trial", "fork_of", "path"), ("resume", "places", 0))
    found: set[str] = set()
    for one, path in zip(_SOURCES, paths, strict=True):
        query = select(jobs.c.contract[path].as_string())
        query = query.where(jobs.c.ended_at.is_(None), one.in_([num]))
        found |= set(tx.conn.execute(query).scalars())
    return found


def _pins(tx: Tx, nums: Sequence[int]) -> tuple[dict[int, int], dict[int, set[int]]]:
    """The number of checkpoints that users pinned, and the studies that pinned any, by job."""
    here = checkpoint_pins.c
    users: dict[int, int] = {}
    needed: dict[int, set[int]] = defaultdict(set)
    query = select(here.job, here.by, func.count()).where(here.job.in_(nums))
    for job, by, count in tx.conn.execute(query.group_by(here.job, here.by)):
        if is_of_study(by):
            needed[job].add(int(by.removeprefix("s-")))
        else:
            users[job] = users.get(job, 0) + count
    return users, needed


def _live_studies(tx: Tx, nums: set[int]) -> set[int]:
    query = select(studies.c.num).where(studies.c.num.in_(sorted(nums)), studies.c.state.in_(LIVE))
    return set(tx.conn.execute(query).scalars()) if nums else set()
