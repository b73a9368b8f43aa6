"""Reach: whom a claim could put aside, at what price, and what that would free, node by node.

What all claims of one priority have in common is worked out once in a pass; each claim adds the peers
that it outweighs.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from phalanx.core.scheduling.index.cluster_index import ClusterIndex
from phalanx.core.scheduling.model.eviction_cost import lost_work, price
from phalanx.core.scheduling.model.planning_input import US, RunningJob
from phalanx.core.scheduling.stages.entitlement import EntitlementTier
from phalanx.core.scheduling.stages.large_job_preemption import is_large
from phalanx.core.scheduling.stages.scheduling_pass import Pass, PendingGang


@dataclass(slots=True)
class CandidateSet:
    """Possible victims with the price of each; slots they hold and prices together, by node."""

    prices: dict[int, float] = field(default_factory=dict)
    slots: dict[int, int] = field(default_factory=dict)
    costs: dict[int, float] = field(default_factory=dict)
    num_slots: int = 0

    def add(self, cluster: ClusterIndex, num: int, cost: float) -> None:
        """One more possible victim."""
        if num in self.prices:
            return
        self.prices[num] = cost
        slots, costs, on_node = self.slots, self.costs, cluster.on_node
        for node in cluster.nodes_of[num]:
            bits = on_node[node][num].bit_count()
            slots[node] = slots.get(node, 0) + bits
            self.num_slots += bits
            costs[node] = costs.get(node, 0.0) + cost

    def remove(self, cluster: ClusterIndex, num: int) -> None:
        """This one leaves already, for somebody else."""
        if self.prices.pop(num, None) is None:
            return
        for node in cluster.nodes_of[num]:
            self.num_slots -= cluster.on_node[node][num].bit_count()
            mine = [j for j in cluster.on_node[node] if j in self.prices]
            self.slots[node] = sum(cluster.on_node[node][j].bit_count() for j in mine)
            self.costs[node] = sum(self.prices[j] for j in mine)

    def in_turn(self, cluster: ClusterIndex) -> Iterator[int]:
        """Nodes in the order in which they came within reach: of equal domains the first is taken."""
        return iter(self.slots)

    def copy(self) -> CandidateSet:
        """The same, to be changed by itself."""
        return CandidateSet(
            self.prices.copy(), self.slots.copy(), self.costs.copy(), self.num_slots
        )

    def with_more(self, cluster: ClusterIndex, prices: Mapping[int, float]) -> CandidateSet:
        """The same and these."""
        more = self.copy()
        for num, cost in prices.items():
            more.add(cluster, num, cost)
        return more


@dataclass(slots=True)
class PeerCandidates:
    """Jobs of one priority whom a peer may put aside, by score, with what each would lose.

    `slots` are those that the first n of them hold together. Heroes stand apart.
    """

    ranked: list[tuple[float, int, float]] = field(default_factory=list)
    slots: list[int] = field(default_factory=lambda: [0])
    large_jobs: list[tuple[float, int]] = field(default_factory=list)
    most_lost: float = 0.0
    _rank: dict[int, int] = field(default_factory=dict)

    @property
    def rank(self) -> dict[int, int]:
        """The place of each in `ranked`."""
        if len(self._rank) != len(self.ranked):
            self._rank = {num: at for at, (_, num, _) in enumerate(self.ranked)}
        return self._rank

    def num_below(self, state: Pass, gang: PendingGang) -> int:
        """How many of them may be less urgent than the claim."""
        if gang.guarded:
            return len(self.ranked)
        return bisect_left(self.ranked, (gang.urgency / state.config.hysteresis,))


@dataclass(slots=True)
class IncrementalCandidateSet(CandidateSet):
    """The reach of claims of one priority one after another: what they have in common stays.

    At every moment it equals a reach built anew, but for the order of its nodes, which `in_turn` gives.
    It covers everybody `below` and the first `num` of the `peers`, without those who leave.
    """

    below: CandidateSet = field(default_factory=CandidateSet)
    peers: PeerCandidates = field(default_factory=PeerCandidates)
    num: int = 0
    num_left: int = 0

    def leave(self, cluster: ClusterIndex, num: int) -> None:
        """This one is no longer within reach. `below` must know already."""
        if self.prices.pop(num, None) is not None:
            for node in cluster.nodes_of[num]:
                self._look_again(cluster, node)

    def reach_to(self, state: Pass, num: int) -> None:
        """Cover the first `num` peers from now on."""
        cluster, ranked = state.cluster, self.peers.ranked
        for _, one, _ in ranked[self.num : num]:
            if one not in state.leaving:
                self.add(cluster, one, price(state, cluster.held[one]))
        for _, one, _ in ranked[num : self.num]:
            self.leave(cluster, one)
        self.num = num

    def in_turn(self, cluster: ClusterIndex) -> Iterator[int]:
        """Whoever is below comes first, as it came there; then peer after peer. Nodes come repeatedly."""
        yield from self.below.slots
        prices, nodes_of = self.prices, cluster.nodes_of
        for _, one, _ in self.peers.ranked[: self.num]:
            if one in prices:
                yield from nodes_of[one]

    def _look_again(self, cluster: ClusterIndex, node: int) -> None:
        """What the node offers, worked out in the order in which a reach built anew would be."""
        below, ranked, on_node = self.below, self.peers.ranked, cluster.on_node[node]
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


def candidate_set(state: Pass, gang: PendingGang) -> CandidateSet:
    """Everybody this claim outweighs, with the price of each. Not to be changed, but to be copied."""
    if state.project_shares:
        return _across_projects(state, gang)
    peers = _peers(state, gang.job.priority)
    num = peers.num_below(state, gang)
    bound = state.config.lost_per_need * gang.need_slot_s(state.config)
    if gang.guarded or peers.most_lost > bound:
        return _built(state, gang)
    state.steps += num
    score = state.config.hysteresis, _doubt(state, gang)
    num = bisect_left(
        peers.ranked, True, 0, num, key=lambda one: one[0] * score[0] * score[1] >= gang.urgency
    )
    return _stretched(state, gang.job.priority, peers, num)


def _stretched(
    state: Pass, priority: int, peers: PeerCandidates, num: int
) -> IncrementalCandidateSet:
    below, known = _below(state, priority), state.stretches.get(priority)
    anew = known is None or known.num_left != len(state.leaving) or known.num > 2 * num
    if known is None or anew:
        parts = (below.prices.copy(), below.slots.copy(), below.costs.copy(), below.num_slots)
        known = state.stretches[priority] = IncrementalCandidateSet(
            *parts, below, peers, 0, len(state.leaving)
        )
    known.reach_to(state, num)
    return known


def _built(state: Pass, gang: PendingGang) -> CandidateSet:
    """The reach of this claim alone."""
    candidates = _below(state, gang.job.priority).copy()
    peers = _peers(state, gang.job.priority)
    held_by, leaving, config = state.cluster.held, state.leaving, state.config
    ranked = peers.ranked[: peers.num_below(state, gang)]
    state.steps += len(ranked)
    # What `_outweighs` says of each, with all that is the same for all worked out once.
    factor, doubt, urgency = config.hysteresis, _doubt(state, gang), gang.urgency
    bound = config.lost_per_need * gang.need_slot_s(config)
    for score, num, lost in ranked:
        if num in leaving:
            continue
        held = held_by[num]
        if gang.guarded:
            if not _outweighs(state, gang, held, score, lost):
                continue
        elif score * factor * doubt >= urgency:
            break
        elif lost > bound:
            continue
        candidates.add(state.cluster, num, price(state, held))
    return candidates


def ordered_candidate_set(state: Pass, gang: PendingGang) -> CandidateSet:
    """The same as `candidate_set`, to be changed: its nodes stand in the order in which they came."""
    if state.project_shares:
        return _across_projects(state, gang)
    steps = state.steps
    found = _built(state, gang)
    # The steps of a reach are counted where it is worked out first.
    state.steps = steps
    return found


def could_suffice(state: Pass, gang: PendingGang, num_free: int) -> bool:
    """Whether this claim could have enough slots if all that it may outweigh were gone."""
    if state.project_shares:
        return True
    peers = _peers(state, gang.job.priority)
    slots = num_free + _below(state, gang.job.priority).num_slots
    if peers.large_jobs:
        return True
    return slots + peers.slots[peers.num_below(state, gang)] >= gang.job.num_slots


def large_jobs(state: Pass, priority: int) -> list[tuple[float, int]]:
    """Jobs of this priority that are too large to be victims of their peers, by score."""
    return _peers(state, priority).large_jobs


def _below(state: Pass, priority: int) -> CandidateSet:
    """Everybody of a lower priority; kept up to date as victims leave."""
    known = state.candidates.get(priority)
    if known is None:
        known = state.candidates[priority] = CandidateSet()
        cluster = state.cluster
        for other, ranked in sorted(cluster.preemptible(state.now).items()):
            if other >= priority:
                continue
            for _, num in ranked:
                held = cluster.held[num]
                state.steps += 1
                if num not in state.leaving and held.protected_until <= state.now:
                    known.add(cluster, num, price(state, held))
    return known


def _peers(state: Pass, priority: int) -> PeerCandidates:
    known = state.peers.get(priority)
    if known is None:
        known = state.peers[priority] = PeerCandidates()
        now, held_by = state.now, state.cluster.held
        ranked, slots, total = known.ranked, known.slots, 0
        for score, num in state.cluster.preemptible(now).get(priority, ()):
            held = held_by[num]
            if held.protected_until > now or _is_fresh(state, held):
                continue
            if is_large(state, held):
                known.large_jobs.append((score, num))
                continue
            lost = 0.0 if held.save_s is not None else lost_work(state, held)
            ranked.append((score, num, lost))
            total += held.num_slots
            slots.append(total)
            if lost > known.most_lost:
                known.most_lost = lost
    return known


def _across_projects(state: Pass, gang: PendingGang) -> CandidateSet:
    preemptible, held_by = state.cluster.preemptible(state.now), state.cluster.held
    candidates = CandidateSet()
    for _, ranked in sorted(preemptible.items()):
        for score, num in ranked:
            held = held_by[num]
            state.steps += 1
            if num not in state.leaving and may_evict(state, gang, held, score):
                candidates.add(state.cluster, num, price(state, held))
    return candidates


def may_evict(state: Pass, gang: PendingGang, held: RunningJob, score: float) -> bool:
    """Whether this claim outweighs that job's hold."""
    job = gang.job
    if held.started_at is None or held.protected_until > state.now:
        return False
    if state.project_shares and held.project != job.project:
        shared = _shared(state, job.project, held.project)
        if not _reclaimable(state, held, shared):
            return False
        mine = state.project_shares.get(job.project)
        if gang.tier is EntitlementTier.GUARANTEED and (
            mine is None or mine.is_guaranteed(state.used, job.num_slots, shared)
        ):
            return True
    if held.priority != job.priority:
        return held.priority < job.priority
    if _is_fresh(state, held) or is_large(state, held):
        return False
    return _outweighs(state, gang, held, score, lost_work(state, held))


def _shared(state: Pass, one: str, other: str) -> frozenset[str]:
    """Projects that both are part of."""
    mine, theirs = state.project_shares.get(one), state.project_shares.get(other)
    if mine is None or theirs is None:
        return frozenset()
    return frozenset(p.name for p in mine.lineage) & frozenset(p.name for p in theirs.lineage)


def _reclaimable(state: Pass, held: RunningJob, shared: frozenset[str]) -> bool:
    """Whether this job is part of what its project, or one above, holds beyond its guarantee.

    Seen from outside that is the widest project that the two do not have in common. The cheapest jobs
    that make up the excess are in reach; the rest is not.
    """
    share_of = state.project_shares.get(held.project)
    names = [held.project] if share_of is None else [p.name for p in share_of.lineage]
    apart = [name for name in names if name not in shared]
    if not apart:
        # The claim comes from one of its own parts: what it holds itself is beyond theirs.
        return True
    return held.job in _excess(state, apart[-1])


def _excess(state: Pass, project: str) -> frozenset[int]:
    known = state.excess.get(project)
    if known is not None:
        return known
    share_of = state.project_shares.get(project)
    floor = 0 if share_of is None else share_of.project.guaranteed_slots
    over = state.used.get(project, 0) - floor
    jobs = [h for h in state.cluster.held.values() if h.project == project and not h.stopping]
    for other, one in state.project_shares.items():
        if one.project.parent == project and other != project:
            jobs += [state.cluster.held[num] for num in sorted(_excess(state, other))]
    found = set()
    for held in sorted(jobs, key=lambda h: (price(state, h) / max(h.num_slots, 1), h.job)):
        if over <= 0:
            break
        if held.job not in state.leaving:
            found.add(held.job)
            over -= held.num_slots
    state.excess[project] = frozenset(found)
    return state.excess[project]


def _outweighs(state: Pass, gang: PendingGang, held: RunningJob, score: float, lost: float) -> bool:
    """Whether the claim goes before a peer."""
    config = state.config
    if gang.guarded:
        # Two that starve must not take turns.
        return held.delayed_s <= config.guard_after_s / 2
    if score * config.hysteresis * _doubt(state, gang) >= gang.urgency:
        return False
    # Never throw away much of what the claim itself is expected to need.
    return lost <= config.lost_per_need * gang.need_slot_s(config)


def _doubt(state: Pass, gang: PendingGang) -> float:
    """How many times more must speak for a claim whose urgency is little more than a guess.

    Without it jobs of which nothing is known take turns for as long as nothing is learned.
    """
    if gang.job.remaining_s is not None or gang.job.max_duration_s is not None:
        return 1.0
    return 1.0 + state.config.guess_margin / (1 + state.cluster.history.num_observed)


def _is_fresh(state: Pass, held: RunningJob) -> bool:
    """Whether it has only just started, so that its peers have to let it run."""
    return (state.now - (held.started_at or 0)) / US < state.config.min_run_s
