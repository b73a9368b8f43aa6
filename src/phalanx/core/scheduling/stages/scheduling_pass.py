"""One pass in progress: the objects that its stages share, and the three operations on slots."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from phalanx.core.gang.links import cost_of
from phalanx.core.scheduling.index.cluster_index import (
    ClusterIndex,
    EquivalenceClass,
    without_types,
)
from phalanx.core.scheduling.index.slots import Allocation, SlotIndex, pick
from phalanx.core.scheduling.index.topology import place
from phalanx.core.scheduling.model.outcome import Start
from phalanx.core.scheduling.model.planner_state import Reservation
from phalanx.core.scheduling.model.planning_input import PlannerConfig, QueuedJob
from phalanx.core.scheduling.search.decisions import Decisions
from phalanx.core.scheduling.search.ledger import Ledger
from phalanx.core.scheduling.search.openings import OpeningSearch
from phalanx.core.scheduling.search.victim_search import VictimSearch


@dataclass(slots=True)
class KeptSlots:
    """Free slots that are kept from all other jobs for the owner of a reservation."""

    reservation: Reservation
    allocations: list[Allocation]
    num_slots: int
    #: Whether only jobs that are known to end in time may use them: a learned duration is no promise.
    firm: bool = False


@dataclass(slots=True)
class Pass:
    """One pass of the planner, on an index that will be rolled back."""

    cluster: ClusterIndex  # nodes, queue and running jobs
    now: int  # microseconds UTC
    ledger: Ledger = field(init=False)  # use and order of the projects
    decisions: Decisions = field(default_factory=Decisions)  # decided so far
    victims: VictimSearch = field(init=False)  # search for jobs to preempt
    openings: OpeningSearch = field(init=False)  # search for future free slots
    index: SlotIndex = field(init=False)  # that of `cluster`
    config: PlannerConfig = field(init=False)  # that of `cluster`
    #: Free slots that reservations keep.
    kept: list[KeptSlots] = field(default_factory=list)
    #: Requests that found no room, until kept slots are released.
    no_room: set[int] = field(default_factory=set)
    #: Nodes that each elastic job should have.
    sizes: dict[int, int] = field(default_factory=dict)
    num_searches: int = 0  # searches for victims so far
    num_reserved: int = 0  # reservations made for blocked gangs
    #: Whether a reservation spans several of the narrowest domains.
    wide_kept: bool = False

    def __post_init__(self) -> None:
        cluster, now = self.cluster, self.now
        self.index, self.config = cluster.index, cluster.config
        self.ledger = Ledger(cluster, now, dict(cluster.used))
        self.victims = VictimSearch(cluster, now, self.ledger, self.decisions)
        self.openings = OpeningSearch(cluster, now, self.decisions)

    def start(self, job: QueuedJob, allocations: list[Allocation]) -> None:
        """Decide a start: the slots are taken for the rest of the pass."""
        for allocation in allocations:
            self.index.take(allocation)
        self.decisions.starts.append(Start(job.num, self.index.placement(allocations)))
        self.decisions.started.add(job.num)
        self.ledger.start(job, allocations)

    def narrowed(self, eq_class: EquivalenceClass, job: QueuedJob, slots: int) -> EquivalenceClass:
        """Return the class without the slot types on which so many slots would exceed a limit."""
        narrow = self.ledger.narrow
        if narrow is None:
            return eq_class
        return without_types(self.cluster, eq_class, narrow.closed_types(job, slots))

    def try_start(self, eq_class: EquivalenceClass, num: int) -> bool:
        """Start a job of a class at full size, else at the largest size that its range allows."""
        job = self.cluster.waiting[num]
        eq_class = self.narrowed(eq_class, job, job.least_slots)
        if eq_class.request_num in self.no_room and eq_class.sample.min_nodes is None:
            return False
        shape = job.shape
        least = shape.nodes if job.min_nodes is None else max(1, job.min_nodes)
        most = max(least, min(shape.nodes, self.sizes.get(num, shape.nodes)))
        if most > least:
            others = job.num_slots - shape.num_slots
            allowed = (self.ledger.left(job) - others) // max(shape.slots_per_node, 1)
            most = max(least, min(most, allowed))
        for nodes in range(most, least - 1, -1):
            self.decisions.num_steps += 1
            size = shape if nodes == shape.nodes else replace(shape, nodes=nodes)
            here = eq_class
            if nodes > least and self.ledger.narrow is not None:
                slots = job.num_slots - shape.num_slots + size.num_slots
                if self.ledger.narrow.over_limit(job, slots) is not None:
                    continue
                here = self.narrowed(eq_class, job, slots)
            allocations = place(self.index, here.request, here.groups, size)
            if allocations is not None:
                self.start(job, allocations)
                return True
        if job.splits and self._start_split(eq_class, job):
            return True
        self.no_room.add(eq_class.request_num)
        return False

    def _start_split(self, eq_class: EquivalenceClass, job: QueuedJob) -> bool:
        """Start a job in the free shape that costs least: pairs across nodes over their bandwidth."""
        nodes = {node.id: node for node in self.index.nodes}
        best: tuple[float, int, list[Allocation]] | None = None
        for shape in job.splits:
            self.decisions.num_steps += 1
            request = replace(eq_class.request, shape=shape, splits=())
            found = place(self.index, request, self.cluster.groups_for(request), shape)
            if found is not None:
                cost = cost_of(self.index.placement(found), nodes).cost
                if best is None or (cost, shape.nodes) < best[:2]:
                    best = (cost, shape.nodes, found)
        if best is not None:
            self.start(job, best[2])
        return best is not None

    def hold_back(self, reservation: Reservation, *widths: int) -> KeptSlots:
        """Keep the slots of a reservation from all other jobs, as far as they are free.

        `widths` are the slots of each of its shares, or one number for all.
        """
        wanted: dict[int, int] = {}
        names = reservation.nodes
        each = widths if len(widths) == len(names) else widths[:1] * len(names)
        for name, width in zip(names, each, strict=True):
            node = self.index.num_of.get(name)
            if node is not None:
                wanted[node] = wanted.get(node, 0) + width
        allocations, num_slots = [], 0
        for node, slots in wanted.items():
            free = self.index.free[node]
            mask = pick(free, min(free.bit_count(), slots))
            if mask:
                allocation = Allocation(node, mask)
                self.index.take(allocation)
                allocations.append(allocation)
                num_slots += mask.bit_count()
        kept = KeptSlots(reservation, allocations, num_slots)
        self.kept.append(kept)
        return kept

    def release(self, kept: KeptSlots) -> None:
        """Give kept slots back, and forget which requests found no room."""
        self.no_room.clear()
        for allocation in kept.allocations:
            self.index.give(allocation)
        kept.allocations, kept.num_slots = [], 0

    def reserve(self, reservation: Reservation, job: QueuedJob) -> None:
        """Decide a reservation and keep its slots."""
        self.decisions.reservations.append(reservation)
        self.hold_back(reservation, *job.widths(len(reservation.nodes)))
