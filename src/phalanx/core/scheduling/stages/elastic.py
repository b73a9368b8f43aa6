"""Elastic jobs: they give nodes back before anybody is evicted, and take what nobody wants.

How wide each should be is decided for all of them together: slot by slot to whoever gains most from it,
by the measured speeds of the job where there are any. (Weighing that by how soon a job is likely to end
was tried, and made mean completion times worse.) A resize costs a restart, so a job grows only when it
gains at least 15 %, and not again within the cool-down.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from phalanx.core.gang.placement import GangShape, Placement
from phalanx.core.reasons import Reason, ReasonCode
from phalanx.core.scheduling.index.cluster_index import Line
from phalanx.core.scheduling.index.slots import Taking, pick
from phalanx.core.scheduling.index.topology import place
from phalanx.core.scheduling.model.outcome import Resize
from phalanx.core.scheduling.model.reservation import Hole
from phalanx.core.scheduling.model.snapshot import US, Held, Waiting
from phalanx.core.scheduling.stages.scheduling_pass import Draft

_MIN_GAIN = 1.15
# What is supposed of a job that says nothing of its speeds: n nodes are n to this power times as fast.
_SCALING = 0.8


@dataclass(frozen=True, slots=True)
class _Claim:
    """One elastic job, running or waiting."""

    num: int
    least: int
    most: int
    per_node: int
    speeds: tuple[float, ...]

    def gain(self, nodes: int) -> float:
        """What one more node is worth to it, per slot."""
        more = speed(self.speeds, nodes + 1) - speed(self.speeds, nodes)
        return more / speed(self.speeds, 1) / max(self.per_node, 1)


def speed(speeds: tuple[float, ...], nodes: int) -> float:
    """How fast a job goes on so many nodes, by its own curve or by the usual one."""
    if speeds:
        return speeds[min(nodes, len(speeds)) - 1]
    return float(nodes**_SCALING)


def sizes(draft: Draft) -> dict[int, int]:
    """How many nodes each elastic job should have, of what is free and what they hold together."""
    world = draft.world
    lines = [line for line in world.lines.values() if line.sample.min_nodes is not None]
    running = [world.held[num] for num in sorted(world.elastic) if not world.held[num].stopping]
    claims = [_claim_of_held(held) for held in running]
    waiting = [entry for line in lines for entry in line.jobs]
    claims += [_claim_of(world.waiting[num]) for _, num in sorted(waiting)]
    left = sum(group.num_free for group in draft.index.groups)
    left += sum(held.num_slots for held in running)
    found: dict[int, int] = {}
    heap: list[tuple[float, int, _Claim]] = []
    for claim in claims:
        need = claim.least * claim.per_node
        if need <= left:
            left -= need
            found[claim.num] = claim.least
            heapq.heappush(heap, (-claim.gain(claim.least), claim.num, claim))
    while heap:
        gain, num, claim = heapq.heappop(heap)
        if gain >= 0 or found[num] >= claim.most or claim.per_node > left:
            continue
        left -= claim.per_node
        found[num] += 1
        heapq.heappush(heap, (-claim.gain(found[num]), num, claim))
    return found


def _claim_of_held(held: Held) -> _Claim:
    per_node = len(held.placement.shares[0].slots) if held.placement.shares else 1
    most = held.max_nodes or len(held.placement.shares)
    return _Claim(held.job, held.min_nodes or most, most, per_node, held.speeds)


def _claim_of(job: Waiting) -> _Claim:
    shape = job.shape
    least = job.min_nodes or shape.nodes
    return _Claim(job.num, least, shape.nodes, shape.slots_per_node, job.speeds)


# -- giving --------------------------------------------------------------------------------------


def shrink_for(draft: Draft, line: Line, num: int) -> bool:
    """Make room for a blocked job by shrinking elastic ones of at most its priority.

    A rigid claim may take them down to their least size, an elastic one to what they should have.
    """
    job = draft.world.waiting[num]
    givers = [
        (held, spare)
        for held in _elastic(draft)
        if held.priority <= job.priority and (spare := _spare(draft, held, job))
    ]
    if not givers:
        return False
    wanted = job.shape
    if job.min_nodes is not None:
        nodes = max(job.min_nodes, draft.sizes.get(num, job.min_nodes))
        wanted = GangShape(nodes, wanted.slots_per_node, wanted.ranks_per_node)
    given: dict[int, list[Taking]] = {}
    mark = draft.index.mark()
    takings = None
    for held, spare in sorted(givers, key=lambda g: (g[0].priority, _cost(g[0]), g[0].job)):
        for share in reversed(spare):
            draft.index.give(share)
            given.setdefault(held.job, []).append(share)
            draft.steps += 1
            takings = place(draft.index, line.ask, line.groups, wanted)
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


def _cost(held: Held) -> float:
    """Who has most to spare gives first; a restart costs the wider job more."""
    return held.restart_s / max(held.num_slots, 1)


def _spare(draft: Draft, held: Held, job: Waiting) -> list[Taking]:
    least = held.min_nodes or len(held.placement.shares)
    if job.min_nodes is not None:
        least = max(least, draft.sizes.get(held.job, least))
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
    # What the smaller ones give counts for their projects until they have given it.
    draft.use(job.project, job.num_slots)
    draft.block(hole, *job.widths(len(hole.nodes)))


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


# -- taking --------------------------------------------------------------------------------------


def grow(draft: Draft) -> None:
    """Give free nodes to running elastic jobs, up to what each should have; nobody else wants them."""
    growers = []
    for held in _elastic(draft):
        now, most = len(held.placement.shares), held.max_nodes or 0
        wanted = min(most, max(draft.sizes.get(held.job, most), now))
        if wanted > now > 0:
            gain = speed(held.speeds, wanted) / speed(held.speeds, now)
            growers.append((-held.priority, -gain, held.job, held, wanted))
    for _, _, _, held, wanted in sorted(growers, key=lambda one: one[:3]):
        _grow(draft, held, wanted)


def _grow(draft: Draft, held: Held, wanted: int) -> None:
    shares = held.placement.shares
    if shares[0].node not in draft.index.num_of:
        return
    index, per_node = draft.index, len(shares[0].slots)
    room = _room_near(draft, held, per_node)
    extra = room[: min(wanted - len(shares), _allowed(draft, held) // max(per_node, 1))]
    faster = speed(held.speeds, len(shares) + len(extra)) / speed(held.speeds, len(shares))
    if not extra or faster < _MIN_GAIN:
        return
    takings = []
    for node in extra:
        mask = pick(index.free[node], per_node)
        taking = Taking(node, mask, held.cpus_per_node, held.memory_per_node_bytes)
        index.take(taking)
        takings.append(taking)
    larger = Placement(held.placement.pool, shares + index.placement(takings).shares)
    more = sum(taking.mask.bit_count() for taking in takings)
    draft.use(held.project, more)
    text = f"grows from {len(shares)} to {len(larger.shares)} nodes that nobody else can use"
    draft.resizes.append(Resize(held.job, larger, Reason(ReasonCode.PLACED, text)))
    draft.leaving.add(held.job)


def _room_near(draft: Draft, held: Held, per_node: int) -> list[int]:
    """Nodes of its own leaf domain with room for a share; a splittable one as often as it has room."""
    index = draft.index
    first = index.num_of[held.placement.shares[0].node]
    group, home = index.group_of[first], index.leaf_of[first]
    taken = {index.num_of.get(share.node, -1) for share in held.placement.shares}
    room: list[int] = []
    for count in range(max(per_node, 1), group.size + 1):
        for node in group.by_free[count]:
            here = index.nodes[node]
            enough = index.cpus[node] >= held.cpus_per_node
            if index.leaf_of[node] != home or not enough:
                continue
            if here.splittable:
                room += [node] * (count // max(per_node, 1))
            elif node not in taken:
                room.append(node)
    # Its own nodes first: fewer links to cross.
    return sorted(room, key=lambda node: node not in taken)


def _allowed(draft: Draft, held: Held) -> int:
    """Slots that its project may still take."""
    standing = draft.standings.get(held.project)
    left = None if standing is None else standing.left(draft.used)
    return 1 << 30 if left is None else left
