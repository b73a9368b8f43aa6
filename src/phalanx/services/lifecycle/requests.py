"""Requests for existing jobs: stop, pause, resume. Each may be repeated."""

from __future__ import annotations

from phalanx.core.jobs.events import JobEvent, Resumed, StopRequested
from phalanx.core.jobs.model import Job, JobState, StopGoal
from phalanx.core.reasons import Reason, ReasonCode
from phalanx.errors import Conflict
from phalanx.kit.text import job_label
from phalanx.services.lifecycle.commit import commit_events
from phalanx.services.platform import Platform
from phalanx.store import jobs
from phalanx.store.database import Tx

_REASONS = {
    StopGoal.CANCEL: ReasonCode.CANCEL_REQUESTED,
    StopGoal.PAUSE: ReasonCode.PAUSE_REQUESTED,
}


def stop(
    platform: Platform, num: int, goal: StopGoal, grace_s: float | None, now: int, actor: str
) -> None:
    """Cancel or pause a job.

    Raises NotFound, and Conflict for a job that has ended.
    """

    def work(tx: Tx) -> None:
        job = jobs.load(tx, num).job
        if goal is StopGoal.CANCEL and job.state is JobState.CANCELLED:
            return
        if job.is_terminal:
            raise Conflict(f"{job_label(num)} has {job.state} already: there is nothing to {goal}")
        if goal is StopGoal.PAUSE and job.state is JobState.STOPPING:
            _refuse_weaker(job)
        reason = Reason(_REASONS[goal], f"by {actor}")
        _apply(tx, num, StopRequested(goal, reason, grace_s), now, actor)

    platform.store.transact(work)


def resume(platform: Platform, num: int, now: int, actor: str) -> None:
    """Put a paused job back into the queue; a queued or running job is left unchanged.

    Raises NotFound, and Conflict for a job that has ended or is still stopping.
    """

    def work(tx: Tx) -> None:
        job = jobs.load(tx, num).job
        if job.is_terminal:
            raise Conflict(
                f"{job_label(num)} has {job.state} already and cannot be resumed",
                "submit it again to run it once more",
            )
        if job.state is JobState.STOPPING and job.goal is not StopGoal.REQUEUE:
            raise Conflict(
                f"{job_label(num)} is still stopping to {job.goal}", "try again when it has stopped"
            )
        if job.state is JobState.PAUSED:
            _apply(tx, num, Resumed(), now, actor)

    platform.store.transact(work)


def _refuse_weaker(job: Job) -> None:
    if job.goal in (StopGoal.CANCEL, StopGoal.FAIL):
        raise Conflict(f"{job_label(job.num)} is stopping to {job.goal} and cannot be paused")


def _apply(tx: Tx, num: int, event: JobEvent, now: int, actor: str) -> None:
    commit_events(tx, num, [event], now, actor)
