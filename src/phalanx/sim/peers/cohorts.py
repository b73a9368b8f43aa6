"""Schedulers with queues that own quotas, lend them to one another and take them back.

Kueue: the heads of all queues compete; a job within its queue's quota may evict borrowers, and
within a queue lower priorities; victims by priority, then the newest, put back in reverse if not
needed. KAI: queues by how far they are served; reclaim up to the deserved quota, preemption inside
a queue by priority, and consolidation, which moves jobs so that a gang finds its slots together.
Neither uses the time of the last checkpoint. Both place like Phalanx (the smallest domain, best
fit); without projects there is one queue that owns everything.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable

from phalanx.core.scheduling import ClusterIndex, Plan, QueuedJob, RunningJob
from phalanx.core.scheduling.model.planning_input import US
from phalanx.core.scheduling.stages.reservations import honour
from phalanx.core.scheduling.stages.scheduling_pass import Pass
from phalanx.sim.model import Oracle
from phalanx.sim.peers.queues import best_fit, finish, new_draft
from phalanx.sim.peers.victims import Spare, evict_for, filled_back, placed_again

_MOST_TRIES = 16
_Rank = Callable[["Quotas", QueuedJob], tuple[float, ...]]


class Quotas:
    """The quota and the limit of every queue, and its use in this pass."""

    def __init__(self, state: Pass) -> None:
        self._state = state
        cluster = state.cluster
        self.capacity = sum(group.num_nodes * group.size for group in cluster.index.groups)
        self._owned = {p.name: p.guaranteed_slots for p in cluster.projects.values()}
        self._most = {p.name: p.max_slots for p in cluster.projects.values()}

    def owned(self, project: str) -> int:
        """Return the quota; an undeclared queue owns everything, or nothing beside declared ones."""
        return self._owned.get(project, 0 if self._owned else self.capacity)

    def used(self, project: str) -> int:
        """Return the slots that it holds or has reserved."""
        return self._state.ledger.used.get(project, 0)

    def is_within(self, job: QueuedJob) -> bool:
        """Return whether the queue would stay within its quota."""
        return self.used(job.project) + job.num_slots <= self.owned(job.project)

    def is_allowed(self, job: QueuedJob, borrow_part: float = math.inf) -> bool:
        """Return whether the queue would stay within its limit, and borrow that part at most."""
        after = self.used(job.project) + job.num_slots
        owned, most = self.owned(job.project), self._most.get(job.project)
        return (most is None or after <= most) and after - owned <= borrow_part * max(owned, 1)

    def is_over(self, held: RunningJob) -> bool:
        """Return whether its queue uses more than its quota."""
        return self.used(held.project) > self.owned(held.project)

    def served(self, project: str) -> float:
        """Return the use relative to the quota."""
        return self.used(project) / max(self.owned(project), 1)


def kueue_rank(quotas: Quotas, job: QueuedJob) -> tuple[float, ...]:
    """Heads that need not borrow first, then priority, then arrival."""
    return (float(not quotas.is_within(job)), -job.priority, job.since, job.num)


def kai_rank(quotas: Quotas, job: QueuedJob) -> tuple[float, ...]:
    """Queues below their quota first, the least served first; then priority and arrival."""
    over = float(not quotas.is_within(job))
    return (over, quotas.served(job.project), -job.priority, job.since, job.num)


def _newest_first(held: RunningJob) -> tuple[float, ...]:
    return (held.priority, -(held.started_at or 0), held.job)


def fair_rank(quotas: Quotas, job: QueuedJob) -> tuple[float, ...]:
    """Heads that need not borrow first, then the queue with the least borrowed, then priority."""
    owned = max(quotas.owned(job.project), 1)
    borrowed = max(quotas.used(job.project) - owned, 0) / owned
    return (float(not quotas.is_within(job)), borrowed, -job.priority, job.since, job.num)


class CohortQueues:
    """Heads of queues compete until none of them can start; then blocked heads may evict.

    `strict`: a queue starts nothing behind a blocked head. `min_run_s`: time after a start
    in which a job is not preempted. `borrow_part`: what a queue may borrow, as a part of its quota.
    `most_tries`: searches for victims in a pass.
    """

    def __init__(
        self,
        name: str,
        rank: _Rank,
        spare: Spare,
        strict: bool = False,
        min_run_s: float = 0.0,
        borrow_part: float = math.inf,
        most_tries: int = _MOST_TRIES,
    ) -> None:
        self.name = name
        self._rank = rank
        self._spare = spare
        self._strict = strict
        self._min_run_s = min_run_s
        self._borrow_part = borrow_part
        self._most_tries = most_tries

    def plan(self, cluster: ClusterIndex, now: int, oracle: Oracle) -> Plan:
        """Admit, then take back what was lent, then preempt inside the queues."""
        state = new_draft(cluster, now)
        honour(state)
        quotas = Quotas(state)
        blocked = self._admit(state, quotas)
        self._after(state, quotas, blocked)
        return finish(state)

    def _admit(self, state: Pass, quotas: Quotas) -> list[QueuedJob]:
        queues = _queues(state)
        heads = [(self._rank(quotas, queue[-1]), name) for name, queue in queues.items()]
        heapq.heapify(heads)
        blocked: list[QueuedJob] = []
        failed: set[object] = set()
        while heads:
            rank, name = heapq.heappop(heads)
            job = queues[name][-1]
            fresh = self._rank(quotas, job)
            if fresh != rank:
                heapq.heappush(heads, (fresh, name))
                continue
            queues[name].pop()
            num_blocked = len(blocked)
            is_allowed = quotas.is_allowed(job, self._borrow_part)
            if is_allowed and job.shape not in failed:
                allocations = best_fit(state.cluster, job)
                if allocations is None:
                    failed.add(job.shape)
                    blocked.append(job)
                else:
                    state.start(job, allocations)
            elif is_allowed:
                blocked.append(job)
            if queues[name] and not (self._strict and len(blocked) > num_blocked):
                heapq.heappush(heads, (self._rank(quotas, queues[name][-1]), name))
        return blocked

    def _after(self, state: Pass, quotas: Quotas, blocked: list[QueuedJob]) -> None:
        """Handle the jobs that found no room."""
        self._take_back(state, quotas, blocked)

    def _take_back(self, state: Pass, quotas: Quotas, blocked: list[QueuedJob]) -> None:
        tries = 0
        hopeless: set[object] = set()
        for job in blocked:
            within = quotas.is_within(job)
            group = (job.project, job.priority, within)
            if group in hopeless or (group, job.shape) in hopeless:
                continue
            found = _victims(state, quotas, job, within)
            victims = [held for held in found if _ran_s(state, held) >= self._min_run_s]
            if not victims:
                hopeless.add(group)
                continue
            tries += 1
            if not evict_for(state, job, victims, self._spare):
                hopeless.add((group, job.shape))
            if tries >= self._most_tries:
                return


def _queues(state: Pass) -> dict[str, list[QueuedJob]]:
    """The waiting jobs of each project, the first of them last."""
    owners = {
        reservation.job for reservation in state.decisions.reservations
    } | state.decisions.started
    queues: dict[str, list[QueuedJob]] = {}
    for job in state.cluster.waiting.values():
        if job.num not in owners and job.num not in state.cluster.deferred:
            queues.setdefault(job.project, []).append(job)
    for queue in queues.values():
        queue.sort(key=lambda job: (-job.priority, job.since, job.num), reverse=True)
    return queues


def _victims(state: Pass, quotas: Quotas, job: QueuedJob, within: bool) -> list[RunningJob]:
    """Return borrowers of other queues if within quota, then lower priorities of its queue."""
    borrowed: list[RunningJob] = []
    own: list[RunningJob] = []
    left: dict[str, int] = {}
    for held in sorted(state.cluster.held.values(), key=_newest_first):
        if held.stopping or held.job in state.decisions.leaving or not held.preemptible:
            continue
        if held.project == job.project:
            if held.priority < job.priority:
                own.append(held)
        elif within and quotas.is_over(held):
            over = left.get(held.project, quotas.used(held.project) - quotas.owned(held.project))
            if over > 0:
                left[held.project] = over - held.num_slots
                borrowed.append(held)
    return borrowed + own


def _ran_s(state: Pass, held: RunningJob) -> float:
    """Return how long it has run since its last start, seconds."""
    return (state.now - (held.started_at or 0)) / US


class KaiQueues(CohortQueues):
    """KAI's actions in its order: allocate, consolidate, reclaim, preempt.

    Consolidation moves jobs of one node that have run for `move_after_s` and hold at most `most_part`
    of the slots of the gang that they make room for.
    """

    def __init__(
        self,
        rank: _Rank,
        min_run_s: float = 0.0,
        move_after_s: float = 3600.0,
        most_part: float = 0.5,
    ) -> None:
        super().__init__("kai-like", rank, filled_back, min_run_s=min_run_s)
        self._move_after_s = move_after_s
        self._most_part = most_part

    def _after(self, state: Pass, quotas: Quotas, blocked: list[QueuedJob]) -> None:
        served: set[int] = set()
        tries = 0
        hopeless: set[object] = set()
        for job in blocked:
            free = sum(group.num_free for group in state.index.groups)
            if free < job.num_slots or job.num_slots == 1 or job.shape in hopeless:
                continue
            tries += 1
            if tries > self._most_tries:
                break
            if evict_for(state, job, self._movable(state, job), placed_again):
                served.add(job.num)
            else:
                hopeless.add(job.shape)
        self._take_back(state, quotas, [job for job in blocked if job.num not in served])

    def _movable(self, state: Pass, job: QueuedJob) -> list[RunningJob]:
        """Smaller jobs on one node each, the smallest first."""
        found = [
            held
            for held in state.cluster.held.values()
            if held.preemptible
            and not held.stopping
            and held.job not in state.decisions.leaving
            and len(held.placement.shares) == 1
            and held.num_slots <= self._most_part * job.num_slots
            and held.save_s is not None
            and _ran_s(state, held) >= self._move_after_s
        ]
        return sorted(found, key=lambda held: (held.num_slots, -(held.started_at or 0), held.job))


def kueue_like(
    strict: bool = False,
    fair: bool = False,
    min_run_s: float = 0.0,
    borrow_part: float = math.inf,
    most_tries: int = _MOST_TRIES,
) -> CohortQueues:
    """Kueue: a cohort with borrowing, and reclaim from any borrower.

    `strict`: `StrictFIFO` instead of `BestEffortFIFO`. `fair`: fair sharing between the queues that
    borrow. `borrow_part`: `borrowingLimit` as a part of the quota.
    """
    rank = fair_rank if fair else kueue_rank
    spare = filled_back
    return CohortQueues("kueue-like", rank, spare, strict, min_run_s, borrow_part, most_tries)


def kai_like(
    min_run_s: float = 0.0, move_after_s: float = 3600.0, most_part: float = 0.5
) -> KaiQueues:
    """Deserved quotas, consolidation and reclaim."""
    return KaiQueues(kai_rank, min_run_s, move_after_s, most_part)
