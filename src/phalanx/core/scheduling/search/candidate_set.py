"""Sets of running jobs that a pending gang could preempt, with prices and the slots that they free.

What all gangs of one priority have in common is computed once in a pass; each gang adds the peers that it
outweighs.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from phalanx.core.scheduling.index.cluster_index import ClusterIndex
from phalanx.core.scheduling.model.entitlement import EntitlementTier
from phalanx.core.scheduling.model.planning_input import PlannerConfig, QueuedJob, RunningJob


@dataclass(frozen=True, slots=True)
class PendingGang:
    """A blocked gang and its urgency. `base` is the urgency before waits (0: the same)."""

    job: QueuedJob
    tier: EntitlementTier
    urgency: float
    guarded: bool
    base: float = 0.0
    overdue: bool = False

    def need_slot_s(self, config: PlannerConfig) -> float:
        """Return the slot-seconds of work that its urgency implies, whatever it has waited."""
        return float(
            self.job.num_slots ** (1.0 - config.size_exponent) / (self.base or self.urgency)
        )


@dataclass(slots=True)
class CandidateSet:
    """Preemptible jobs with the price of each, and the slots and prices together by node."""

    prices: dict[int, float] = field(default_factory=dict)
    slots: dict[int, int] = field(default_factory=dict)
    costs: dict[int, float] = field(default_factory=dict)
    num_slots: int = 0

    def add(self, cluster: ClusterIndex, num: int, cost: float) -> None:
        """Add a preemptible job."""
        if num in self.prices:
            return
        self.prices[num] = cost
        slots, costs, on_node = self.slots, self.costs, cluster.on_node
        for node in cluster.nodes_of[num]:
            held = on_node[node][num]
            slots[node] = slots.get(node, 0) + held
            self.num_slots += held
            costs[node] = costs.get(node, 0.0) + cost

    def remove(self, cluster: ClusterIndex, num: int) -> None:
        """Remove a job that leaves already for another gang."""
        if self.prices.pop(num, None) is None:
            return
        for node in cluster.nodes_of[num]:
            here = cluster.on_node[node]
            self.num_slots -= here[num]
            slots, cost = 0, 0.0
            for other, held in here.items():
                price = self.prices.get(other)
                if price is not None:
                    slots += held
                    cost += price
            self.slots[node], self.costs[node] = slots, cost

    def in_turn(self, cluster: ClusterIndex) -> Iterator[int]:
        """Iterate over the nodes in the order of their entry; of equal domains the first is taken."""
        return iter(self.slots)

    def copy(self) -> CandidateSet:
        """Return an independent copy."""
        return CandidateSet(
            self.prices.copy(), self.slots.copy(), self.costs.copy(), self.num_slots
        )

    def with_more(self, cluster: ClusterIndex, prices: Mapping[int, float]) -> CandidateSet:
        """Return a copy with these jobs added."""
        more = self.copy()
        for num, cost in prices.items():
            more.add(cluster, num, cost)
        return more


@dataclass(slots=True)
class PeerCandidates:
    """Jobs that a gang of their own priority may preempt, by score, with the work each would lose.

    `slots[n]` is the number of slots that the first n of them hold together. Large jobs are listed apart.
    """

    ranked: list[tuple[float, int, float]] = field(default_factory=list)
    slots: list[int] = field(default_factory=lambda: [0])
    large_jobs: list[tuple[float, int]] = field(default_factory=list)
    most_lost: float = 0.0
    _rank: dict[int, int] = field(default_factory=dict)

    @property
    def rank(self) -> dict[int, int]:
        """Return the position of each job in `ranked`."""
        if len(self._rank) != len(self.ranked):
            self._rank = {num: at for at, (_, num, _) in enumerate(self.ranked)}
        return self._rank

    def num_below(self, gang: PendingGang, hysteresis: float) -> int:
        """Return how many of them may be less urgent than the gang."""
        if gang.guarded or gang.overdue:
            return len(self.ranked)
        return bisect_left(self.ranked, (gang.urgency / hysteresis,))


@dataclass(slots=True)
class IncrementalCandidateSet(CandidateSet):
    """The candidate set of one gang after another of the same priority, changed by their difference.

    It always equals a rebuilt set, except for the order of its nodes, which `in_turn` restores. It
    covers all jobs `below` and the first `num` of the `peers`, without those that leave.
    """

    below: CandidateSet = field(default_factory=CandidateSet)
    peers: PeerCandidates = field(default_factory=PeerCandidates)
    num: int = 0
    num_left: int = 0

    def leave(self, cluster: ClusterIndex, num: int) -> None:
        """Remove a job; `below` must have been updated before."""
        if self.prices.pop(num, None) is not None:
            for node in cluster.nodes_of[num]:
                self._look_again(cluster, node)

    def cover(
        self,
        cluster: ClusterIndex,
        num: int,
        leaving: set[int],
        price: Callable[[RunningJob], float],
    ) -> None:
        """Cover the first `num` peers from now on, without those that leave already."""
        ranked = self.peers.ranked
        for _, one, _ in ranked[self.num : num]:
            if one not in leaving:
                self.add(cluster, one, price(cluster.held[one]))
        for _, one, _ in ranked[num : self.num]:
            self.leave(cluster, one)
        self.num = num

    def in_turn(self, cluster: ClusterIndex) -> Iterator[int]:
        """Iterate over the nodes of `below`, then of peer after peer. A node may come repeatedly."""
        yield from self.below.slots
        prices, nodes_of = self.prices, cluster.nodes_of
        for _, one, _ in self.peers.ranked[: self.num]:
            if one in prices:
                yield from nodes_of[one]

    def _look_again(self, cluster: ClusterIndex, node: int) -> None:
        """Recompute the sums of a node in the order in which a rebuilt set would sum them."""
        below, ranked, on_node = self.below, self.peers.ranked, cluster.on_node[node]
        rank, prices = self.peers.rank, self.prices
        places = sorted([rank[one] for one in on_node if one in prices and one in rank])
        slots, cost = below.slots.get(node, 0), below.costs.get(node, 0.0)
        for place in places:
            one = ranked[place][1]
            slots += on_node[one]
            cost += prices[one]
        self.num_slots += slots - self.slots[node]
        if places or node in below.slots:
            self.slots[node], self.costs[node] = slots, cost
        else:
            del self.slots[node], self.costs[node]
