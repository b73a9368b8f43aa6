"""What the end of a job is to be blamed on: objectives of the platform count only its own failures."""

from __future__ import annotations

from enum import StrEnum

from phalanx.core.jobs.model import Job, JobState
from phalanx.core.reasons import Cause, ReasonCode, code_of


class JobFault(StrEnum):
    """What ended a job."""

    NONE = "none"  # it succeeded
    CANCELLED = "cancelled"  # a user or a policy stopped it
    USER = "user"  # its script, its settings or its limits
    PLATFORM = "platform"  # machines, network, storage or the platform itself


PLATFORM_CAUSES = frozenset(
    {
        Cause.NODE_LOST,
        Cause.NODE_DRAINED,
        Cause.PREEMPTED,
        Cause.STALLED,
        Cause.START_FAILED,
        Cause.CHECKPOINT_MISSING,
        Cause.FINAL_CHECKPOINT_NOT_SAVED,
        Cause.SECRET_MANAGER_UNAVAILABLE,
        Cause.CLUSTER_QUOTA,
        Cause.UNSCHEDULABLE,
    }
)
"""Causes that lie outside of the job's script. A crash and a lack of memory are the script's."""

#: Reasons that say that restarts are used up: the cause of the last failure decides.
_USED_UP = frozenset({ReasonCode.BUDGET_SPENT, ReasonCode.CRASH_LOOP})
_PLATFORM_CODES = frozenset(code_of(one) for one in PLATFORM_CAUSES)


def fault_of(job: Job) -> JobFault:
    """The fault of a job that has ended."""
    if job.state is JobState.SUCCEEDED:
        return JobFault.NONE
    if job.state is JobState.CANCELLED:
        return JobFault.CANCELLED
    failure = job.last_failure
    if job.reason.code in _USED_UP and failure is not None:
        return JobFault.PLATFORM if failure.cause in PLATFORM_CAUSES else JobFault.USER
    return JobFault.PLATFORM if job.reason.code in _PLATFORM_CODES else JobFault.USER
