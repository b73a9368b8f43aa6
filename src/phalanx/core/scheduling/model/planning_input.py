"""What the planner is told: the queue, what runs, the nodes, the projects and the open holes."""

from __future__ import annotations

from dataclasses import dataclass, field

from phalanx.core.gang.placement import GangShape, Node, Placement
from phalanx.core.scheduling.model.durations import History
from phalanx.core.scheduling.model.reservation import Reservation

US = 1_000_000


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """A queued job as the planner sees it. `pools` empty: any pool will do.

    `shape` is the gang at its full size; `min_nodes` below `shape.nodes` makes it elastic. `roles` are
    further parts of the same gang with other shapes; their shares follow those of `shape`. `kind` is
    what the learned durations go by (template, user, script). `queued_at` is when it last entered the
    queue. `required` names the topology level that must hold the whole gang ("node" is always one).
    `selector` are labels that every node of it must have. `delayed_s` is what it waited before its
    earlier starts: an eviction does not make a wait forgotten.
    `speeds` of an elastic job are what it does on 1, 2, 3… nodes; empty: not measured.
    `sensitivity` is the slow-down that communication suffers outside the narrowest domain.
    """

    num: int
    shape: GangShape
    priority: int
    submitted_at: int
    not_before: int | None = None
    pools: tuple[str, ...] = ()
    cpus_per_node: int = 0
    memory_per_node_bytes: int = 0
    project: str = ""
    kind: str = ""
    queued_at: int | None = None
    attained_slot_s: float = 0.0
    remaining_s: float | None = None
    max_duration_s: float | None = None
    min_nodes: int | None = None
    roles: tuple[GangShape, ...] = ()
    required: str | None = None
    sensitivity: float = 0.0
    slot_type: str = ""
    device_memory_bytes: int = 0
    tolerates: tuple[str, ...] = ()
    selector: tuple[tuple[str, str], ...] = ()
    delayed_s: float = 0.0
    speeds: tuple[float, ...] = ()
    num_slots: int = field(init=False, repr=False, compare=False)
    """Slots of the whole gang at full size, all roles."""

    def __post_init__(self) -> None:
        slots = self.shape.num_slots + sum(role.num_slots for role in self.roles)
        object.__setattr__(self, "num_slots", slots)

    @property
    def since(self) -> int:
        """When it last entered the queue."""
        return self.submitted_at if self.queued_at is None else self.queued_at

    @property
    def owed_since(self) -> int:
        """When it would have entered the queue, had it waited its whole delay at a stretch."""
        return self.since - int(self.delayed_s * US)

    def widths(self, num_shares: int) -> list[int]:
        """Slots of each of so many shares of the gang: those of `shape`, then role after role."""
        others = [role.slots_per_node for role in self.roles for _ in range(role.nodes)]
        return [self.shape.slots_per_node] * (num_shares - len(others)) + others


@dataclass(frozen=True, slots=True)
class RunningJob:
    """Slots that a live attempt holds, and what stopping it would cost.

    Without `started_at` nothing is known and the job is never chosen as a victim. `attained_slot_s`
    counts what it had before this start. `saved_at` is its last durable checkpoint; `save_s` is what a
    requested save takes, None when the job does not save on request. `stopping`: it was asked to
    leave, and holds its slots until it has left. `delayed_s` is what it waited before all its starts,
    this one included. `min_nodes` and `max_nodes` are set on elastic jobs. `roles` are the gang's
    further parts, whose shares come last in the placement.
    """

    job: int
    placement: Placement
    project: str = ""
    priority: int = 0
    kind: str = ""
    started_at: int | None = None
    attained_slot_s: float = 0.0
    remaining_s: float | None = None
    max_duration_s: float | None = None
    saved_at: int | None = None
    save_s: float | None = 30.0
    restart_s: float = 60.0
    preemptible: bool = True
    stopping: bool = False
    protected_until: int = 0
    min_nodes: int | None = None
    max_nodes: int | None = None
    cpus_per_node: int = 0
    memory_per_node_bytes: int = 0
    resized_at: int | None = None
    delayed_s: float = 0.0
    speeds: tuple[float, ...] = ()
    roles: tuple[GangShape, ...] = ()
    num_slots: int = field(init=False, repr=False, compare=False)
    """Slots it holds now."""

    def __post_init__(self) -> None:
        slots = sum(len(share.slots) for share in self.placement.shares)
        object.__setattr__(self, "num_slots", slots)

    def attained(self, now: int) -> float:
        """Slot-seconds of service up to `now`."""
        if self.started_at is None:
            return self.attained_slot_s
        return self.attained_slot_s + self.num_slots * (now - self.started_at) / US


@dataclass(frozen=True, slots=True)
class Project:
    """A tenant's part: guaranteed slots, weight in the surplus, and limits.

    `max_slots` caps guarantee plus borrowing. `lend_slots` caps how much of an unused guarantee others
    may borrow (None: all of it). `past_slots` is the decayed average of what it used, `parent` another
    project's name.
    """

    name: str
    guaranteed_slots: int = 0
    weight: float = 1.0
    max_slots: int | None = None
    lend_slots: int | None = None
    parent: str = ""
    past_slots: float = 0.0


@dataclass(frozen=True, slots=True)
class PlannerConfig:
    """The knobs of the planner; every one has a default that is safe without any history.

    `hysteresis`: a waiting job must be this many times more urgent than a victim of equal priority
    (infinite: never); `guess_margin` / (1 + ends seen) times more than that while learned urgency is
    little but a guess. `min_run_s` protects a fresh start. `guard_after_s`: who has waited longer in
    all goes first in its class, gets a reservation, and is safe from its peers for `guard_quantum_s`.
    `age_s`: the wait that doubles a job's urgency; from about `steep_s` on, all waits taken together,
    urgency grows with this power of it (`steepness`), and a running job keeps what its waits earned:
    a long job is put off again and again only up to a point. `size_exponent` 1.0 orders by work per
    slot-second, lower values help gangs. `large_job_fraction` of a pool's slots: larger jobs are never
    victims of their own priority. `lost_per_need`: a victim may lose at most this part of the work
    that the claim needs. Who has run for `move_after_s` may be asked to move aside for a gang that
    gains more slot-seconds in `move_gain_s` than all the moves cost (0: nobody moves). `step_budget`
    ends the search for victims in a pass once so many jobs and nodes were looked at.
    """

    hysteresis: float = 1.5
    guess_margin: float = 100.0
    min_run_s: float = 1200.0
    guard_after_s: float = 7 * 86_400.0
    guard_quantum_s: float = 6 * 3600.0
    age_s: float = 86_400.0
    steep_s: float = 3 * 86_400.0
    steepness: float = 8.0
    size_exponent: float = 0.5
    large_job_fraction: float = 0.03
    large_job_slots: int = 16
    num_reservations: int = 4
    reserve_after_s: float = 0.0
    reservation_ttl_s: float = 900.0
    preemption_budget: int = 16
    step_budget: int = 6000
    lost_per_need: float = 0.005
    move_after_s: float = 3600.0
    move_gain_s: float = 900.0
    resize_cooldown_s: float = 600.0
    urgent_priority: int | None = None


@dataclass(frozen=True, slots=True)
class PlanningInput:
    """Everything a plan may depend on, besides the time."""

    nodes: tuple[Node, ...]
    held: tuple[RunningJob, ...]
    waiting: tuple[QueuedJob, ...]
    projects: tuple[Project, ...] = ()
    reservations: tuple[Reservation, ...] = ()
    history: History = field(default_factory=History)
    config: PlannerConfig = PlannerConfig()
