"""What supervisors and the control plane say to one another.

One idempotent call, `POST /api/v1/supervisors/sync`, carries sequence-numbered reports up and desired
state down, as a long poll. The control plane speaks this protocol's number and the one before it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, model_validator
from pydantic.json_schema import SkipJsonSchema

from phalanx.core.contract.provenance import MAX_PACKAGES, InstalledSoftware
from phalanx.core.contract.records import MetricPoint
from phalanx.core.experiments.parameters import MAX_NAME, MAX_PARAMS, MAX_VALUE
from phalanx.core.gang.collectives import MOST_GROUPS, LastCollective
from phalanx.core.gang.failures import Failure
from phalanx.core.gang.stalls import CapturedStack
from phalanx.core.jobs.desired import Action, Desired
from phalanx.core.jobs.model import NodeOutcome
from phalanx.kit.text import replace_unencodable
from phalanx.schemas.wire import PROTOCOL
from phalanx.schemas.wire.assignments import Message

# A report with text that cannot be encoded would be refused and repeated without end.
EncodableText = Annotated[str, AfterValidator(replace_unencodable)]


class NumberedReport(Message):
    """A report; `seq` numbers the reports of one supervisor."""

    seq: int


class GenerationReport(NumberedReport):
    """A report about one generation of ranks."""

    generation: int


class NodeReadyReport(NumberedReport):
    """The supervisor is there. `port` is free for a rendezvous."""

    kind: Literal["node_ready"] = "node_ready"
    port: int
    addresses: list[str] = Field(default_factory=list)
    pid: int
    host: str


class RanksStartedReport(GenerationReport):
    """All ranks of this node run. `warm`: they were forked from the warm process."""

    kind: Literal["ranks_started"] = "ranks_started"
    pids: list[int]
    warm: bool


_Version = Annotated[EncodableText, Field(max_length=200)]


class SoftwareReport(GenerationReport):
    """What the ranks' interpreter sees on this node; `core.contract.provenance.InstalledSoftware`."""

    kind: Literal["software"] = "software"
    python: _Version = ""
    implementation: _Version = ""
    platform: _Version = ""
    torch: _Version = ""
    cuda: _Version = ""
    hip: _Version = ""
    driver: _Version = ""
    packages: Annotated[dict[_Version, _Version], Field(max_length=MAX_PACKAGES)] = Field(
        default_factory=dict
    )

    def to_core(self) -> InstalledSoftware:
        """As a core value."""
        return InstalledSoftware(**self.model_dump(exclude={"kind", "seq", "generation"}))


class StagedInputReport(Message):
    """One input as it was staged on a node."""

    name: Annotated[EncodableText, Field(min_length=1, max_length=128)]
    place: Annotated[EncodableText, Field(max_length=4096)]
    num_files: Annotated[int, Field(ge=0, lt=1 << 62)]
    size_bytes: Annotated[int, Field(ge=0, lt=1 << 62)]
    fingerprint: Annotated[EncodableText, Field(max_length=256)]


class InputsReport(GenerationReport):
    """The inputs of the job as they were staged on this node for the attempt."""

    kind: Literal["inputs"] = "inputs"
    inputs: Annotated[list[StagedInputReport], Field(max_length=1000)]


class FailureReport(Message):
    """`core.failures.Failure`; `at` is on the supervisor's clock, integer microseconds."""

    cause: str
    rank: int | None
    at: int
    message: EncodableText
    collateral: bool = False
    exit_code: int | None = None
    signal: int | None = None
    exception: EncodableText | None = None
    traceback: EncodableText = ""

    @classmethod
    def from_core(cls, failure: Failure) -> FailureReport:
        """The message for a core value."""
        known = {name: getattr(failure, name) for name in cls.model_fields}
        return cls(**known | {"cause": failure.cause.value})


class RankFailedReport(GenerationReport):
    """The first failing rank of this node; the others are being killed."""

    kind: Literal["rank_failed"] = "rank_failed"
    failure: FailureReport


class RanksEndedReport(GenerationReport):
    """Every rank of this node is gone; `port` is a fresh one for the next generation.

    `target` is that of a trial: its ranks left because they have reached it.
    """

    kind: Literal["ranks_ended"] = "ranks_ended"
    outcome: NodeOutcome
    port: int
    step: int | None = None
    failure: FailureReport | None = None
    unsaved: EncodableText = ""
    target: int | None = None


class CheckpointReport(GenerationReport):
    """A rank committed a checkpoint."""

    kind: Literal["checkpoint"] = "checkpoint"
    step: int
    epoch: int | None = None
    path: EncodableText
    size_bytes: int = 0
    took_s: float | None = None
    metrics: dict[str, float] = Field(default_factory=dict)
    at: int


MAX_RESULTS = 1000
"""Results of a trial and checkpoints that an exit record holds, the newest."""


class TrialReport(GenerationReport):
    """A trial has completed `unit` units. `checkpoint` is the path of one that was committed there.

    `value` is that of the objective: None where it is missing, a text where it is not finite.
    """

    kind: Literal["trial"] = "trial"
    unit: Annotated[int, Field(ge=0, lt=1 << 62)]
    value: float | Literal["nan", "inf", "-inf"] | None = None
    metrics: dict[str, float | Literal["nan", "inf", "-inf"]] = Field(
        default_factory=dict, max_length=1000
    )
    checkpoint: Annotated[EncodableText, Field(max_length=4096)] = ""
    final: bool = False
    at: int


class SeedReport(GenerationReport):
    """The seed with which the ranks of the generation began, where their script uses the library.

    It is a text, because that of a generator may be larger than a whole number in JSON can be.
    """

    kind: Literal["seed"] = "seed"
    seed: Annotated[str, Field(pattern=r"^-?[0-9]{1,20}$")]


class ParamsReport(GenerationReport):
    """Parameters that the script says it runs with, where it uses the library."""

    kind: Literal["params"] = "params"
    values: Annotated[
        dict[
            Annotated[EncodableText, Field(min_length=1, max_length=MAX_NAME)],
            Annotated[EncodableText, Field(max_length=MAX_VALUE)] | bool | int | float | None,
        ],
        Field(max_length=MAX_PARAMS),
    ]


class RestoredReport(GenerationReport):
    """The generation continues from a checkpoint (`path` None: from the beginning)."""

    kind: Literal["restored"] = "restored"
    path: EncodableText | None = None
    step: int = 0
    epoch: int = 0
    position: int = 0
    exact: bool = True
    took_s: float | None = None


class QuarantinedReport(GenerationReport):
    """A checkpoint failed verification and was set aside."""

    kind: Literal["quarantined"] = "quarantined"
    path: EncodableText
    message: EncodableText


class CheckpointRemovedReport(GenerationReport):
    """Retention let a checkpoint go."""

    kind: Literal["checkpoint_removed"] = "checkpoint_removed"
    path: EncodableText


class CheckpointCopyReport(GenerationReport):
    """The copy of a checkpoint in the object store has begun, is complete or was given up.

    `name` is the last part of the checkpoint's path.
    """

    kind: Literal["checkpoint_copy"] = "checkpoint_copy"
    name: EncodableText
    state: Literal["uploading", "stored", "failed"]
    size_bytes: int = 0
    took_s: float | None = None
    at: int


class WarningReport(GenerationReport):
    """Something the user should see: a full disk, a resume that is not exact, dropped log bytes."""

    kind: Literal["warning"] = "warning"
    rank: int | None = None
    message: EncodableText
    code: Literal["", "save_failed"] = ""  # what it is counted as
    at: int


class GuardReport(GenerationReport):
    """A guard refused a step. `ranks` are at fault, as far as is known."""

    kind: Literal["guard"] = "guard"
    step: int
    what: EncodableText  # non_finite, spike
    origin: EncodableText  # data, hardware, unknown
    action: EncodableText  # skip, rollback, stop, applied
    ranks: list[int] = Field(default_factory=list)


class CollectiveState(Message):
    """The newest collective of a rank in one process group; `core.gang.collectives.LastCollective`."""

    group: EncodableText = Field(max_length=200)
    number: int = Field(ge=0)
    operation: EncodableText = Field(max_length=200)
    sizes: EncodableText = Field(default="", max_length=1000)
    done: bool = False

    def to_core(self) -> LastCollective:
        """The core value."""
        return LastCollective(**self.model_dump())


class RankStacks(Message):
    """Where one rank is: the stacks of its threads, or why there are none, and its collectives."""

    rank: int
    text: EncodableText = ""
    why: EncodableText = ""
    collectives: list[CollectiveState] = Field(default_factory=list, max_length=MOST_GROUPS)

    def to_core(self, node_rank: int) -> CapturedStack:
        """The core value of a rank of this node."""
        collectives = tuple(one.to_core() for one in self.collectives)
        return CapturedStack(node_rank, self.text, self.why, collectives)


class StacksReport(GenerationReport):
    """Stacks of this node's ranks. `request` answers that number of the orders; 0: ranks hang.

    `excuse` says why ranks of other nodes have to wait for these, if there is a good reason.
    """

    kind: Literal["stacks"] = "stacks"
    request: int
    at: int
    ranks: list[RankStacks]
    excuse: EncodableText = ""


class SaveBegunReport(GenerationReport):
    """The ranks save for a request of a user: the checkpoint will be of `step`, unless it `failed`."""

    kind: Literal["save_begun"] = "save_begun"
    request: int
    step: int
    failed: bool = False


class ProfileReport(GenerationReport):
    """A profile gathered by rank 0. `request` 0: the script asked for it.

    `splits` are those of `core.profiles.Split`, by rank; `trace` is where the merged trace lies.
    """

    kind: Literal["profile"] = "profile"
    request: int
    at: int
    first_step: int
    splits: list[dict[str, float | None]]
    finding: EncodableText
    said: EncodableText
    advice: EncodableText
    trace: EncodableText = ""
    notes: list[EncodableText] = Field(default_factory=list)


class RanksStalledReport(GenerationReport):
    """This node's ranks run and make no step; their stacks were put before. Nothing was ended."""

    kind: Literal["ranks_stalled"] = "ranks_stalled"
    failure: FailureReport


class LedgerRow(Message):
    """Positions [lo, hi) of an epoch's order that this node's ranks consumed in one generation.

    `times` keeps a sample that was used twice visible; see `core.ledger`.
    """

    epoch: int
    lo: int
    hi: int
    times: int = 1


class LedgerReport(GenerationReport):
    """What this node's ranks consumed in one generation.

    `added`: since the report before. Without it, as supervisors of earlier releases say it, the whole so
    far, which takes the place of an earlier report: on several nodes a row for every step, again and again.
    """

    kind: Literal["ledger"] = "ledger"
    num_samples: int | None = None
    rows: list[LedgerRow]
    added: bool = False


class MetricsReport(GenerationReport):
    """A chunk of metric points, in order. `leads`: their steps are the job's own steps."""

    kind: Literal["metrics"] = "metrics"
    points: list[MetricPoint]
    leads: bool = True


MAX_REPORT_ROWS, MAX_REPORT_METRICS, MAX_REPORT_VALUES = 1 << 16, 10_000, 1 << 22
"""Points, metrics and values of one report in columns."""
_ROW_BYTES, _PLACE_BYTES, _VALUE_BYTES = 20, 4, 8


def size_of_columns(rows: int, counts: Iterable[int]) -> int:
    """Bytes of the columns of a report with as many values of each metric; see `report_bytes`."""
    return rows * _ROW_BYTES + sum(
        many * (_VALUE_BYTES if many == rows else _VALUE_BYTES + _PLACE_BYTES) for many in counts
    )


class MetricColumnsReport(GenerationReport):
    """A `MetricsReport` in columns, in a call as bytes: `report_bytes` says what is in `data`.

    `metrics` has the name of each metric and the number of its values.
    """

    KIND: ClassVar[str] = "metric_columns"
    kind: Literal["metric_columns"] = "metric_columns"
    rows: Annotated[int, Field(ge=1, le=MAX_REPORT_ROWS)]
    metrics: Annotated[
        list[tuple[EncodableText, Annotated[int, Field(ge=1, le=MAX_REPORT_ROWS)]]],
        Field(max_length=MAX_REPORT_METRICS),
    ]
    leads: bool = True
    data: SkipJsonSchema[bytes] = Field(default=b"", exclude=True, repr=False)

    @model_validator(mode="after")
    def _has_all_columns(self) -> Self:
        counts = [many for _, many in self.metrics]
        if len({name for name, _ in self.metrics}) < len(counts):
            raise ValueError("a metric is named twice")
        if any(many > self.rows for many in counts) or sum(counts) > MAX_REPORT_VALUES:
            raise ValueError(f"more values than {self.rows} rows or a report may have")
        if len(self.data) != size_of_columns(self.rows, counts):
            raise ValueError("the columns have another size than the head says")
        return self


class LogReport(GenerationReport):
    """Bytes [offset, offset + len) of one rank's stream, base64. `dropped`: bytes lost before them.

    `end`: the stream has ended at `offset`, and `data` is empty; what was not sent before will not be.
    An older control plane passes over it.
    """

    kind: Literal["log"] = "log"
    rank: int
    stream: Literal["out", "err"]
    offset: int
    data: str
    dropped: int = 0
    end: bool = False


class LeavingReport(NumberedReport):
    """The supervisor was released, nothing it started is left, and it exits after this call."""

    kind: Literal["leaving"] = "leaving"


TrialResult = Annotated[CheckpointReport | TrialReport, Field(discriminator="kind")]
"""A result of a trial, or the checkpoint that goes with one."""
Report = Annotated[
    NodeReadyReport
    | RanksStartedReport
    | RankFailedReport
    | RanksEndedReport
    | CheckpointReport
    | TrialReport
    | SeedReport
    | ParamsReport
    | RestoredReport
    | QuarantinedReport
    | CheckpointRemovedReport
    | CheckpointCopyReport
    | WarningReport
    | GuardReport
    | StacksReport
    | ProfileReport
    | SaveBegunReport
    | RanksStalledReport
    | LedgerReport
    | MetricsReport
    | MetricColumnsReport
    | LogReport
    | SoftwareReport
    | InputsReport
    | LeavingReport,
    Field(discriminator="kind"),
]


class Heartbeat(Message):
    """How far this node's ranks are: cheap, unnumbered, only the newest counts."""

    generation: int = 0
    step: int | None = None
    epoch: int | None = None
    num_epochs: int | None = None
    phase: EncodableText = ""


class SyncRequest(Message):
    """Reports up. `seen` is the `version` of the last orders; the call returns when they differ.

    `sent_at` is the supervisor's wall clock in integer microseconds, for the estimate of its offset.
    """

    protocol: int = PROTOCOL
    job: int
    attempt: int
    node_rank: int
    incarnation: Annotated[int, Field(ge=0)] = 0
    sent_at: int
    reports: list[Report] = Field(default_factory=list)
    heartbeat: Heartbeat = Field(default_factory=Heartbeat)
    seen: str = ""
    wait_s: Annotated[float, Field(ge=0, le=3600)] = 0.0


class ProfileOrder(Message):
    """`core.profiles.ProfileWish` on the wire."""

    request: int
    steps: int
    traced: int
    extras: list[str] = Field(default_factory=list)


class RoleMaster(Message):
    """Where rank 0 of a role is, and a port there that is free for it."""

    name: str
    address: str
    port: int


class Orders(Message):
    """`core.jobs.desired.Desired` on the wire, with a version to compare.

    `grace_left_s` is what remains of a grace at the moment of the answer: durations survive
    clocks that disagree. `last_step` is the last step that the job is known to have made. `stacks`
    numbers the newest request for the running ranks' stacks, `profile` is the newest one for a profile,
    `saves` numbers the newest one for a checkpoint, and `tunnels` the newest tunnel that waits.
    `until` is the raised target of a trial. `failed_at` are the times of the job's newest failures that
    lost work, in microseconds UTC.
    """

    version: str
    action: Action
    generation: int = 0
    master_address: str = ""
    master_port: int = 0
    resume_path: str | None = None
    beginning: int = 0
    restarts: int = 0
    failed_at: list[int] = Field(default_factory=list)
    last_step: int = 0
    grace_left_s: float = 0.0
    stacks: int = 0
    after: str = ""
    profile: ProfileOrder | None = None
    saves: int = 0
    tunnels: int = 0
    until: int | None = None
    masters: list[RoleMaster] = Field(default_factory=list)
    peers: list[str] = Field(default_factory=list)

    @classmethod
    def from_core(cls, orders: Desired, now: int, last_step: int = 0) -> Orders:
        """The message for a core value."""
        left_s = 0.0 if orders.deadline_at is None else max(0.0, (orders.deadline_at - now) / 1e6)
        version = (
            f"{orders.action.value}:{orders.generation}:{orders.master_port}:{orders.deadline_at}"
            f":{orders.stacks}"
        )
        wish = orders.profile
        if wish is not None:
            version += f":{wish.request}"
        if orders.saves:
            version += f":save {orders.saves}"
        if orders.tunnels:
            version += f":tunnel {orders.tunnels}"
        if orders.until is not None:
            version += f":until {orders.until}"
        known = {name: getattr(orders, name) for name in cls.model_fields if hasattr(orders, name)}
        known |= {
            "version": version,
            "grace_left_s": left_s,
            "last_step": last_step,
            "masters": [RoleMaster(name=n, address=a, port=p) for n, a, p in orders.masters],
            "profile": wish and ProfileOrder.model_validate(wish, from_attributes=True),
        }
        return cls(**known)


class SyncResponse(Message):
    """Orders down. Reports up to `acked` are stored and need not be sent again."""

    protocol: int = PROTOCOL
    acked: int
    orders: Orders
    server_now: int


class ExitRecord(Message):
    """What a supervisor leaves in `<node_dir>/exit.json` before it reports the end of its ranks.

    A control plane that never heard the report reads it here, and with it the results of a trial and the
    checkpoints that were not acknowledged: a job that has ended has no later supervisor to send them.
    """

    protocol: int = PROTOCOL
    attempt: int
    node_rank: int
    released: bool = False
    ended: RanksEndedReport | None = None
    results: Annotated[list[TrialResult], Field(max_length=MAX_RESULTS)] = Field(
        default_factory=list
    )


class SecretValues(Message):
    """The values of the secrets that a job names, for a supervisor on another machine."""

    values: dict[str, str]
