"""Preemption of the peers: take victims in the peer's order until the gang fits, spare the rest.

Under every policy the slots of the victims are reserved for the gang, which favors the peers: most
of the original schedulers let any job start there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from phalanx.core.gang.placement import GangShape
from phalanx.core.reasons import Reason, ReasonCode
from phalanx.core.scheduling import ClusterIndex, Preemption, QueuedJob, Reservation, RunningJob
from phalanx.core.scheduling.index.slots import Allocation
from phalanx.core.scheduling.index.topology import place, request_of
from phalanx.core.scheduling.model.planning_input import US
from phalanx.core.scheduling.stages.scheduling_pass import Pass
from phalanx.sim.peers.queues import best_fit

RESERVATION_TTL_S = 900
Spare = Callable[
    [ClusterIndex, QueuedJob, list[RunningJob], list[Allocation]], list[RunningJob] | None
]
"""A function that returns the victims that have to leave; None: none, and the gang waits."""


def evict_for(
    state: Pass, job: QueuedJob, victims: Sequence[RunningJob], spare: Spare
) -> list[RunningJob]:
    """Take victims in order until the gang fits, reserve its slots; return those that leave."""
    cluster, index = state.cluster, state.index
    free = sum(group.num_free for group in index.groups)
    if free + sum(held.num_slots for held in victims) < job.num_slots:
        return []
    mark = index.mark()
    taken: list[RunningJob] = []
    allocations: list[Allocation] | None = None
    leave: list[RunningJob] | None = None
    for held in victims:
        for allocation in index.allocations(held.placement, 0, 0):
            index.give(allocation)
        taken.append(held)
        free += held.num_slots
        allocations = best_fit(cluster, job) if free >= job.num_slots else None
        if allocations is not None:
            leave = spare(cluster, job, taken, allocations)
            break
    index.rollback(mark)
    if not leave:
        return []
    # The gang may fit elsewhere once exactly those jobs have left.
    for held in leave:
        for allocation in index.allocations(held.placement, 0, 0):
            index.give(allocation)
    allocations = best_fit(cluster, job)
    index.rollback(mark)
    if allocations is None:
        return []
    _cut(state, job, allocations, leave)
    return leave


def _cut(
    state: Pass, job: QueuedJob, allocations: list[Allocation], leave: list[RunningJob]
) -> None:
    save_s = max((held.save_s or 0.0 for held in leave), default=0.0)
    ready_at = state.now + int(save_s * US)
    names = tuple(state.index.nodes[allocation.node].id for allocation in allocations)
    victims = tuple(held.job for held in leave)
    reservation = Reservation(job.num, names, ready_at, ready_at + RESERVATION_TTL_S * US, victims)
    state.decisions.reservations.append(reservation)
    state.hold_back(reservation, job.shape.slots_per_node)
    state.ledger.used[job.project] = state.ledger.used.get(job.project, 0) + job.num_slots
    reason = Reason(ReasonCode.PREEMPTED, f"j-{job.num} goes first")
    for held in leave:
        state.decisions.leaving.add(held.job)
        state.ledger.used[held.project] = state.ledger.used.get(held.project, 0) - held.num_slots
        state.decisions.preemptions.append(Preemption(held.job, job.num, 0.0, reason))


def in_the_way(
    cluster: ClusterIndex, job: QueuedJob, taken: list[RunningJob], allocations: list[Allocation]
) -> list[RunningJob]:
    """Return the victims on the nodes that the gang gets."""
    nodes = {cluster.index.nodes[allocation.node].id for allocation in allocations}
    return [held for held in taken if any(s.node in nodes for s in held.placement.shares)]


def filled_back(
    cluster: ClusterIndex, job: QueuedJob, taken: list[RunningJob], allocations: list[Allocation]
) -> list[RunningJob]:
    """Put victims back in reverse as long as the gang still fits, as Kueue does."""
    index = cluster.index
    leave = list(taken)
    for held in reversed(taken):
        mark = index.mark()
        for allocation in index.allocations(held.placement, 0, 0):
            index.take(allocation)
        if best_fit(cluster, job) is None:
            index.rollback(mark)
        else:
            leave.remove(held)
    return leave


def placed_again(
    cluster: ClusterIndex, job: QueuedJob, taken: list[RunningJob], allocations: list[Allocation]
) -> list[RunningJob] | None:
    """Consolidation: the victims on its nodes, if each of them fits elsewhere at once."""
    index = cluster.index
    leave = in_the_way(cluster, job, taken, allocations)
    for held in taken:
        if held not in leave:
            for allocation in index.allocations(held.placement, 0, 0):
                index.take(allocation)
    for allocation in allocations:
        index.take(allocation)
    for held in leave:
        per_node = len(held.placement.shares[0].slots)
        again = QueuedJob(0, GangShape(len(held.placement.shares), per_node, per_node), 0, 0)
        request = request_of(again)
        found = place(index, request, cluster.groups_for(request), again.shape)
        if found is None:
            return None
        for allocation in found:
            index.take(allocation)
    return leave
