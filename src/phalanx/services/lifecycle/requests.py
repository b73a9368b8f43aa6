"""Stop, pause and resume jobs at a request, which may be repeated; apply their due timers."""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.core.jobs.events import Resumed, StopRequested
from phalanx.core.jobs.machine import due
from phalanx.core.jobs.model import JobState, StopGoal
from phalanx.core.reasons import Reason, ReasonCode
from phalanx.errors import Conflict
from phalanx.kit.text import job_label
from phalanx.services.lifecycle.commit import commit_events, isolate_bugs
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
            raise Conflict(
                f"{job_label(num)} has already ended ({job.state}): there is nothing to {goal}"
            )
        ending = job.state is JobState.STOPPING and job.goal in (StopGoal.CANCEL, StopGoal.FAIL)
        if goal is StopGoal.PAUSE and ending:
            raise Conflict(f"{job_label(num)} is stopping (goal: {job.goal}) and cannot be paused")
        reason = Reason(_REASONS[goal], f"by {actor}")
        commit_events(tx, num, [StopRequested(goal, reason, grace_s)], now, actor)

    platform.store.transact(work)


def resume(platform: Platform, num: int, now: int, actor: str, *, begin_anew: bool = False) -> None:
    """Put a paused job back into the queue; a queued or running job is left unchanged.

    With `begin_anew` the job starts without the checkpoints that it has; it must be paused. Raises
    NotFound, and Conflict for a job that has ended or is still stopping.
    """

    def work(tx: Tx) -> None:
        job = jobs.load(tx, num).job
        if job.is_terminal:
            raise Conflict(
                f"{job_label(num)} has already ended ({job.state}) and cannot be resumed",
                "submit the job again",
            )
        if job.state is JobState.STOPPING and job.goal is not StopGoal.REQUEUE:
            raise Conflict(
                f"{job_label(num)} is still stopping (goal: {job.goal})",
                "try again when it has stopped",
            )
        if job.state is JobState.PAUSED:
            commit_events(tx, num, [Resumed(begin_anew)], now, actor)
        elif begin_anew:
            raise Conflict(
                f"{job_label(num)} is {job.state}: only a paused job can begin anew",
                f"phalanx pause {job_label(num)}, then resume it with --begin-anew",
            )

    platform.store.transact(work)


def timers_step(platform: Platform, now: int) -> int | None:
    """Apply due back-offs, time limits and stop deadlines; returns when the next timer is due.

    None: there is no timer. Raises a Bug that one of the jobs runs into after the other jobs are done.
    """

    def fire(tx: Tx, some: Sequence[int]) -> None:
        for num in some:
            for event in due(jobs.load(tx, num).job, now):
                commit_events(tx, num, [event], now, "timer")

    waking = platform.store.view(lambda tx: jobs.waking(tx, now))
    isolate_bugs(waking, lambda some: platform.store.transact(lambda tx: fire(tx, some)))
    return platform.store.view(jobs.next_wake_at)
