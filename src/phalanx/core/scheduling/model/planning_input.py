"""The planner's input: queue, running jobs, nodes, projects, reservations and configuration."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from phalanx.core.gang.placement import GangShape, Node, Placement
from phalanx.core.scheduling.model.durations import History
from phalanx.core.scheduling.model.planner_state import Reservation

US = 1_000_000


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """A queued job as the planner sees it; times are microseconds UTC."""

    num: int  # job number
    shape: GangShape  # the gang's first part at full size
    priority: int  # higher goes first
    submitted_at: int  # first submission
    not_before: int | None = None  # end of a back-off
    pools: tuple[str, ...] = ()  # in order of preference; empty: any pool
    cpus_per_node: int = 0  # CPUs of each share
    memory_per_node_bytes: int = 0  # memory of each share
    project: str = ""  # project that its slots count for
    kind: str = ""  # key of the learned durations (template, user, script)
    queued_at: int | None = None  # when it last entered the queue; None: at submission
    attained_slot_s: float = 0.0  # slot-seconds of service before this wait
    remaining_s: float | None = None  # run time left by reported progress, seconds
    max_duration_s: float | None = None  # declared limit of the run time, seconds
    min_nodes: int | None = None  # least size of an elastic job, below `shape.nodes`
    roles: tuple[GangShape, ...] = ()  # further parts; their shares follow those of `shape`
    required: str | None = None  # topology level that must hold the gang ("node" always exists)
    domains: int = 1  # equal parts of the gang, each in a domain of the required level of its own
    slot_type: str = ""  # required slot type; empty: any
    device_memory_bytes: int = 0  # least device memory of a slot
    tolerates: tuple[str, ...] = ()  # taints that it tolerates
    selector: tuple[tuple[str, str], ...] = ()  # labels that every node of it must have
    delayed_s: float = 0.0  # seconds waited before earlier starts, kept across preemptions
    speeds: tuple[float, ...] = ()  # speed on 1, 2, 3… nodes if elastic; empty: not measured
    required_until: int | None = None  # end of the time for which `required` holds; None: always
    splits: tuple[GangShape, ...] = ()  # other shapes of the same size that it may start in
    intensive: bool = False  # its ranks communicate much: fast links go before price
    user: str = ""  # user that its slots count for
    #: allowed values of the nodes' label `residency`; None: any node, empty: no node
    residency: tuple[str, ...] | None = None
    num_slots: int = field(init=False, repr=False, compare=False)
    """Slots of the whole gang at full size, all roles."""

    def __post_init__(self) -> None:
        slots = self.shape.num_slots + sum(role.num_slots for role in self.roles)
        object.__setattr__(self, "num_slots", slots)

    @property
    def since(self) -> int:
        """When it last entered the queue, microseconds UTC."""
        return self.submitted_at if self.queued_at is None else self.queued_at

    @property
    def owed_since(self) -> int:
        """When it entered the queue, minus the waits before earlier starts, microseconds UTC."""
        return self.since - int(self.delayed_s * US)

    @property
    def least_slots(self) -> int:
        """Slots of the whole gang at its least size, all roles."""
        if self.min_nodes is None:
            return self.num_slots
        return self.num_slots - (self.shape.nodes - self.min_nodes) * self.shape.slots_per_node

    def as_of(self, now: int) -> QueuedJob:
        """Return the job as it asks at a time: without a preferred level once its patience is over."""
        if self.required_until is None or now < self.required_until:
            return self
        return replace(self, required=None, required_until=None)

    def widths(self, num_shares: int) -> list[int]:
        """Slots of each of so many shares of the gang: those of `shape`, then role after role."""
        if not num_shares:
            return []
        others = [role.slots_per_node for role in self.roles for _ in range(role.nodes)]
        return [self.shape.slots_per_node] * (num_shares - len(others)) + others


@dataclass(frozen=True, slots=True)
class RunningJob:
    """Slots that a live attempt holds, and the cost of stopping it; times are microseconds UTC."""

    job: int  # job number
    placement: Placement  # slots held
    project: str = ""  # project that its slots count for
    priority: int = 0  # higher goes first
    kind: str = ""  # key of the learned durations
    started_at: int | None = None  # None: unknown, and the job is never chosen as a victim
    attained_slot_s: float = 0.0  # slot-seconds of service before this start
    remaining_s: float | None = None  # run time left by reported progress, seconds
    max_duration_s: float | None = None  # declared limit of the run time, seconds
    saved_at: int | None = None  # last durable checkpoint
    save_s: float | None = 30.0  # seconds of a requested save; None: it does not save on request
    restart_s: float = 60.0  # seconds of a restart
    preemptible: bool = True  # whether it may be asked to leave
    stopping: bool = False  # asked to leave; holds its slots until it has left
    protected_until: int = 0  # not preempted before this time; see `urgency.protected_until`
    min_nodes: int | None = None  # least size of an elastic job
    max_nodes: int | None = None  # full size of an elastic job
    cpus_per_node: int = 0  # CPUs of each share
    memory_per_node_bytes: int = 0  # memory of each share
    resized_at: int | None = None  # last change of size
    delayed_s: float = 0.0  # seconds waited before all its starts, this one included
    speeds: tuple[float, ...] = ()  # speed on 1, 2, 3… nodes if elastic; empty: not measured
    roles: tuple[GangShape, ...] = ()  # further parts; their shares come last in the placement
    user: str = ""  # user that its slots count for
    residency: tuple[str, ...] | None = None  # allowed values of the nodes' label; None: any
    num_slots: int = field(init=False, repr=False, compare=False)
    """Slots held now."""

    def __post_init__(self) -> None:
        slots = sum(len(share.slots) for share in self.placement.shares)
        object.__setattr__(self, "num_slots", slots)

    @property
    def resumes(self) -> bool:
        """Whether it continues from a checkpoint after a stop: it saves on request or has saved."""
        return self.save_s is not None or self.saved_at is not None

    def attained(self, now: int) -> float:
        """Slot-seconds of service up to `now`."""
        if self.started_at is None:
            return self.attained_slot_s
        return self.attained_slot_s + self.num_slots * (now - self.started_at) / US

    def eviction_cost(self, now: int) -> float:
        """Return the slot-seconds that stopping this job is expected to cost."""
        pause_s = self.restart_s + (self.save_s or 0.0)
        return self.num_slots * pause_s + self.lost_work(now)

    def lost_work(self, now: int) -> float:
        """Return the slot-seconds of work that a stop throws away; 0 where the job saves on request."""
        if self.save_s is not None:
            return 0.0
        saved = self.saved_at if self.saved_at is not None else self.started_at
        return self.num_slots * (now - (now if saved is None else saved)) / US


@dataclass(frozen=True, slots=True)
class UserQuota:
    """What the jobs of one user may hold together, inside a project or on the whole platform.

    `user` is empty for the limits of every user. A limit that an entry of a user leaves out is that of
    every user.
    """

    user: str = ""
    max_slots: int | None = None
    max_running: int | None = None
    max_slots_by_type: tuple[tuple[str, int], ...] = ()  # by slot type
    max_submitted: int | None = None  # jobs that have not ended; no matter of the planner


@dataclass(frozen=True, slots=True)
class Project:
    """The quota of a project: guaranteed slots, weight in the surplus, and limits.

    `max_slots` caps guarantee plus borrowing. `lend_slots` caps how much of an unused guarantee others
    may borrow (None: all of it). `past_slots` is the decayed average of what it used, `parent` another
    project's name. `max_running` caps how many of its jobs hold slots at the same time. `users` limits
    what each user may hold of it, its parts included.
    """

    name: str  # as in a job's `project`
    guaranteed_slots: int = 0  # slots available at any time
    weight: float = 1.0  # share of the surplus
    max_slots: int | None = None  # most slots; None: no limit
    lend_slots: int | None = None  # most of its unused guarantee that others use; None: all
    parent: str = ""  # project that it is part of
    past_slots: float = 0.0  # decayed average of its use
    max_running: int | None = None  # most jobs that hold slots; None: no limit
    max_slots_by_type: tuple[tuple[str, int], ...] = ()  # most slots by slot type
    users: tuple[UserQuota, ...] = ()  # limits of each user


@dataclass(frozen=True, slots=True)
class PlannerConfig:
    """The parameters of the planner; every default is safe without any history.

    A running job keeps the urgency that its waits have added, so that long jobs are not preempted
    without bound.
    """

    #: Factor by which a job must be more urgent than a victim of equal priority (infinite: never).
    hysteresis: float = 2.5
    guess_margin: float = 100.0  # adds this / (1 + job ends seen) to the factor of uncertain jobs
    min_run_s: float = 2400.0  # a job is not preempted by peers this soon after its start
    #: A longer total wait puts a job first within its priority and reserves nodes for it.
    guard_after_s: float = 7 * 86_400.0
    guard_quantum_s: float = 6 * 3600.0  # a job so started is not preempted by peers for this long
    age_s: float = 86_400.0  # wait that doubles a job's urgency
    steep_s: float = 3 * 86_400.0  # total wait from about which urgency grows with a power of it
    steepness: float = 8.0  # that power
    by_arrival: bool = False  # order jobs of a priority by arrival instead of urgency
    size_exponent: float = 0.5  # 1.0 orders by work per slot-second; lower values favor gangs
    large_job_fraction: float = 0.03  # part of a pool's slots beyond which a job is large
    large_job_slots: int = 16  # a job of up to so many slots is never large
    #: A gang is overdue once it has waited this long, and this part of its expected run.
    overdue_after_s: float = 1800.0
    overdue_part: float = 1.0  # see above; 1.0 is the whole run
    num_overdue: int = 1  # blocked overdue gangs that go before their equals at a time (0: none)
    overdue_run_s: float = 3600.0  # time in which its equals do not preempt such a gang, at most
    num_reservations: int = 4  # reservations for blocked gangs in a pass
    reserve_after_s: float = 0.0  # least wait of a gang that gets a reservation
    reservation_ttl_s: float = 900.0  # life of a reservation after its victims have left
    preemptions_per_hour: int = 8  # a job is not preempted more often in any hour
    preemption_budget: int = 16  # searches for victims in a pass
    step_budget: int = 6000  # jobs and nodes considered before a pass stops searching for victims
    lost_per_need: float = 0.005  # part of the gang's needed work that a victim may lose at most
    move_after_s: float = 3600.0  # least run time of a job that may be migrated
    move_gain_s: float = 900.0  # slots gained over this time must exceed the cost (0: no migration)
    resize_cooldown_s: float = 600.0  # least time between two resizes of a job
    urgent_priority: int | None = None  # least priority that goes before entitlements; None: none


@dataclass(frozen=True, slots=True)
class PlanningInput:
    """All inputs of a plan except the time."""

    nodes: tuple[Node, ...]
    held: tuple[RunningJob, ...]
    waiting: tuple[QueuedJob, ...]
    projects: tuple[Project, ...] = ()
    reservations: tuple[Reservation, ...] = ()
    history: History = field(default_factory=History)
    config: PlannerConfig = PlannerConfig()
    users: tuple[UserQuota, ...] = ()  # of each user on the whole platform

    def as_of(self, now: int) -> PlanningInput:
        """Return the input with every queued job as it asks at a time."""
        return replace(self, waiting=tuple(job.as_of(now) for job in self.waiting))
