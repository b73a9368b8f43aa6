"""Defragmentation: migrations of small jobs that give a blocked gang its slots in one domain.

Scattered free slots are useless to a gang that needs whole nodes. When a gang is blocked although
enough slots are free, running jobs of at most its priority, which save on request and fit elsewhere
at once, may be migrated without loss of work. The slots gained over `move_gain_s` must outweigh the
pauses of all migrated jobs. Where peers are never preempted, they are not migrated either.
"""

from __future__ import annotations

from math import isinf

from phalanx.core.scheduling.index.cluster_index import EquivalenceClass
from phalanx.core.scheduling.index.slots import Allocation, pick
from phalanx.core.scheduling.model.planning_input import US, QueuedJob, RunningJob
from phalanx.core.scheduling.search.victim_search import VictimSearch

_SMALLER = 2
"""A migrated job has at most the n-th part of the gang's slots."""


def may_help(search: VictimSearch, eq_class: EquivalenceClass, job: QueuedJob) -> bool:
    """Return whether the gang is blocked by fragmentation, not by the number of free slots."""
    if isinf(search.config.hysteresis) or job.num_slots < _SMALLER:
        return False
    return any(group.num_free >= job.num_slots for group in eq_class.groups)


def candidates(search: VictimSearch, job: QueuedJob) -> dict[int, float]:
    """Return the running jobs that could migrate for this one, with the price of each."""
    found: dict[int, float] = {}
    most, leaving = job.num_slots // _SMALLER, search.decisions.leaving
    for held in _movable(search, job.priority):
        search.decisions.num_steps += 1
        if held.num_slots > most or held.job in leaving:
            continue
        if not search.shares or held.project == job.project:
            found[held.job] = search.price(held)
    return found


def _movable(search: VictimSearch, priority: int) -> list[RunningJob]:
    """Return the jobs of at most a priority that may migrate at all; computed once in a pass."""
    known = search.movable.get(priority)
    if known is None:
        held_by = search.cluster.held
        known = search.movable[priority] = [
            held_by[num]
            for other, ranked in sorted(search.cluster.preemptible(search.now).items())
            if other <= priority
            for _, num in ranked
            if _may_move(search, held_by[num])
        ]
    return known


def _may_move(search: VictimSearch, held: RunningJob) -> bool:
    if held.started_at is None or held.save_s is None or held.protected_until > search.now:
        return False
    if (search.now - held.started_at) / US < search.config.move_after_s:
        return False
    # One that is smaller than it has to be moves only to grow.
    return len(held.placement.shares) == 1 and (held.min_nodes or 1) == 1


def pays(
    search: VictimSearch, job: QueuedJob, cost: float, nodes: list[int], victims: list[int]
) -> bool:
    """Return whether all migrated jobs fit elsewhere at once and the gain exceeds the cost."""
    if cost > job.num_slots * search.config.move_gain_s:
        return False
    index, mark = search.index, search.index.mark()
    cluster = search.cluster
    try:
        for node in dict.fromkeys(nodes):
            index.take(Allocation(node, index.free[node], 0, 0))
        for victim in victims:
            held = cluster.held[victim]
            allocations = _elsewhere(search, held)
            if allocations is None:
                return False
            for allocation in allocations:
                index.take(allocation)
        return True
    finally:
        index.rollback(mark)


def _elsewhere(search: VictimSearch, held: RunningJob) -> list[Allocation] | None:
    """Return allocations for a one-share job on other nodes of the same kind, or None."""
    index = search.index
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
