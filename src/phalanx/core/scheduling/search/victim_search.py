"""The memo of the search for victims, shared by the gangs of one pass.

`VictimSearch` owns its memo for one pass: prices, candidate sets by priority, and requests for which no
victims were found. The functions of this room read it; `leave` keeps the memo right when a job leaves.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from phalanx.core.scheduling.index.cluster_index import ClusterIndex
from phalanx.core.scheduling.index.slots import SlotIndex
from phalanx.core.scheduling.model.entitlement import ProjectShare
from phalanx.core.scheduling.model.planning_input import PlannerConfig, RunningJob
from phalanx.core.scheduling.search.candidate_set import (
    CandidateSet,
    IncrementalCandidateSet,
    PeerCandidates,
)
from phalanx.core.scheduling.search.decisions import Decisions
from phalanx.core.scheduling.search.ledger import Ledger


@dataclass(slots=True)
class VictimSearch:
    """The memo of all searches for victims of one pass."""

    cluster: ClusterIndex  # the index of the pass
    now: int  # microseconds UTC
    ledger: Ledger  # use and order of the projects in the pass
    decisions: Decisions  # the decisions of the pass so far
    #: Price of stopping each running job that was looked at.
    prices: dict[int, float] = field(default_factory=dict)
    #: By priority: all preemptible jobs of lower priorities.
    below: dict[int, CandidateSet] = field(default_factory=dict)
    #: By priority: preemptible jobs of the same priority.
    peers: dict[int, PeerCandidates] = field(default_factory=dict)
    #: By priority: the candidate set of the gang that was searched for last.
    incremental: dict[int, IncrementalCandidateSet] = field(default_factory=dict)
    #: By priority: jobs of at most that priority that may migrate.
    movable: dict[int, list[RunningJob]] = field(default_factory=dict)
    #: By project and priority: slot-seconds that small queued jobs have waited.
    waited: dict[tuple[str, int], float] = field(default_factory=dict)
    #: By project: jobs that make up its use beyond its guarantee, as of a version of the ledger.
    excess: dict[str, frozenset[int]] = field(default_factory=dict)
    excess_version: int = -1  # version of the ledger that `excess` reflects
    #: (project, priority, request) for which no victims were found.
    fruitless: set[tuple[str, int, int]] = field(default_factory=set)
    #: (project, user, priority, request): the same for victims within limits.
    fruitless_at_limit: set[tuple[str, str, int, int]] = field(default_factory=set)
    closed: set[int] = field(default_factory=set)  # nodes that an overdue gang is waiting for
    config: PlannerConfig = field(init=False)  # that of `cluster`
    index: SlotIndex = field(init=False)  # that of `cluster`

    def __post_init__(self) -> None:
        self.config = self.cluster.config
        self.index = self.cluster.index

    @property
    def shares(self) -> dict[str, ProjectShare]:
        """The shares of the projects; empty where there are no projects."""
        return self.ledger.shares

    def price(self, held: RunningJob) -> float:
        """Return the slot-seconds that stopping this job is expected to cost."""
        known = self.prices.get(held.job)
        if known is None:
            known = self.prices[held.job] = held.eviction_cost(self.now)
        return known

    def leave(self, num: int) -> None:
        """Decide that a running job leaves: no other gang may take it, and its slots are not in use.

        They and the job itself count against limits until it is gone, as in the passes in which it saves.
        """
        held = self.cluster.held[num]
        self.decisions.leaving.add(num)
        self.ledger.leave(held, held.num_slots, 1)
        for candidates in self.below.values():
            candidates.remove(self.cluster, num)
        for kept in self.incremental.values():
            kept.leave(self.cluster, num)
            kept.num_left += 1
