"""Reach: whom a claim could put aside, at what price, and what that would free, node by node.

What all claims of one priority have in common is worked out once in a pass; each claim adds the peers
that it outweighs.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from phalanx.core.scheduling.index.cluster_index import World
from phalanx.core.scheduling.model.eviction_cost import lost_work, price
from phalanx.core.scheduling.model.snapshot import US, Held
from phalanx.core.scheduling.stages.entitlement import Tier
from phalanx.core.scheduling.stages.large_job_preemption import is_hero
from phalanx.core.scheduling.stages.scheduling_pass import Claim, Draft


@dataclass(slots=True)
class Reach:
    """Possible victims with the price of each; slots they hold and prices together, by node."""

    prices: dict[int, float] = field(default_factory=dict)
    slots: dict[int, int] = field(default_factory=dict)
    costs: dict[int, float] = field(default_factory=dict)
    num_slots: int = 0

    def add(self, world: World, num: int, cost: float) -> None:
        """One more possible victim."""
        if num in self.prices:
            return
        self.prices[num] = cost
        slots, costs, on_node = self.slots, self.costs, world.on_node
        for node in world.nodes_of[num]:
            bits = on_node[node][num].bit_count()
            slots[node] = slots.get(node, 0) + bits
            self.num_slots += bits
            costs[node] = costs.get(node, 0.0) + cost

    def remove(self, world: World, num: int) -> None:
        """This one leaves already, for somebody else."""
        if self.prices.pop(num, None) is None:
            return
        for node in world.nodes_of[num]:
            self.num_slots -= world.on_node[node][num].bit_count()
            mine = [j for j in world.on_node[node] if j in self.prices]
            self.slots[node] = sum(world.on_node[node][j].bit_count() for j in mine)
            self.costs[node] = sum(self.prices[j] for j in mine)

    def in_turn(self, world: World) -> Iterator[int]:
        """Nodes in the order in which they came within reach: of equal domains the first is taken."""
        return iter(self.slots)

    def copy(self) -> Reach:
        """The same, to be changed by itself."""
        return Reach(self.prices.copy(), self.slots.copy(), self.costs.copy(), self.num_slots)

    def with_more(self, world: World, prices: Mapping[int, float]) -> Reach:
        """The same and these."""
        more = self.copy()
        for num, cost in prices.items():
            more.add(world, num, cost)
        return more


@dataclass(slots=True)
class Peers:
    """Jobs of one priority whom a peer may put aside, by score, with what each would lose.

    `slots` are those that the first n of them hold together. Heroes stand apart.
    """

    ranked: list[tuple[float, int, float]] = field(default_factory=list)
    slots: list[int] = field(default_factory=lambda: [0])
    heroes: list[tuple[float, int]] = field(default_factory=list)
    most_lost: float = 0.0
    _rank: dict[int, int] = field(default_factory=dict)

    @property
    def rank(self) -> dict[int, int]:
        """The place of each in `ranked`."""
        if len(self._rank) != len(self.ranked):
            self._rank = {num: at for at, (_, num, _) in enumerate(self.ranked)}
        return self._rank

    def num_below(self, draft: Draft, claim: Claim) -> int:
        """How many of them may be less urgent than the claim."""
        if claim.guarded:
            return len(self.ranked)
        return bisect_left(self.ranked, (claim.urgency / draft.terms.hysteresis,))


@dataclass(slots=True)
class Stretch(Reach):
    """The reach of claims of one priority one after another: what they have in common stays.

    At every moment it equals a reach built anew, but for the order of its nodes, which `in_turn` gives.
    It covers everybody `below` and the first `num` of the `peers`, without those who leave.
    """

    below: Reach = field(default_factory=Reach)
    peers: Peers = field(default_factory=Peers)
    num: int = 0
    num_left: int = 0

    def leave(self, world: World, num: int) -> None:
        """This one is no longer within reach. `below` must know already."""
        if self.prices.pop(num, None) is not None:
            for node in world.nodes_of[num]:
                self._look_again(world, node)

    def reach_to(self, draft: Draft, num: int) -> None:
        """Cover the first `num` peers from now on."""
        world, ranked = draft.world, self.peers.ranked
        for _, one, _ in ranked[self.num : num]:
            if one not in draft.leaving:
                self.add(world, one, price(draft, world.held[one]))
        for _, one, _ in ranked[num : self.num]:
            self.leave(world, one)
        self.num = num

    def in_turn(self, world: World) -> Iterator[int]:
        """Whoever is below comes first, as it came there; then peer after peer. Nodes come repeatedly."""
        yield from self.below.slots
        prices, nodes_of = self.prices, world.nodes_of
        for _, one, _ in self.peers.ranked[: self.num]:
            if one in prices:
                yield from nodes_of[one]

    def _look_again(self, world: World, node: int) -> None:
        """What the node offers, worked out in the order in which a reach built anew would be."""
        below, ranked, on_node = self.below, self.peers.ranked, world.on_node[node]
        rank, prices = self.peers.rank, self.prices
        places = sorted([rank[one] for one in on_node if one in prices and one in rank])
        slots, cost = below.slots.get(node, 0), below.costs.get(node, 0.0)
        for place in places:
            one = ranked[place][1]
            slots += on_node[one].bit_count()
            cost += prices[one]
        self.num_slots += slots - self.slots[node]
        if places or node in below.slots:
            self.slots[node], self.costs[node] = slots, cost
        else:
            del self.slots[node], self.costs[node]


def reach_of(draft: Draft, claim: Claim) -> Reach:
    """Everybody this claim outweighs, with the price of each. Not to be changed, but to be copied."""
    if draft.standings:
        return _across_projects(draft, claim)
    peers = _peers(draft, claim.job.priority)
    num = peers.num_below(draft, claim)
    bound = draft.terms.lost_per_need * claim.need_slot_s(draft.terms)
    if claim.guarded or peers.most_lost > bound:
        return _built(draft, claim)
    draft.steps += num
    score = draft.terms.hysteresis, _doubt(draft, claim)
    num = bisect_left(
        peers.ranked, True, 0, num, key=lambda one: one[0] * score[0] * score[1] >= claim.urgency
    )
    return _stretched(draft, claim.job.priority, peers, num)


def _stretched(draft: Draft, priority: int, peers: Peers, num: int) -> Stretch:
    below, known = _below(draft, priority), draft.stretches.get(priority)
    anew = known is None or known.num_left != len(draft.leaving) or known.num > 2 * num
    if known is None or anew:
        parts = (below.prices.copy(), below.slots.copy(), below.costs.copy(), below.num_slots)
        known = draft.stretches[priority] = Stretch(*parts, below, peers, 0, len(draft.leaving))
    known.reach_to(draft, num)
    return known


def _built(draft: Draft, claim: Claim) -> Reach:
    """The reach of this claim alone."""
    reach = _below(draft, claim.job.priority).copy()
    peers = _peers(draft, claim.job.priority)
    held_by, leaving, terms = draft.world.held, draft.leaving, draft.terms
    ranked = peers.ranked[: peers.num_below(draft, claim)]
    draft.steps += len(ranked)
    # What `_outweighs` says of each, with all that is the same for all worked out once.
    factor, doubt, urgency = terms.hysteresis, _doubt(draft, claim), claim.urgency
    bound = terms.lost_per_need * claim.need_slot_s(terms)
    for score, num, lost in ranked:
        if num in leaving:
            continue
        held = held_by[num]
        if claim.guarded:
            if not _outweighs(draft, claim, held, score, lost):
                continue
        elif score * factor * doubt >= urgency:
            break
        elif lost > bound:
            continue
        reach.add(draft.world, num, price(draft, held))
    return reach


def reach_in_order(draft: Draft, claim: Claim) -> Reach:
    """The same as `reach_of`, to be changed: its nodes stand in the order in which they came."""
    if draft.standings:
        return _across_projects(draft, claim)
    steps = draft.steps
    found = _built(draft, claim)
    # The steps of a reach are counted where it is worked out first.
    draft.steps = steps
    return found


def could_suffice(draft: Draft, claim: Claim, num_free: int) -> bool:
    """Whether this claim could have enough slots if all that it may outweigh were gone."""
    if draft.standings:
        return True
    peers = _peers(draft, claim.job.priority)
    slots = num_free + _below(draft, claim.job.priority).num_slots
    if peers.heroes:
        return True
    return slots + peers.slots[peers.num_below(draft, claim)] >= claim.job.num_slots


def heroes(draft: Draft, priority: int) -> list[tuple[float, int]]:
    """Jobs of this priority that are too large to be victims of their peers, by score."""
    return _peers(draft, priority).heroes


def _below(draft: Draft, priority: int) -> Reach:
    """Everybody of a lower priority; kept up to date as victims leave."""
    known = draft.reach.get(priority)
    if known is None:
        known = draft.reach[priority] = Reach()
        world = draft.world
        for other, ranked in sorted(world.prey(draft.now).items()):
            if other >= priority:
                continue
            for _, num in ranked:
                held = world.held[num]
                draft.steps += 1
                if num not in draft.leaving and held.protected_until <= draft.now:
                    known.add(world, num, price(draft, held))
    return known


def _peers(draft: Draft, priority: int) -> Peers:
    known = draft.peers.get(priority)
    if known is None:
        known = draft.peers[priority] = Peers()
        now, held_by = draft.now, draft.world.held
        ranked, slots, total = known.ranked, known.slots, 0
        for score, num in draft.world.prey(now).get(priority, ()):
            held = held_by[num]
            if held.protected_until > now or _is_fresh(draft, held):
                continue
            if is_hero(draft, held):
                known.heroes.append((score, num))
                continue
            lost = 0.0 if held.save_s is not None else lost_work(draft, held)
            ranked.append((score, num, lost))
            total += held.num_slots
            slots.append(total)
            if lost > known.most_lost:
                known.most_lost = lost
    return known


def _across_projects(draft: Draft, claim: Claim) -> Reach:
    prey, held_by = draft.world.prey(draft.now), draft.world.held
    reach = Reach()
    for _, ranked in sorted(prey.items()):
        for score, num in ranked:
            held = held_by[num]
            draft.steps += 1
            if num not in draft.leaving and may_evict(draft, claim, held, score):
                reach.add(draft.world, num, price(draft, held))
    return reach


def may_evict(draft: Draft, claim: Claim, held: Held, score: float) -> bool:
    """Whether this claim outweighs that job's hold."""
    job = claim.job
    if held.started_at is None or held.protected_until > draft.now:
        return False
    if draft.standings and held.project != job.project:
        shared = _shared(draft, job.project, held.project)
        if not _reclaimable(draft, held, shared):
            return False
        mine = draft.standings.get(job.project)
        if claim.tier is Tier.GUARANTEED and (
            mine is None or mine.is_guaranteed(draft.used, job.num_slots, shared)
        ):
            return True
    if held.priority != job.priority:
        return held.priority < job.priority
    if _is_fresh(draft, held) or is_hero(draft, held):
        return False
    return _outweighs(draft, claim, held, score, lost_work(draft, held))


def _shared(draft: Draft, one: str, other: str) -> frozenset[str]:
    """Projects that both are part of."""
    mine, theirs = draft.standings.get(one), draft.standings.get(other)
    if mine is None or theirs is None:
        return frozenset()
    return frozenset(p.name for p in mine.lineage) & frozenset(p.name for p in theirs.lineage)


def _reclaimable(draft: Draft, held: Held, shared: frozenset[str]) -> bool:
    """Whether this job is part of what its project, or one above, holds beyond its guarantee.

    Seen from outside that is the widest project that the two do not have in common. The cheapest jobs
    that make up the excess are in reach; the rest is not.
    """
    standing = draft.standings.get(held.project)
    names = [held.project] if standing is None else [p.name for p in standing.lineage]
    apart = [name for name in names if name not in shared]
    if not apart:
        # The claim comes from one of its own parts: what it holds itself is beyond theirs.
        return True
    return held.job in _excess(draft, apart[-1])


def _excess(draft: Draft, project: str) -> frozenset[int]:
    known = draft.excess.get(project)
    if known is not None:
        return known
    standing = draft.standings.get(project)
    floor = 0 if standing is None else standing.project.guaranteed_slots
    over = draft.used.get(project, 0) - floor
    jobs = [h for h in draft.world.held.values() if h.project == project and not h.stopping]
    for other, one in draft.standings.items():
        if one.project.parent == project and other != project:
            jobs += [draft.world.held[num] for num in sorted(_excess(draft, other))]
    found = set()
    for held in sorted(jobs, key=lambda h: (price(draft, h) / max(h.num_slots, 1), h.job)):
        if over <= 0:
            break
        if held.job not in draft.leaving:
            found.add(held.job)
            over -= held.num_slots
    draft.excess[project] = frozenset(found)
    return draft.excess[project]


def _outweighs(draft: Draft, claim: Claim, held: Held, score: float, lost: float) -> bool:
    """Whether the claim goes before a peer."""
    terms = draft.terms
    if claim.guarded:
        # Two that starve must not take turns.
        return held.delayed_s <= terms.guard_after_s / 2
    if score * terms.hysteresis * _doubt(draft, claim) >= claim.urgency:
        return False
    # Never throw away much of what the claim itself is expected to need.
    return lost <= terms.lost_per_need * claim.need_slot_s(terms)


def _doubt(draft: Draft, claim: Claim) -> float:
    """How many times more must speak for a claim whose urgency is little more than a guess.

    Without it jobs of which nothing is known take turns for as long as nothing is learned.
    """
    if claim.job.remaining_s is not None or claim.job.max_duration_s is not None:
        return 1.0
    return 1.0 + draft.terms.guess_margin / (1 + draft.world.history.num_observed)


def _is_fresh(draft: Draft, held: Held) -> bool:
    """Whether it has only just started, so that its peers have to let it run."""
    return (draft.now - (held.started_at or 0)) / US < draft.terms.min_run_s
