"""Recovery from failures: whether a job restarts, after which back-off, or fails."""

from __future__ import annotations

from dataclasses import dataclass, replace

from phalanx.core.gang.failures import Failure, is_final
from phalanx.core.jobs.budgets import RestartsUsed
from phalanx.core.jobs.model import Job
from phalanx.core.reasons import Cause, Reason, ReasonCode, reason_of


@dataclass(frozen=True, slots=True)
class Retry:
    """Restart the job after `wait_s` seconds."""

    wait_s: float
    reason: Reason


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Fail the job."""

    reason: Reason


Verdict = Retry | GiveUp


def advance(job: Job, step: int | None) -> Job:
    """Account for one ended generation: progress resets all restart budgets.

    Progress is a step beyond all earlier ones. A generation that only repeats earlier steps, or
    completes or reports none, counts as `no_progress`.
    """
    progress = job.progress
    known = progress.high_water_step
    if step is not None and (known is None or step > known):
        fresh = replace(progress, high_water_step=step, no_progress=0)
        return replace(job, progress=fresh, spending=RestartsUsed())
    return replace(job, progress=replace(progress, no_progress=progress.no_progress + 1))


def judge(job: Job, failure: Failure, now: int) -> Verdict:
    """Whether `job`, already advanced by the ended generation, may run again."""
    policy, message = job.policy.recovery, failure.message
    if failure.exit_code is not None and failure.exit_code in policy.fail_codes:
        return GiveUp(Reason(ReasonCode.EXIT_CODE, f"{message}; the spec says that code is final"))
    cause = failure.cause
    if is_final(failure):
        return GiveUp(reason_of(cause, message))
    if failure.exit_code is not None and failure.exit_code in policy.retry_codes:
        cause = Cause.RANK_CRASH
    budget = policy.budget(cause)
    used = job.spending.within(cause, budget, now)
    if budget.count is not None and used >= budget.count:
        if budget.count == 0:
            return GiveUp(reason_of(cause, message))
        spent = f"{message}; {used} restarts without progress used up the {cause} budget"
        return GiveUp(Reason(ReasonCode.BUDGET_SPENT, spent))
    no_progress = job.progress.no_progress
    # An unlimited budget ends after too many generations without progress.
    if (
        budget.count is None
        and cause is not Cause.PREEMPTED
        and no_progress > policy.max_no_progress
    ):
        loop = f"{message}; {no_progress} generations in a row completed no new step"
        return GiveUp(Reason(ReasonCode.CRASH_LOOP, loop))
    # No back-off before the first restart: most faults are transient, and the slots would idle.
    wait_s = 0.0
    if no_progress > 1 and budget.first_wait_s > 0:
        wait_s = min(budget.max_wait_s, budget.first_wait_s * 2.0 ** (no_progress - 2))
    return Retry(wait_s, reason_of(cause, message))


def charge(job: Job, failure: Failure, now: int) -> Job:
    """Charge one restart for `failure` to its budget."""
    codes = job.policy.recovery.retry_codes
    cause = Cause.RANK_CRASH if failure.exit_code in codes else failure.cause
    return replace(
        job,
        spending=job.spending.spend(cause, now),
        restarts=job.restarts + 1,
        last_failure=failure,
    )
