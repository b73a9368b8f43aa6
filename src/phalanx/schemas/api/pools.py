"""Bodies about pools, nodes, projects and the scheduler's policy, and about applying a file of them."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Any, Literal

from pydantic import Field

from phalanx.schemas.api.body import At, RequestBody, ResponseBody, ShortText, ShownAs
from phalanx.schemas.pools.pool_file import PoolFile
from phalanx.schemas.pools.project_file import ProjectFile
from phalanx.schemas.spec.fields import MAX_NODES


class PoolBoundsView(ResponseBody):
    """The bounds of a pool that can grow, in effect and as its pool file says.

    With autoscaling off the pool keeps the nodes that it has.
    """

    min_nodes: int
    max_nodes: int
    autoscaling: Literal["on", "off"] = "on"
    source: Literal["file", "set"] = "file"  # set: by `pools scale`, which precedes the file
    file_min_nodes: int
    file_max_nodes: int
    set_at: At | None = None
    set_by: str | None = None


class PoolView(ResponseBody):
    """A pool and its free slots. `num_closed`: nodes on which no job may start."""

    name: str
    num_nodes: int
    num_slots: int
    num_free: int
    jobs: list[int]
    executor: str = "local"
    num_closed: int = 0
    slot_types: list[str] = Field(default_factory=list)
    levels: list[str] = Field(default_factory=list)
    residency: list[str] = Field(default_factory=list)  # values of the label of its nodes
    price: float | None = None  # US dollars for the dearest slot and hour
    spot: bool = False
    num_waiting: int = 0  # jobs that may run here and wait
    num_future: int = 0  # nodes that its cluster's autoscaler could add
    scaling: PoolBoundsView | None = None  # None: the pool cannot grow
    applied_at: At | None = None  # None: the machine itself, from no pool file
    spec: dict[str, Any] | None = None  # its part of the pool file, for a single pool


class NodeRequestView(ResponseBody):
    """An open request for the nodes of a whole gang; `job` None: for the least number of the pool."""

    job: int | None
    num_nodes: int  # nodes of the gang
    num_new: int  # of them, nodes that were not there when it was made
    asked_at: At


class FailedRequestView(ResponseBody):
    """A request that failed. The pool does not ask for this gang again before `until`."""

    job: int | None
    num_nodes: int
    asked_at: At
    failed_at: At
    until: At
    text: str = ""  # what the cluster's autoscaler said


class ScalingDecisionView(ResponseBody):
    """A decision with its reason.

    `kind`: asked, met, withdrawn, failed or limited, about new nodes; released, drained, returned or kept,
    about present ones; resized: the bounds were changed.
    """

    at: At
    kind: str
    text: str
    num_nodes: int = 0
    jobs: list[int] = Field(default_factory=list)
    nodes: list[str] = Field(default_factory=list)


class PoolScalingView(ResponseBody):
    """The scaling of a pool that its cluster's autoscaler grows. Money is in US dollars."""

    pool: str
    min_nodes: int
    max_nodes: int
    max_slots: int | None = None
    bounds: PoolBoundsView  # with their source
    num_nodes: int = 0  # present nodes
    num_requested: int = 0  # nodes that were requested and are not there yet
    per_hour: Decimal | None = None  # budget of an hour
    per_day: Decimal | None = None  # budget of a day, UTC
    spent_today: Decimal = Decimal(0)
    requests: list[NodeRequestView] = Field(default_factory=list)
    failed: list[FailedRequestView] = Field(default_factory=list)
    released: list[str] = Field(default_factory=list)  # nodes that the autoscaler may remove
    draining: list[str] = Field(default_factory=list)  # nodes that jobs leave because of a limit
    limits: list[str] = Field(default_factory=list)  # what keeps the pool from growing now
    decisions: list[ScalingDecisionView] = Field(default_factory=list)  # the newest first


class ScalePoolRequest(RequestBody):
    """Set bounds of a pool, or turn its autoscaling off and on; what is absent stays as it is."""

    min_nodes: Annotated[int, Field(strict=True, ge=0, le=MAX_NODES)] | None = None
    max_nodes: Annotated[int, Field(strict=True, ge=1, le=MAX_NODES)] | None = None
    autoscaling: Literal["on", "off"] | None = None


class DeviceUserView(ResponseBody):
    """A process that uses a device; `used_bytes` None: its driver does not say how much."""

    pid: int
    used_bytes: int | None = None


class DeviceView(ResponseBody):
    """The accelerator behind one slot of a node, as its driver last described it.

    `state`: free, held by a job, or closed for the `reason` given.
    """

    slot: int
    id: str
    state: Literal["free", "held", "closed"]
    reason: str = ""
    jobs: list[int] = Field(default_factory=list)
    model: str = ""
    kind: str = ""  # cuda or rocm
    memory_bytes: int = 0
    free_bytes: int = 0
    link: str = ""  # to the other devices of the node
    users: list[DeviceUserView] = Field(default_factory=list)


class NodeView(ResponseBody):
    """One node of a pool."""

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
    reserved_for: list[int] = Field(default_factory=list)  # jobs that others leave it for
    num_closed_slots: int = 0  # slots that are not offered: see `devices`
    num_unhealthy: int = 0  # devices that the node's own cluster does not offer, beside its slots
    devices: list[DeviceView] = Field(default_factory=list)  # where the executor sees them


QuotaUnitName = Literal["slots", "running", "submitted"]


class QuotaView(ResponseBody):
    """A quota and what counts against it now.

    `unit`: `slots` that are held, jobs that are `running` (that hold slots), or jobs that were
    `submitted` and have not ended. A quota without a project is of the whole platform.
    """

    project: str | None = None
    user: str | None = None  # None: all users together
    slot_type: str | None = None  # None: slots of every type
    unit: QuotaUnitName
    used: int
    limit: int
    used_percent: int
    label: str


class QuotaAlertView(ResponseBody):
    """A quota that was used to 80 or 100 percent for ten minutes, or a job that has waited for one long."""

    project: str | None = None
    user: str | None = None
    slot_type: str | None = None
    unit: QuotaUnitName
    percent: int | None = None  # None: a job that waits
    job: int | None = None  # its number
    at: At
    over: bool  # whether the use has fallen below the share since
    message: str


class QuotaList(ResponseBody):
    """Quotas with their use, and the alerts of the last day or of causes that last."""

    quotas: list[QuotaView] = Field(default_factory=list)
    alerts: list[QuotaAlertView] = Field(default_factory=list)


class ProjectView(ResponseBody):
    """A project: its limits and its usage. A limit None does not limit.

    `held_slots` are those of its own jobs, `child_slots` those of its child projects; its limits apply to
    both together. `entitled_slots` is its entitlement now, `average_slots` the decayed average of its
    usage.
    """

    name: str
    parent: str | None = None
    guaranteed_slots: int = 0
    weight: float = 1.0
    max_slots: int | None = None
    lend_slots: int | None = None
    max_priority: int | None = None
    max_running: int | None = None
    required_labels: dict[str, str] = Field(default_factory=dict)  # what each must be, in words
    retain: dict[str, str] = Field(default_factory=dict)  # by kind of data, in words
    residency: list[str] = Field(default_factory=list)  # values that its rule allows; empty: any
    held_slots: int = 0
    child_slots: int = 0
    num_running: int = 0
    num_waiting: int = 0
    waiting_slots: int = 0
    entitled_slots: float | None = None
    average_slots: float = 0.0
    applied_at: At | None = None  # None: jobs name it, no file does
    quotas: list[QuotaView] = Field(default_factory=list)  # where one project is shown
    spec: dict[str, Any] | None = None


class StoreView(ResponseBody):
    """A store of data outside the nodes, from a project file."""

    url: str
    residency: str
    applied_at: At
    applied_by: str


class ApplyPoolsRequest(RequestBody):
    """A pool file as plain data."""

    file: Annotated[dict[str, Any], ShownAs(PoolFile)]


class ApplyProjectsRequest(RequestBody):
    """A project file as plain data."""

    file: Annotated[dict[str, Any], ShownAs(ProjectFile)]


class ChangeView(ResponseBody):
    """The outcome for one pool or project of the file."""

    name: str
    outcome: Literal["created", "changed", "unchanged"]


class ApplyResponse(ResponseBody):
    """`warnings` name settings that are valid and probably not intended."""

    changes: list[ChangeView]
    warnings: list[str] = Field(default_factory=list)


class LeftoversView(ResponseBody):
    """The pods of one control plane in the cluster of a pool."""

    owner: str  # the name of that control plane in the cluster
    is_own: bool  # whether it is this one
    num_pods: int
    num_running: int
    jobs: list[str] = Field(default_factory=list)  # the first ones, in the numbers of the owner
    namespaces: list[str] = Field(default_factory=list)


class ForgetPoolRequest(RequestBody):
    """Remove the objects of a control plane from a pool's cluster; no owner: this one's, and the pool."""

    owner: Annotated[str, Field(pattern=r"^[a-z0-9]{1,32}$")] | None = None


class ForgetPoolResponse(ResponseBody):
    """What was removed from a cluster."""

    owner: str
    num_pods: int
    pool_removed: bool


class DrainRequest(RequestBody):
    """Drain a node. `jobs`: leave them running, or let them save and start on other nodes."""

    reason: Annotated[str, Field(max_length=500)] = ""
    state: Literal["drained", "quarantined"] = "drained"
    jobs: Literal["leave", "move"] = "leave"


class DrainResponse(ResponseBody):
    """The jobs on the node: those that were asked to move, and those that stay until they end."""

    node: str
    state: str
    moving: list[int] = Field(default_factory=list)
    staying: list[int] = Field(default_factory=list)


class SetPolicyRequest(RequestBody):
    """Set the planning policy: one of the names in `SchedulerPolicyView.policies`."""

    policy: ShortText


class SchedulerPolicyView(ResponseBody):
    """The planning policy in effect. The stored one precedes that of the start."""

    policy: str  # in effect
    purpose: str
    source: Literal["stored", "start"]  # which of the two is in effect
    start: str  # the setting of the control plane's start
    stored: str | None = None  # None: none was set
    set_at: At | None = None
    set_by: str | None = None
    #: Constants that were given at the start; they replace those of any policy.
    constants: dict[str, str] = Field(default_factory=dict)
    policies: dict[str, str] = Field(default_factory=dict)  # every name, with its purpose
