"""What prevents the deletion of a job.

Requests of users and retention periods ask the same question, so that neither deletes what the other
would keep.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from phalanx.kit.text import job_label, study_label


class Hold(StrEnum):
    """A reason for which a job must stay."""

    LIVE = "live"  # it has not ended
    LEAVING = "leaving"  # its supervisors are still being told to leave
    PINNED = "pinned"  # a user pinned it
    CHECKPOINT_PINNED = "checkpoint_pinned"  # a user pinned one of its checkpoints
    STUDY = "study"  # a study that has not ended needs it
    FORKED = "forked"  # a job that has not ended begins from one of its checkpoints
    AWAITED = "awaited"  # a job waits for its end or start


class RemovalCause(StrEnum):
    """Why data was deleted."""

    REQUEST = "request"  # a user deleted the job
    RETENTION = "retention"  # a retention period ended
    QUOTA = "quota"  # all jobs together had more output than is stored


@dataclass(frozen=True, slots=True, kw_only=True)
class JobUse:
    """What is known of the use of a job at one moment."""

    num: int  # job number
    is_over: bool  # it has ended
    is_leaving: bool = False  # a command to its supervisors is open
    pinned_by: str | None = None  # the user that pinned it; None: it is not pinned
    pinned_checkpoints: int = 0  # checkpoints that users pinned
    studies: tuple[int, ...] = ()  # studies that have not ended and need it or a checkpoint of it
    forks: tuple[int, ...] = ()  # jobs that have not ended and begin from a checkpoint of it
    waiting: tuple[int, ...] = ()  # jobs that wait for it


@dataclass(frozen=True, slots=True)
class HoldReason:
    """One hold, in words for the user: what is in the way, and what to do."""

    hold: Hold
    message: str
    hint: str


_SHOWN = 5


def holds(use: JobUse) -> tuple[HoldReason, ...]:
    """The reasons for which a job must stay, the most important first; empty: it may be deleted."""
    label = job_label(use.num)
    found: list[HoldReason] = []

    def add(is_held: bool, hold: Hold, message: str, hint: str) -> None:
        if is_held:
            found.append(HoldReason(hold, message, hint))

    add(not use.is_over, Hold.LIVE, f"{label} has not ended", f"stop it: phalanx stop {label}")
    add(
        use.pinned_by is not None,
        Hold.PINNED,
        f"{label} is pinned by {use.pinned_by}",
        f"unpin it: phalanx unpin {label}",
    )
    add(
        use.pinned_checkpoints > 0,
        Hold.CHECKPOINT_PINNED,
        f"{use.pinned_checkpoints} of the checkpoints of {label} are pinned",
        f"unpin them: phalanx checkpoints unpin {label} STEP",
    )
    add(
        bool(use.studies),
        Hold.STUDY,
        f"{_named(use.studies, study_label)} has not ended and needs {label}",
        "wait for the end of the study, or stop it: phalanx sweep stop",
    )
    add(
        bool(use.forks),
        Hold.FORKED,
        f"{_named(use.forks, job_label)} begins from a checkpoint of {label}",
        "wait for its end, or stop it",
    )
    add(
        bool(use.waiting),
        Hold.AWAITED,
        f"{_named(use.waiting, job_label)} waits for {label}",
        "wait until it has started, or stop it",
    )
    add(
        use.is_over and use.is_leaving,
        Hold.LEAVING,
        f"the supervisors of {label} have not left yet",
        "try again in a moment",
    )
    return tuple(found)


def _named(nums: Sequence[int], label: object) -> str:
    names = [label(num) for num in nums[:_SHOWN]]  # type: ignore[operator]
    more = len(nums) - _SHOWN
    return ", ".join(names) + (f" and {more} more" if more > 0 else "")
