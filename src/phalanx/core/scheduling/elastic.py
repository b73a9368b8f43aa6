"""Elastic jobs: they give nodes back before anybody is evicted, and take what nobody wants.

A resize costs a restart, so a job grows only when it gains at least 15 %, when it has run for several
restarts, and not again within the cool-down.
"""

from __future__ import annotations

from phalanx.core.placement import Placement
from phalanx.core.reasons import Reason, ReasonCode
from phalanx.core.scheduling.draft import Draft
from phalanx.core.scheduling.outcome import Resize
from phalanx.core.scheduling.slots import Taking
from phalanx.core.scheduling.snapshot import US, Held, Hole, Waiting
from phalanx.core.scheduling.topology import place
from phalanx.core.scheduling.world import Line

_MIN_GAIN = 1.15


def shrink_for(draft: Draft, line: Line, num: int) -> bool:
    """Make room for a blocked job by shrinking elastic ones of at most its priority."""
    job = draft.world.waiting[num]
    givers = [
        held
        for held in _elastic(draft)
        if held.priority <= job.priority
        and held.min_nodes is not None
        and len(held.placement.shares) > held.min_nodes
    ]
    if not givers:
        return False
    given: dict[int, list[Taking]] = {}
    mark = draft.index.mark()
    takings = None
    for held in sorted(givers, key=lambda h: (h.priority, h.num_slots * h.restart_s, h.job)):
        for share in reversed(_spare(draft, held)):
            draft.index.give(share)
            given.setdefault(held.job, []).append(share)
            draft.steps += 1
            takings = place(draft.index, line.ask, line.groups, job.shape)
            if takings is not None:
                break
        if takings is not None:
            break
    draft.index.rollback(mark)
    if takings is None:
        return False
    used = {taking.node for taking in takings}
    given = {j: s for j, s in given.items() if any(share.node in used for share in s)}
    _commit(draft, job, takings, given)
    return True


def _spare(draft: Draft, held: Held) -> list[Taking]:
    least = held.min_nodes or len(held.placement.shares)
    index = draft.index
    return index.takings(
        Placement(held.placement.pool, held.placement.shares[least:]),
        held.cpus_per_node,
        held.memory_per_node_bytes,
    )


def _commit(
    draft: Draft, job: Waiting, takings: list[Taking], given: dict[int, list[Taking]]
) -> None:
    wait_s = 0.0
    for num, shares in given.items():
        held = draft.world.held[num]
        keep = len(held.placement.shares) - len(shares)
        smaller = Placement(held.placement.pool, held.placement.shares[:keep])
        text = f"gives {len(shares)} nodes to j-{job.num}"
        draft.resizes.append(Resize(num, smaller, Reason(ReasonCode.PREEMPTED, text)))
        draft.leaving.add(num)
        wait_s = max(wait_s, held.save_s or 0.0)
    names = tuple(draft.index.nodes[taking.node].id for taking in takings)
    ready_at = draft.now + int(wait_s * US)
    expires_at = ready_at + int(draft.terms.hole_ttl_s * US)
    hole = Hole(job.num, names, ready_at, expires_at, tuple(given))
    draft.holes.append(hole)
    draft.block(hole, job.shape.slots_per_node)


def _elastic(draft: Draft) -> list[Held]:
    world = draft.world
    return [world.held[n] for n in sorted(world.elastic) if _may_resize(draft, world.held[n])]


def _may_resize(draft: Draft, held: Held) -> bool:
    if held.started_at is None or held.stopping or held.job in draft.leaving:
        return False
    if held.max_nodes is None or held.min_nodes is None:
        return False
    since = held.started_at if held.resized_at is None else held.resized_at
    return (draft.now - since) / US >= draft.terms.resize_cooldown_s


def grow(draft: Draft) -> None:
    """Give free nodes to running elastic jobs, smallest first; nobody who waits could use them."""
    growers = [
        held
        for held in _elastic(draft)
        if held.max_nodes is not None and len(held.placement.shares) < held.max_nodes
    ]
    for held in sorted(growers, key=lambda h: (-h.priority, h.num_slots, h.job)):
        _grow(draft, held)


def _grow(draft: Draft, held: Held) -> None:
    shares = held.placement.shares
    if not shares or shares[0].node not in draft.index.num_of:
        return
    index, per_node = draft.index, len(shares[0].slots)
    group = index.group_of[index.num_of[shares[0].node]]
    taken = {index.num_of[share.node] for share in shares if share.node in index.num_of}
    home = index.leaf_of[index.num_of[shares[0].node]]
    room = [
        node
        for count in range(per_node, group.size + 1)
        for node in group.by_free[count]
        if node not in taken
        and index.leaf_of[node] == home
        and index.cpus[node] >= held.cpus_per_node
    ]
    extra = room[: (held.max_nodes or 0) - len(shares)]
    if (len(shares) + len(extra)) / len(shares) < _MIN_GAIN:
        return
    lowest = (1 << per_node) - 1
    takings = []
    for node in extra:
        free = index.free[node]
        mask = lowest if free & lowest == lowest else _lowest(free, per_node)
        taking = Taking(node, mask, held.cpus_per_node, held.memory_per_node_bytes)
        index.take(taking)
        takings.append(taking)
    larger = Placement(held.placement.pool, shares + index.placement(takings).shares)
    text = f"grows from {len(shares)} to {len(larger.shares)} nodes that nobody else can use"
    draft.resizes.append(Resize(held.job, larger, Reason(ReasonCode.PLACED, text)))
    draft.leaving.add(held.job)


def _lowest(free: int, wanted: int) -> int:
    mask = 0
    for _ in range(wanted):
        low = free & -free
        mask |= low
        free ^= low
    return mask
