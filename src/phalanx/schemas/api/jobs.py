"""Bodies about jobs: submission, state, events, checkpoints, stop requests and deletion."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Any, Literal

from pydantic import Field

from phalanx.core.jobs.model import JobState
from phalanx.core.reasons import Cause, ReasonCode
from phalanx.schemas.api.body import At, RequestBody, ResponseBody, ShortText, ShownAs
from phalanx.schemas.api.cost import BudgetView, CostView, EstimateView, UnitCostView
from phalanx.schemas.api.provenance import SourceRequest
from phalanx.schemas.spec.job import JobSpec

JobKind = Literal["run", "submit"]


class SubmitRequest(RequestBody):
    """A new job. `spec` is a job spec (schema 1), resolved or not.

    `code` is the SHA-256 of an uploaded archive. For `run` jobs the ranks get `caller_env` and run in
    `caller_cwd`; for `submit` jobs both are left out. Values of variables that are secrets, by name or by
    shape, reach the ranks in a file of mode 0600 that is deleted after the job's end. They are stored
    nowhere else.
    """

    spec: Annotated[dict[str, Any], ShownAs(JobSpec)]
    code: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    kind: JobKind = "submit"
    caller_cwd: Annotated[str, Field(max_length=4096)] | None = None
    caller_env: Annotated[dict[str, str], Field(max_length=4096)] | None = None
    owner: ShortText = ""
    source: SourceRequest | None = None  # the Git state of the work directory


class BatchRequest(RequestBody):
    """Several new jobs, all or none. `depends_on` may name another job of the batch by its name."""

    jobs: Annotated[list[SubmitRequest], Field(min_length=1, max_length=1000)]


class BatchedJob(ResponseBody):
    """One job of a batch. `array` is the number of the first job of its array, None without one."""

    num: int
    label: str
    url: str = ""  # of its page
    name: str
    state: str
    array: int | None = None
    array_index: int | None = None


class BatchResponse(ResponseBody):
    """The jobs in the order of the request, every element of an array; empty for a dry run."""

    jobs: list[BatchedJob]


class SubmitResponse(ResponseBody):
    """`job` is None for a dry run."""

    job: JobView | None
    spec: Annotated[dict[str, Any], ShownAs(JobSpec)]  # with every default written out
    estimate: EstimateView | None = None  # None: from an earlier release
    notes: list[str] = Field(default_factory=list)  # how a clone differs beside its changes


class ReasonView(ResponseBody):
    """The reason of a job's state: a code and one line of text."""

    code: str
    message: str = ""


class FailureView(ResponseBody):
    """The first failure of a generation. `traceback` is empty where none was found."""

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
    def where(self) -> str:
        """The rank in words."""
        return f"rank {self.rank}" + (f" ({self.role})" if self.role else "")


class RankView(ResponseBody):
    """One rank of the live attempt."""

    rank: int
    node_rank: int
    node: str
    pid: int | None = None
    role: str = ""  # in a gang with several


class RoleView(ResponseBody):
    """One role of a gang with several. Its ranks are `first_rank` and on in the gang.

    `world` is the role with the rank 0 of its world: the role itself, or the first one where it shares
    the world of that; `world_size` counts the ranks of the whole world. `phases` are those of its nodes in
    the live attempt.
    """

    name: str
    num_nodes: int
    slots_per_node: int
    num_ranks: int
    first_rank: int
    world: str
    world_size: int
    required: bool = True
    phases: list[str] = Field(default_factory=list)


class NodeRankView(ResponseBody):
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


class ProgressView(ResponseBody):
    """Progress of a job. `high_water_step` never decreases; `step` is that of the live generation."""

    step: int | None = None
    epoch: int | None = None
    num_epochs: int | None = None
    high_water_step: int | None = None
    steps_per_s: float | None = None
    last_metrics: dict[str, float] = Field(default_factory=dict)
    checkpoint_step: int | None = None
    checkpoint_path: str | None = None


class RestartView(ResponseBody):
    """One fault: its cause, its evidence, what was done and what it cost. None: not known, or not yet."""

    attempt: int
    generation: int  # the one that ended
    cause: str
    message: str
    failed_at: At
    next_step_at: At | None = None
    lost_s: float | None = None  # from the failure to the next completed step
    rank: int | None = (
        None  # that failed first, or that the others waited for; None: none in particular
    )
    node_rank: int | None = None
    exit_code: int | None = None
    signal: int | None = None
    exception: str | None = None
    evidence: str = ""  # the last lines of its traceback, output or stacks
    action: str = ""  # what followed
    wait_s: float | None = None  # from the failure until all ranks ran again
    lost_steps: int | None = None  # made again, or never, because no checkpoint had them
    lost_slot_s: float | None = (
        None  # slots times the time until the next step and that of lost steps
    )


class LineageView(ResponseBody):
    """What the lineage of the weights consumed. None where the script reported no positions."""

    generations: int
    restarts: list[RestartView] = Field(default_factory=list)
    lost_s: float = 0.0
    num_checkpoints: int = 0
    num_valid: int = 0
    num_quarantined: int = 0
    num_stored: int = 0  # valid, and complete in the object store
    num_uploading: int = 0
    num_missing: int = 0  # committed, and not there any more
    num_samples: int | None = None  # of one epoch
    consumed: int | None = None
    missed: int | None = None
    duplicated: int | None = None
    redone: int | None = None
    unreported: int | None = (
        None  # neither missed nor consumed: a node was lost before it reported them
    )
    exact: bool | None = None  # every restore was exact


class CommunicationView(ResponseBody):
    """The communication cost of a placement: pairs of slots on different nodes over their bandwidth.

    `cost` is 0 on one node; `gbps` is the smallest bandwidth between two of its nodes, 0 on one node.
    """

    num_nodes: int
    pairs: int
    gbps: float
    cost: float

    @property
    def text(self) -> str:
        """The cost in words."""
        if self.num_nodes == 1:
            return "all on one node: cost 0"
        over = f"{self.pairs} pairs across {self.num_nodes} nodes over {self.gbps:g} Gbit/s"
        return f"{over}: cost {self.cost:.3g}"


class DependencyView(ResponseBody):
    """A dependency that is not met yet: the other job, its state, and what must happen to it."""

    job: int
    label: str
    url: str = ""  # of its page
    kind: str
    state: str


class JobView(ResponseBody):
    """A job.

    Only a single job has `ranks`, `nodes`, `waits_for`, `lineage`, `cost`, `unit_costs`, `budget` and
    `trace_id`.
    """

    num: int
    label: str
    url: str = ""  # of its page
    etag: str = ""  # names the settings that `PATCH` changes, for its `If-Match`
    name: str
    description: str = ""
    project: str
    owner: str
    labels: dict[str, str]
    tags: list[str] = Field(default_factory=list)
    group: str = ""  # runs that belong together have the same; empty: none
    framework: str
    kind: JobKind
    priority: int
    state: str
    reason: ReasonView
    pending_reason: ReasonView | None = None  # why a queued job does not start
    waits_for: list[DependencyView] = Field(default_factory=list)  # dependencies not met yet
    array: int | None = None  # number of the first job of its array; `a-12` is its id
    array_index: int | None = None
    study: int | None = None  # number of the study that it runs a trial of
    trial: int | None = None  # number of the trial in its study
    goal: str | None = None  # what a stopping job becomes
    attempt: int | None = None  # the live one
    attempts: int
    generation: int | None = None
    restarts: int
    pool: str | None = None
    num_slots: int
    slot_type: str = ""  # accelerator that the spec asks for; empty: any
    slot_seconds: float = 0.0  # used by attempts that are over
    usd: Decimal | None = None  # cost of the same; None: nothing that has a price
    num_nodes: int = 0  # of the gang at full size
    image: str = ""  # of the container; empty: none
    entry_point: str = ""  # script, module or program that the leading ranks run
    data: dict[str, str] = Field(default_factory=dict)  # paths and URLs of its inputs by name
    algorithm: str = ""  # search method of its study; empty: it is no trial
    cause: str = ""  # of the last failure; empty: none
    queue_s: float | None = None  # in the queue before all placements; None: none so far
    duration_s: float | None = None  # from the first start to the end; None: not both are known
    metric: str = ""  # name of the metric that it is compared by; empty: none
    best_metric: float | None = None  # the best value of that metric
    world_size: int
    roles: list[RoleView] = Field(default_factory=list)  # of a gang with several
    submitted_at: At
    started_at: At | None = None
    ended_at: At | None = None
    stop_deadline_at: At | None = None
    expires: list[ExpiryView] = Field(default_factory=list)  # of a job that has ended
    archived_at: At | None = None
    pinned_at: At | None = None
    pinned_by: str | None = None
    failure: FailureView | None = None
    progress: ProgressView = Field(default_factory=ProgressView)
    ranks: list[RankView] = Field(default_factory=list)
    nodes: list[NodeRankView] = Field(default_factory=list)
    lineage: LineageView | None = None
    cost: CostView | None = None  # up to now
    unit_costs: list[UnitCostView] = Field(default_factory=list)  # what it reported; up to now
    budget: BudgetView | None = None  # of this job alone, with what it has used up to now
    communication: CommunicationView | None = None  # of the live placement
    spec: dict[str, Any] | None = None
    withheld: list[str] = Field(default_factory=list)  # names of its secret variables
    trace_id: str = ""  # of its trace: 32 hexadecimal digits
    code: str | None = None
    directory: str | None = None  # the job's folder on the control plane's machine
    checkpoint_dir: str | None = None

    @property
    def is_terminal(self) -> bool:
        """Whether it will never change again."""
        return self.state in ("succeeded", "failed", "cancelled")


class ExpiryView(ResponseBody):
    """When retention deletes a kind of data of a job: logs, metrics, checkpoints, code or jobs."""

    kind: str
    at: At


class JobPage(ResponseBody):
    """`cursor` is that of the next page; None at the end."""

    jobs: list[JobView]
    cursor: str | None = None


Count = Annotated[int | None, Field(ge=0, lt=2**31)]
Seconds = Annotated[float | None, Field(ge=0, le=1e12)]
Money = Annotated[Decimal | None, Field(ge=0, le=10**9)]


class JobsQuery(RequestBody):
    """Which jobs a listing has, and their order. Filters that are left out match every job."""

    state: Annotated[list[JobState], Field(default_factory=list, max_length=len(JobState))]
    project: ShortText | None = None
    owner: ShortText | None = None
    name: Annotated[ShortText | None, Field(description="`*` stands for any text")] = None
    label: Annotated[
        list[Annotated[str, Field(max_length=600)]],
        Field(default_factory=list, max_length=20, description="key=value; all of them"),
    ]
    framework: ShortText | None = None
    pool: Annotated[ShortText | None, Field(description="Of the newest placement")] = None
    slot_type: ShortText | None = None
    kind: JobKind | None = None
    study: Annotated[int | None, Field(ge=1, lt=2**63)] = None
    array: Annotated[int | None, Field(ge=1, lt=2**63)] = None
    image: Annotated[
        Annotated[str, Field(max_length=512)] | None,
        Field(description="Of the container; `*` stands for any text"),
    ] = None
    entry_point: Annotated[
        Annotated[str, Field(max_length=512)] | None,
        Field(description="Script, module or program of the ranks; `*` stands for any text"),
    ] = None
    data: Annotated[
        Annotated[str, Field(max_length=512)] | None,
        Field(description="Path or URL of one of the inputs; `*` stands for any text"),
    ] = None
    algorithm: Annotated[
        ShortText | None, Field(description="Search method of the study of a trial")
    ] = None
    reason: Annotated[
        ReasonCode | None, Field(description="Of the state, or why a queued job waits")
    ] = None
    cause: Annotated[Cause | None, Field(description="Of the last failure")] = None
    metric: Annotated[
        Annotated[str, Field(max_length=256)] | None,
        Field(description="Name of the metric that the job is compared by"),
    ] = None
    trials: Annotated[bool | None, Field(description="Whether the job is of a trial")] = None
    min_priority: Annotated[int | None, Field(ge=0, le=100)] = None
    max_priority: Annotated[int | None, Field(ge=0, le=100)] = None
    min_slots: Count = None
    max_slots: Count = None
    min_nodes: Count = None
    max_nodes: Count = None
    min_restarts: Count = None
    max_restarts: Count = None
    min_queue_s: Annotated[Seconds, Field(description="In the queue before all placements")] = None
    max_queue_s: Seconds = None
    min_duration_s: Annotated[
        Seconds, Field(description="From the first start to the end; jobs that run have none")
    ] = None
    max_duration_s: Seconds = None
    min_slot_seconds: Annotated[Seconds, Field(description="Of attempts that are over")] = None
    max_slot_seconds: Seconds = None
    min_usd: Annotated[Money, Field(description="Cost of attempts that are over")] = None
    max_usd: Money = None
    min_metric_value: Annotated[
        float | None, Field(description="The best value of the job's metric")
    ] = None
    max_metric_value: float | None = None
    submitted_from: Annotated[
        At | None, Field(description="RFC 3339; this time or later, `…_to`: before this time")
    ] = None
    submitted_to: At | None = None
    started_from: At | None = None
    started_to: At | None = None
    ended_from: At | None = None
    ended_to: At | None = None
    archived: Annotated[
        Literal["exclude", "only", "include"], Field(description="Archived jobs are left out.")
    ] = "exclude"
    sort: Annotated[
        ShortText,
        Field(description="num, name, submitted_at, …; with `-` in front, the largest first"),
    ] = "-num"
    cursor: Annotated[str | None, Field(max_length=2000)] = None
    limit: Annotated[int, Field(ge=1, le=1000)] = 100


SAME_NAMES = {
    *("project", "owner", "name", "framework", "pool", "slot_type", "image", "kind", "reason"),
    *("cause", "metric", "study", "trials", "array", "entry_point", "data", "algorithm"),
}
"""Filters of `JobsQuery` that the store has by the same name and value."""


class EventView(ResponseBody):
    """One event of a job. `state` and `reason` are those of the job after the event."""

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


class EventPage(ResponseBody):
    """`cursor` is the `after` of the next call; `done`: the job has ended and no event is left."""

    events: list[EventView]
    cursor: int
    done: bool


class FeedPage(ResponseBody):
    """Events of many jobs. `cursor` is the `after` of the next call; `more`: another page is there."""

    events: list[EventView]
    cursor: int
    more: bool


class CheckpointView(ResponseBody):
    """One checkpoint. `state`: valid, quarantined, removed (by retention) or missing (not there).

    `near`: it was committed in a folder of the nodes; else in the object store alone. `copy_state` is its
    state in the object store: uploading, stored or failed; null without a store or before the upload.
    `copy_bytes` were sent, or are to be sent, at `copied_at`.
    """

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
    near: bool = True
    copy_state: str | None = None
    copy_bytes: int | None = None
    copied_at: At | None = None
    is_best: bool = False
    is_pinned: bool = False  # by a user


class ChangeRequest(RequestBody):
    """Settings to change, with names and values as in the spec; what is left out stays.

    null removes a description, a group, a `max_duration` or a `budget`, and in `labels` one label; labels
    that are not named stay. `tags` has true for a tag to add, false for one to remove. An empty
    `pool` means any pool that fits.
    """

    name: ShortText | None = None
    description: Annotated[str, Field(max_length=10_000)] | None = None
    labels: Annotated[dict[str, str | None], Field(max_length=100)] | None = None
    tags: Annotated[dict[ShortText, bool], Field(max_length=100)] | None = None
    group: ShortText | None = None
    priority: int | ShortText | None = None
    pool: Annotated[list[ShortText], Field(max_length=100)] | None = None
    max_duration: float | ShortText | None = None
    budget: dict[str, Any] | None = None
    nodes: Annotated[
        int | ShortText | None, Field(description="As `resources.nodes` of the spec: 4, or 2..6")
    ] = None


class CloneRequest(RequestBody):
    """A job to submit again. `set` has values by their dotted path in the spec, such as `resources.nodes`.

    A path that begins with `params.` is a parameter of a trial; null removes a value. `checkpoint`: begin
    from this checkpoint of the job: `latest`, `best`, a step, the name of its folder or its path.
    `secrets` are values of the variables that `withheld` of the job names. `owner` absent: that of the job.
    `require_same`: the clone fails before its ranks start where it finds other packages or data.
    """

    set: Annotated[dict[ShortText, Any], Field(max_length=200)] = Field(default_factory=dict)
    checkpoint: Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    secrets: Annotated[dict[str, str], Field(max_length=4096)] = Field(default_factory=dict)
    owner: ShortText = ""
    require_same: bool = False


class StopRequest(RequestBody):
    """`grace_s` None: the spec's `grace`; 0: kill at once."""

    goal: Literal["cancel", "pause"] = "cancel"
    grace_s: Annotated[float, Field(ge=0, le=86400)] | None = None


class ResumeRequest(RequestBody):
    """`begin_anew`: start without the checkpoints that the job has; they are kept."""

    begin_anew: bool = False


class DataSize(ResponseBody):
    """How much there is of one kind of data: logs, metrics, checkpoints, code or jobs.

    `num_bytes` is 0 where the size of the kind is not counted.
    """

    kind: str
    items: int
    num_bytes: int


class HoldView(ResponseBody):
    """What keeps a job from being deleted.

    `hold` is one of live, leaving, pinned, checkpoint_pinned, study, forked and awaited.
    """

    hold: str
    message: str
    hint: str


class DeletionView(ResponseBody):
    """A job that is deleted, or with `dry_run` would be; `in_the_way` says why it would not."""

    num: int
    label: str
    name: str
    project: str
    sizes: list[DataSize] = Field(default_factory=list)
    in_the_way: list[HoldView] = Field(default_factory=list)


class PinRequest(RequestBody):
    """A checkpoint of a job: `latest`, `best`, a step, the name of its folder or its path."""

    checkpoint: Annotated[str, Field(min_length=1, max_length=4096)]


class PinView(ResponseBody):
    """A checkpoint, and whether it is pinned now."""

    path: str
    pinned: bool


class OpenDeletionView(ResponseBody):
    """A deleted job of which something is left, such as copies in a store that does not answer."""

    label: str
    name: str
    project: str
    deleted_by: str
    deleted_at: At
    tries: int
    next_try_at: At
    error: str | None = None


class AbandonedDeletionView(ResponseBody):
    """A deleted job with copies that were given up: what was left of it in which stores.

    `checkpoints` are the first 1000 names of those that were sent there, as far as that was reported.
    """

    num: int
    label: str
    name: str
    project: str
    deleted_by: str
    deleted_at: At
    abandoned_by: str
    stores: list[str]
    checkpoints: list[str]
    num_checkpoints: int
    num_bytes: int
    error: str | None = None  # of the last try


class ExpiringJobView(ResponseBody):
    """A job, surplus checkpoints or output of it, that the next retention sweep deletes."""

    label: str
    name: str
    project: str
    kind: str  # jobs, checkpoints, or logs where the quota of output deletes them
    items: int
    num_bytes: int


class ExpiringView(ResponseBody):
    """How much of one kind of data the next retention sweep deletes."""

    kind: str
    items: int
    num_bytes: int


class StoredLogsView(ResponseBody):
    """Stored output of all jobs, and its quota, in bytes before compression.

    `over_bytes` are above the quota and stay: they belong to jobs that have not ended, are pinned, or
    failed within the period `failed_logs`.
    """

    num_bytes: int = 0
    limit_bytes: int | None = None  # None: there is no quota
    over_bytes: int = 0


class RetentionView(ResponseBody):
    """Retention of the platform: periods by default, what the next sweep deletes, and what was deleted.

    `expiring_jobs` are the first ones of what `expiring` counts. `held` are jobs that would be deleted if
    nothing needed them. `open_removals` are checkpoints with files that are still to be deleted.
    `abandoned` are the newest deletions with copies that were given up.
    """

    periods: dict[str, str]  # by kind, in words
    expiring: list[ExpiringView] = Field(default_factory=list)
    expiring_jobs: list[ExpiringJobView] = Field(default_factory=list)
    held: int = 0
    logs: StoredLogsView = Field(default_factory=StoredLogsView)
    deletions: list[OpenDeletionView] = Field(default_factory=list)
    open_removals: int = 0
    abandoned: list[AbandonedDeletionView] = Field(default_factory=list)
    removed: list[RemovedView] = Field(default_factory=list)


class PeriodsRequest(RequestBody):
    """Retention periods of a project to change, such as `30d`, `1y` or `forever`; null: as the platform."""

    logs: ShortText | None = None
    failed_logs: ShortText | None = None
    metrics: ShortText | None = None
    checkpoints: ShortText | None = None
    code: ShortText | None = None
    jobs: ShortText | None = None


class PeriodsView(ResponseBody):
    """The retention periods of a project by kind, in words: its own, its parents' or the platform's."""

    project: str
    periods: dict[str, str]
    own: dict[str, str] = Field(default_factory=dict)


class RemovedView(ResponseBody):
    """How much of one kind of data was deleted since the database was made, by cause."""

    kind: str
    cause: str  # request, retention or quota
    items: int
    num_bytes: int


SubmitResponse.model_rebuild()
