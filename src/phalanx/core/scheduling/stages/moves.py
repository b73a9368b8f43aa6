"""Defragmentation that pays: small jobs move aside so that a gang finds its slots in one place.

Free slots that lie scattered serve nobody who waits for whole nodes. When a gang is blocked although
enough slots are free, running jobs of at most its priority, which save on request and fit elsewhere at
once, may be asked to move; nobody loses work. It happens only where the slots won, over `move_gain_s`,
outweigh the pause of everybody who moves. Where peers are never put aside, nobody is moved either.
"""

from __future__ import annotations

from math import isinf

from phalanx.core.scheduling.index.cluster_index import Line
from phalanx.core.scheduling.index.slots import Taking, pick
from phalanx.core.scheduling.model.eviction_cost import price
from phalanx.core.scheduling.model.snapshot import US, Held, Waiting
from phalanx.core.scheduling.stages.scheduling_pass import Draft

_SMALLER = 2
"""Who moves is at most the n-th part of who gains."""


def may_help(draft: Draft, line: Line, job: Waiting) -> bool:
    """Whether the gang is kept out by the scatter of free slots, not by their number."""
    if isinf(draft.terms.hysteresis) or job.num_slots < _SMALLER:
        return False
    return any(group.num_free >= job.num_slots for group in line.groups)


def candidates(draft: Draft, job: Waiting) -> dict[int, float]:
    """Running jobs that could move aside for this one, with the price of each."""
    found: dict[int, float] = {}
    for priority, ranked in sorted(draft.world.prey(draft.now).items()):
        if priority <= job.priority:
            for _, num in ranked:
                held = draft.world.held[num]
                draft.steps += 1
                if num not in draft.leaving and _may_move(draft, job, held):
                    found[num] = price(draft, held)
    return found


def _may_move(draft: Draft, job: Waiting, held: Held) -> bool:
    if held.started_at is None or held.save_s is None or held.protected_until > draft.now:
        return False
    if draft.standings and held.project != job.project:
        return False
    if (draft.now - held.started_at) / US < draft.terms.move_after_s:
        return False
    return held.num_slots * _SMALLER <= job.num_slots and len(held.placement.shares) == 1


def pays(draft: Draft, job: Waiting, cost: float, nodes: list[int], victims: list[int]) -> bool:
    """Whether all who leave find room elsewhere at once, and the gain is worth their pauses."""
    if cost > job.num_slots * draft.terms.move_gain_s:
        return False
    index, mark = draft.index, draft.index.mark()
    world = draft.world
    try:
        for node in dict.fromkeys(nodes):
            index.take(Taking(node, index.free[node], 0, 0))
        for victim in victims:
            held = world.held[victim]
            takings = _elsewhere(draft, held)
            if takings is None:
                return False
            for taking in takings:
                index.take(taking)
        return True
    finally:
        index.rollback(mark)


def _elsewhere(draft: Draft, held: Held) -> list[Taking] | None:
    """Room for it on the same kind of nodes, of which it holds one share."""
    index = draft.index
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
                return [Taking(node, pick(index.free[node], need))]
    return None
