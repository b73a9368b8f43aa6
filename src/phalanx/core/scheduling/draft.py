"""One pass in progress: what has been decided so far, on an index that will be rolled back."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from phalanx.core.reasons import Reason
from phalanx.core.scheduling.entitlement import Standing, Tier
from phalanx.core.scheduling.order import aged, base_urgency, is_guarded
from phalanx.core.scheduling.outcome import Migration, Preemption, Resize, Start
from phalanx.core.scheduling.slots import SlotIndex, Taking, pick
from phalanx.core.scheduling.snapshot import US, Hole, Terms, Waiting
from phalanx.core.scheduling.topology import Ask, place
from phalanx.core.scheduling.world import Line, World

Rank = tuple[int, int, int, int, float, int, int]


@dataclass(slots=True)
class Block:
    """Free slots kept out of everybody's reach for the owner of a hole."""

    hole: Hole
    takings: list[Taking]


@dataclass(slots=True)
class Draft:
    """The decisions of one pass, and what they leave."""

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
    reasons: dict[int, Reason] = field(default_factory=dict)
    excess: dict[str, frozenset[int]] = field(default_factory=dict)
    prices: dict[int, float] = field(default_factory=dict)
    ready: dict[tuple[int, int, int], int] = field(default_factory=dict)
    no_room: set[Ask] = field(default_factory=set)
    no_victims: set[tuple[str, int, Ask]] = field(default_factory=set)
    sizes: dict[int, int] = field(default_factory=dict)
    steps: int = 0
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
        return standing.tier(self.used.get(job.project, 0), job.num_slots)

    def urgency(self, line: Line, since: int) -> float:
        """The index of a line's job, aged by its wait."""
        history = self.world.history
        if line.base_version != history.version():
            line.base = base_urgency(line.sample, line.kind, line.attained_bin, history, self.terms)
            line.base_version = history.version()
        return aged(line.base, (self.now - since) / US, self.terms)

    def rank(self, line: Line, position: int) -> Rank:
        """The sort key of the job at `position` of a line; lower goes first."""
        since, num = line.jobs[position]
        job = line.sample
        tier = self.tier(job)
        standing = self.standings.get(job.project)
        level = 0
        if standing is not None and tier is not Tier.GUARANTEED:
            level = standing.level(self.used.get(job.project, 0))
        if is_guarded(since, self.now, self.terms):
            return (tier, level, -job.priority, 0, 0.0, since, num)
        return (tier, level, -job.priority, 1, -self.urgency(line, since), since, num)

    # -- deciding --------------------------------------------------------------------------------

    def start(self, job: Waiting, takings: list[Taking]) -> None:
        """Decide a start: takes the slots for the rest of the pass."""
        for taking in takings:
            self.index.take(taking)
        self.starts.append(Start(job.num, self.index.placement(takings)))
        self.started.add(job.num)
        held = sum(taking.mask.bit_count() for taking in takings)
        self.used[job.project] = self.used.get(job.project, 0) + held
        self.excess.clear()

    def try_start(self, line: Line, num: int) -> bool:
        """Start this job of a line at full size, else at the largest size its range allows."""
        if line.ask in self.no_room and line.sample.min_nodes is None:
            return False
        job = self.world.waiting[num]
        shape = job.shape
        least = shape.nodes if job.min_nodes is None else max(1, job.min_nodes)
        most = max(least, min(shape.nodes, self.sizes.get(num, shape.nodes)))
        for nodes in range(most, least - 1, -1):
            self.steps += 1
            size = replace(shape, nodes=nodes)
            takings = place(self.index, line.ask, line.groups, size)
            if takings is not None:
                self.start(job, takings)
                return True
        self.no_room.add(line.ask)
        return False

    def block(self, hole: Hole, per_node: int) -> None:
        """Keep a hole's slots from everybody else, as far as they are free."""
        wanted: dict[int, int] = {}
        for name in hole.nodes:
            node = self.index.num_of.get(name)
            if node is not None:
                wanted[node] = wanted.get(node, 0) + per_node
        takings = []
        for node, slots in wanted.items():
            free = self.index.free[node]
            mask = pick(free, min(free.bit_count(), slots))
            if mask:
                taking = Taking(node, mask)
                self.index.take(taking)
                takings.append(taking)
        self.blocks.append(Block(hole, takings))

    def lift(self, block: Block) -> None:
        """Open a hole again."""
        self.no_room.clear()
        for taking in block.takings:
            self.index.give(taking)
        block.takings = []

    def owner_of(self, line: Line) -> int | None:
        """Whose hole keeps this line out, if slots are free but kept."""
        pools = line.ask.pools or self.index.pools
        kept = [b for b in self.blocks if b.takings]
        if not kept:
            return None
        free = sum(g.num_free for g in line.groups)
        for block in kept:
            free += sum(t.mask.bit_count() for t in block.takings)
        if free < line.sample.num_slots:
            return None
        for block in kept:
            if self.index.nodes[block.takings[0].node].pool in pools:
                return block.hole.job
        return None
