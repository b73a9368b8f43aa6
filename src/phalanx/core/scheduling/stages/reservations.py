"""Reservations and backfill: a blocked gang keeps the domain that will be free first.

Others may start there only if they are expected to be gone by then. Nobody's end is invented: where
neither a limit, nor progress, nor a history says when slots come free, the time is unknown and nothing
is backfilled into the hole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from phalanx.core.scheduling.index.cluster_index import Line
from phalanx.core.scheduling.index.running import NEVER
from phalanx.core.scheduling.index.slots import NodeGroup, SlotIndex, Taking
from phalanx.core.scheduling.index.topology import num_leaves, place
from phalanx.core.scheduling.model.reservation import Hole
from phalanx.core.scheduling.model.snapshot import US, Waiting
from phalanx.core.scheduling.stages.order import expected_s
from phalanx.core.scheduling.stages.scheduling_pass import Block, Draft


def reserve(draft: Draft, line: Line, num: int) -> bool:
    """Keep the nodes that can hold this gang soonest. False if no nodes ever could."""
    job = draft.world.waiting[num]
    best: tuple[int, list[int]] | None = None
    if job.roles:
        best = _soonest_for_roles(draft, line, job)
    else:
        for group in line.groups:
            found = _soonest(draft, group, job)
            if found is not None and (best is None or found[0] < best[0]):
                best = found
    if best is None or (_is_wide(draft, best[1]) and draft.wide_kept):
        return False
    draft.wide_kept = draft.wide_kept or _is_wide(draft, best[1])
    ready_at = None if best[0] >= NEVER else best[0]
    hole = Hole(num, tuple(draft.index.nodes[n].id for n in best[1]), ready_at, draft.now)
    draft.holes.append(hole)
    draft.block(hole, *job.widths(len(hole.nodes)))
    return True


def _is_wide(draft: Draft, nodes: list[int]) -> bool:
    """Whether these nodes lie in more than one of the narrowest domains.

    One gang as wide as that may keep nodes at a time: several would empty the cluster side by side.
    """
    return num_leaves(draft.index, nodes) > 1


def _soonest(draft: Draft, group: NodeGroup, job: Waiting) -> tuple[int, list[int]] | None:
    """The earliest moment at which a domain has room for the gang, and the nodes; None if none can.

    The narrowest domains that are large enough count first, wider ones where nobody knows when those
    will have room.
    """
    need = job.shape.slots_per_node
    openings = draft.openings.get((id(group), need))
    if openings is None:
        openings = draft.openings[id(group), need] = Openings(draft, group, need)
    unknown: tuple[int, list[int]] | None = None
    for domains in _levels(draft, group, job):
        found = _first_full(openings, domains, job.shape.nodes)
        if found is not None and found[0] < NEVER:
            return found
        unknown = unknown or found
    return unknown


def _levels(draft: Draft, group: NodeGroup, job: Waiting) -> Iterator[Callable[[int], object]]:
    """What domain a node is in, level by level, the narrowest that can hold the gang first."""
    index = draft.index
    if job.required == "node":
        yield lambda node: node
        return
    split = group.size // max(job.shape.slots_per_node, 1) if group.splittable else 1
    narrowest = len(group.levels) - 1
    widest = -1 if job.required is None else group.levels.index(job.required)
    for depth in range(narrowest, widest - 1, -1):
        if depth >= 0 and group.largest[depth] * split < job.shape.nodes:
            continue
        if depth < 0:
            yield lambda node: ""
        elif depth == narrowest:
            yield index.leaf_of.__getitem__
        else:
            yield partial(_ancestor, index, group, depth)


def _ancestor(index: SlotIndex, group: NodeGroup, depth: int, node: int) -> str:
    return group.leaves[index.leaf_of[node]][depth]


def _first_full(
    openings: Openings, domain_of: Callable[[int], object], num: int
) -> tuple[int, list[int]] | None:
    """Let one running job after another end until a domain has room for `num` shares."""
    rooms: dict[object, list[int]] = {}
    full_at = NEVER
    full: list[object] = []
    for at, node, shares in openings:
        if full and at > full_at:
            break
        domain = domain_of(node)
        here = rooms.get(domain)
        if here is None:
            here = rooms[domain] = []
        before = len(here)
        here += [node] * shares
        if before < num <= len(here):
            full_at = at
            full.append(domain)
    return (full_at, rooms[min(full)][:num]) if full else None  # type: ignore[type-var]


def _soonest_for_roles(draft: Draft, line: Line, job: Waiting) -> tuple[int, list[int]] | None:
    """The first of the expected ends after which all parts of the gang find room, found by halving."""
    index, world, ends = draft.index, draft.world, draft.ends()

    def room(num_gone: int) -> list[Taking] | None:
        mark = index.mark()
        try:
            for _, num in ends[:num_gone]:
                held = world.held[num]
                for taking in index.takings(
                    held.placement, held.cpus_per_node, held.memory_per_node_bytes, held.roles
                ):
                    index.give(taking)
            draft.steps += num_gone
            return place(index, line.ask, line.groups, job.shape)
        finally:
            index.rollback(mark)

    low, high, best = 0, len(ends), room(len(ends))
    if best is None:
        return None
    while low < high:
        middle = (low + high) // 2
        found = room(middle)
        if found is None:
            low = middle + 1
        else:
            high, best = middle, found
    return draft.now if high == 0 else ends[high - 1][0], [taking.node for taking in best]


class Openings:
    """(when, node, shares) in order of time: room now, as running jobs end, and nobody knows when.

    Worked out once in a pass, as far as somebody asks. Nodes that the pass has disposed of since are
    left out: what is kept for one gang is not promised to another.
    """

    def __init__(self, draft: Draft, group: NodeGroup, need: int) -> None:
        self.draft = draft
        self.group = group
        self.need = max(need, 1)
        self.began = len(draft.index.journal)
        self.found: list[tuple[int, int, int]] = []
        self.more = self._search()

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        journal = self.draft.index.journal
        gone = {taking.node for _, taking in journal[self.began :]}
        at = 0
        while True:
            if at == len(self.found):
                one = next(self.more, None)
                if one is None:
                    break
                self.found.append(one)
            one = self.found[at]
            at += 1
            if one[1] not in gone:
                yield one

    def _search(self) -> Iterator[tuple[int, int, int]]:
        draft, index, need = self.draft, self.draft.index, self.need
        on_node, nodes_of, nodes = draft.world.on_node, draft.world.nodes_of, index.nodes
        split = self.group.splittable
        free = {n: index.num_free[n] for bucket in self.group.by_free for n in bucket}
        for bucket in self.group.by_free[need:]:
            for node in bucket:
                yield draft.now, node, free[node] // need if nodes[node].splittable else 1
        for at, num in draft.ends():
            draft.steps += 1
            for node in nodes_of[num]:
                before = free.get(node)
                if before is None:
                    continue
                free[node] = after = before + on_node[node][num].bit_count()
                if split and nodes[node].splittable:
                    if after // need > before // need:
                        yield at, node, after // need - before // need
                elif before < need <= after:
                    yield at, node, 1


def backfill(draft: Draft, lines: list[tuple[Line, int]]) -> None:
    """Let short jobs of blocked lines use kept slots until their owner can.

    What victims have made room for is open within a save: an estimate as short as that is worth nothing.
    """
    for block in [b for b in draft.blocks if b.takings and b.hole.ready_at is not None]:
        if block.hole.victims:
            continue
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
    draft.block(block.hole, *job.widths(len(block.hole.nodes)))


def _over_limit(draft: Draft, job: Waiting) -> bool:
    standing = draft.standings.get(job.project)
    return standing is not None and standing.over_limit(draft.used, job.num_slots) is not None
