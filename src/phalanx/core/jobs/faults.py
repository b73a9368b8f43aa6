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
    failure = job.last_failure
    return fault_of_end(job.state, job.reason.code, "" if failure is None else failure.cause)


def fault_of_end(state: str, reason: str, cause: str) -> JobFault:
    """The fault of a job by its last state, the reason of it, and the cause of its last failure."""
    if state == JobState.SUCCEEDED:
        return JobFault.NONE
    if state == JobState.CANCELLED:
        return JobFault.CANCELLED
    if reason in _USED_UP and cause:
        return JobFault.PLATFORM if cause in PLATFORM_CAUSES else JobFault.USER
    return JobFault.PLATFORM if reason in _PLATFORM_CODES else JobFault.USER
