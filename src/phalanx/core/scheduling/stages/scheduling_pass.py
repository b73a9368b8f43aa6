"""One pass in progress: what has been decided so far, on an index that will be rolled back."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from phalanx.core.reasons import Reason
from phalanx.core.scheduling.index.cluster_index import ClusterIndex, EquivalenceClass
from phalanx.core.scheduling.index.slots import Allocation, SlotIndex, pick
from phalanx.core.scheduling.index.topology import place
from phalanx.core.scheduling.model.outcome import Migration, Preemption, Resize, Start
from phalanx.core.scheduling.model.planning_input import US, PlannerConfig, QueuedJob
from phalanx.core.scheduling.model.reservation import Reservation
from phalanx.core.scheduling.stages.entitlement import EntitlementTier, ProjectShare
from phalanx.core.scheduling.stages.order import aged, base_urgency, is_guarded

if TYPE_CHECKING:
    from phalanx.core.scheduling.search.candidates import (
        CandidateSet,
        IncrementalCandidateSet,
        PeerCandidates,
    )
    from phalanx.core.scheduling.stages.reservations import OpeningSearch

_JUST_BEFORE = 1.0 + 1e-9

FairShareKey = tuple[int, tuple[int, ...]]
Rank = tuple[int, tuple[int, ...], int, int, float, int, int]


@dataclass(frozen=True, slots=True)
class PendingGang:
    """Who wants room, and how strongly. `base` is its urgency before its waits (0: as it is)."""

    job: QueuedJob
    tier: EntitlementTier
    urgency: float
    guarded: bool
    base: float = 0.0

    def need_slot_s(self, config: PlannerConfig) -> float:
        """Slot-seconds of work that its urgency says it needs. What it has waited changes nothing."""
        return float(
            self.job.num_slots ** (1.0 - config.size_exponent) / (self.base or self.urgency)
        )


@dataclass(slots=True)
class KeptSlots:
    """Free slots kept out of everybody's reach for the owner of a hole."""

    reservation: Reservation
    allocations: list[Allocation]
    num_slots: int


@dataclass(slots=True)
class Pass:
    """The decisions of one pass, and what they leave. `used` counts for projects above as well."""

    cluster: ClusterIndex
    now: int
    project_shares: dict[str, ProjectShare]
    used: dict[str, int]
    starts: list[Start] = field(default_factory=list)
    started: set[int] = field(default_factory=set)
    leaving: set[int] = field(default_factory=set)
    preemptions: list[Preemption] = field(default_factory=list)
    resizes: list[Resize] = field(default_factory=list)
    migrations: list[Migration] = field(default_factory=list)
    reservations: list[Reservation] = field(default_factory=list)
    blocks: list[KeptSlots] = field(default_factory=list)
    blocked: list[tuple[EquivalenceClass, int]] = field(default_factory=list)
    limited: list[tuple[EquivalenceClass, Reason]] = field(default_factory=list)
    reasons: dict[int, Reason] = field(default_factory=dict)
    excess: dict[str, frozenset[int]] = field(default_factory=dict)
    prices: dict[int, float] = field(default_factory=dict)
    openings: dict[tuple[int, int], OpeningSearch] = field(default_factory=dict)
    wide_kept: bool = False
    ending: list[tuple[int, int]] | None = None
    candidates: dict[int, CandidateSet] = field(default_factory=dict)
    stretches: dict[int, IncrementalCandidateSet] = field(default_factory=dict)
    peers: dict[int, PeerCandidates] = field(default_factory=dict)
    waited: dict[tuple[str, int], float] = field(default_factory=dict)
    no_room: set[int] = field(default_factory=set)
    no_victims: set[tuple[str, int, int]] = field(default_factory=set)
    sizes: dict[int, int] = field(default_factory=dict)
    steps: int = 0
    small: float = 0.0
    first_large: dict[int, float] | None = None
    mark: int = 0

    @property
    def index(self) -> SlotIndex:
        """The index this pass works on."""
        return self.cluster.index

    @property
    def config(self) -> PlannerConfig:
        """The planner's knobs."""
        return self.cluster.config

    # -- order -----------------------------------------------------------------------------------

    def tier(self, job: QueuedJob) -> EntitlementTier:
        """How well founded this job's claim is at this point of the pass."""
        urgent = self.config.urgent_priority
        if urgent is not None and job.priority >= urgent:
            return EntitlementTier.URGENT
        share_of = self.project_shares.get(job.project)
        if share_of is None:
            return EntitlementTier.SHARED
        return share_of.tier(self.used, job.num_slots)

    def urgency(self, eq_class: EquivalenceClass, since: int) -> float:
        """The index of a line's job, aged by its wait."""
        history = self.cluster.history
        if eq_class.base_seen != history.num_observed:
            eq_class.base_seen, version = history.num_observed, history.version(eq_class.kind)
            if eq_class.base_version != version:
                eq_class.base_version = version
                eq_class.base = base_urgency(
                    eq_class.sample, eq_class.kind, eq_class.attained_bin, history, self.config
                )
        return aged(eq_class.base, (self.now - since) / US, self.config)

    def _turn(self, eq_class: EquivalenceClass, since: int) -> float:
        """The urgency by which a line's job gets its turn.

        A hero that had to leave comes before the heroes of its priority that have not run: it made room for
        small jobs, and no other hero is to profit from that.
        """
        urgency = self.urgency(eq_class, since)
        if not eq_class.attained_bin or eq_class.sample.num_slots <= self.largest_small():
            return urgency
        return max(urgency, self._first_large(eq_class.sample.priority) * _JUST_BEFORE)

    def _first_large(self, priority: int) -> float:
        """How urgent the most urgent queued hero of this priority is that has not run; 0: there is none."""
        if self.first_large is None:
            self.first_large = {}
            for eq_class in self.cluster.classes.values():
                if not eq_class.attained_bin and eq_class.sample.num_slots > self.largest_small():
                    urgent, known = eq_class.sample.priority, self.first_large
                    found = self.urgency(eq_class, eq_class.jobs[0][0])
                    known[urgent] = max(found, known.get(urgent, 0.0))
        return self.first_large.get(priority, 0.0)

    def largest_small(self) -> float:
        """The slots beyond which a queued job counts as a hero, by the largest pool."""
        if self.small == 0.0:
            pool = max((group.num_nodes * group.size for group in self.index.groups), default=0)
            self.small = max(self.config.large_job_slots, self.config.large_job_fraction * pool)
        return self.small

    def fair_share_key(self, job: QueuedJob) -> FairShareKey:
        """What of a rank moves within a pass: the tier, and how far its projects are above their parts."""
        tier = self.tier(job)
        share_of = self.project_shares.get(job.project)
        if share_of is None or tier is EntitlementTier.GUARANTEED:
            return (tier, ())
        return (tier, share_of.level(self.used))

    def rank(self, eq_class: EquivalenceClass, position: int) -> Rank:
        """The sort key of the job at `position` of a line; lower goes first."""
        since, num = eq_class.jobs[position]
        job = eq_class.sample
        tier, level = self.fair_share_key(job)
        if is_guarded(since, self.now, self.config):
            return (tier, level, -job.priority, 0, 0.0, since, num)
        return (tier, level, -job.priority, 1, -self._turn(eq_class, since), since, num)

    def ends(self) -> list[tuple[int, int]]:
        """(expected end, job) of everybody who runs, the first to go first."""
        if self.ending is None:
            self.ending = self.cluster.running.ends(self.now)
        return self.ending

    # -- deciding --------------------------------------------------------------------------------

    def start(self, job: QueuedJob, allocations: list[Allocation]) -> None:
        """Decide a start: takes the slots for the rest of the pass."""
        for allocation in allocations:
            self.index.take(allocation)
        self.starts.append(Start(job.num, self.index.placement(allocations)))
        self.started.add(job.num)
        held = sum(allocation.mask.bit_count() for allocation in allocations)
        self.use(job.project, held)

    def use(self, project: str, slots: int) -> None:
        """A project holds so many slots more, or less; so do those above it."""
        share_of = self.project_shares.get(project)
        names = [project] if share_of is None else [one.name for one in share_of.lineage]
        for name in names:
            self.used[name] = self.used.get(name, 0) + slots
        self.excess.clear()

    def leaves(self, num: int) -> None:
        """A running job will be asked to leave."""
        held = self.cluster.held[num]
        self.leaving.add(num)
        self.use(held.project, -held.num_slots)
        for candidates in self.candidates.values():
            candidates.remove(self.cluster, num)
        for stretch in self.stretches.values():
            stretch.leave(self.cluster, num)
            stretch.num_left += 1

    def try_start(self, eq_class: EquivalenceClass, num: int) -> bool:
        """Start this job of a line at full size, else at the largest size its range allows."""
        if eq_class.request_num in self.no_room and eq_class.sample.min_nodes is None:
            return False
        job = self.cluster.waiting[num]
        shape = job.shape
        least = shape.nodes if job.min_nodes is None else max(1, job.min_nodes)
        most = max(least, min(shape.nodes, self.sizes.get(num, shape.nodes)))
        for nodes in range(most, least - 1, -1):
            self.steps += 1
            size = shape if nodes == shape.nodes else replace(shape, nodes=nodes)
            allocations = place(self.index, eq_class.request, eq_class.groups, size)
            if allocations is not None:
                self.start(job, allocations)
                return True
        self.no_room.add(eq_class.request_num)
        return False

    def hold_back(self, reservation: Reservation, *widths: int) -> None:
        """Keep a hole's slots from everybody else, as far as they are free.

        `widths` are the slots of each of its shares, or one number for all.
        """
        wanted: dict[int, int] = {}
        each = (
            widths if len(widths) == len(reservation.nodes) else widths[:1] * len(reservation.nodes)
        )
        for name, width in zip(reservation.nodes, each, strict=True):
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
        self.blocks.append(KeptSlots(reservation, allocations, num_slots))

    def release(self, hold_back: KeptSlots) -> None:
        """Open a hole again."""
        self.no_room.clear()
        for allocation in hold_back.allocations:
            self.index.give(allocation)
        hold_back.allocations, hold_back.num_slots = [], 0

    def owner_of(self, eq_class: EquivalenceClass) -> int | None:
        """Whose hole keeps this line out, if slots are free but kept."""
        pools = eq_class.request.pools or self.index.pools
        kept = [b for b in self.blocks if b.allocations]
        if not kept:
            return None
        free = sum(g.num_free for g in eq_class.groups)
        for hold_back in kept:
            free += hold_back.num_slots
        if free < eq_class.sample.num_slots:
            return None
        for hold_back in kept:
            if self.index.nodes[hold_back.allocations[0].node].pool in pools:
                return hold_back.reservation.job
        return None
