"""Bodies about studies and their trials: submission, state, trials, events and changes.

A study has a number of its own, shown `s-<num>`; a trial is a number within its study, counted from 0. The
trial's job, if it has one, is an ordinary job.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from phalanx.core.search.space import MAX_PARAMETERS
from phalanx.schemas.api.body import At, RequestBody, ResponseBody, ShortText, ShownAs
from phalanx.schemas.api.jobs import JobKind, ReasonView
from phalanx.schemas.api.provenance import SourceRequest
from phalanx.schemas.spec.study import StudySpec

Scalar = str | int | float | bool | None
"""The value of a parameter."""


class SubmitStudyRequest(RequestBody):
    """A new study, or one to check. `spec` is a study spec (schema 1, `kind: study`), resolved or not.

    The other fields are those of a job's submission, and hold for every trial.
    """

    spec: Annotated[dict[str, Any], ShownAs(StudySpec)]
    code: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    kind: JobKind = "submit"
    caller_cwd: Annotated[str, Field(max_length=4096)] | None = None
    caller_env: Annotated[dict[str, str], Field(max_length=4096)] | None = None
    owner: ShortText = ""
    source: SourceRequest | None = None  # Git state of the work directory; None: unknown


class SubmitStudyResponse(ResponseBody):
    """The study that was made, and its spec with every default written out."""

    study: StudyView
    spec: Annotated[dict[str, Any], ShownAs(StudySpec)]


class ExpectedRungView(ResponseBody):
    """What one rung is expected to take. `units` are epochs, steps, samples or tokens of all its trials.

    `slot_hours` is an upper limit from the job's `max_duration`; None without one.
    """

    until: int
    trials: int
    units: int
    slot_hours: float | None = None


class EarlierStudyView(ResponseBody):
    """A study that a new one learns from: how many of its trials, and how many do not fit the space."""

    study: str
    trials: int
    dropped: int


class StudyCheckView(ResponseBody):
    """What a study would do, without submitting it.

    `method` is the one that runs first, `method_reason` why it was chosen. `num_cells` is the number of
    different trials of the space; None for a continuous one. `share` is the expected part of the units that
    training every trial to the end would take.
    """

    spec: Annotated[dict[str, Any], ShownAs(StudySpec)]
    method: str
    method_reason: str = ""
    num_cells: int | None = None
    max_trials: int
    parallel: int
    slots_per_trial: int
    rungs: list[ExpectedRungView] = Field(default_factory=list)
    share: float | None = None
    slot_hours: float | None = None
    warm_start: list[EarlierStudyView] = Field(default_factory=list)


class ObjectiveView(ResponseBody):
    """The metric that the study optimizes."""

    metric: str
    goal: str
    at: str = "best"
    target: float | None = None


class TrialOriginView(ResponseBody):
    """Where the params of a trial come from.

    `sub` counts the draws of one suggestion. `parent` and `step` are given for a fork: the trial and the
    step of the checkpoint that it started from.
    """

    sampler: str
    version: str = ""
    sub: int = 0
    parent: int | None = None
    step: int | None = None
    reason: str = ""


class TrialResultView(ResponseBody):
    """One reported value of the objective. `value` is None where the number was not finite."""

    unit: int
    value: float | None
    checkpoint: str | None = None


class TrialWasteView(ResponseBody):
    """Slot-seconds that interruptions of a trial's jobs have cost: part of what its slots were held for.

    `redone` are steps that were made again; the others are the time from the last step before a failure,
    or a preemption, to the next step.
    """

    redone: float = 0.0
    lost_to_failure: float = 0.0
    lost_to_preemption: float = 0.0


class TrialView(ResponseBody):
    """One trial. `value` is its objective so far, at the study's `at`; None without a finite value.

    `unit` is the last one reported, `until` the one where it will pause; `results` are given for a single
    study's best trial, and in listings where `results=true` is asked for. `usd` is None where the pool has
    no prices.
    """

    study: int
    number: int
    label: str  # `s-3/7`
    params: dict[str, Scalar]
    origin: TrialOriginView
    status: str
    reason: str = ""
    job: int | None = None
    rung: int | None = None
    unit: int | None = None
    until: int | None = None
    value: float | None = None
    checkpoint: str | None = None  # of `value`, or the last one
    results: list[TrialResultView] = Field(default_factory=list)
    slot_s: float = 0.0
    usd: float | None = None
    waste: TrialWasteView | None = None  # None: an evaluator outside, or listings of studies
    submitted_at: At | None = None
    started_at: At | None = None
    ended_at: At | None = None

    @property
    def is_over(self) -> bool:
        """Whether it will never change again."""
        return self.status in ("completed", "stopped", "diverged", "failed", "rejected")


class RungView(ResponseBody):
    """One rung: how many trials have reported there, and how many went on."""

    bracket: int = 0
    until: int
    reported: int
    promoted: int


class FinalView(ResponseBody):
    """The final retraining: its trials, and the mean and deviation of the objective over its seeds.

    `mean` and `deviation` are over the trials that have ended with a finite value; `deviation` is None
    with fewer than two.
    """

    trials: list[int]
    jobs: list[int]
    values: list[float]
    mean: float | None = None
    deviation: float | None = None


class StudyCostView(ResponseBody):
    """The slot time of a study in hours, and its money.

    `wasted_slot_hours` went into trials that failed, diverged or were rejected; `redone_slot_hours` and the
    `lost` ones are what interruptions of any trial have cost. `saved_slot_hours` is the estimate of what
    stopping early has saved; it and they are given for a single study, not in listings. `usd` is None where
    the pool has no prices.
    """

    slot_hours: float = 0.0
    wasted_slot_hours: float = 0.0
    redone_slot_hours: float | None = None
    lost_to_failure_slot_hours: float | None = None
    lost_to_preemption_slot_hours: float | None = None
    saved_slot_hours: float | None = None
    usd: float | None = None
    max_slot_hours: float | None = None  # of the budget
    max_usd: float | None = None


class StudyView(ResponseBody):
    """A study. `rungs`, `final` and `spec` are given for a single study, not in listings.

    `trials` counts trials by status. `best` is the best trial with a finite value, not of the final
    retraining.
    """

    num: int
    label: str
    name: str
    project: str
    owner: str
    labels: dict[str, str] = Field(default_factory=dict)
    state: str
    reason: ReasonView
    method: str
    objective: ObjectiveView
    max_trials: int
    parallel: int
    trials: dict[str, int] = Field(default_factory=dict)
    best: TrialView | None = None
    cost: StudyCostView = Field(default_factory=StudyCostView)
    rungs: list[RungView] = Field(default_factory=list)
    final: FinalView | None = None
    submitted_at: At
    started_at: At | None = None
    ended_at: At | None = None
    eta_at: At | None = None  # expected end; None while it cannot be estimated
    spec: dict[str, Any] | None = None

    @property
    def is_terminal(self) -> bool:
        """Whether it has ended; `extend` starts an ended study again."""
        return self.state in ("succeeded", "failed", "cancelled")

    @property
    def num_over(self) -> int:
        """Trials that have ended."""
        ended = ("completed", "stopped", "diverged", "failed")
        return sum(self.trials.get(status, 0) for status in ended)


class AxisView(ResponseBody):
    """One parameter, as an axis of parallel coordinates.

    `importance` is its share in how much the parameters matter (PED-ANOVA); None with too few trials.
    """

    name: str
    kind: str  # `float`, `int` or `choice`
    log: bool = False
    low: float | None = None
    high: float | None = None
    values: list[Scalar] | None = None  # of a choice
    importance: float | None = None


class LineView(ResponseBody):
    """One trial as a line of parallel coordinates: its value, and its place on each axis from 0 to 1.

    `value` is at the unit of the results, so that values can be compared. A parameter that is not active
    has no place.
    """

    trial: int
    value: float
    places: list[float | None]


class StudyResultsView(ResponseBody):
    """What a study has found: the axes with the most important one first, and a line for each trial.

    `unit` is the rung at which values are compared; None without rungs.
    """

    study: StudyView
    unit: int | None = None
    axes: list[AxisView]
    lines: list[LineView]


class StudyPage(ResponseBody):
    """`next` is the `before` of the next page; None at the end."""

    studies: list[StudyView]
    next: int | None = None


class TrialPage(ResponseBody):
    """Trials in number order. `next` is the `after` of the next page; None at the end."""

    trials: list[TrialView]
    next: int | None = None


class StudyEventView(ResponseBody):
    """One event of a study. `state` is that of the study after the event."""

    study: int
    seq: int
    at: At
    kind: str
    trial: int | None = None
    state: str
    reason: ReasonView
    data: dict[str, Any] = Field(default_factory=dict)


class StudyEventPage(ResponseBody):
    """`cursor` is the `after` of the next call; `done`: the study has ended and no event is left."""

    events: list[StudyEventView]
    cursor: int
    done: bool


class ExtendStudyRequest(RequestBody):
    """New limits of a study; what is left out stays. An ended study runs again.

    Limits of budgets are the new totals.
    """

    max_trials: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    parallel: Annotated[int, Field(ge=1, le=100_000)] | None = None
    slot_hours: Annotated[float, Field(gt=0, le=1e12)] | None = None
    usd: Annotated[float, Field(gt=0, le=1e12)] | None = None
    duration_s: Annotated[float, Field(gt=0, le=1e12)] | None = None


class AddTrialRequest(RequestBody):
    """A trial with these params, which is started before suggested ones."""

    params: Annotated[dict[ShortText, Scalar], Field(max_length=MAX_PARAMETERS)]


class AskRequest(RequestBody):
    """An evaluator outside the platform asks for `count` trials of a study without a job.

    `evaluator` is a name for listings. Without a report or a result for `lease_s` seconds, a trial
    is given to the next one that asks.
    """

    count: Annotated[int, Field(ge=1, le=100)] = 1
    evaluator: ShortText = ""
    lease_s: Annotated[float, Field(ge=1, le=30 * 86400)] = 3600.0


class AskResponse(ResponseBody):
    """Trials to evaluate. `waiting`: more of them are being suggested; the same key gets them.

    `done`: the study has ended. Without trials, `waiting` and `done`, all trials are with evaluators, or
    the study is paused; events behind `cursor` say when there may be more.
    """

    trials: list[TrialView]
    waiting: int
    done: bool
    state: str
    cursor: int


class TrialReportRequest(RequestBody):
    """The objective of a trial after `unit` units. `value` None: it is not finite."""

    unit: Annotated[int, Field(ge=0, lt=2**53)]
    value: float | None


class TellRequest(RequestBody):
    """How a trial ended at its evaluator.

    A `completed` one has a value; None is one that is not finite, and the trial has diverged. Params that
    make no sense are `rejected`, and do not count.
    """

    outcome: Literal["completed", "failed", "rejected"] = "completed"
    value: float | None = None
    reason: Annotated[str, Field(max_length=2000)] = ""


SubmitStudyResponse.model_rebuild()
