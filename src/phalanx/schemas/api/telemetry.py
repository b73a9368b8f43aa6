"""Bodies about what the ranks of a job report: output, metrics, stacks and profiles."""

from __future__ import annotations

import math
from typing import Annotated, Literal, Self

from pydantic import ConfigDict, Field

from phalanx.core.contract.records import MetricPoint
from phalanx.core.telemetry.profiles import MAX_STEPS
from phalanx.schemas.api.body import At, RequestBody, ResponseBody, ShortText, at_of


class LogGap(ResponseBody):
    """Output that is not stored. `begin` and `end` are offsets in the stream; None: it was in no file.

    Causes: `lost` (the node could not write it to its disk), `limit` (more than is stored of one job),
    `expired` (older than the retention allows), `quota` (all jobs together had more than is stored),
    `unsent` (its supervisor ended before it was sent),
    `unreadable` (the file that it was packed into was deleted or is damaged).
    """

    num_bytes: int
    cause: Literal["lost", "limit", "expired", "quota", "unsent", "unreadable"]
    begin: int | None = None
    end: int | None = None


class LogLine(ResponseBody):
    """One line without its line end. `partial`: the rest of the line may follow as a new line.

    With `gap`, the line stands for output that is missing at this place, and `text` says so. `role` and
    `rank_in_role` are given for gangs with several roles.
    """

    rank: int
    stream: Literal["out", "err"]
    at: At
    text: str
    attempt: int
    generation: int
    partial: bool = False
    gap: LogGap | None = None
    role: str = ""
    rank_in_role: int | None = None

    @property
    def source(self) -> str:
        """The source of the line: the rank, or the role and the rank in it."""
        return f"{self.role} {self.rank_in_role}" if self.role else str(self.rank)


class LogPage(ResponseBody):
    """Lines in the order of arrival. `done`: the job has ended and no line is left."""

    lines: list[LogLine]
    cursor: str
    done: bool


LevelName = Literal["debug", "info", "warning", "error", "critical"]
"""The level of a line of output, as loggers name it."""


class MatchingLine(LogLine):
    """A line that a search has found, as a terminal shows it; `level` is the first that it names.

    A line of more than 64 KiB is cut, and `partial`.
    """

    level: LevelName | None = None


class LogSearchPage(ResponseBody):
    """Lines that match, in the order of arrival, and how many do behind the cursor of the request.

    With `exact` false the search stopped before the end of the output: `count` lines match at least, and
    `searched` is the share of the stored output before the place where it stopped. `cursor` continues;
    None: there are no more lines. `unreadable_bytes` of output are in files that were deleted or are
    damaged: lines in them are not counted, and the count is not exact.
    """

    lines: list[MatchingLine]
    count: int
    exact: bool
    searched: float
    cursor: str | None
    unreadable_bytes: int = 0


class LivePoint(ResponseBody):
    """The metrics of one rank at one step, as a live view has them. Non-finite values are None."""

    attempt: int
    generation: int
    rank: int
    step: int
    at: At
    values: dict[str, float | None]

    @classmethod
    def of_point(cls, point: MetricPoint, attempt: int, generation: int) -> Self:
        """A stored point."""
        values = {key: one if math.isfinite(one) else None for key, one in point.values.items()}
        return cls(
            attempt=attempt,
            generation=generation,
            rank=point.rank,
            step=point.step,
            at=at_of(point.at),
            values=values,
        )


class MetricSeries(ResponseBody):
    """Values of one metric and rank over steps. Non-finite values are None.

    One that is `downsampled` has the first and the last sample, and the lowest and the highest of each
    interval of steps; a narrower range shows more.
    """

    name: str
    rank: int
    role: str = ""  # in a gang with several
    steps: list[int]
    values: list[float | None]
    at: list[At] = Field(default_factory=list)
    count: int = 0  # samples in the range that was asked for
    downsampled: bool = False  # `steps` are fewer than `count`


class MetricsView(ResponseBody):
    """Series by name and rank; every name that the job has in `names`."""

    names: list[str]
    series: list[MetricSeries]


class CurveView(ResponseBody):
    """Values of one metric and rank of one job over steps. Non-finite values are None."""

    job: int  # its number
    name: str
    rank: int
    steps: list[int]
    values: list[float | None]
    count: int  # samples in the range that was asked for
    downsampled: bool  # `steps` are fewer than `count`


class CurvesView(ResponseBody):
    """Curves of many jobs by job, name and rank; those without a sample are left out."""

    series: list[CurveView]


MAX_POINTS = 1000
"""Points in one request."""
Finite = Annotated[float, Field(allow_inf_nan=False)]
MetricName = Annotated[str, Field(min_length=1, max_length=200)]
Count = Annotated[int, Field(ge=0, lt=2**53)]


class PostedPoint(RequestBody):
    """One value of one metric. `epoch` is the number of epochs that are complete."""

    name: MetricName
    value: Finite | Literal["nan", "inf", "-inf"]
    step: Count
    epoch: Count | None = None
    at: At | None = None  # None: when it arrives


class PostMetricsRequest(RequestBody):
    """Metrics of one rank. To send the same points again changes nothing."""

    points: Annotated[list[PostedPoint], Field(max_length=MAX_POINTS)]


class StopAnswer(ResponseBody):
    """Whether the script should save and exit now, and why.

    `reason` is that of the job, such as `preempted`, `cancel_requested` (also by its study) or
    `max_duration`; `superseded`: the generation is over, and nothing was stored.
    """

    stop: bool
    reason: str = ""
    message: str = ""
    left_s: float | None = None  # until the ranks are killed


class TrainerMetric(RequestBody):
    """A value as the `Trainer` of transformers sends it: a text."""

    model_config = ConfigDict(frozen=True, extra="ignore")
    name: MetricName
    value: Annotated[str, Field(max_length=100)]


class TrainerStatus(RequestBody):
    """Progress as clients of Kubeflow Trainer report it; what a newer one adds is ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")
    progressPercentage: Annotated[int, Field(ge=0, le=100)] | None = None
    estimatedRemainingSeconds: Count | None = None
    metrics: Annotated[list[TrainerMetric], Field(max_length=MAX_POINTS)] = Field(
        default_factory=list
    )


class TrainerStatusRequest(RequestBody):
    """The body of clients of Kubeflow Trainer."""

    model_config = ConfigDict(frozen=True, extra="ignore")
    trainerStatus: TrainerStatus


class RequestTicket(ResponseBody):
    """Identifies a request for stacks, a profile or a checkpoint; its results carry these numbers.

    `request` 0: stacks taken because the ranks made no step, or a profile that the script requested.
    """

    attempt: int
    generation: int
    request: int

    @property
    def answers(self) -> tuple[int, int, int]:
        """(attempt, generation, request) that it belongs to."""
        return self.attempt, self.generation, self.request


class RankStacksView(ResponseBody):
    """Stacks of one rank. `place`: the innermost line of the script; None where it is unknown."""

    rank: int
    node_rank: int
    place: str | None = None
    text: str = ""  # stacks of all its threads, as faulthandler writes them
    why: str = ""  # why there are none


class StacksCapture(RequestTicket):
    """Stacks of all ranks at one time. `elsewhere`: ranks at another place than the others."""

    at: At
    ranks: list[RankStacksView]
    elsewhere: list[int] = Field(default_factory=list)


class StacksView(ResponseBody):
    """Stored stacks of a job, oldest first; `attempt` and `generation` are the live ones."""

    captures: list[StacksCapture]
    attempt: int | None = None
    generation: int | None = None
    world_size: int


class SaveView(RequestTicket):
    """A request for a checkpoint that the ranks act on; `path` is set once it is committed and verified."""

    step: int  # at which the ranks began to save
    failed: bool = False  # nothing could be saved; the job's events say why
    path: str | None = None
    saved_step: int | None = None
    size_bytes: int | None = None
    took_s: float | None = None

    @property
    def is_over(self) -> bool:
        """Whether the checkpoint is committed, or could not be saved."""
        return self.failed or self.path is not None


class SavesView(ResponseBody):
    """Requests for checkpoints, oldest first; `attempt` and `generation` are the live ones."""

    saves: list[SaveView]
    attempt: int | None = None
    generation: int | None = None

    def answer_to(self, attempt: int, generation: int, request: int) -> SaveView | None:
        """The save that is over and began at this request or a later one of the same generation."""
        return next(
            (
                one
                for one in self.saves
                if one.is_over
                and (one.attempt, one.generation) == (attempt, generation)
                and one.request >= request
            ),
            None,
        )


class ProfileRequest(RequestBody):
    """Request a profile: `steps` measured without a trace, then `traced` steps with torch's profiler."""

    steps: Annotated[int, Field(ge=0, le=MAX_STEPS)] = 20
    traced: Annotated[int, Field(ge=0, le=MAX_STEPS)] = 3
    extras: Annotated[list[ShortText], Field(max_length=10)] = Field(default_factory=list)


class SplitView(ResponseBody):
    """Means over the profiled steps of one rank, in seconds."""

    rank: int
    steps: int
    step_s: float
    data_s: float = 0.0
    forward_s: float = 0.0
    backward_s: float = 0.0
    exposed_s: float = 0.0
    hidden_s: float = 0.0
    optimizer_s: float = 0.0
    stall_s: float = 0.0
    rest_s: float = 0.0
    samples: float = 0.0
    ops: float = 0.0
    busy: float | None = None


class ProfileView(RequestTicket):
    """One profile of all ranks."""

    at: At
    first_step: int
    splits: list[SplitView]
    finding: str
    said: str
    advice: str
    trace: str = ""  # where the merged trace lies, in the file system of the ranks
    notes: list[str] = Field(default_factory=list)


class ProfilesView(ResponseBody):
    """Stored profiles of a job, oldest first; `attempt` and `generation` are the live ones."""

    profiles: list[ProfileView]
    attempt: int | None = None
    generation: int | None = None


class LogSenderView(ResponseBody):
    """A sender of output to another log store, and how far it is.

    `sent_lines` and `sent_bytes` count a line each time that the endpoint took it. `lag_s` is the age of
    the oldest line that waits; 0: none does. `tries` failed since the last success.
    """

    name: str
    kind: str  # loki, elasticsearch or otlp
    projects: list[str] = Field(default_factory=list)  # none: all
    lag_s: float = 0.0
    sent_lines: int = 0
    sent_bytes: int = 0
    refused_lines: int = 0  # that the endpoint does not take
    sent_at: At | None = None
    tries: int = 0
    next_try_at: At | None = None
    error: str = ""
