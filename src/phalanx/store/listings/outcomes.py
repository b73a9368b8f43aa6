"""What objectives are judged by: ended jobs with their slot time, and failures with their recoveries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sqlalchemy import func, select

from phalanx.core.jobs.model import TERMINAL
from phalanx.core.probes import PROBE_PROJECT
from phalanx.store.database import Tx
from phalanx.store.schema.listings import job_listing
from phalanx.store.tables import cost_job_sums, generations, jobs

MOST_JOBS = 100_000
"""The newest ended jobs that are read; a report says when there are more."""
_BATCH = 500
_US = 1e-6
_HERE = job_listing.c
_CLASS = jobs.c.spec["class"].as_string()
_ENDED = (
    select(
        *(_HERE[name] for name in ("num", "state", "reason", "cause", "ended_at", "queue_s")),
        _HERE.restarts,
        func.coalesce(_CLASS, "").label("job_class"),
        func.coalesce(cost_job_sums.c.productive, 0).label("productive"),
        func.coalesce(cost_job_sums.c.held, 0).label("held"),
    )
    .join(jobs, jobs.c.num == _HERE.num)
    .outerjoin(cost_job_sums, cost_job_sums.c.job == _HERE.num)
    .where(_HERE.state.in_([one.value for one in TERMINAL]))
    .where(_HERE.project != PROBE_PROJECT)
    .order_by(_HERE.ended_at.desc())
    .limit(MOST_JOBS)
)
_GENERATIONS = select(
    *(generations.c[name] for name in ("job", "attempt", "generation", "up_at", "failed_at"))
).order_by(generations.c.job, generations.c.attempt, generations.c.generation)


@dataclass(frozen=True, slots=True)
class EndedJob:
    """A job that has ended."""

    num: int  # number of the job
    job_class: str  # empty: none
    state: str  # succeeded, failed or cancelled
    reason: str  # of the end
    cause: str  # of the last failure; empty: none
    ended_at: int  # µs UTC
    queue_s: float | None  # in the queue before all placements; None: it was never placed
    restarts: int  # that were charged
    productive_s: float  # slot-seconds in steps that were made for the first time
    held_s: float  # slot-seconds held


@dataclass(frozen=True, slots=True)
class RecoveredFailure:
    """A failure and the time until all ranks ran again."""

    job: int
    up_at: int  # µs UTC
    took_s: float


def ended_jobs(tx: Tx, since: int, projects: Sequence[str] | None) -> list[EndedJob]:
    """The jobs that have ended since then, newest first, without probes; of these projects, or of all."""
    query = _ENDED.where(_HERE.ended_at > since)
    if projects is not None:
        query = query.where(_HERE.project.in_(projects))
    return [
        EndedJob(
            num=row.num,
            job_class=row.job_class,
            state=row.state,
            reason=row.reason,
            cause=row.cause,
            ended_at=row.ended_at,
            queue_s=row.queue_s,
            restarts=row.restarts,
            productive_s=row.productive * _US,
            held_s=row.held * _US,
        )
        for row in tx.conn.execute(query)
    ]


def recoveries(tx: Tx, nums: Sequence[int]) -> Iterator[RecoveredFailure]:
    """The failures of these jobs after which all ranks ran again."""
    for start in range(0, len(nums), _BATCH):
        some = nums[start : start + _BATCH]
        failed: tuple[int, int] | None = None  # job, and when its last generation failed
        for row in tx.conn.execute(_GENERATIONS.where(generations.c.job.in_(some))):
            if failed is not None and failed[0] == row.job and row.up_at is not None:
                yield RecoveredFailure(row.job, row.up_at, max(0, row.up_at - failed[1]) * _US)
                failed = None
            if row.failed_at is not None:
                failed = (row.job, row.failed_at)
