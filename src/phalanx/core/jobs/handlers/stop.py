"""Handlers for stopping and resuming.

Events: StopRequested, DurationExceeded, StopOverdue, Resumed, TargetRaised, SettingsChanged.
"""

from __future__ import annotations

from dataclasses import replace

from phalanx.core.jobs import events as e
from phalanx.core.jobs.budgets import RestartsUsed
from phalanx.core.jobs.handlers.dependencies import enter_queue
from phalanx.core.jobs.handlers.steps import US, stop
from phalanx.core.jobs.model import (
    Decision,
    Job,
    JobState,
    KillAttempt,
    StopGoal,
    TrainingProgress,
)
from phalanx.core.reasons import Reason, ReasonCode

_GOALS = tuple(StopGoal)
_HOUR_US = 3600 * US


def stop_active(job: Job, event: e.StopRequested, now: int) -> Decision:
    """Ask the ranks to save and leave within the grace period."""
    if event.goal is StopGoal.REQUEUE and event.reason.code is ReasonCode.PREEMPTED:
        recent = [at for at in job.preempted_at if now - at <= _HOUR_US]
        job = replace(job, preempted_at=(*recent, now))
    return Decision(stop(job, event.goal, event.reason, deadline_at=_deadline(job, event, now)))


def _deadline(job: Job, event: e.StopRequested, now: int) -> int:
    grace_s = job.policy.grace_s if event.grace_s is None else event.grace_s
    return now + round(grace_s * US)


def stop_stopping(job: Job, event: e.StopRequested, now: int) -> Decision:
    """Change the goal of a stop to a stronger one, or its deadline to an earlier one."""
    goal = job.goal or StopGoal.REQUEUE
    if _GOALS.index(event.goal) < _GOALS.index(goal):
        return Decision(job, ignored=f"the job is already stopping (goal: {goal})")
    deadline_at = _deadline(job, event, now)
    if job.stop_deadline_at is not None:
        deadline_at = min(deadline_at, job.stop_deadline_at)
    if goal is event.goal and deadline_at == job.stop_deadline_at:
        return Decision(job, ignored=f"the job is already stopping (goal: {goal})")
    if goal is StopGoal.FAIL:
        return Decision(job, ignored="the job is already stopping (goal: fail)")
    stopped = replace(job, goal=event.goal, reason=event.reason, stop_deadline_at=deadline_at)
    return Decision(stopped)


def stop_idle(job: Job, event: e.StopRequested, now: int) -> Decision:
    """Move a job that holds no slots to its new state at once."""
    if event.goal is StopGoal.REQUEUE:
        return Decision(job, ignored="the job holds no slots")
    if event.goal is StopGoal.PAUSE:
        if job.state is JobState.PAUSED:
            return Decision(job, ignored="the job is paused")
        return Decision(replace(job, state=JobState.PAUSED, reason=event.reason, not_before=None))
    state = JobState.CANCELLED if event.goal is StopGoal.CANCEL else JobState.FAILED
    return Decision(replace(job, state=state, reason=event.reason, not_before=None, ended_at=now))


def duration_exceeded(job: Job, event: e.DurationExceeded, now: int) -> Decision:
    """Stop a job that has run for its `max_duration`; it fails."""
    limit = job.policy.max_duration_s
    reason = Reason(ReasonCode.MAX_DURATION, f"reached max_duration, {limit:g} s" if limit else "")
    deadline_at = now + round(job.policy.grace_s * US)
    return Decision(stop(job, StopGoal.FAIL, reason, deadline_at=deadline_at))


def stop_overdue(job: Job, event: e.StopOverdue, now: int) -> Decision:
    """Kill supervisors that did not leave in time."""
    # A later deadline makes the timer fire again, should the executor fail to kill.
    return Decision(replace(job, stop_deadline_at=now), (KillAttempt(event.attempt),))


def resumed(job: Job, event: e.Resumed, now: int) -> Decision:
    """Put a paused job back into the queue."""
    if event.begin_anew:
        progress = TrainingProgress(beginning=job.attempts)
        reason = Reason(ReasonCode.BEGIN_ANEW_REQUESTED, "without the checkpoints that it has")
        job = replace(job, progress=progress, spending=RestartsUsed())
    else:
        reason = Reason(ReasonCode.RESUME_REQUESTED)
    return Decision(enter_queue(job, reason, now))


def raised(job: Job, event: e.TargetRaised, now: int) -> Decision:
    """Raise the target of a trial; one that pauses because it has reached the last one goes on."""
    if job.until is not None and event.until <= job.until:
        return Decision(job, ignored=f"the target is {job.until} already")
    job = replace(job, until=event.until)
    if job.reason.code is not ReasonCode.TARGET_REACHED:
        return Decision(job)
    reason = Reason(ReasonCode.RESUME_REQUESTED, f"the trial's target was raised to {event.until}")
    if job.state is JobState.STOPPING:
        return Decision(replace(job, goal=StopGoal.REQUEUE, reason=reason))
    return Decision(replace(job, state=JobState.QUEUED, reason=reason, queued_at=now))


def settings_changed(job: Job, event: e.SettingsChanged, now: int) -> Decision:
    """Keep the new limit of the duration and the new size; other settings are not part of the job machine.

    A live attempt keeps its nodes: the planner moves it to a placement of a size that is allowed.
    """
    policy = replace(job.policy, max_duration_s=event.max_duration_s)
    if event.num_nodes is not None:
        shape = replace(policy.shape, nodes=event.num_nodes)
        policy = replace(policy, shape=shape, min_nodes=event.min_nodes)
    return Decision(job if policy == job.policy else replace(job, policy=policy))
