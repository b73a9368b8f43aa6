"""How a peer makes room: take victims in its own order until the gang fits, spare who was not needed.

Whatever the policy, the gang gets the hole that its victims leave, which is generous to the peers: most
of the real ones let anybody start there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from phalanx.core.gang.placement import GangShape
from phalanx.core.reasons import Reason, ReasonCode
from phalanx.core.scheduling import Held, Hole, Preemption, Waiting, World
from phalanx.core.scheduling.index.slots import Taking
from phalanx.core.scheduling.index.topology import ask_of, place
from phalanx.core.scheduling.model.snapshot import US
from phalanx.core.scheduling.stages.scheduling_pass import Draft
from phalanx.sim.peers.queues import best_fit

HOLE_TTL_S = 900
Spare = Callable[[World, Waiting, list[Held], list[Taking]], list[Held] | None]
"""Who of the taken victims really has to leave; None: nobody, and the gang waits."""


def evict_for(draft: Draft, job: Waiting, victims: Sequence[Held], spare: Spare) -> list[Held]:
    """Take victims in order until the gang fits, and cut its hole; gives those who leave."""
    world, index = draft.world, draft.index
    free = sum(group.num_free for group in index.groups)
    if free + sum(held.num_slots for held in victims) < job.num_slots:
        return []
    mark = index.mark()
    taken: list[Held] = []
    takings: list[Taking] | None = None
    leave: list[Held] | None = None
    for held in victims:
        for taking in index.takings(held.placement, 0, 0):
            index.give(taking)
        taken.append(held)
        free += held.num_slots
        takings = best_fit(world, job) if free >= job.num_slots else None
        if takings is not None:
            leave = spare(world, job, taken, takings)
            break
    index.rollback(mark)
    if not leave:
        return []
    # Where it fits once exactly those have left.
    for held in leave:
        for taking in index.takings(held.placement, 0, 0):
            index.give(taking)
    takings = best_fit(world, job)
    index.rollback(mark)
    if takings is None:
        return []
    _cut(draft, job, takings, leave)
    return leave


def _cut(draft: Draft, job: Waiting, takings: list[Taking], leave: list[Held]) -> None:
    save_s = max((held.save_s or 0.0 for held in leave), default=0.0)
    ready_at = draft.now + int(save_s * US)
    names = tuple(draft.index.nodes[taking.node].id for taking in takings)
    victims = tuple(held.job for held in leave)
    hole = Hole(job.num, names, ready_at, ready_at + HOLE_TTL_S * US, victims)
    draft.holes.append(hole)
    draft.block(hole, job.shape.slots_per_node)
    draft.used[job.project] = draft.used.get(job.project, 0) + job.num_slots
    reason = Reason(ReasonCode.PREEMPTED, f"j-{job.num} goes first")
    for held in leave:
        draft.leaving.add(held.job)
        draft.used[held.project] = draft.used.get(held.project, 0) - held.num_slots
        draft.preemptions.append(Preemption(held.job, job.num, 0.0, reason))


def who_is_in_the_way(
    world: World, job: Waiting, taken: list[Held], takings: list[Taking]
) -> list[Held]:
    """Those on the nodes that the gang gets."""
    nodes = {world.index.nodes[taking.node].id for taking in takings}
    return [held for held in taken if any(s.node in nodes for s in held.placement.shares)]


def filled_back(world: World, job: Waiting, taken: list[Held], takings: list[Taking]) -> list[Held]:
    """Put victims back in reverse as long as the gang still fits, as Kueue does."""
    index = world.index
    leave = list(taken)
    for held in reversed(taken):
        mark = index.mark()
        for taking in index.takings(held.placement, 0, 0):
            index.take(taking)
        if best_fit(world, job) is None:
            index.rollback(mark)
        else:
            leave.remove(held)
    return leave


def placed_again(
    world: World, job: Waiting, taken: list[Held], takings: list[Taking]
) -> list[Held] | None:
    """Consolidation: those in the way, if every one of them fits elsewhere at once."""
    index = world.index
    leave = who_is_in_the_way(world, job, taken, takings)
    for held in taken:
        if held not in leave:
            for taking in index.takings(held.placement, 0, 0):
                index.take(taking)
    for taking in takings:
        index.take(taking)
    for held in leave:
        per_node = len(held.placement.shares[0].slots)
        again = Waiting(0, GangShape(len(held.placement.shares), per_node, per_node), 0, 0)
        ask = ask_of(again)
        found = place(index, ask, world.groups_for(ask), again.shape)
        if found is None:
            return None
        for taking in found:
            index.take(taking)
    return leave
