"""State changes that several handlers share."""

from __future__ import annotations

from dataclasses import replace

from phalanx.core.gang.failures import Failure
from phalanx.core.jobs.model import Attempt, Job, JobState, StopGoal
from phalanx.core.reasons import Reason, ReasonCode, reason_of
from phalanx.errors import InvariantBroken

US = 1_000_000


def live(job: Job) -> Attempt:
    """The job's attempt. Raises InvariantBroken when it has none."""
    if job.attempt is None:
        raise InvariantBroken(f"job {job.num} is {job.state} without an attempt")
    return job.attempt


def record_failure(job: Job, failure: Failure) -> Job:
    """Add a failure to the live generation; a running job begins to recover."""
    attempt = live(job)
    attempt = replace(attempt, failures=(*attempt.failures, failure))
    if job.state is JobState.STOPPING:
        return replace(job, attempt=attempt)
    first = attempt.failure or failure
    reason = reason_of(first.cause, first.message)
    state = JobState.RECOVERING if job.state is JobState.RUNNING else job.state
    return replace(job, attempt=attempt, reason=reason, state=state)


def stop(job: Job, goal: StopGoal, reason: Reason, *, deadline_at: int) -> Job:
    """Begin to stop: supervisors have until `deadline_at` (microseconds) to save and leave."""
    return replace(
        job,
        state=JobState.STOPPING,
        goal=goal,
        reason=reason,
        stop_deadline_at=deadline_at,
        not_before=None,
    )


def continue_above(job: Job, target: int) -> Job:
    """Have a trial that pauses at `target` go back to the queue, where its target is higher by now."""
    if job.until is None or job.until <= target:
        return job
    reason = Reason(ReasonCode.RESUME_REQUESTED, f"the trial's target was raised to {job.until}")
    return replace(job, goal=StopGoal.REQUEUE, reason=reason)
