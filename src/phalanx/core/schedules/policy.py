"""Decide what becomes of due times: start a job, or leave the time out with a reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

ON_TIME_US = 60 * 1_000_000
"""A due time that is handled later than this was missed; a change of the leader takes less."""


class CatchUp(StrEnum):
    """What becomes of due times that passed while no control plane could start a job."""

    NONE = "none"  # they are left out
    LAST = "last"  # the newest of them starts a job
    ALL = "all"  # the newest ones start a job each, up to the limit of the schedule


class Overlap(StrEnum):
    """What becomes of a due time while a job of the schedule is not over."""

    FORBID = "forbid"  # it is left out
    ALLOW = "allow"  # another job starts beside it
    REPLACE = "replace"  # the earlier job is cancelled


class DueOutcome(StrEnum):
    """What became of a due time."""

    SUBMITTED = "submitted"  # a job was submitted
    MISSED = "missed"  # left out by the catch-up policy
    OVERLAPPED = "overlapped"  # left out since an earlier job was not over
    REFUSED = "refused"  # the submission was refused


@dataclass(frozen=True, slots=True)
class DueTimes:
    """Due times up to now: those that start a job, oldest first, and the newest that is left out."""

    start: tuple[int, ...]
    missed: int | None = None


def num_wanted(catch_up: CatchUp, limit: int) -> int:
    """The number of newest due times that a decision needs; one more shows whether any is left out."""
    return (limit if catch_up is CatchUp.ALL else 1) + 1


def decide_due(due: Sequence[int], catch_up: CatchUp, limit: int, now: int) -> DueTimes:
    """Divide due times, oldest first, into those that start a job and those that are left out."""
    start = list(due)[-(limit if catch_up is CatchUp.ALL else 1) :]
    if catch_up is CatchUp.NONE:
        start = [at for at in start if now - at <= ON_TIME_US]
    missed = [at for at in due if at not in start]
    return DueTimes(tuple(start), missed[-1] if missed else None)
