"""One pass in progress: what has been decided so far, on an index that will be rolled back."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from phalanx.core.reasons import Reason
from phalanx.core.scheduling.index.cluster_index import Line, World
from phalanx.core.scheduling.index.slots import SlotIndex, Taking, pick
from phalanx.core.scheduling.index.topology import place
from phalanx.core.scheduling.model.outcome import Migration, Preemption, Resize, Start
from phalanx.core.scheduling.model.reservation import Hole
from phalanx.core.scheduling.model.snapshot import US, Terms, Waiting
from phalanx.core.scheduling.stages.entitlement import Standing, Tier
from phalanx.core.scheduling.stages.order import aged, base_urgency, is_guarded

if TYPE_CHECKING:
    from phalanx.core.scheduling.search.candidates import Peers, Reach, Stretch
    from phalanx.core.scheduling.stages.reservations import Openings

_JUST_BEFORE = 1.0 + 1e-9

Footing = tuple[int, tuple[int, ...]]
Rank = tuple[int, tuple[int, ...], int, int, float, int, int]


@dataclass(frozen=True, slots=True)
class Claim:
    """Who wants room, and how strongly. `base` is its urgency before its waits (0: as it is)."""

    job: Waiting
    tier: Tier
    urgency: float
    guarded: bool
    base: float = 0.0

    def need_slot_s(self, terms: Terms) -> float:
        """Slot-seconds of work that its urgency says it needs. What it has waited changes nothing."""
        return float(
            self.job.num_slots ** (1.0 - terms.size_exponent) / (self.base or self.urgency)
        )


@dataclass(slots=True)
class Block:
    """Free slots kept out of everybody's reach for the owner of a hole."""

    hole: Hole
    takings: list[Taking]
    num_slots: int


@dataclass(slots=True)
class Draft:
    """The decisions of one pass, and what they leave. `used` counts for projects above as well."""

    world: World
    now: int
    standings: dict[str, Standing]
    used: dict[str, int]
    starts: list[Start] = field(default_factory=list)
    started: set[int] = field(default_factory=set)
    leaving: set[int] = field(default_factory=set)
    preemptions: list[Preemption] = field(default_factory=list)
    resizes: list[Resize] = field(default_factory=list)
    migrations: list[Migration] = field(default_factory=list)
    holes: list[Hole] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    blocked: list[tuple[Line, int]] = field(default_factory=list)
    limited: list[tuple[Line, Reason]] = field(default_factory=list)
    reasons: dict[int, Reason] = field(default_factory=dict)
    excess: dict[str, frozenset[int]] = field(default_factory=dict)
    prices: dict[int, float] = field(default_factory=dict)
    openings: dict[tuple[int, int], Openings] = field(default_factory=dict)
    wide_kept: bool = False
    ending: list[tuple[int, int]] | None = None
    reach: dict[int, Reach] = field(default_factory=dict)
    stretches: dict[int, Stretch] = field(default_factory=dict)
    peers: dict[int, Peers] = field(default_factory=dict)
    waited: dict[tuple[str, int], float] = field(default_factory=dict)
    no_room: set[int] = field(default_factory=set)
    no_victims: set[tuple[str, int, int]] = field(default_factory=set)
    sizes: dict[int, int] = field(default_factory=dict)
    steps: int = 0
    small: float = 0.0
    first_heroes: dict[int, float] | None = None
    mark: int = 0

    @property
    def index(self) -> SlotIndex:
        """The index this pass works on."""
        return self.world.index

    @property
    def terms(self) -> Terms:
        """The planner's knobs."""
        return self.world.terms

    # -- order -----------------------------------------------------------------------------------

    def tier(self, job: Waiting) -> Tier:
        """How well founded this job's claim is at this point of the pass."""
        urgent = self.terms.urgent_priority
        if urgent is not None and job.priority >= urgent:
            return Tier.URGENT
        standing = self.standings.get(job.project)
        if standing is None:
            return Tier.SHARED
        return standing.tier(self.used, job.num_slots)

    def urgency(self, line: Line, since: int) -> float:
        """The index of a line's job, aged by its wait."""
        history = self.world.history
        if line.base_seen != history.num_observed:
            line.base_seen, version = history.num_observed, history.version(line.kind)
            if line.base_version != version:
                line.base_version = version
                line.base = base_urgency(
                    line.sample, line.kind, line.attained_bin, history, self.terms
                )
        return aged(line.base, (self.now - since) / US, self.terms)

    def _turn(self, line: Line, since: int) -> float:
        """The urgency by which a line's job gets its turn.

        A hero that had to leave comes before the heroes of its priority that have not run: it made room for
        small jobs, and no other hero is to profit from that.
        """
        urgency = self.urgency(line, since)
        if not line.attained_bin or line.sample.num_slots <= self.largest_small():
            return urgency
        return max(urgency, self._first_hero(line.sample.priority) * _JUST_BEFORE)

    def _first_hero(self, priority: int) -> float:
        """How urgent the most urgent queued hero of this priority is that has not run; 0: there is none."""
        if self.first_heroes is None:
            self.first_heroes = {}
            for line in self.world.lines.values():
                if not line.attained_bin and line.sample.num_slots > self.largest_small():
                    urgent, known = line.sample.priority, self.first_heroes
                    found = self.urgency(line, line.jobs[0][0])
                    known[urgent] = max(found, known.get(urgent, 0.0))
        return self.first_heroes.get(priority, 0.0)

    def largest_small(self) -> float:
        """The slots beyond which a queued job counts as a hero, by the largest pool."""
        if self.small == 0.0:
            pool = max((group.num_nodes * group.size for group in self.index.groups), default=0)
            self.small = max(self.terms.hero_slots, self.terms.hero_fraction * pool)
        return self.small

    def footing(self, job: Waiting) -> Footing:
        """What of a rank moves within a pass: the tier, and how far its projects are above their parts."""
        tier = self.tier(job)
        standing = self.standings.get(job.project)
        if standing is None or tier is Tier.GUARANTEED:
            return (tier, ())
        return (tier, standing.level(self.used))

    def rank(self, line: Line, position: int) -> Rank:
        """The sort key of the job at `position` of a line; lower goes first."""
        since, num = line.jobs[position]
        job = line.sample
        tier, level = self.footing(job)
        if is_guarded(since, self.now, self.terms):
            return (tier, level, -job.priority, 0, 0.0, since, num)
        return (tier, level, -job.priority, 1, -self._turn(line, since), since, num)

    def ends(self) -> list[tuple[int, int]]:
        """(expected end, job) of everybody who runs, the first to go first."""
        if self.ending is None:
            self.ending = self.world.running.ends(self.now)
        return self.ending

    # -- deciding --------------------------------------------------------------------------------

    def start(self, job: Waiting, takings: list[Taking]) -> None:
        """Decide a start: takes the slots for the rest of the pass."""
        for taking in takings:
            self.index.take(taking)
        self.starts.append(Start(job.num, self.index.placement(takings)))
        self.started.add(job.num)
        held = sum(taking.mask.bit_count() for taking in takings)
        self.use(job.project, held)

    def use(self, project: str, slots: int) -> None:
        """A project holds so many slots more, or less; so do those above it."""
        standing = self.standings.get(project)
        names = [project] if standing is None else [one.name for one in standing.lineage]
        for name in names:
            self.used[name] = self.used.get(name, 0) + slots
        self.excess.clear()

    def leaves(self, num: int) -> None:
        """A running job will be asked to leave."""
        held = self.world.held[num]
        self.leaving.add(num)
        self.use(held.project, -held.num_slots)
        for reach in self.reach.values():
            reach.remove(self.world, num)
        for stretch in self.stretches.values():
            stretch.leave(self.world, num)
            stretch.num_left += 1

    def try_start(self, line: Line, num: int) -> bool:
        """Start this job of a line at full size, else at the largest size its range allows."""
        if line.ask_num in self.no_room and line.sample.min_nodes is None:
            return False
        job = self.world.waiting[num]
        shape = job.shape
        least = shape.nodes if job.min_nodes is None else max(1, job.min_nodes)
        most = max(least, min(shape.nodes, self.sizes.get(num, shape.nodes)))
        for nodes in range(most, least - 1, -1):
            self.steps += 1
            size = shape if nodes == shape.nodes else replace(shape, nodes=nodes)
            takings = place(self.index, line.ask, line.groups, size)
            if takings is not None:
                self.start(job, takings)
                return True
        self.no_room.add(line.ask_num)
        return False

    def block(self, hole: Hole, *widths: int) -> None:
        """Keep a hole's slots from everybody else, as far as they are free.

        `widths` are the slots of each of its shares, or one number for all.
        """
        wanted: dict[int, int] = {}
        each = widths if len(widths) == len(hole.nodes) else widths[:1] * len(hole.nodes)
        for name, width in zip(hole.nodes, each, strict=True):
            node = self.index.num_of.get(name)
            if node is not None:
                wanted[node] = wanted.get(node, 0) + width
        takings, num_slots = [], 0
        for node, slots in wanted.items():
            free = self.index.free[node]
            mask = pick(free, min(free.bit_count(), slots))
            if mask:
                taking = Taking(node, mask)
                self.index.take(taking)
                takings.append(taking)
                num_slots += mask.bit_count()
        self.blocks.append(Block(hole, takings, num_slots))

    def lift(self, block: Block) -> None:
        """Open a hole again."""
        self.no_room.clear()
        for taking in block.takings:
            self.index.give(taking)
        block.takings, block.num_slots = [], 0

    def owner_of(self, line: Line) -> int | None:
        """Whose hole keeps this line out, if slots are free but kept."""
        pools = line.ask.pools or self.index.pools
        kept = [b for b in self.blocks if b.takings]
        if not kept:
            return None
        free = sum(g.num_free for g in line.groups)
        for block in kept:
            free += block.num_slots
        if free < line.sample.num_slots:
            return None
        for block in kept:
            if self.index.nodes[block.takings[0].node].pool in pools:
                return block.hole.job
        return None
