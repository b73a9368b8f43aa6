"""Written by scripts/generate_grpc.py from jobs.proto; change neither."""

import datetime

from google.protobuf import struct_pb2 as _struct_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SubmitRequest(_message.Message):
    __slots__ = ("spec", "code", "kind", "caller_cwd", "caller_env", "owner", "source", "idempotency_key", "dry_run")
    class CallerEnvEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SPEC_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    CALLER_CWD_FIELD_NUMBER: _ClassVar[int]
    CALLER_ENV_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    spec: _struct_pb2.Struct
    code: str
    kind: str
    caller_cwd: str
    caller_env: _containers.ScalarMap[str, str]
    owner: str
    source: SourceRequest
    idempotency_key: str
    dry_run: bool
    def __init__(self, spec: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., code: _Optional[str] = ..., kind: _Optional[str] = ..., caller_cwd: _Optional[str] = ..., caller_env: _Optional[_Mapping[str, str]] = ..., owner: _Optional[str] = ..., source: _Optional[_Union[SourceRequest, _Mapping]] = ..., idempotency_key: _Optional[str] = ..., dry_run: _Optional[bool] = ...) -> None: ...

class SourceRequest(_message.Message):
    __slots__ = ("commit", "branch", "changed", "num_changed", "diff_digest", "diff", "diff_cut")
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    BRANCH_FIELD_NUMBER: _ClassVar[int]
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    NUM_CHANGED_FIELD_NUMBER: _ClassVar[int]
    DIFF_DIGEST_FIELD_NUMBER: _ClassVar[int]
    DIFF_FIELD_NUMBER: _ClassVar[int]
    DIFF_CUT_FIELD_NUMBER: _ClassVar[int]
    commit: str
    branch: str
    changed: _containers.RepeatedScalarFieldContainer[str]
    num_changed: int
    diff_digest: str
    diff: str
    diff_cut: bool
    def __init__(self, commit: _Optional[str] = ..., branch: _Optional[str] = ..., changed: _Optional[_Iterable[str]] = ..., num_changed: _Optional[int] = ..., diff_digest: _Optional[str] = ..., diff: _Optional[str] = ..., diff_cut: _Optional[bool] = ...) -> None: ...

class SubmitResponse(_message.Message):
    __slots__ = ("job", "spec", "estimate", "notes")
    JOB_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    ESTIMATE_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    job: JobView
    spec: _struct_pb2.Struct
    estimate: EstimateView
    notes: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, job: _Optional[_Union[JobView, _Mapping]] = ..., spec: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., estimate: _Optional[_Union[EstimateView, _Mapping]] = ..., notes: _Optional[_Iterable[str]] = ...) -> None: ...

class JobView(_message.Message):
    __slots__ = ("num", "label", "url", "etag", "name", "description", "project", "owner", "labels", "tags", "group", "framework", "kind", "priority", "state", "reason", "pending_reason", "waits_for", "array", "array_index", "study", "trial", "goal", "attempt", "attempts", "generation", "restarts", "pool", "num_slots", "slot_type", "slot_seconds", "usd", "num_nodes", "image", "entry_point", "data", "algorithm", "cause", "queue_s", "duration_s", "metric", "best_metric", "world_size", "roles", "submitted_at", "started_at", "ended_at", "stop_deadline_at", "expires", "archived_at", "pinned_at", "pinned_by", "failure", "progress", "ranks", "nodes", "lineage", "cost", "unit_costs", "budget", "communication", "spec", "withheld", "trace_id", "code", "directory", "checkpoint_dir")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class DataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NUM_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    URL_FIELD_NUMBER: _ClassVar[int]
    ETAG_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    PROJECT_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    FRAMEWORK_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    PENDING_REASON_FIELD_NUMBER: _ClassVar[int]
    WAITS_FOR_FIELD_NUMBER: _ClassVar[int]
    ARRAY_FIELD_NUMBER: _ClassVar[int]
    ARRAY_INDEX_FIELD_NUMBER: _ClassVar[int]
    STUDY_FIELD_NUMBER: _ClassVar[int]
    TRIAL_FIELD_NUMBER: _ClassVar[int]
    GOAL_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    RESTARTS_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    NUM_SLOTS_FIELD_NUMBER: _ClassVar[int]
    SLOT_TYPE_FIELD_NUMBER: _ClassVar[int]
    SLOT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    USD_FIELD_NUMBER: _ClassVar[int]
    NUM_NODES_FIELD_NUMBER: _ClassVar[int]
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    ENTRY_POINT_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    ALGORITHM_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    QUEUE_S_FIELD_NUMBER: _ClassVar[int]
    DURATION_S_FIELD_NUMBER: _ClassVar[int]
    METRIC_FIELD_NUMBER: _ClassVar[int]
    BEST_METRIC_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    ROLES_FIELD_NUMBER: _ClassVar[int]
    SUBMITTED_AT_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    ENDED_AT_FIELD_NUMBER: _ClassVar[int]
    STOP_DEADLINE_AT_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_FIELD_NUMBER: _ClassVar[int]
    ARCHIVED_AT_FIELD_NUMBER: _ClassVar[int]
    PINNED_AT_FIELD_NUMBER: _ClassVar[int]
    PINNED_BY_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    UNIT_COSTS_FIELD_NUMBER: _ClassVar[int]
    BUDGET_FIELD_NUMBER: _ClassVar[int]
    COMMUNICATION_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    WITHHELD_FIELD_NUMBER: _ClassVar[int]
    TRACE_ID_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_DIR_FIELD_NUMBER: _ClassVar[int]
    num: int
    label: str
    url: str
    etag: str
    name: str
    description: str
    project: str
    owner: str
    labels: _containers.ScalarMap[str, str]
    tags: _containers.RepeatedScalarFieldContainer[str]
    group: str
    framework: str
    kind: str
    priority: int
    state: str
    reason: ReasonView
    pending_reason: ReasonView
    waits_for: _containers.RepeatedCompositeFieldContainer[DependencyView]
    array: int
    array_index: int
    study: int
    trial: int
    goal: str
    attempt: int
    attempts: int
    generation: int
    restarts: int
    pool: str
    num_slots: int
    slot_type: str
    slot_seconds: float
    usd: str
    num_nodes: int
    image: str
    entry_point: str
    data: _containers.ScalarMap[str, str]
    algorithm: str
    cause: str
    queue_s: float
    duration_s: float
    metric: str
    best_metric: float
    world_size: int
    roles: _containers.RepeatedCompositeFieldContainer[RoleView]
    submitted_at: _timestamp_pb2.Timestamp
    started_at: _timestamp_pb2.Timestamp
    ended_at: _timestamp_pb2.Timestamp
    stop_deadline_at: _timestamp_pb2.Timestamp
    expires: _containers.RepeatedCompositeFieldContainer[ExpiryView]
    archived_at: _timestamp_pb2.Timestamp
    pinned_at: _timestamp_pb2.Timestamp
    pinned_by: str
    failure: FailureView
    progress: ProgressView
    ranks: _containers.RepeatedCompositeFieldContainer[RankView]
    nodes: _containers.RepeatedCompositeFieldContainer[NodeRankView]
    lineage: LineageView
    cost: CostView
    unit_costs: _containers.RepeatedCompositeFieldContainer[UnitCostView]
    budget: BudgetView
    communication: CommunicationView
    spec: _struct_pb2.Struct
    withheld: _containers.RepeatedScalarFieldContainer[str]
    trace_id: str
    code: str
    directory: str
    checkpoint_dir: str
    def __init__(self, num: _Optional[int] = ..., label: _Optional[str] = ..., url: _Optional[str] = ..., etag: _Optional[str] = ..., name: _Optional[str] = ..., description: _Optional[str] = ..., project: _Optional[str] = ..., owner: _Optional[str] = ..., labels: _Optional[_Mapping[str, str]] = ..., tags: _Optional[_Iterable[str]] = ..., group: _Optional[str] = ..., framework: _Optional[str] = ..., kind: _Optional[str] = ..., priority: _Optional[int] = ..., state: _Optional[str] = ..., reason: _Optional[_Union[ReasonView, _Mapping]] = ..., pending_reason: _Optional[_Union[ReasonView, _Mapping]] = ..., waits_for: _Optional[_Iterable[_Union[DependencyView, _Mapping]]] = ..., array: _Optional[int] = ..., array_index: _Optional[int] = ..., study: _Optional[int] = ..., trial: _Optional[int] = ..., goal: _Optional[str] = ..., attempt: _Optional[int] = ..., attempts: _Optional[int] = ..., generation: _Optional[int] = ..., restarts: _Optional[int] = ..., pool: _Optional[str] = ..., num_slots: _Optional[int] = ..., slot_type: _Optional[str] = ..., slot_seconds: _Optional[float] = ..., usd: _Optional[str] = ..., num_nodes: _Optional[int] = ..., image: _Optional[str] = ..., entry_point: _Optional[str] = ..., data: _Optional[_Mapping[str, str]] = ..., algorithm: _Optional[str] = ..., cause: _Optional[str] = ..., queue_s: _Optional[float] = ..., duration_s: _Optional[float] = ..., metric: _Optional[str] = ..., best_metric: _Optional[float] = ..., world_size: _Optional[int] = ..., roles: _Optional[_Iterable[_Union[RoleView, _Mapping]]] = ..., submitted_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., started_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., ended_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., stop_deadline_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., expires: _Optional[_Iterable[_Union[ExpiryView, _Mapping]]] = ..., archived_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., pinned_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., pinned_by: _Optional[str] = ..., failure: _Optional[_Union[FailureView, _Mapping]] = ..., progress: _Optional[_Union[ProgressView, _Mapping]] = ..., ranks: _Optional[_Iterable[_Union[RankView, _Mapping]]] = ..., nodes: _Optional[_Iterable[_Union[NodeRankView, _Mapping]]] = ..., lineage: _Optional[_Union[LineageView, _Mapping]] = ..., cost: _Optional[_Union[CostView, _Mapping]] = ..., unit_costs: _Optional[_Iterable[_Union[UnitCostView, _Mapping]]] = ..., budget: _Optional[_Union[BudgetView, _Mapping]] = ..., communication: _Optional[_Union[CommunicationView, _Mapping]] = ..., spec: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., withheld: _Optional[_Iterable[str]] = ..., trace_id: _Optional[str] = ..., code: _Optional[str] = ..., directory: _Optional[str] = ..., checkpoint_dir: _Optional[str] = ...) -> None: ...

class ReasonView(_message.Message):
    __slots__ = ("code", "message")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    code: str
    message: str
    def __init__(self, code: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class DependencyView(_message.Message):
    __slots__ = ("job", "label", "url", "kind", "state")
    JOB_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    URL_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    job: int
    label: str
    url: str
    kind: str
    state: str
    def __init__(self, job: _Optional[int] = ..., label: _Optional[str] = ..., url: _Optional[str] = ..., kind: _Optional[str] = ..., state: _Optional[str] = ...) -> None: ...

class RoleView(_message.Message):
    __slots__ = ("name", "num_nodes", "slots_per_node", "num_ranks", "first_rank", "world", "world_size", "required", "phases")
    NAME_FIELD_NUMBER: _ClassVar[int]
    NUM_NODES_FIELD_NUMBER: _ClassVar[int]
    SLOTS_PER_NODE_FIELD_NUMBER: _ClassVar[int]
    NUM_RANKS_FIELD_NUMBER: _ClassVar[int]
    FIRST_RANK_FIELD_NUMBER: _ClassVar[int]
    WORLD_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    REQUIRED_FIELD_NUMBER: _ClassVar[int]
    PHASES_FIELD_NUMBER: _ClassVar[int]
    name: str
    num_nodes: int
    slots_per_node: int
    num_ranks: int
    first_rank: int
    world: str
    world_size: int
    required: bool
    phases: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., num_nodes: _Optional[int] = ..., slots_per_node: _Optional[int] = ..., num_ranks: _Optional[int] = ..., first_rank: _Optional[int] = ..., world: _Optional[str] = ..., world_size: _Optional[int] = ..., required: _Optional[bool] = ..., phases: _Optional[_Iterable[str]] = ...) -> None: ...

class ExpiryView(_message.Message):
    __slots__ = ("kind", "at")
    KIND_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    kind: str
    at: _timestamp_pb2.Timestamp
    def __init__(self, kind: _Optional[str] = ..., at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class FailureView(_message.Message):
    __slots__ = ("cause", "message", "rank", "node_rank", "at", "exit_code", "signal", "exception", "traceback", "role")
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    NODE_RANK_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    EXCEPTION_FIELD_NUMBER: _ClassVar[int]
    TRACEBACK_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    cause: str
    message: str
    rank: int
    node_rank: int
    at: _timestamp_pb2.Timestamp
    exit_code: int
    signal: int
    exception: str
    traceback: str
    role: str
    def __init__(self, cause: _Optional[str] = ..., message: _Optional[str] = ..., rank: _Optional[int] = ..., node_rank: _Optional[int] = ..., at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., exit_code: _Optional[int] = ..., signal: _Optional[int] = ..., exception: _Optional[str] = ..., traceback: _Optional[str] = ..., role: _Optional[str] = ...) -> None: ...

class ProgressView(_message.Message):
    __slots__ = ("step", "epoch", "num_epochs", "high_water_step", "steps_per_s", "last_metrics", "checkpoint_step", "checkpoint_path")
    class LastMetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    STEP_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    NUM_EPOCHS_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATER_STEP_FIELD_NUMBER: _ClassVar[int]
    STEPS_PER_S_FIELD_NUMBER: _ClassVar[int]
    LAST_METRICS_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_STEP_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_PATH_FIELD_NUMBER: _ClassVar[int]
    step: int
    epoch: int
    num_epochs: int
    high_water_step: int
    steps_per_s: float
    last_metrics: _containers.ScalarMap[str, float]
    checkpoint_step: int
    checkpoint_path: str
    def __init__(self, step: _Optional[int] = ..., epoch: _Optional[int] = ..., num_epochs: _Optional[int] = ..., high_water_step: _Optional[int] = ..., steps_per_s: _Optional[float] = ..., last_metrics: _Optional[_Mapping[str, float]] = ..., checkpoint_step: _Optional[int] = ..., checkpoint_path: _Optional[str] = ...) -> None: ...

class RankView(_message.Message):
    __slots__ = ("rank", "node_rank", "node", "pid", "role")
    RANK_FIELD_NUMBER: _ClassVar[int]
    NODE_RANK_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    rank: int
    node_rank: int
    node: str
    pid: int
    role: str
    def __init__(self, rank: _Optional[int] = ..., node_rank: _Optional[int] = ..., node: _Optional[str] = ..., pid: _Optional[int] = ..., role: _Optional[str] = ...) -> None: ...

class NodeRankView(_message.Message):
    __slots__ = ("node_rank", "node", "slots", "phase", "host", "pid", "step", "last_seen_at", "warm")
    NODE_RANK_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    LAST_SEEN_AT_FIELD_NUMBER: _ClassVar[int]
    WARM_FIELD_NUMBER: _ClassVar[int]
    node_rank: int
    node: str
    slots: _containers.RepeatedScalarFieldContainer[int]
    phase: str
    host: str
    pid: int
    step: int
    last_seen_at: _timestamp_pb2.Timestamp
    warm: bool
    def __init__(self, node_rank: _Optional[int] = ..., node: _Optional[str] = ..., slots: _Optional[_Iterable[int]] = ..., phase: _Optional[str] = ..., host: _Optional[str] = ..., pid: _Optional[int] = ..., step: _Optional[int] = ..., last_seen_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., warm: _Optional[bool] = ...) -> None: ...

class LineageView(_message.Message):
    __slots__ = ("generations", "restarts", "lost_s", "num_checkpoints", "num_valid", "num_quarantined", "num_stored", "num_uploading", "num_missing", "num_samples", "consumed", "missed", "duplicated", "redone", "unreported", "exact")
    GENERATIONS_FIELD_NUMBER: _ClassVar[int]
    RESTARTS_FIELD_NUMBER: _ClassVar[int]
    LOST_S_FIELD_NUMBER: _ClassVar[int]
    NUM_CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    NUM_VALID_FIELD_NUMBER: _ClassVar[int]
    NUM_QUARANTINED_FIELD_NUMBER: _ClassVar[int]
    NUM_STORED_FIELD_NUMBER: _ClassVar[int]
    NUM_UPLOADING_FIELD_NUMBER: _ClassVar[int]
    NUM_MISSING_FIELD_NUMBER: _ClassVar[int]
    NUM_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    CONSUMED_FIELD_NUMBER: _ClassVar[int]
    MISSED_FIELD_NUMBER: _ClassVar[int]
    DUPLICATED_FIELD_NUMBER: _ClassVar[int]
    REDONE_FIELD_NUMBER: _ClassVar[int]
    UNREPORTED_FIELD_NUMBER: _ClassVar[int]
    EXACT_FIELD_NUMBER: _ClassVar[int]
    generations: int
    restarts: _containers.RepeatedCompositeFieldContainer[RestartView]
    lost_s: float
    num_checkpoints: int
    num_valid: int
    num_quarantined: int
    num_stored: int
    num_uploading: int
    num_missing: int
    num_samples: int
    consumed: int
    missed: int
    duplicated: int
    redone: int
    unreported: int
    exact: bool
    def __init__(self, generations: _Optional[int] = ..., restarts: _Optional[_Iterable[_Union[RestartView, _Mapping]]] = ..., lost_s: _Optional[float] = ..., num_checkpoints: _Optional[int] = ..., num_valid: _Optional[int] = ..., num_quarantined: _Optional[int] = ..., num_stored: _Optional[int] = ..., num_uploading: _Optional[int] = ..., num_missing: _Optional[int] = ..., num_samples: _Optional[int] = ..., consumed: _Optional[int] = ..., missed: _Optional[int] = ..., duplicated: _Optional[int] = ..., redone: _Optional[int] = ..., unreported: _Optional[int] = ..., exact: _Optional[bool] = ...) -> None: ...

class RestartView(_message.Message):
    __slots__ = ("attempt", "generation", "cause", "message", "failed_at", "next_step_at", "lost_s", "rank", "node_rank", "exit_code", "signal", "exception", "evidence", "action", "wait_s", "lost_steps", "lost_slot_s")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    FAILED_AT_FIELD_NUMBER: _ClassVar[int]
    NEXT_STEP_AT_FIELD_NUMBER: _ClassVar[int]
    LOST_S_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    NODE_RANK_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    EXCEPTION_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    LOST_STEPS_FIELD_NUMBER: _ClassVar[int]
    LOST_SLOT_S_FIELD_NUMBER: _ClassVar[int]
    attempt: int
    generation: int
    cause: str
    message: str
    failed_at: _timestamp_pb2.Timestamp
    next_step_at: _timestamp_pb2.Timestamp
    lost_s: float
    rank: int
    node_rank: int
    exit_code: int
    signal: int
    exception: str
    evidence: str
    action: str
    wait_s: float
    lost_steps: int
    lost_slot_s: float
    def __init__(self, attempt: _Optional[int] = ..., generation: _Optional[int] = ..., cause: _Optional[str] = ..., message: _Optional[str] = ..., failed_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., next_step_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., lost_s: _Optional[float] = ..., rank: _Optional[int] = ..., node_rank: _Optional[int] = ..., exit_code: _Optional[int] = ..., signal: _Optional[int] = ..., exception: _Optional[str] = ..., evidence: _Optional[str] = ..., action: _Optional[str] = ..., wait_s: _Optional[float] = ..., lost_steps: _Optional[int] = ..., lost_slot_s: _Optional[float] = ...) -> None: ...

class CostView(_message.Message):
    __slots__ = ("accounts", "held", "wasted", "usd", "storage")
    ACCOUNTS_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    WASTED_FIELD_NUMBER: _ClassVar[int]
    USD_FIELD_NUMBER: _ClassVar[int]
    STORAGE_FIELD_NUMBER: _ClassVar[int]
    accounts: AccountsView
    held: float
    wasted: float
    usd: str
    storage: StorageCostView
    def __init__(self, accounts: _Optional[_Union[AccountsView, _Mapping]] = ..., held: _Optional[float] = ..., wasted: _Optional[float] = ..., usd: _Optional[str] = ..., storage: _Optional[_Union[StorageCostView, _Mapping]] = ...) -> None: ...

class AccountsView(_message.Message):
    __slots__ = ("queued", "starting", "productive", "saving", "redone", "lost_to_failure", "lost_to_preemption", "idle")
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    STARTING_FIELD_NUMBER: _ClassVar[int]
    PRODUCTIVE_FIELD_NUMBER: _ClassVar[int]
    SAVING_FIELD_NUMBER: _ClassVar[int]
    REDONE_FIELD_NUMBER: _ClassVar[int]
    LOST_TO_FAILURE_FIELD_NUMBER: _ClassVar[int]
    LOST_TO_PREEMPTION_FIELD_NUMBER: _ClassVar[int]
    IDLE_FIELD_NUMBER: _ClassVar[int]
    queued: float
    starting: float
    productive: float
    saving: float
    redone: float
    lost_to_failure: float
    lost_to_preemption: float
    idle: float
    def __init__(self, queued: _Optional[float] = ..., starting: _Optional[float] = ..., productive: _Optional[float] = ..., saving: _Optional[float] = ..., redone: _Optional[float] = ..., lost_to_failure: _Optional[float] = ..., lost_to_preemption: _Optional[float] = ..., idle: _Optional[float] = ...) -> None: ...

class StorageCostView(_message.Message):
    __slots__ = ("kept_bytes", "gb_months", "uploaded_bytes", "read_bytes", "storage_usd", "transfer_usd")
    KEPT_BYTES_FIELD_NUMBER: _ClassVar[int]
    GB_MONTHS_FIELD_NUMBER: _ClassVar[int]
    UPLOADED_BYTES_FIELD_NUMBER: _ClassVar[int]
    READ_BYTES_FIELD_NUMBER: _ClassVar[int]
    STORAGE_USD_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_USD_FIELD_NUMBER: _ClassVar[int]
    kept_bytes: int
    gb_months: str
    uploaded_bytes: int
    read_bytes: int
    storage_usd: str
    transfer_usd: str
    def __init__(self, kept_bytes: _Optional[int] = ..., gb_months: _Optional[str] = ..., uploaded_bytes: _Optional[int] = ..., read_bytes: _Optional[int] = ..., storage_usd: _Optional[str] = ..., transfer_usd: _Optional[str] = ...) -> None: ...

class UnitCostView(_message.Message):
    __slots__ = ("unit", "count", "slot_s", "usd", "estimated")
    UNIT_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    SLOT_S_FIELD_NUMBER: _ClassVar[int]
    USD_FIELD_NUMBER: _ClassVar[int]
    ESTIMATED_FIELD_NUMBER: _ClassVar[int]
    unit: str
    count: float
    slot_s: float
    usd: str
    estimated: bool
    def __init__(self, unit: _Optional[str] = ..., count: _Optional[float] = ..., slot_s: _Optional[float] = ..., usd: _Optional[str] = ..., estimated: _Optional[bool] = ...) -> None: ...

class BudgetView(_message.Message):
    __slots__ = ("scope", "name", "label", "usd", "slot_hours", "period", "warn", "pause_percent", "state", "used_usd", "used_slot_hours", "used_percent", "alerts")
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    USD_FIELD_NUMBER: _ClassVar[int]
    SLOT_HOURS_FIELD_NUMBER: _ClassVar[int]
    PERIOD_FIELD_NUMBER: _ClassVar[int]
    WARN_FIELD_NUMBER: _ClassVar[int]
    PAUSE_PERCENT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    USED_USD_FIELD_NUMBER: _ClassVar[int]
    USED_SLOT_HOURS_FIELD_NUMBER: _ClassVar[int]
    USED_PERCENT_FIELD_NUMBER: _ClassVar[int]
    ALERTS_FIELD_NUMBER: _ClassVar[int]
    scope: str
    name: str
    label: str
    usd: str
    slot_hours: float
    period: str
    warn: _containers.RepeatedScalarFieldContainer[int]
    pause_percent: int
    state: str
    used_usd: str
    used_slot_hours: float
    used_percent: int
    alerts: _containers.RepeatedCompositeFieldContainer[BudgetAlertView]
    def __init__(self, scope: _Optional[str] = ..., name: _Optional[str] = ..., label: _Optional[str] = ..., usd: _Optional[str] = ..., slot_hours: _Optional[float] = ..., period: _Optional[str] = ..., warn: _Optional[_Iterable[int]] = ..., pause_percent: _Optional[int] = ..., state: _Optional[str] = ..., used_usd: _Optional[str] = ..., used_slot_hours: _Optional[float] = ..., used_percent: _Optional[int] = ..., alerts: _Optional[_Iterable[_Union[BudgetAlertView, _Mapping]]] = ...) -> None: ...

class BudgetAlertView(_message.Message):
    __slots__ = ("percent", "at", "message")
    PERCENT_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    percent: int
    at: _timestamp_pb2.Timestamp
    message: str
    def __init__(self, percent: _Optional[int] = ..., at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., message: _Optional[str] = ...) -> None: ...

class CommunicationView(_message.Message):
    __slots__ = ("num_nodes", "pairs", "gbps", "cost")
    NUM_NODES_FIELD_NUMBER: _ClassVar[int]
    PAIRS_FIELD_NUMBER: _ClassVar[int]
    GBPS_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    num_nodes: int
    pairs: int
    gbps: float
    cost: float
    def __init__(self, num_nodes: _Optional[int] = ..., pairs: _Optional[int] = ..., gbps: _Optional[float] = ..., cost: _Optional[float] = ...) -> None: ...

class EstimateView(_message.Message):
    __slots__ = ("p50", "p90", "basis", "usd_per_slot_hour", "warnings")
    P50_FIELD_NUMBER: _ClassVar[int]
    P90_FIELD_NUMBER: _ClassVar[int]
    BASIS_FIELD_NUMBER: _ClassVar[int]
    USD_PER_SLOT_HOUR_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    p50: EstimatePointView
    p90: EstimatePointView
    basis: str
    usd_per_slot_hour: str
    warnings: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, p50: _Optional[_Union[EstimatePointView, _Mapping]] = ..., p90: _Optional[_Union[EstimatePointView, _Mapping]] = ..., basis: _Optional[str] = ..., usd_per_slot_hour: _Optional[str] = ..., warnings: _Optional[_Iterable[str]] = ...) -> None: ...

class EstimatePointView(_message.Message):
    __slots__ = ("slot_hours", "duration_s", "usd")
    SLOT_HOURS_FIELD_NUMBER: _ClassVar[int]
    DURATION_S_FIELD_NUMBER: _ClassVar[int]
    USD_FIELD_NUMBER: _ClassVar[int]
    slot_hours: float
    duration_s: float
    usd: str
    def __init__(self, slot_hours: _Optional[float] = ..., duration_s: _Optional[float] = ..., usd: _Optional[str] = ...) -> None: ...

class GetRequest(_message.Message):
    __slots__ = ("num",)
    NUM_FIELD_NUMBER: _ClassVar[int]
    num: int
    def __init__(self, num: _Optional[int] = ...) -> None: ...

class JobsQuery(_message.Message):
    __slots__ = ("state", "project", "owner", "name", "label", "framework", "pool", "slot_type", "kind", "study", "array", "image", "entry_point", "data", "algorithm", "reason", "cause", "metric", "trials", "min_priority", "max_priority", "min_slots", "max_slots", "min_nodes", "max_nodes", "min_restarts", "max_restarts", "min_queue_s", "max_queue_s", "min_duration_s", "max_duration_s", "min_slot_seconds", "max_slot_seconds", "min_usd", "max_usd", "min_metric_value", "max_metric_value", "submitted_from", "submitted_to", "started_from", "started_to", "ended_from", "ended_to", "archived", "sort", "cursor", "limit")
    STATE_FIELD_NUMBER: _ClassVar[int]
    PROJECT_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    FRAMEWORK_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    SLOT_TYPE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    STUDY_FIELD_NUMBER: _ClassVar[int]
    ARRAY_FIELD_NUMBER: _ClassVar[int]
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    ENTRY_POINT_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    ALGORITHM_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    METRIC_FIELD_NUMBER: _ClassVar[int]
    TRIALS_FIELD_NUMBER: _ClassVar[int]
    MIN_PRIORITY_FIELD_NUMBER: _ClassVar[int]
    MAX_PRIORITY_FIELD_NUMBER: _ClassVar[int]
    MIN_SLOTS_FIELD_NUMBER: _ClassVar[int]
    MAX_SLOTS_FIELD_NUMBER: _ClassVar[int]
    MIN_NODES_FIELD_NUMBER: _ClassVar[int]
    MAX_NODES_FIELD_NUMBER: _ClassVar[int]
    MIN_RESTARTS_FIELD_NUMBER: _ClassVar[int]
    MAX_RESTARTS_FIELD_NUMBER: _ClassVar[int]
    MIN_QUEUE_S_FIELD_NUMBER: _ClassVar[int]
    MAX_QUEUE_S_FIELD_NUMBER: _ClassVar[int]
    MIN_DURATION_S_FIELD_NUMBER: _ClassVar[int]
    MAX_DURATION_S_FIELD_NUMBER: _ClassVar[int]
    MIN_SLOT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    MAX_SLOT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    MIN_USD_FIELD_NUMBER: _ClassVar[int]
    MAX_USD_FIELD_NUMBER: _ClassVar[int]
    MIN_METRIC_VALUE_FIELD_NUMBER: _ClassVar[int]
    MAX_METRIC_VALUE_FIELD_NUMBER: _ClassVar[int]
    SUBMITTED_FROM_FIELD_NUMBER: _ClassVar[int]
    SUBMITTED_TO_FIELD_NUMBER: _ClassVar[int]
    STARTED_FROM_FIELD_NUMBER: _ClassVar[int]
    STARTED_TO_FIELD_NUMBER: _ClassVar[int]
    ENDED_FROM_FIELD_NUMBER: _ClassVar[int]
    ENDED_TO_FIELD_NUMBER: _ClassVar[int]
    ARCHIVED_FIELD_NUMBER: _ClassVar[int]
    SORT_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    state: _containers.RepeatedScalarFieldContainer[str]
    project: str
    owner: str
    name: str
    label: _containers.RepeatedScalarFieldContainer[str]
    framework: str
    pool: str
    slot_type: str
    kind: str
    study: int
    array: int
    image: str
    entry_point: str
    data: str
    algorithm: str
    reason: str
    cause: str
    metric: str
    trials: bool
    min_priority: int
    max_priority: int
    min_slots: int
    max_slots: int
    min_nodes: int
    max_nodes: int
    min_restarts: int
    max_restarts: int
    min_queue_s: float
    max_queue_s: float
    min_duration_s: float
    max_duration_s: float
    min_slot_seconds: float
    max_slot_seconds: float
    min_usd: str
    max_usd: str
    min_metric_value: float
    max_metric_value: float
    submitted_from: _timestamp_pb2.Timestamp
    submitted_to: _timestamp_pb2.Timestamp
    started_from: _timestamp_pb2.Timestamp
    started_to: _timestamp_pb2.Timestamp
    ended_from: _timestamp_pb2.Timestamp
    ended_to: _timestamp_pb2.Timestamp
    archived: str
    sort: str
    cursor: str
    limit: int
    def __init__(self, state: _Optional[_Iterable[str]] = ..., project: _Optional[str] = ..., owner: _Optional[str] = ..., name: _Optional[str] = ..., label: _Optional[_Iterable[str]] = ..., framework: _Optional[str] = ..., pool: _Optional[str] = ..., slot_type: _Optional[str] = ..., kind: _Optional[str] = ..., study: _Optional[int] = ..., array: _Optional[int] = ..., image: _Optional[str] = ..., entry_point: _Optional[str] = ..., data: _Optional[str] = ..., algorithm: _Optional[str] = ..., reason: _Optional[str] = ..., cause: _Optional[str] = ..., metric: _Optional[str] = ..., trials: _Optional[bool] = ..., min_priority: _Optional[int] = ..., max_priority: _Optional[int] = ..., min_slots: _Optional[int] = ..., max_slots: _Optional[int] = ..., min_nodes: _Optional[int] = ..., max_nodes: _Optional[int] = ..., min_restarts: _Optional[int] = ..., max_restarts: _Optional[int] = ..., min_queue_s: _Optional[float] = ..., max_queue_s: _Optional[float] = ..., min_duration_s: _Optional[float] = ..., max_duration_s: _Optional[float] = ..., min_slot_seconds: _Optional[float] = ..., max_slot_seconds: _Optional[float] = ..., min_usd: _Optional[str] = ..., max_usd: _Optional[str] = ..., min_metric_value: _Optional[float] = ..., max_metric_value: _Optional[float] = ..., submitted_from: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., submitted_to: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., started_from: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., started_to: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., ended_from: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., ended_to: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., archived: _Optional[str] = ..., sort: _Optional[str] = ..., cursor: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class JobPage(_message.Message):
    __slots__ = ("jobs", "cursor")
    JOBS_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[JobView]
    cursor: str
    def __init__(self, jobs: _Optional[_Iterable[_Union[JobView, _Mapping]]] = ..., cursor: _Optional[str] = ...) -> None: ...

class CancelRequest(_message.Message):
    __slots__ = ("num", "grace_s")
    NUM_FIELD_NUMBER: _ClassVar[int]
    GRACE_S_FIELD_NUMBER: _ClassVar[int]
    num: int
    grace_s: float
    def __init__(self, num: _Optional[int] = ..., grace_s: _Optional[float] = ...) -> None: ...

class EventsRequest(_message.Message):
    __slots__ = ("num", "place")
    NUM_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    num: int
    place: str
    def __init__(self, num: _Optional[int] = ..., place: _Optional[str] = ...) -> None: ...

class LiveEvent(_message.Message):
    __slots__ = ("event", "place")
    EVENT_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    event: EventView
    place: str
    def __init__(self, event: _Optional[_Union[EventView, _Mapping]] = ..., place: _Optional[str] = ...) -> None: ...

class EventView(_message.Message):
    __slots__ = ("job", "seq", "feed", "v", "at", "kind", "attempt", "generation", "actor", "state", "reason", "data")
    JOB_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    FEED_FIELD_NUMBER: _ClassVar[int]
    V_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    ACTOR_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    job: int
    seq: int
    feed: int
    v: int
    at: _timestamp_pb2.Timestamp
    kind: str
    attempt: int
    generation: int
    actor: str
    state: str
    reason: ReasonView
    data: _struct_pb2.Struct
    def __init__(self, job: _Optional[int] = ..., seq: _Optional[int] = ..., feed: _Optional[int] = ..., v: _Optional[int] = ..., at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., kind: _Optional[str] = ..., attempt: _Optional[int] = ..., generation: _Optional[int] = ..., actor: _Optional[str] = ..., state: _Optional[str] = ..., reason: _Optional[_Union[ReasonView, _Mapping]] = ..., data: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ...) -> None: ...

class FeedRequest(_message.Message):
    __slots__ = ("project", "job", "kind", "place")
    PROJECT_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    project: str
    job: _containers.RepeatedScalarFieldContainer[int]
    kind: _containers.RepeatedScalarFieldContainer[str]
    place: str
    def __init__(self, project: _Optional[str] = ..., job: _Optional[_Iterable[int]] = ..., kind: _Optional[_Iterable[str]] = ..., place: _Optional[str] = ...) -> None: ...

class MetricsRequest(_message.Message):
    __slots__ = ("rank", "points")
    RANK_FIELD_NUMBER: _ClassVar[int]
    POINTS_FIELD_NUMBER: _ClassVar[int]
    rank: int
    points: _containers.RepeatedCompositeFieldContainer[PostedPoint]
    def __init__(self, rank: _Optional[int] = ..., points: _Optional[_Iterable[_Union[PostedPoint, _Mapping]]] = ...) -> None: ...

class PostedPoint(_message.Message):
    __slots__ = ("name", "value", "step", "epoch", "at")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: float
    step: int
    epoch: int
    at: _timestamp_pb2.Timestamp
    def __init__(self, name: _Optional[str] = ..., value: _Optional[float] = ..., step: _Optional[int] = ..., epoch: _Optional[int] = ..., at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class MetricsAnswer(_message.Message):
    __slots__ = ("stop", "reason", "message", "left_s", "received")
    STOP_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    LEFT_S_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    stop: bool
    reason: str
    message: str
    left_s: float
    received: int
    def __init__(self, stop: _Optional[bool] = ..., reason: _Optional[str] = ..., message: _Optional[str] = ..., left_s: _Optional[float] = ..., received: _Optional[int] = ...) -> None: ...
