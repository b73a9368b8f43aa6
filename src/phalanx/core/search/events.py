"""The events of a study. Event names are in the past tense and are stored permanently."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import get_args

from phalanx.core.search.model import FailurePolicy, Origin, StudyPolicy
from phalanx.core.search.space import Params


class TrialOutcome(StrEnum):
    """How the job of a trial ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"  # by a fault of the user's code or its params
    INFRASTRUCTURE = "infrastructure"  # not by a fault of the trial: it is submitted again
    REJECTED = "rejected"  # the script called its params invalid
    STOPPED = "stopped"  # at a request of the study or of a user


@dataclass(frozen=True, slots=True)
class StudySubmitted:
    """A user submitted a study."""

    num: int
    policy: StudyPolicy


@dataclass(frozen=True, slots=True)
class Suggested:
    """A sampler answered an Ask: the params of one trial."""

    trial: int
    params: Params
    origin: Origin


@dataclass(frozen=True, slots=True)
class SuggestionFailed:
    """A sampler has no params for a trial; `exhausted` if no further trial is possible."""

    trial: int
    reason: str
    exhausted: bool = False


@dataclass(frozen=True, slots=True)
class TrialSubmitted:
    """A job was submitted for a trial."""

    trial: int
    job: int


@dataclass(frozen=True, slots=True)
class TrialStarted:
    """The ranks of a trial's job run, for the first time or again."""

    trial: int


@dataclass(frozen=True, slots=True)
class TrialReported:
    """A trial reported its objective after a unit. `checkpoint` is the committed one of that unit.

    `value` None stands for a value that is not finite, so that events can be stored as plain JSON;
    NaN and infinities are converted.
    """

    trial: int
    unit: int
    value: float | None
    checkpoint: str | None = None

    def __post_init__(self) -> None:
        if self.value is not None and not math.isfinite(self.value):
            object.__setattr__(self, "value", None)


@dataclass(frozen=True, slots=True)
class TrialPaused:
    """A trial's job saved and left its slots. `slot_s` and `usd` are its totals so far.

    `by_user` if a user paused the job, not the study.
    """

    trial: int
    checkpoint: str | None = None
    slot_s: float = 0.0
    usd: float = 0.0
    by_user: bool = False


@dataclass(frozen=True, slots=True)
class TrialEnded:
    """A trial's job is over. `slot_s` and `usd` are the totals of the trial over all of its jobs.

    Of a job that is not the trial's newest one, nothing counts but what it used.
    """

    trial: int
    outcome: TrialOutcome
    reason: str = ""
    slot_s: float = 0.0
    usd: float = 0.0
    job: int | None = None


@dataclass(frozen=True, slots=True)
class CheckpointPinned:
    """A checkpoint of a trial is protected from retention."""

    trial: int
    checkpoint: str


@dataclass(frozen=True, slots=True)
class BudgetSpent:
    """What all trials have used by now, running ones included: slot-seconds and money."""

    slot_s: float
    usd: float = 0.0


@dataclass(frozen=True, slots=True)
class StudyPaused:
    """A user paused the study: its trials save and leave their slots."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class StudyResumed:
    """A user resumed the study."""


@dataclass(frozen=True, slots=True)
class StudyExtended:
    """A user raised limits of a study; one that has ended goes on. None leaves a limit as it is."""

    max_trials: int | None = None
    parallel: int | None = None
    slot_hours: float | None = None
    usd: float | None = None
    duration_s: float | None = None
    failures: FailurePolicy | None = None


@dataclass(frozen=True, slots=True)
class StudyStopped:
    """A user stopped the study; with `finish`, trials that have begun go on to their end."""

    reason: str = ""
    finish: bool = False


@dataclass(frozen=True, slots=True)
class TrialAdded:
    """A user added a trial with given params; the limit of trials grows by one."""

    params: Params
    origin: Origin = field(default_factory=lambda: Origin("user"))


@dataclass(frozen=True, slots=True)
class TrialAsked:
    """An evaluator outside the platform asked for a trial, and may be silent for `lease_s` seconds."""

    evaluator: str
    lease_s: float = 3600.0


@dataclass(frozen=True, slots=True)
class TrialTold:
    """An evaluator outside the platform told how its trial ended; `value` None: without a result."""

    trial: int
    value: float | None
    outcome: TrialOutcome = TrialOutcome.SUCCEEDED
    reason: str = ""

    def __post_init__(self) -> None:
        if self.value is not None and not math.isfinite(self.value):
            object.__setattr__(self, "value", None)


@dataclass(frozen=True, slots=True)
class HoldElapsed:
    """A trial has held its slots at a rung for as long as it may."""

    trial: int


@dataclass(frozen=True, slots=True)
class StudyDurationExceeded:
    """The study ran for as long as its budget allows."""


StudyEvent = (
    StudySubmitted
    | Suggested
    | SuggestionFailed
    | TrialSubmitted
    | TrialStarted
    | TrialReported
    | TrialPaused
    | TrialEnded
    | CheckpointPinned
    | BudgetSpent
    | StudyPaused
    | StudyResumed
    | StudyExtended
    | StudyStopped
    | TrialAdded
    | TrialAsked
    | TrialTold
    | HoldElapsed
    | StudyDurationExceeded
)

STUDY_EVENT_TYPES: tuple[type[StudyEvent], ...] = get_args(StudyEvent)
