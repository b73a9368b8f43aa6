"""Reservations and backfill: a blocked gang keeps the domain that will be free first.

Others may start there only if they are expected to be gone by then. Nobody's end is invented: where
neither a limit, nor progress, nor a history says when slots come free, the time is unknown and nothing
is backfilled into the hole.
"""

from __future__ import annotations

from phalanx.core.scheduling.draft import Block, Draft
from phalanx.core.scheduling.order import expected_s
from phalanx.core.scheduling.slots import NodeGroup
from phalanx.core.scheduling.snapshot import US, Hole, Waiting
from phalanx.core.scheduling.topology import spread
from phalanx.core.scheduling.world import Line

_UNKNOWN = 1 << 62


def reserve(draft: Draft, line: Line, num: int) -> bool:
    """Keep the nodes that can hold this gang soonest. False if no nodes ever could."""
    job = draft.world.waiting[num]
    if job.roles:
        return False
    best: tuple[int, list[int]] | None = None
    draft.world.prey(draft.now)  # brings the expected ends up to date
    for group in line.groups:
        found = _soonest(draft, group, job)
        if found is not None and (best is None or found[0] < best[0]):
            best = found
    if best is None:
        return False
    ready_at = None if best[0] >= _UNKNOWN else best[0]
    hole = Hole(num, tuple(draft.index.nodes[n].id for n in best[1]), ready_at, draft.now)
    draft.holes.append(hole)
    draft.block(hole, job.shape.slots_per_node)
    return True


def _soonest(draft: Draft, group: NodeGroup, job: Waiting) -> tuple[int, list[int]] | None:
    need, num = job.shape.slots_per_node, job.shape.nodes
    ready: dict[int, int] = {}
    for bucket in group.by_free:
        for node in bucket:
            at = _ready_at(draft, node, need)
            if at is not None:
                ready[node] = at
    draft.steps += len(ready)
    rooms: dict[int, list[int]] = {}
    for node in sorted(ready, key=lambda n: (ready[n], n)):
        shares = group.size // max(need, 1) if draft.index.nodes[node].splittable else 1
        rooms.setdefault(draft.index.leaf_of[node], []).extend([node] * shares)
    leaves = [(ready[nodes[num - 1]], leaf) for leaf, nodes in rooms.items() if len(nodes) >= num]
    if leaves:
        at, leaf = min(leaves)
        return at, rooms[leaf][:num]
    nodes = spread(group, rooms, num, job.required)
    if nodes is None:
        return None
    return max(ready[node] for node in nodes), nodes


def _ready_at(draft: Draft, node: int, need: int) -> int | None:
    """When this node will have room for a share; a time beyond all times if nobody knows."""
    index = draft.index
    if index.nodes[node].num_slots < need:
        return None
    free = index.free[node].bit_count()
    if free >= need:
        return draft.now
    key = (node, need, free)
    known = draft.ready.get(key)
    if known is None:
        known = draft.ready[key] = _comes_free(draft, node, need, free)
    return known


def _comes_free(draft: Draft, node: int, need: int, free: int) -> int:
    ends = []
    world = draft.world
    for job, mask in world.on_node[node].items():
        end = world.end_of(job, draft.now)
        ends.append((_UNKNOWN if end is None else end, mask.bit_count()))
    for end, slots in sorted(ends):
        free += slots
        if free >= need:
            return end
    # The rest is kept for somebody else or was started in this very pass.
    return _UNKNOWN


def backfill(draft: Draft, lines: list[tuple[Line, int]]) -> None:
    """Let short jobs of blocked lines use kept slots until their owner can."""
    for block in [b for b in draft.blocks if b.takings and b.hole.ready_at is not None]:
        window_s = ((block.hole.ready_at or 0) - draft.now) / US
        if window_s > 0:
            _fill(draft, block, lines, window_s)


def _fill(draft: Draft, block: Block, lines: list[tuple[Line, int]], window_s: float) -> None:
    draft.lift(block)
    history = draft.world.history
    for line, position in lines:
        for _, num in line.jobs[position:]:
            job = draft.world.waiting[num]
            if num in draft.started or num == block.hole.job:
                continue
            lasts_s = expected_s(job, line.kind, history)
            if lasts_s is None or lasts_s > window_s or _over_limit(draft, job):
                break
            if not draft.try_start(line, num):
                break
    draft.blocks.remove(block)
    draft.no_room.clear()
    job = draft.world.waiting[block.hole.job]
    draft.block(block.hole, job.shape.slots_per_node)


def _over_limit(draft: Draft, job: Waiting) -> bool:
    standing = draft.standings.get(job.project)
    used = draft.used.get(job.project, 0)
    return standing is not None and standing.over_limit(used, job.num_slots)
