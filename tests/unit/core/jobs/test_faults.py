"""The fault of a job that has ended: the platform's own failures are told from those of scripts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from phalanx.core.gang.failures import Failure
from phalanx.core.gang.placement import GangShape
from phalanx.core.jobs.faults import PLATFORM_CAUSES, JobFault, fault_of
from phalanx.core.jobs.model import Job, JobPolicy, JobState
from phalanx.core.reasons import Cause, Reason, ReasonCode, code_of

JOB = Job(1, JobPolicy(GangShape(nodes=1, slots_per_node=1, ranks_per_node=1)), submitted_at=0)


def ended(state: JobState, code: ReasonCode, last: Cause | None = None) -> JobFault:
    failure = None if last is None else Failure(last, None, 0, at=1, message="x")
    return fault_of(replace(JOB, state=state, reason=Reason(code), last_failure=failure))


def test_success_and_cancelled_jobs_have_no_failure() -> None:
    assert ended(JobState.SUCCEEDED, ReasonCode.COMPLETED, Cause.NODE_LOST) is JobFault.NONE
    assert ended(JobState.CANCELLED, ReasonCode.CANCEL_REQUESTED) is JobFault.CANCELLED


@pytest.mark.parametrize("cause", Cause)
def test_a_final_cause_decides(cause: Cause) -> None:
    wanted = JobFault.PLATFORM if cause in PLATFORM_CAUSES else JobFault.USER
    assert ended(JobState.FAILED, code_of(cause)) is wanted
    # Restarts that are used up: the last failure decides.
    assert ended(JobState.FAILED, ReasonCode.BUDGET_SPENT, cause) is wanted
    assert ended(JobState.FAILED, ReasonCode.CRASH_LOOP, cause) is wanted


@pytest.mark.parametrize(
    "code", [ReasonCode.EXIT_CODE, ReasonCode.MAX_DURATION, ReasonCode.COST_BUDGET]
)
def test_limits_and_exit_codes_are_the_users(code: ReasonCode) -> None:
    assert ended(JobState.FAILED, code, Cause.NODE_LOST) is JobFault.USER
