"""Typed causes. Every state change carries one; codes are append-only, because storage keeps them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Cause(StrEnum):
    """Why a generation or an attempt ended early: the keys of restart budgets."""

    RANK_CRASH = "rank_crash"
    NODE_LOST = "node_lost"
    PREEMPTED = "preempted"
    STALLED = "stalled"
    START_FAILED = "start_failed"
    OOM = "oom"
    USER_ERROR = "user_error"
    DIVERGED = "diverged"


class ReasonCode(StrEnum):
    """Why a job is in the state it is in."""

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


@dataclass(frozen=True, slots=True)
class Reason:
    """A code that programs switch on, and one line that people read."""

    code: ReasonCode
    message: str = ""

    def __str__(self) -> str:
        return f"{self.code}: {self.message}" if self.message else str(self.code)


def reason_of(cause: Cause, message: str) -> Reason:
    """The reason with the same name as a cause."""
    return Reason(ReasonCode(cause.value), message)
