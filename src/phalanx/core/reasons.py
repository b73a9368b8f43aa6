"""Codes for the causes of state changes; codes are stored, so they are never renamed or removed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Cause(StrEnum):
    """The cause of the early end of a generation or an attempt; each has a restart budget."""

    RANK_CRASH = "rank_crash"
    NODE_LOST = "node_lost"
    PREEMPTED = "preempted"
    STALLED = "stalled"
    START_FAILED = "start_failed"
    OOM = "oom"
    USER_ERROR = "user_error"
    DIVERGED = "diverged"
    CHECKPOINT_MISSING = "checkpoint_missing"
    FINAL_CHECKPOINT_NOT_SAVED = "final_checkpoint_not_saved"
    PARAMS_REJECTED = "params_rejected"
    SECRET_UNAVAILABLE = "secret_unavailable"
    SECRET_MANAGER_UNAVAILABLE = "secret_manager_unavailable"
    CLUSTER_QUOTA = "cluster_quota"
    UNSCHEDULABLE = "unschedulable"
    NODE_DRAINED = "node_drained"


OUTSIDE_CAUSES = frozenset(
    {Cause.SECRET_MANAGER_UNAVAILABLE, Cause.CLUSTER_QUOTA, Cause.UNSCHEDULABLE}
)
"""Causes that lie outside of the job and prevent its start: the job waits for as long as they last."""


class ReasonCode(StrEnum):
    """The reason of a job's current state."""

    SUBMITTED = "submitted"
    WAITING_FOR_SLOTS = "waiting_for_slots"
    WAITING_BEHIND = "waiting_behind"
    PLACED = "placed"
    RANKS_UP = "ranks_up"
    RANK_CRASH = "rank_crash"
    NODE_LOST = "node_lost"
    PREEMPTED = "preempted"
    STALLED = "stalled"
    START_FAILED = "start_failed"
    OOM = "oom"
    USER_ERROR = "user_error"
    DIVERGED = "diverged"
    EXIT_CODE = "exit_code"
    COMPLETED = "completed"
    CANCEL_REQUESTED = "cancel_requested"
    PAUSE_REQUESTED = "pause_requested"
    RESUME_REQUESTED = "resume_requested"
    MAX_DURATION = "max_duration"
    CRASH_LOOP = "crash_loop"
    BUDGET_SPENT = "budget_spent"
    WAITING_FOR_QUOTA = "waiting_for_quota"
    WAITING_FOR_TOPOLOGY = "waiting_for_topology"
    WAITING_FOR_VICTIMS = "waiting_for_victims"
    UNPLACEABLE = "unplaceable"
    RESIZED = "resized"
    MOVED = "moved"
    NODE_DRAINED = "node_drained"
    BLOCKED = "blocked"
    CHECKPOINT_MISSING = "checkpoint_missing"
    FINAL_CHECKPOINT_NOT_SAVED = "final_checkpoint_not_saved"
    BEGIN_ANEW_REQUESTED = "begin_anew_requested"
    PARAMS_REJECTED = "params_rejected"
    TARGET_REACHED = "target_reached"
    WAITING_FOR_DEPENDENCIES = "waiting_for_dependencies"
    DEPENDENCIES_MET = "dependencies_met"
    WAITING_FOR_TURN = "waiting_for_turn"
    TURN_CAME = "turn_came"
    DEPENDENCY_FAILED = "dependency_failed"
    COST_BUDGET = "cost_budget"
    SECRET_UNAVAILABLE = "secret_unavailable"
    WAITING_FOR_USER_QUOTA = "waiting_for_user_quota"
    WAITING_FOR_TYPE_QUOTA = "waiting_for_type_quota"
    SECRET_MANAGER_UNAVAILABLE = "secret_manager_unavailable"
    OUTSIDE_RESIDENCY = "outside_residency"


@dataclass(frozen=True, slots=True)
class Reason:
    """A reason: a code for programs, and one line of text for users."""

    code: ReasonCode
    message: str = ""

    def __str__(self) -> str:
        return f"{self.code}: {self.message}" if self.message else str(self.code)


def code_of(cause: Cause) -> ReasonCode:
    """The reason code of a cause: that of its name, or of what the job waits for."""
    waits = {
        Cause.CLUSTER_QUOTA: ReasonCode.WAITING_FOR_QUOTA,
        Cause.UNSCHEDULABLE: ReasonCode.WAITING_FOR_SLOTS,
    }
    return waits[cause] if cause in waits else ReasonCode(cause.value)


def reason_of(cause: Cause, message: str) -> Reason:
    """The reason of a cause."""
    return Reason(code_of(cause), message)
