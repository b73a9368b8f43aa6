"""A study and its trials: policy, state, commands and the result of a decision, as immutable values."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from operator import attrgetter

from phalanx.core.search import draw
from phalanx.core.search.expressions import Value
from phalanx.core.search.sampling import Observation
from phalanx.core.search.sorted_items import Numbered, SortedItems
from phalanx.core.search.space import Params, Space

RULES = ("asha", "hyperband", "pasha", "median", "percentile")
HISTORY_FREE = ("random", "grid", "qmc")
"""Methods that do not learn from results: a suggestion for them can be made ahead at no loss."""
# A finite space with conditions or constraints is counted cell by cell: only up to so many.
_COUNTED_CELLS = 10_000


@dataclass(frozen=True, slots=True)
class Objective:
    """The metric by which trials are compared.

    `at` is which report of a trial counts: its best so far, or its last. `target` ends the study once a
    trial reports it or better.
    """

    metric: str = ""
    goal: str = "minimize"  # or `maximize`
    at: str = "best"  # or `last`
    target: float | None = None

    def oriented(self, value: float) -> float:
        """The value with a sign such that lower is better."""
        return -value if self.goal == "maximize" else value


@dataclass(frozen=True)
class RungPolicy:
    """Rungs: units of training at which a study decides which trials go on.

    The rungs lie at min, min * eta, min * eta**2, …, max; with `interval`, at min, min + interval, …, max.
    """

    #: `asha`, `hyperband` (asha in brackets that begin at later rungs), `pasha`, `median`, `percentile`
    rule: str = "asha"
    #: `promotion`: trials pause at a rung, the best go on; `stop`: the others are stopped at once
    type: str = "promotion"
    #: what is counted: `epoch`, `step`, `sample` or `token`
    unit: str = "epoch"
    #: unit of the first rung
    min: int = 1
    #: unit at which a trial is complete
    max: int = 27
    #: one in `eta` trials goes on from each rung
    eta: int = 3
    #: number of brackets; bracket b begins at rung b
    brackets: int = 1
    #: seconds for which a trial keeps its slots at a rung; None: the measured cost of a resume
    hold_s: float | None = None
    #: distance of rungs; None: each is `eta` times the one before
    interval: int | None = None
    #: rules `median` and `percentile`: a trial must be at least as good as this share of the others, in %
    percentile: float = 50.0
    #: rules `median` and `percentile`: a rung decides from so many results on
    min_results: int = 5
    #: rule `pasha`: values closer than this share of a rung's spread count as equal
    tolerance: float = 0.1

    @cached_property
    def levels(self) -> tuple[int, ...]:
        """The units of all rungs, ascending; the last is `max`."""
        levels = []
        level = self.min
        while level < self.max:
            levels.append(level)
            level = level + self.interval if self.interval else level * self.eta
        return (*levels, self.max)

    @property
    def num_brackets(self) -> int:
        """Number of brackets; at most one for each rung."""
        wanted = len(self.levels) if self.rule == "hyperband" else self.brackets
        return max(1, min(wanted, len(self.levels)))

    @property
    def pauses(self) -> bool:
        """Whether trials pause at rungs, to go on later or never."""
        return self.rule in ("asha", "hyperband", "pasha") and self.type == "promotion"


@dataclass(frozen=True, slots=True)
class EarlyStopPolicy:
    """A trial stops after `patience` reports in a row without an improvement by more than `min_delta`."""

    patience: int
    min_delta: float = 0.0


@dataclass(frozen=True, slots=True)
class FailurePolicy:
    """A study fails when more than `max` trials have failed, or more than a `share` of `max_trials`.

    Failures of infrastructure never count. None: no limit of that kind.
    """

    max: int | None = None
    share: float | None = None


@dataclass(frozen=True, slots=True)
class PopulationPolicy:
    """Population based training: at each interval the worst are replaced by forks of the best.

    `explore` is how a fork's params change: `perturb` multiplies numbers by one of `factors` and draws
    anew with probability `resample` (Jaderberg et al. 2017, arXiv 1711.09846); `pb2` asks the sampler
    (Parker-Holder et al. 2020, arXiv 2002.02518).
    """

    size: int
    interval: int
    max: int
    quantile: float = 0.25
    explore: str = "perturb"
    resample: float = 0.25
    factors: tuple[float, ...] = (0.8, 1.2)
    unit: str = "epoch"

    def levels(self) -> tuple[int, ...]:
        """The units at which members are compared; the last is `max`."""
        return (*range(self.interval, self.max, self.interval), self.max)


@dataclass(frozen=True, slots=True)
class StudyBudget:
    """Limits of a study as a whole; None: no limit of that kind."""

    slot_hours: float | None = None
    usd: float | None = None
    duration_s: float | None = None


@dataclass(frozen=True, slots=True)
class FinalPolicy:
    """After the search, the best params are trained to the end again, once for each of `seeds`."""

    seeds: int = 1


@dataclass(frozen=True, slots=True)
class RungResources:
    """Trials that go on towards `unit` or beyond get other resources; None leaves a value as it is."""

    unit: int
    nodes: int | None = None
    slots_per_node: int | None = None


@dataclass(frozen=True)
class StudyPolicy:
    """The settings of a study, fixed at submit except for the limits that an extension raises."""

    #: what is searched
    space: Space
    #: what is optimized
    objective: Objective = Objective()
    #: sampler: `auto`, `random`, `grid`, `qmc`, `tpe`, `bayesian`, or that of a plugin
    method: str = "auto"
    #: options of the sampler
    options: dict[str, Value] = field(default_factory=dict)
    #: seed of every random choice
    seed: int = 0
    #: params of the first trials
    start_with: tuple[Params, ...] = ()
    #: number of trials; None: until a budget, the target or the space ends the study
    max_trials: int | None = None
    #: number of trials that are in the queue or hold slots at the same time
    parallel: int = 1
    #: number of suggestions made before they are needed; None: 1, or `parallel` for methods without history
    ask_ahead: int | None = None
    #: which failures end the study
    failures: FailurePolicy = FailurePolicy()
    #: `never`: no two trials have the same params; `allow`
    duplicates: str = "never"
    #: rungs; None: every trial runs to its end
    rungs: RungPolicy | None = None
    #: patience; None: not used
    early_stop: EarlyStopPolicy | None = None
    #: population; None: not used. Excludes `rungs`
    population: PopulationPolicy | None = None
    #: limits of the whole study
    budget: StudyBudget = StudyBudget()
    #: retraining of the best; None: not wanted
    final: FinalPolicy | None = None
    #: other resources of trials that are promoted far, ascending by unit
    resources: tuple[RungResources, ...] = ()
    #: trials of other studies that samplers learn from, one tuple for each study
    prior: tuple[tuple[Observation, ...], ...] = ()
    #: False: trials have no jobs; evaluators outside the platform ask for them and tell results
    jobs: bool = True

    @cached_property
    def levels(self) -> tuple[int, ...]:
        """The units at which the study decides about a trial; empty if it never does."""
        if self.rungs is not None:
            return self.rungs.levels
        return () if self.population is None else self.population.levels()

    @cached_property
    def num_cells(self) -> int | None:
        """Number of distinct params of a small finite space; None for any other."""
        space, cells = self.space, self.space.num_cells()
        if cells is None or not (space.constraints or space.is_conditional):
            return cells
        return draw.grid_size(space) if cells <= _COUNTED_CELLS else None

    @property
    def unit(self) -> str:
        """What the progress of a trial is counted in."""
        counted = self.rungs or self.population
        return "epoch" if counted is None else counted.unit

    @property
    def ahead(self) -> int:
        """Number of suggestions that are made before they are needed."""
        if self.ask_ahead is not None:
            return self.ask_ahead
        return self.parallel if self.method in HISTORY_FREE else 1

    def resources_at(self, unit: int | None) -> RungResources | None:
        """The other resources of a trial that runs towards `unit`; None: those of the spec."""
        fitting = [one for one in self.resources if unit is not None and one.unit <= unit]
        return max(fitting, key=lambda one: one.unit, default=None)


class StudyState(StrEnum):
    """The state of a study."""

    RUNNING = "running"
    PAUSED = "paused"  # by a user: its trials leave their slots, and none starts
    STOPPING = "stopping"  # its trials save and leave; then it ends
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class TrialStatus(StrEnum):
    """The status of a trial. It takes one of the `parallel` places exactly in those of PLACED."""

    ASKED = "asked"  # a sampler is asked for its params
    SUGGESTED = "suggested"  # it has params, and waits for a place
    WAITING = "waiting"  # its job is in the queue
    RUNNING = "running"
    HELD = "held"  # it has reached its rung, and keeps its slots for a moment
    PAUSED = "paused"  # it has saved and left its slots
    COMPLETED = "completed"  # trained to its end
    STOPPED = "stopped"  # by a rule, a budget, a user or the end of the study
    DIVERGED = "diverged"  # its objective was not finite
    FAILED = "failed"
    REJECTED = "rejected"  # its script called its params invalid


PLACED = frozenset({TrialStatus.WAITING, TrialStatus.RUNNING, TrialStatus.HELD})
STUDY_OVER = frozenset({StudyState.SUCCEEDED, StudyState.FAILED, StudyState.CANCELLED})
TRIAL_OVER = frozenset(
    {
        TrialStatus.COMPLETED,
        TrialStatus.STOPPED,
        TrialStatus.DIVERGED,
        TrialStatus.FAILED,
        TrialStatus.REJECTED,
    }
)
FINAL_SAMPLER = "final"
"""The sampler in the origin of a trial that retrains the best params."""


class SearchCode(StrEnum):
    """Why a study or a trial is in its state. Codes are stored, so they are never renamed."""

    SUBMITTED = "submitted"
    RESUME_REQUESTED = "resume_requested"
    PAUSE_REQUESTED = "pause_requested"
    STOP_REQUESTED = "stop_requested"
    EXTENDED = "extended"
    RETRAINING = "retraining"  # the study trains its best params again
    ALL_TRIALS_ENDED = "all_trials_ended"
    EXHAUSTED = "exhausted"  # the space has no more params
    TARGET_REACHED = "target_reached"
    SLOT_HOURS_SPENT = "slot_hours_spent"
    MONEY_SPENT = "money_spent"
    DURATION_REACHED = "duration_reached"
    TOO_MANY_FAILED = "too_many_failed"
    TOO_MANY_REJECTED = "too_many_rejected"
    NO_RESULT = "no_result"  # every trial has ended, none with a result
    NO_SUGGESTION = "no_suggestion"  # the sampler failed again and again
    # Trials:
    SUGGESTED = "suggested"
    WAITING_FOR_SLOTS = "waiting_for_slots"
    RUNS = "runs"
    REACHED_RUNG = "reached_rung"
    PROMOTED = "promoted"
    NOT_PROMOTED = "not_promoted"
    BEHIND_OTHERS = "behind_others"  # a stopping rule compared it with others
    NO_IMPROVEMENT = "no_improvement"  # patience
    REPLACED = "replaced"  # by a fork of a better member of the population
    REACHED_END = "reached_end"
    ENDED_BY_ITSELF = "ended_by_itself"
    NOT_FINITE = "not_finite"
    NO_METRIC = "no_metric"  # it ended well and never reported the objective
    JOB_FAILED = "job_failed"
    JOB_STOPPED = "job_stopped"
    INFRASTRUCTURE = "infrastructure"
    CALLED_INVALID = "called_invalid"
    DUPLICATE = "duplicate"
    EVALUATOR_SILENT = "evaluator_silent"  # an outside evaluator told nothing in its time
    STUDY_ENDED = "study_ended"


@dataclass(frozen=True, slots=True)
class SearchReason:
    """A reason: a code for programs, and one line of text for users."""

    code: SearchCode
    message: str = ""

    def __str__(self) -> str:
        return f"{self.code}: {self.message}" if self.message else str(self.code)


@dataclass(frozen=True, slots=True)
class Origin:
    """How the params of a trial came about."""

    #: the sampler that made them; `user` for params that a user gave, `fork` for a changed copy
    sampler: str
    #: version of the sampler
    version: str = ""
    #: number of draws discarded before this one; of a `final` trial, its seed
    sub: int = 0
    #: trial that it was forked from
    parent: int | None = None
    #: unit of the parent's checkpoint
    step: int | None = None
    #: why they are not the method's own suggestion, or empty
    reason: str = ""


@dataclass(frozen=True, slots=True)
class TrialResult:
    """A report of a trial. `score` is the value that counts: with `at: best`, the best so far."""

    unit: int
    value: float
    checkpoint: str | None = None
    score: float = 0.0


@dataclass(frozen=True, slots=True)
class Trial:
    """The current state of one trial; times are microseconds UTC."""

    #: number in the study, from 0
    number: int
    #: its params; empty until they are suggested
    params: Params
    #: how the params came about
    origin: Origin
    #: the status, changed only by the study machine
    status: TrialStatus = TrialStatus.ASKED
    #: reason of the status
    reason: SearchReason = SearchReason(SearchCode.SUBMITTED)
    #: number of its job; the newest, if infrastructure ended an earlier one
    job: int | None = None
    #: the bracket in which it is compared
    bracket: int = 0
    #: the rung that it began towards
    first_rung: int = 0
    #: the rung that it trains towards or has reached, as an index of `StudyPolicy.levels`
    rung: int = 0
    #: the unit at which it pauses; None: it runs to its end
    until: int | None = None
    #: its result at each rung from `first_rung` on
    results: tuple[TrialResult, ...] = ()
    #: its best report
    best: TrialResult | None = None
    #: its newest report
    last: TrialResult | None = None
    #: number of reports in a row without an improvement by more than `min_delta`
    waited: int = 0
    #: value from which an improvement is counted
    mark: float | None = None
    #: number of repeated reports of a unit with another value
    differs: int = 0
    #: the status that it takes once its job has left; None: nothing was asked of it
    ending: TrialStatus | None = None
    #: until when it keeps its slots at its rung
    hold_until: int | None = None
    #: when it last went to the queue
    queued_at: int | None = None
    #: evaluator outside the platform that computes it
    evaluator: str | None = None
    #: seconds for which its evaluator may be silent
    lease_s: float | None = None
    #: when its evaluator counts as lost, unless it reports before
    lease_until: int | None = None
    #: its checkpoint that is protected from retention
    pinned: str | None = None
    #: checkpoint of its parent from which it begins; None: it is no fork
    fork_of: str | None = None
    #: slot-seconds used by its jobs, as last settled
    slot_s: float = 0.0
    #: money used by its jobs, as last settled
    usd: float = 0.0
    #: the unit that it had reached then
    settled_unit: int = 0
    #: slot-seconds reserved for what it does now
    reserved_s: float = 0.0
    #: number of times that it was submitted again after a failure of infrastructure
    resubmits: int = 0
    #: number of starts towards another number of slots; results are not exactly repeatable then
    resized: int = 0

    @property
    def is_over(self) -> bool:
        """Whether it will never run again."""
        return self.status in TRIAL_OVER

    @property
    def is_final(self) -> bool:
        """Whether it retrains the best params after the search."""
        return self.origin.sampler == FINAL_SAMPLER

    @property
    def at_rung(self) -> bool:
        """Whether it has a result at the rung that it trains towards."""
        return len(self.results) > self.rung - self.first_rung

    @property
    def timer_at(self) -> int | None:
        """When it has to be looked at again: at the end of its hold, or of its evaluator's lease."""
        times = [at for at in (self.hold_until, self.lease_until) if at is not None]
        return min(times, default=None)

    @property
    def score(self) -> float | None:
        """The value by which it is compared; None if it has none."""
        return None if self.last is None else self.last.score


@dataclass(frozen=True, slots=True)
class StudyFacts:
    """What a study knows beyond its policy and its trials; times are microseconds UTC."""

    #: when it was submitted
    submitted_at: int
    #: the state, changed only by the study machine
    state: StudyState = StudyState.RUNNING
    #: reason of the state
    reason: SearchReason = SearchReason(SearchCode.SUBMITTED)
    #: the state that follows once all trials have left
    ending: StudyState | None = None
    #: when its duration ends
    deadline_at: int | None = None
    #: when a user paused it
    paused_at: int | None = None
    #: when it reached a terminal state
    ended_at: int | None = None
    #: whether the space has no more params
    exhausted: bool = False
    #: whether the best params are being retrained, or were
    finals: bool = False
    #: rule `pasha`: the highest rung that trials may train towards
    ceiling: int = 0
    #: slot-seconds used by all trials, running ones included, as last told
    slot_s: float = 0.0
    #: money used by all trials, running ones included, as last told
    usd: float = 0.0
    #: measured seconds from a resume to running ranks; None: not measured yet
    resume_cost_s: float | None = None
    #: the reason with which it ends: after the retraining of the best, or once trials have finished
    verdict: SearchReason | None = None
    #: number of asks in a row without an answer that could be used
    failed_asks: int = 0


@dataclass(frozen=True, slots=True)
class Rung:
    """The trials at one rung of a bracket, as (score, number) with lower scores better."""

    #: every trial with a result; a diverged one with an infinite score
    results: SortedItems[tuple[float, int]] = SortedItems()
    #: those that can still go on: held or paused here
    candidates: SortedItems[tuple[float, int]] = SortedItems()
    #: number of trials that train towards this rung
    coming: int = 0


class StudyIndex:
    """What the machine looks up about trials; a function of the trials, so it is not stored.

    Changed only in a draft of a decision: see `index.move`.
    """

    __slots__ = (
        "asked",
        "completed",
        "counted",
        "failed",
        "interrupted",
        "leaving",
        "outside",
        "placed",
        "rejected",
        "reserved_us",
        "rungs",
        "scores",
        "seen",
        "settled",
        "suggested",
        "timers",
        "top",
        "units",
        "usd_micro",
        "used_us",
    )

    def __init__(self) -> None:
        none: SortedItems[int] = SortedItems()
        pairs: SortedItems[tuple[float, int]] = SortedItems()
        self.asked = none
        """Trials with an open ask for params."""
        self.suggested = none
        """Trials that wait for a place."""
        self.placed = none
        """Trials in the statuses of PLACED."""
        self.outside = 0
        """Number of those in `placed` that an evaluator outside the platform computes."""
        self.leaving = 0
        """Number of those in `placed` that were asked to pause or to end."""
        self.interrupted = none
        """Paused trials that have not reached their rung."""
        self.timers: SortedItems[tuple[int, int]] = SortedItems()
        """(time, number) of trials that are held, or that an outside evaluator computes."""
        self.rungs: dict[tuple[int, int], Rung] = {}
        """Rungs by (bracket, rung)."""
        self.scores = pairs
        """(score, number) of all trials with a score, finals aside."""
        self.top = pairs
        """Those of `scores` that were trained to the end."""
        self.seen: SortedItems[tuple[int, int]] = SortedItems()
        """(hash of the params, number) of all trials that have params."""
        self.counted = 0
        """Number of trials that count against `max_trials`."""
        self.failed = 0
        """Number of failed trials."""
        self.completed = 0
        """Number of completed trials."""
        self.rejected = 0
        """Number of rejected trials."""
        self.settled = 0
        """Number of trials with a settled use of slots."""
        self.used_us = 0
        """Slot-microseconds of settled use."""
        self.units = 0
        """Units trained by trials with a settled use."""
        self.usd_micro = 0
        """Settled money, in millionths."""
        self.reserved_us = 0
        """Slot-microseconds reserved for running trials."""

    def copy(self) -> StudyIndex:
        """A copy with attributes that can be set."""
        made = StudyIndex.__new__(StudyIndex)
        for name, value in zip(StudyIndex.__slots__, _INDEX_VALUES(self), strict=True):
            setattr(made, name, value)
        made.rungs = dict(self.rungs)
        return made

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StudyIndex) and all(
            getattr(self, name) == getattr(other, name) for name in StudyIndex.__slots__
        )

    __hash__ = None  # type: ignore[assignment]


_INDEX_VALUES = attrgetter(*StudyIndex.__slots__)


@dataclass(frozen=True, slots=True)
class Study:
    """The current state of a study, computed from its events.

    `facts` and the trials are stored; `index` is computed from the trials.
    """

    num: int
    policy: StudyPolicy
    facts: StudyFacts
    trials: Numbered[Trial]
    index: StudyIndex

    @property
    def state(self) -> StudyState:
        """The state of the study."""
        return self.facts.state

    @property
    def reason(self) -> SearchReason:
        """The reason of the state."""
        return self.facts.reason

    @property
    def is_over(self) -> bool:
        """Whether the study has ended; an extension lets it go on."""
        return self.facts.state in STUDY_OVER

    @property
    def best(self) -> Trial | None:
        """The best trial: among those trained to the end if there is one, else among all."""
        found = self.index.top.first() or self.index.scores.first()
        return None if found is None else self.trials[found[1]]


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask the sampler for the params of a trial. Ends as Suggested or SuggestionFailed."""

    trial: int


@dataclass(frozen=True, slots=True)
class SubmitTrial:
    """Submit a job for a trial. Ends as TrialSubmitted.

    After a failure of infrastructure, `resubmit` counts the jobs before it, and `checkpoint` is the one
    of the trial to begin from, if it has one.
    """

    trial: int
    resubmit: int = 0
    checkpoint: str | None = None


@dataclass(frozen=True, slots=True)
class ContinueTo:
    """Raise the unit at which a trial that keeps its slots pauses; None: it runs to its end."""

    trial: int
    unit: int | None


@dataclass(frozen=True, slots=True)
class PauseTrial:
    """Have a trial's job save and leave its slots. Ends as TrialPaused, or TrialEnded."""

    trial: int


@dataclass(frozen=True, slots=True)
class ResumeTrial:
    """Put the paused job of a trial into the queue, to run up to `unit`. Ends as TrialStarted."""

    trial: int
    unit: int | None


@dataclass(frozen=True, slots=True)
class StopTrial:
    """Have a trial's job save, report and end. Ends as TrialEnded."""

    trial: int
    reason: SearchReason


@dataclass(frozen=True, slots=True)
class ForkTrial:
    """Submit a job for a trial from another trial's checkpoint. Ends as TrialSubmitted."""

    trial: int
    parent: int
    checkpoint: str
    params: Params


@dataclass(frozen=True, slots=True)
class ResizeTrial:
    """Submit a job with other resources in place of a trial's paused one; a ResumeTrial follows.

    It begins from `checkpoint`, or from the trial's newest one. Ends as TrialSubmitted.
    """

    trial: int
    resources: RungResources
    checkpoint: str | None = None


@dataclass(frozen=True, slots=True)
class Pin:
    """Protect a checkpoint of a trial from retention. Ends as CheckpointPinned."""

    trial: int
    checkpoint: str


@dataclass(frozen=True, slots=True)
class Unpin:
    """Release a checkpoint of a trial to retention."""

    trial: int
    checkpoint: str


@dataclass(frozen=True, slots=True)
class FinishStudy:
    """The study has ended: release what it holds."""

    state: StudyState


StudyCommand = (
    Ask
    | SubmitTrial
    | ContinueTo
    | PauseTrial
    | ResumeTrial
    | StopTrial
    | ForkTrial
    | ResizeTrial
    | Pin
    | Unpin
    | FinishStudy
)


@dataclass(frozen=True, slots=True)
class StudyDecision:
    """The new study, commands, changed trials, and the reason why the event was ignored, if it was."""

    study: Study
    commands: tuple[StudyCommand, ...] = ()
    ignored: str | None = None
    #: every trial that differs from the study before, in number order: the rows to write
    changed_trials: tuple[Trial, ...] = ()
