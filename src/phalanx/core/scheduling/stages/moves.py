"""Defragmentation that pays: small jobs move aside so that a gang finds its slots in one place.

Free slots that lie scattered serve nobody who waits for whole nodes. When a gang is blocked although
enough slots are free, running jobs of at most its priority, which save on request and fit elsewhere at
once, may be asked to move; nobody loses work. It happens only where the slots won, over `move_gain_s`,
outweigh the pause of everybody who moves. Where peers are never put aside, nobody is moved either.
"""

from __future__ import annotations

from math import isinf

from phalanx.core.scheduling.index.cluster_index import EquivalenceClass
from phalanx.core.scheduling.index.slots import Allocation, pick
from phalanx.core.scheduling.model.eviction_cost import price
from phalanx.core.scheduling.model.planning_input import US, QueuedJob, RunningJob
from phalanx.core.scheduling.stages.scheduling_pass import Pass

_SMALLER = 2
"""Who moves is at most the n-th part of who gains."""


def may_help(state: Pass, eq_class: EquivalenceClass, job: QueuedJob) -> bool:
    """Whether the gang is kept out by the scatter of free slots, not by their number."""
    if isinf(state.config.hysteresis) or job.num_slots < _SMALLER:
        return False
    return any(group.num_free >= job.num_slots for group in eq_class.groups)


def candidates(state: Pass, job: QueuedJob) -> dict[int, float]:
    """Running jobs that could move aside for this one, with the price of each."""
    found: dict[int, float] = {}
    for priority, ranked in sorted(state.cluster.preemptible(state.now).items()):
        if priority <= job.priority:
            for _, num in ranked:
                held = state.cluster.held[num]
                state.steps += 1
                if num not in state.leaving and _may_move(state, job, held):
                    found[num] = price(state, held)
    return found


def _may_move(state: Pass, job: QueuedJob, held: RunningJob) -> bool:
    if held.started_at is None or held.save_s is None or held.protected_until > state.now:
        return False
    if state.project_shares and held.project != job.project:
        return False
    if (state.now - held.started_at) / US < state.config.move_after_s:
        return False
    return held.num_slots * _SMALLER <= job.num_slots and len(held.placement.shares) == 1


def pays(state: Pass, job: QueuedJob, cost: float, nodes: list[int], victims: list[int]) -> bool:
    """Whether all who leave find room elsewhere at once, and the gain is worth their pauses."""
    if cost > job.num_slots * state.config.move_gain_s:
        return False
    index, mark = state.index, state.index.mark()
    cluster = state.cluster
    try:
        for node in dict.fromkeys(nodes):
            index.take(Allocation(node, index.free[node], 0, 0))
        for victim in victims:
            held = cluster.held[victim]
            allocations = _elsewhere(state, held)
            if allocations is None:
                return False
            for allocation in allocations:
                index.take(allocation)
        return True
    finally:
        index.rollback(mark)


def _elsewhere(state: Pass, held: RunningJob) -> list[Allocation] | None:
    """Room for it on the same kind of nodes, of which it holds one share."""
    index = state.index
    home = index.num_of.get(held.placement.shares[0].node)
    if home is None:
        return None
    need = held.num_slots
    group = index.group_of[home]
    for count in range(need, group.size + 1):
        for node in group.by_free[count]:
            if (
                index.cpus[node] >= held.cpus_per_node
                and index.memory[node] >= held.memory_per_node_bytes
            ):
                return [Allocation(node, pick(index.free[node], need))]
    return None
