"""The scaling policy of a pool, what it asks its cluster for, and its state with its decisions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

FLOOR = 0
"""The job number of a claim that is for no job: nodes up to the least number of the pool."""
MAX_DECISIONS = 100
"""The decisions of a pool that are kept; the oldest ones go."""
MAX_JOBS_NAMED = 20


@dataclass(frozen=True, slots=True)
class ScalingPolicy:
    """The bounds of a pool that its cluster's autoscaler may grow. Durations are microseconds."""

    max_nodes: int  # most nodes of the pool, present ones included
    min_nodes: int = 0  # nodes that are kept without any demand
    max_slots: int | None = None  # most slots of the pool; None: as many as `max_nodes` nodes have
    cool_down_up_us: int = 30_000_000  # least time between two requests for nodes
    cool_down_down_us: int = 300_000_000  # least time between two releases of nodes
    idle_after_us: int = 600_000_000  # time without jobs after which a node is released
    grow_within_us: int = 900_000_000  # time in which requested nodes must be there
    hourly_nano: int | None = None  # most US dollars (1e-9) that the pool may cost in an hour
    daily_nano: int | None = None  # most US dollars (1e-9) that the pool may cost in a day, UTC
    is_off: bool = False  # whether the pool keeps the nodes that it has
    set_by: str = ""  # actor that set bounds by command; empty: those of the file

    @property
    def has_budget(self) -> bool:
        """Whether money limits the pool."""
        return self.hourly_nano is not None or self.daily_nano is not None

    @property
    def bounds_in_words(self) -> str:
        """The bounds, and where they come from."""
        off = ", autoscaling is off" if self.is_off else ""
        source = f"set by {self.set_by}" if self.set_by else "from the pool file"
        return f"{self.min_nodes} to {self.max_nodes} nodes{off}, {source}"


@dataclass(frozen=True, slots=True)
class ScalingBounds:
    """Bounds of a pool that were set while the control plane ran; they precede those of its pool file."""

    set_at: int  # microseconds UTC
    set_by: str  # actor
    min_nodes: int | None = None  # None: that of the file
    max_nodes: int | None = None  # None: that of the file
    is_off: bool = False  # whether the pool keeps the nodes that it has

    @property
    def says_something(self) -> bool:
        """Whether anything differs from the file."""
        return self.is_off or self.min_nodes is not None or self.max_nodes is not None

    def over(self, policy: ScalingPolicy) -> ScalingPolicy:
        """The policy of the file with these bounds.

        The file may have been changed since they were set: a bound that was set holds, and the other one
        of the file gives way.
        """
        least = policy.min_nodes if self.min_nodes is None else self.min_nodes
        most = policy.max_nodes if self.max_nodes is None else self.max_nodes
        if self.max_nodes is None:
            most = max(least, most)
        return replace(
            policy,
            min_nodes=min(least, most),
            max_nodes=most,
            is_off=self.is_off,
            set_by=self.set_by,
        )


@dataclass(frozen=True, slots=True)
class NodeWish:
    """What one node rank of a gang requests of a node."""

    slots: int
    cpus: int = 0  # 0: any
    memory_bytes: int = 0  # 0: any


@dataclass(frozen=True, slots=True)
class WantedGang:
    """A whole gang that would start if the pool had `num_new` more nodes."""

    job: int  # its number; FLOOR: for no job
    nodes: tuple[NodeWish, ...]  # one for each of its node ranks, present nodes included
    num_new: int  # nodes of it that are not there yet
    together: str = ""  # topology level that must hold all its nodes; empty: none


@dataclass(frozen=True, slots=True)
class PoolDemand:
    """All that an executor requests from its cluster's autoscaler for a pool."""

    gangs: tuple[WantedGang, ...] = ()  # gangs that wait for nodes, each as a whole
    held: tuple[NodeWish, ...] = ()  # what running gangs hold, a wish for each share
    keep: tuple[str, ...] = ()  # nodes without jobs that the autoscaler must not remove


class DecisionKind(StrEnum):
    """What was decided about a pool; stored, so never renamed or removed."""

    ASKED = "asked"  # nodes were requested for whole gangs
    MET = "met"  # the nodes of a gang are there, or it started
    WITHDRAWN = "withdrawn"  # a gang does not need its nodes any more
    FAILED = "failed"  # requested nodes did not come in time, or were refused
    LIMITED = "limited"  # a gang gets no nodes because of a limit
    RELEASED = "released"  # nodes without jobs are left to the autoscaler
    DRAINED = "drained"  # jobs save and leave a node that is too many
    RETURNED = "returned"  # a node that was drained is used again
    KEPT = "kept"  # nodes are too many, and their jobs would lose work
    RESIZED = "resized"  # the bounds were changed, by a command or the pool file


@dataclass(frozen=True, slots=True)
class ScalingDecision:
    """One decision with its reason in words."""

    at: int  # microseconds UTC
    kind: DecisionKind
    text: str
    num_nodes: int = 0
    jobs: tuple[int, ...] = ()  # at most `MAX_JOBS_NAMED`
    nodes: tuple[str, ...] = ()  # present nodes that it is about


@dataclass(frozen=True, slots=True)
class Claim:
    """An open request for the nodes of a gang."""

    gang: WantedGang
    asked_at: int


@dataclass(frozen=True, slots=True)
class GrowthFailure:
    """The last request for a gang that failed; it is not asked for again before `until`."""

    job: int
    num_nodes: int
    asked_at: int
    failed_at: int
    until: int
    text: str  # what the cluster's autoscaler said
    in_a_row: int = 1  # each failure waits twice as long as the one before


@dataclass(frozen=True, slots=True)
class SeenNode:
    """A present node: since when it has no job, and whether jobs could ever start on it."""

    id: str
    since: int
    ready: bool  # whether it was usable once; a node that joins is not at first
    idle_since: int | None = None


@dataclass(frozen=True, slots=True)
class StandingLimit:
    """A limit that binds now: told once, until it binds no more."""

    kind: DecisionKind
    text: str
    job: int | None = None


@dataclass(frozen=True, slots=True)
class PoolScaling:
    """The state of one pool's scaling, from step to step. Times are microseconds UTC."""

    claims: tuple[Claim, ...] = ()  # open requests
    failed: tuple[GrowthFailure, ...] = ()  # last failures of gangs that still wait
    grown_at: int | None = None  # last request for nodes
    shrunk_at: int | None = None  # last release or drain
    nodes: tuple[SeenNode, ...] = ()  # present ones
    released: tuple[str, ...] = ()  # nodes that the autoscaler may remove
    leaving: tuple[str, ...] = ()  # nodes that were drained because they are too many
    limits: tuple[StandingLimit, ...] = ()  # those that bind now
    counted_at: int | None = None  # `spent_nano` counts up to this time
    spent_nano: int = 0  # cost of the present nodes since the begin of the day, UTC
    decisions: tuple[ScalingDecision, ...] = ()  # the oldest first
    counts: tuple[tuple[str, int], ...] = ()  # decisions ever made, by kind
    bounds: str = ""  # in words, as the last step knew them


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """A present node of a pool."""

    id: str
    num_slots: int
    nano_per_hour: int = 0  # price of all its slots; 0: unknown
    usable: bool = True  # whether jobs may start on it
    jobs: tuple[int, ...] = ()  # jobs that hold a share of it
    may_drain: bool = True  # whether all of them can save and leave without losing work
    drain_cost: float = 0.0  # slot-seconds that this is expected to cost


@dataclass(frozen=True, slots=True)
class PoolFacts:
    """What a step knows of a pool."""

    nodes: tuple[NodeFacts, ...]
    new_slots: int  # slots of a node that the autoscaler would add
    new_nano: int  # its price for an hour; 0: unknown
    waiting: frozenset[int] = frozenset()  # jobs that the planner considers
    held: frozenset[int] = frozenset()  # jobs that hold slots

    @property
    def nano_per_hour(self) -> int:
        """What the present nodes cost in an hour."""
        return sum(one.nano_per_hour for one in self.nodes)


@dataclass(frozen=True, slots=True)
class PoolWants:
    """The demand for a pool: gangs in the planner's order, and the nodes that they would use."""

    gangs: tuple[WantedGang, ...] = ()
    num_new: int = 0  # different nodes that are not there yet
    needed: frozenset[str] = frozenset()  # present nodes that these gangs would use


@dataclass(frozen=True, slots=True)
class PoolFindings:
    """What the planner and the cluster say about a pool."""

    wants: PoolWants = PoolWants()  # with the nodes that may be asked for
    unbounded: PoolWants = PoolWants()  # with as many nodes as the pool may ever have
    fit_now: frozenset[int] = frozenset()  # jobs that would start on present nodes
    told: Mapping[int, str] = field(default_factory=dict)  # the autoscaler's word on claims, by job
    held: tuple[NodeWish, ...] = ()  # what running gangs hold


@dataclass(frozen=True, slots=True)
class ScalingStep:
    """The result of a step: the state to store, and what is to be done."""

    state: PoolScaling
    demand: PoolDemand
    drain: tuple[str, ...] = ()
    undrain: tuple[str, ...] = ()
    decisions: tuple[ScalingDecision, ...] = ()  # those of this step
    failed: tuple[GrowthFailure, ...] = ()  # those of this step


@dataclass(slots=True)
class StepNotes:
    """The decisions that a step makes."""

    now: int
    found: list[ScalingDecision] = field(default_factory=list)

    def note(
        self,
        kind: DecisionKind,
        text: str,
        num_nodes: int = 0,
        jobs: tuple[int, ...] = (),
        nodes: tuple[str, ...] = (),
    ) -> None:
        """Record a decision."""
        named = tuple(job for job in jobs if job != FLOOR)[:MAX_JOBS_NAMED]
        self.found.append(ScalingDecision(self.now, kind, text, num_nodes, named, nodes))
