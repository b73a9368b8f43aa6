"""Rows of schedules and of their runs.

The key of a run is the schedule and the due time: no due time has two runs, on whichever leader.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Column, Select, func, or_, select

from phalanx.core.jobs.model import TERMINAL
from phalanx.store.database import Tx, columns_of, read
from phalanx.store.tables import jobs, schedule_runs, schedules

SCHEDULES = "schedules"
"""The notification topic of changed schedules."""
KEPT_RUNS = 100
"""The newest runs of a schedule that are kept."""


@dataclass(frozen=True, slots=True)
class ScheduleRow:
    """A schedule: when it is due, what it submits, and for which principal."""

    project: str  # of its jobs
    name: str  # one of its own in the project
    version: int  # counts changes of this row, due times among them
    principal: str  # id of the user or service account with the rights that its jobs need
    owner: str  # of its jobs
    cron: str  # five fields
    timezone: str  # IANA name
    catch_up: str  # core.schedules.policy.CatchUp
    catch_up_limit: int  # most missed due times that start a job
    overlap: str  # core.schedules.policy.Overlap
    paused: bool  # whether no due time counts
    request: Mapping[str, Any]  # a submission without its owner, as JSON
    code_digest: str | None  # SHA-256 of the code archive; None: no code
    next_at: int | None  # µs UTC; None: paused, or no day matches any more
    created_at: int  # µs UTC
    changed_at: int  # µs UTC
    changed_by: str  # id of a principal


@dataclass(frozen=True, slots=True)
class RunRow:
    """What became of one due time, or of a run that a user asked for."""

    project: str  # of the schedule
    schedule: str  # its name
    due_at: int  # µs UTC; of a run on request: the time of the request
    handled_at: int  # µs UTC
    outcome: str  # core.schedules.policy.DueOutcome
    job: int | None  # the first job; None: none was submitted
    num_jobs: int  # elements of an array count
    by: str  # id of the principal that asked for it; empty: the schedule
    message: str  # why no job was submitted


def find(tx: Tx, project: str, name: str) -> ScheduleRow | None:
    """One schedule."""
    here = schedules.c
    query = select(schedules).where(here.project == project, here.name == name)
    found = read(tx, ScheduleRow, query)
    return found[0] if found else None


def every(tx: Tx, projects: Sequence[str] | None) -> list[ScheduleRow]:
    """All schedules by project and name; of some projects where they are given."""
    here = schedules.c
    query = select(schedules).order_by(here.project, here.name)
    if projects is not None:
        query = query.where(here.project.in_(projects))
    return read(tx, ScheduleRow, query)


def count(tx: Tx, project: str) -> int:
    """The number of schedules of a project."""
    query = select(func.count()).where(schedules.c.project == project)
    return int(tx.conn.execute(query).scalar_one())


def count_active(tx: Tx) -> int:
    """The number of schedules that will be due."""
    query = select(func.count()).where(schedules.c.next_at.is_not(None))
    return int(tx.conn.execute(query).scalar_one())


def due(tx: Tx, now: int, limit: int) -> list[ScheduleRow]:
    """Schedules that are due, the longest first."""
    here = schedules.c
    query = select(schedules).where(here.next_at <= now).order_by(here.next_at, here.name)
    return read(tx, ScheduleRow, query.limit(limit))


def next_at(tx: Tx) -> int | None:
    """The earliest due time of all schedules."""
    value = tx.conn.execute(select(func.min(schedules.c.next_at))).scalar()
    return None if value is None else int(value)


def insert(tx: Tx, row: ScheduleRow) -> None:
    """Store a new schedule."""
    tx.conn.execute(schedules.insert(), columns_of(row))


def replace_row(tx: Tx, row: ScheduleRow) -> bool:
    """Store a schedule in place of the version before; False when there is another one by now."""
    here = schedules.c
    where = (here.project == row.project, here.name == row.name, here.version == row.version - 1)
    return bool(tx.conn.execute(schedules.update().where(*where).values(columns_of(row))).rowcount)


def remove(tx: Tx, project: str, name: str) -> bool:
    """Delete a schedule with its runs; returns whether it was there. Its jobs stay."""
    here, runs = schedules.c, schedule_runs.c
    gone = tx.conn.execute(schedules.delete().where(here.project == project, here.name == name))
    tx.conn.execute(schedule_runs.delete().where(runs.project == project, runs.schedule == name))
    return bool(gone.rowcount)


def code_in_use(tx: Tx) -> set[str]:
    """Digests of the code of all schedules."""
    here = schedules.c.code_digest
    return set(tx.conn.execute(select(here).where(here.is_not(None)).distinct()).scalars())


# -- runs ----------------------------------------------------------------------------------------


def add_run(tx: Tx, row: RunRow) -> None:
    """Store a run, and forget old ones without live jobs. Raises StoreError for one that is there."""
    here = schedule_runs.c
    tx.conn.execute(schedule_runs.insert(), columns_of(row))
    mine = (here.project == row.project, here.schedule == row.schedule)
    query = select(here.due_at).where(*mine).order_by(here.due_at.desc()).offset(KEPT_RUNS).limit(1)
    oldest = tx.conn.execute(query).scalar_one_or_none()
    if oldest is not None:
        over = or_(here.job.is_(None), here.job.not_in(_live(row.project, row.schedule, here.job)))
        tx.conn.execute(schedule_runs.delete().where(*mine, here.due_at <= oldest, over))


def handled(tx: Tx, project: str, name: str, due: Sequence[int]) -> set[int]:
    """Those of some due times that have a run."""
    here = schedule_runs.c
    query = select(here.due_at).where(
        here.project == project, here.schedule == name, here.due_at.in_(due)
    )
    return set(tx.conn.execute(query).scalars())


def runs_of(tx: Tx, project: str, name: str, limit: int) -> list[RunRow]:
    """The newest runs of a schedule, newest first."""
    here = schedule_runs.c
    query = select(schedule_runs).where(here.project == project, here.schedule == name)
    return read(tx, RunRow, query.order_by(here.due_at.desc()).limit(limit))


def live_jobs(tx: Tx, project: str, name: str) -> list[int]:
    """The numbers of the jobs of a schedule that are not over."""
    query = _live(project, name, jobs.c.num).order_by(jobs.c.num)
    return list(tx.conn.execute(query).scalars())


def _live(project: str, name: str, column: Column[Any]) -> Select[Any]:
    """One column for every job of a schedule that is not over."""
    here = schedule_runs.c
    return (
        select(column)
        .select_from(jobs)
        .join(
            schedule_runs,
            (jobs.c.num >= here.job) & (jobs.c.num < here.job + here.num_jobs),
        )
        .where(here.project == project, here.schedule == name, here.job.is_not(None))
        .where(jobs.c.state.not_in([state.value for state in TERMINAL]))
    )
