"""The REST API's bodies, version 1. Times are RFC 3339 with Z; durations seconds, sizes bytes."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

API_VERSION = 1
JobKind = Literal["run", "submit"]
At = AwareDatetime


def at_of(at_us: int) -> datetime:
    """Integer microseconds UTC as a time of the API."""
    seconds, micro = divmod(at_us, 1_000_000)
    return datetime.fromtimestamp(seconds, UTC).replace(microsecond=micro)


def at_or_none(at_us: int | None) -> datetime | None:
    """The same, for what may not have happened yet."""
    return None if at_us is None else at_of(at_us)


class View(BaseModel):
    """What the server answers: clients tolerate what a newer server adds."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Ask(BaseModel):
    """What a client sends: unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ProblemView(View):
    """One fault in a spec: where, what, what is there."""

    path: str
    message: str
    value: str | None = None


class ErrorView(View):
    """The body of every answer that is not a success."""

    code: str
    message: str
    hint: str | None = None
    retryable: bool = False
    problems: list[ProblemView] = Field(default_factory=list)


class SubmitRequest(Ask):
    """A new job. `spec` is a job spec (schema 1), resolved or not.

    `code` is the SHA-256 of an uploaded archive. For `run` jobs the ranks get `caller_env` and run in
    `caller_cwd`; for `submit` jobs both are left out.
    """

    spec: dict[str, Any]
    code: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    kind: JobKind = "submit"
    caller_cwd: str | None = None
    caller_env: dict[str, str] | None = None
    owner: str = ""


class SubmitResponse(View):
    """`job` is None for a dry run."""

    job: JobView | None
    spec: dict[str, Any]  # with every default written out


class ReasonView(View):
    """Why a job is where it is."""

    code: str
    message: str = ""


class FailureView(View):
    """The first failure of a generation. `traceback` is empty where there was none to find."""

    cause: str
    message: str
    rank: int | None
    node_rank: int
    at: At
    exit_code: int | None = None
    signal: int | None = None
    exception: str | None = None
    traceback: str = ""
    role: str = ""  # and the rank in it, in a gang with several: `evaluator 0`

    @property
    def whose(self) -> str:
        """The rank in words."""
        return f"rank {self.rank}" + (f" ({self.role})" if self.role else "")


class RankView(View):
    """One rank of the live attempt."""

    rank: int
    node_rank: int
    node: str
    pid: int | None = None
    role: str = ""  # in a gang with several


class RoleView(View):
    """One role of a gang with several. Its ranks are `first_rank` and on in the gang.

    `phases` are those of its nodes in the live attempt.
    """

    name: str
    num_nodes: int
    slots_per_node: int
    first_rank: int
    world_size: int
    required: bool = True
    phases: list[str] = Field(default_factory=list)


class NodeRankView(View):
    """One supervisor of the live attempt."""

    node_rank: int
    node: str
    slots: list[int]
    phase: str
    host: str | None = None
    pid: int | None = None
    step: int | None = None
    last_seen_at: At | None = None
    warm: bool | None = None


class ProgressView(View):
    """How far a job is. `high_water_step` never goes back; `step` is the live generation's."""

    step: int | None = None
    epoch: int | None = None
    num_epochs: int | None = None
    high_water_step: int | None = None
    steps_per_s: float | None = None
    last_metrics: dict[str, float] = Field(default_factory=dict)
    checkpoint_step: int | None = None
    checkpoint_path: str | None = None


class RestartView(View):
    """One interruption: what it was, and what it cost. Times None: not known, or not yet."""

    attempt: int
    generation: int  # the one that ended
    cause: str
    message: str
    failed_at: At
    next_step_at: At | None = None
    lost_s: float | None = None  # from the failure to the next completed step


class RankStacksView(View):
    """Where one rank was. `place`: the innermost line of its own script; None where it did not say."""

    rank: int
    node_rank: int
    place: str | None = None
    text: str = ""  # stacks of all its threads, as faulthandler writes them
    why: str = ""  # why there are none


class StacksCapture(View):
    """All ranks at one moment. `elsewhere`: ranks that the others are likely to wait for."""

    attempt: int
    generation: int
    request: int  # 0: taken unasked, because the ranks made no step
    at: At
    ranks: list[RankStacksView]
    elsewhere: list[int] = Field(default_factory=list)

    @property
    def answers(self) -> tuple[int, int, int]:
        """(attempt, generation, request) that it belongs to."""
        return self.attempt, self.generation, self.request


class StacksView(View):
    """What is kept of a job, oldest first; `attempt` and `generation` are the live ones."""

    captures: list[StacksCapture]
    attempt: int | None = None
    generation: int | None = None
    world_size: int


class StacksAsked(View):
    """The ranks were asked; their answers will carry this request's number."""

    attempt: int
    generation: int
    request: int


class LineageView(View):
    """What the lineage of the weights consumed. None where the script reported no positions."""

    generations: int
    restarts: list[RestartView] = Field(default_factory=list)
    lost_s: float = 0.0
    num_checkpoints: int = 0
    num_valid: int = 0
    num_quarantined: int = 0
    num_samples: int | None = None  # of one epoch
    consumed: int | None = None
    missed: int | None = None
    duplicated: int | None = None
    redone: int | None = None
    unheard: int | None = (
        None  # neither missed nor consumed: a node was lost before it reported them
    )
    exact: bool | None = None  # every restore was exact


class JobView(View):
    """A job. `ranks`, `nodes` and `lineage` are given for a single job, not in listings."""

    num: int
    label: str
    name: str
    project: str
    owner: str
    labels: dict[str, str]
    framework: str
    kind: JobKind
    priority: int
    state: str
    reason: ReasonView
    stays: ReasonView | None = None  # why a queued job does not start
    goal: str | None = None  # what a stopping job becomes
    attempt: int | None = None  # the live one
    attempts: int
    generation: int | None = None
    restarts: int
    pool: str | None = None
    num_slots: int
    world_size: int
    roles: list[RoleView] = Field(default_factory=list)  # of a gang with several
    submitted_at: At
    started_at: At | None = None
    ended_at: At | None = None
    stop_deadline_at: At | None = None
    failure: FailureView | None = None
    progress: ProgressView = Field(default_factory=ProgressView)
    ranks: list[RankView] = Field(default_factory=list)
    nodes: list[NodeRankView] = Field(default_factory=list)
    lineage: LineageView | None = None
    spec: dict[str, Any] | None = None
    code: str | None = None
    directory: str | None = None  # the job's folder on the control plane's machine
    checkpoint_dir: str | None = None

    @property
    def is_terminal(self) -> bool:
        """Whether it will never change again."""
        return self.state in ("succeeded", "failed", "cancelled")


class JobPage(View):
    """`next` is the `before` of the next page; None at the end."""

    jobs: list[JobView]
    next: int | None = None


class EventView(View):
    """One line of a job's story. `state` and `reason` are the job's after it."""

    job: int
    seq: int
    feed: int
    v: int
    at: At
    kind: str
    attempt: int | None
    generation: int | None
    actor: str
    state: str
    reason: ReasonView
    data: dict[str, Any]


class EventPage(View):
    """`cursor` is the `after` of the next call; `done`: the job is over and no event is left."""

    events: list[EventView]
    cursor: int
    done: bool


class LogLine(View):
    """One line without its end. `partial`: its end has not arrived yet, and may come as a new line.

    `role` and the rank in it are those of a gang with several roles.
    """

    rank: int
    stream: Literal["out", "err"]
    at: At
    text: str
    attempt: int
    generation: int
    partial: bool = False
    role: str = ""
    rank_in_role: int | None = None

    @property
    def speaker(self) -> str:
        """Whose line it is: the rank, or the role and the rank in it."""
        return f"{self.role} {self.rank_in_role}" if self.role else str(self.rank)


class LogPage(View):
    """Lines in the order of their arrival. `done`: the job is over and nothing is left."""

    lines: list[LogLine]
    cursor: str
    done: bool


class MetricSeries(View):
    """Values of one metric and rank over steps. Non-finite values are None."""

    name: str
    rank: int
    role: str = ""  # in a gang with several
    steps: list[int]
    values: list[float | None]
    at: list[At] = Field(default_factory=list)


class MetricsView(View):
    """Series by name and rank; every name that the job has in `names`."""

    names: list[str]
    series: list[MetricSeries]


class CheckpointView(View):
    """One checkpoint. `state`: valid, quarantined or removed."""

    attempt: int
    generation: int
    step: int
    epoch: int | None
    path: str
    size_bytes: int
    took_s: float | None
    metrics: dict[str, float]
    created_at: At
    state: str
    is_best: bool = False


class StopRequest(Ask):
    """`grace_s` None takes the spec's; 0 kills at once."""

    goal: Literal["cancel", "pause"] = "cancel"
    grace_s: Annotated[float, Field(ge=0, le=86400)] | None = None


class PoolView(View):
    """A pool and how full it is. `num_closed`: nodes on which nothing may start."""

    name: str
    num_nodes: int
    num_slots: int
    num_free: int
    jobs: list[int]
    executor: str = "local"
    num_closed: int = 0
    slot_types: list[str] = Field(default_factory=list)
    levels: list[str] = Field(default_factory=list)
    price: float | None = None  # US dollars for the dearest slot and hour
    spot: bool = False
    num_waiting: int = 0  # jobs that may run here and wait
    applied_at: At | None = None  # None: the machine itself, from no pool file
    spec: dict[str, Any] | None = None  # its part of the pool file, for a single pool


class NodeView(View):
    """One machine."""

    id: str
    pool: str
    address: str
    num_slots: int
    num_free: int
    num_cpus: int
    memory_bytes: int
    jobs: list[int]
    state: str = "open"  # open, drained, quarantined, or closed by its own cluster
    reason: str = ""
    topology: dict[str, str] = Field(default_factory=dict)
    labels: dict[str, str] = Field(default_factory=dict)
    taints: list[str] = Field(default_factory=list)
    slot_type: str = ""
    device_memory_bytes: int = 0
    interconnect: str = ""
    bandwidth_gbps: float = 0.0
    price: float = 0.0
    reclaims_per_hour: float = 0.0
    kept_for: list[int] = Field(default_factory=list)  # jobs that others leave it for


class InfoView(View):
    """Who answers."""

    version: str
    api: int = API_VERSION
    pid: int
    home: str
    started_at: At
    now: At
    num_live_jobs: int
    idle_exit_s: float | None = None
    trouble: str | None = None  # why nothing can be stored at present, a full disk for example


class HelloRequest(Ask):
    """A client is here; an embedded server stays for it."""

    client: str = ""


class HelloResponse(View):
    """Seconds for which the server stays without another call; None: for ever."""

    stays_s: float | None


SubmitResponse.model_rebuild()
