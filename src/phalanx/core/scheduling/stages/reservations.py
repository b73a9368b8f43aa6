"""Reservations and backfill: a blocked gang keeps the domain that will be free first.

Others may start there only if they are expected to be gone by then. Nobody's end is invented: where
neither a limit, nor progress, nor a history says when slots come free, the time is unknown and nothing
is backfilled into the hole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from phalanx.core.scheduling.index.cluster_index import EquivalenceClass
from phalanx.core.scheduling.index.running import NEVER
from phalanx.core.scheduling.index.slots import Allocation, NodeGroup, SlotIndex
from phalanx.core.scheduling.index.topology import num_leaves, place
from phalanx.core.scheduling.model.planning_input import US, QueuedJob
from phalanx.core.scheduling.model.reservation import Reservation
from phalanx.core.scheduling.stages.order import expected_s
from phalanx.core.scheduling.stages.scheduling_pass import KeptSlots, Pass


def reserve(state: Pass, eq_class: EquivalenceClass, num: int) -> bool:
    """Keep the nodes that can hold this gang soonest. False if no nodes ever could."""
    job = state.cluster.waiting[num]
    best: tuple[int, list[int]] | None = None
    if job.roles:
        best = _soonest_for_roles(state, eq_class, job)
    else:
        for group in eq_class.groups:
            found = _soonest(state, group, job)
            if found is not None and (best is None or found[0] < best[0]):
                best = found
    if best is None or (_is_wide(state, best[1]) and state.wide_kept):
        return False
    state.wide_kept = state.wide_kept or _is_wide(state, best[1])
    ready_at = None if best[0] >= NEVER else best[0]
    reservation = Reservation(
        num, tuple(state.index.nodes[n].id for n in best[1]), ready_at, state.now
    )
    state.reservations.append(reservation)
    state.hold_back(reservation, *job.widths(len(reservation.nodes)))
    return True


def _is_wide(state: Pass, nodes: list[int]) -> bool:
    """Whether these nodes lie in more than one of the narrowest domains.

    One gang as wide as that may keep nodes at a time: several would empty the cluster side by side.
    """
    return num_leaves(state.index, nodes) > 1


def _soonest(state: Pass, group: NodeGroup, job: QueuedJob) -> tuple[int, list[int]] | None:
    """The earliest moment at which a domain has room for the gang, and the nodes; None if none can.

    The narrowest domains that are large enough count first, wider ones where nobody knows when those
    will have room.
    """
    need = job.shape.slots_per_node
    openings = state.openings.get((id(group), need))
    if openings is None:
        openings = state.openings[id(group), need] = OpeningSearch(state, group, need)
    unknown: tuple[int, list[int]] | None = None
    for domains in _levels(state, group, job):
        found = _first_full(openings, domains, job.shape.nodes)
        if found is not None and found[0] < NEVER:
            return found
        unknown = unknown or found
    return unknown


def _levels(state: Pass, group: NodeGroup, job: QueuedJob) -> Iterator[Callable[[int], object]]:
    """What domain a node is in, level by level, the narrowest that can hold the gang first."""
    index = state.index
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
    openings: OpeningSearch, domain_of: Callable[[int], object], num: int
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


def _soonest_for_roles(
    state: Pass, eq_class: EquivalenceClass, job: QueuedJob
) -> tuple[int, list[int]] | None:
    """The first of the expected ends after which all parts of the gang find room, found by halving."""
    index, cluster, ends = state.index, state.cluster, state.ends()

    def room(num_gone: int) -> list[Allocation] | None:
        mark = index.mark()
        try:
            for _, num in ends[:num_gone]:
                held = cluster.held[num]
                for allocation in index.allocations(
                    held.placement, held.cpus_per_node, held.memory_per_node_bytes, held.roles
                ):
                    index.give(allocation)
            state.steps += num_gone
            return place(index, eq_class.request, eq_class.groups, job.shape)
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
    return state.now if high == 0 else ends[high - 1][0], [allocation.node for allocation in best]


class OpeningSearch:
    """(when, node, shares) in order of time: room now, as running jobs end, and nobody knows when.

    Worked out once in a pass, as far as somebody asks. Nodes that the pass has disposed of since are
    left out: what is kept for one gang is not promised to another.
    """

    def __init__(self, state: Pass, group: NodeGroup, need: int) -> None:
        self.state = state
        self.group = group
        self.need = max(need, 1)
        self.began = len(state.index.journal)
        self.found: list[tuple[int, int, int]] = []
        self.more = self._search()

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        journal = self.state.index.journal
        gone = {allocation.node for _, allocation in journal[self.began :]}
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
        state, index, need = self.state, self.state.index, self.need
        on_node, nodes_of, nodes = state.cluster.on_node, state.cluster.nodes_of, index.nodes
        split = self.group.splittable
        free = {n: index.num_free[n] for bucket in self.group.by_free for n in bucket}
        for bucket in self.group.by_free[need:]:
            for node in bucket:
                yield state.now, node, free[node] // need if nodes[node].splittable else 1
        for at, num in state.ends():
            state.steps += 1
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


def backfill(state: Pass, classes: list[tuple[EquivalenceClass, int]]) -> None:
    """Let short jobs of blocked lines use kept slots until their owner can.

    What victims have made room for is open within a save: an estimate as short as that is worth nothing.
    """
    for hold_back in [
        b for b in state.blocks if b.allocations and b.reservation.ready_at is not None
    ]:
        if hold_back.reservation.victims:
            continue
        window_s = ((hold_back.reservation.ready_at or 0) - state.now) / US
        if window_s > 0:
            _fill(state, hold_back, classes, window_s)


def _fill(
    state: Pass, hold_back: KeptSlots, classes: list[tuple[EquivalenceClass, int]], window_s: float
) -> None:
    state.release(hold_back)
    history = state.cluster.history
    for eq_class, position in classes:
        for _, num in eq_class.jobs[position:]:
            job = state.cluster.waiting[num]
            if num in state.started or num == hold_back.reservation.job:
                continue
            lasts_s = expected_s(job, eq_class.kind, history)
            if lasts_s is None or lasts_s > window_s or _over_limit(state, job):
                break
            if not state.try_start(eq_class, num):
                break
    state.blocks.remove(hold_back)
    state.no_room.clear()
    job = state.cluster.waiting[hold_back.reservation.job]
    state.hold_back(hold_back.reservation, *job.widths(len(hold_back.reservation.nodes)))


def _over_limit(state: Pass, job: QueuedJob) -> bool:
    share_of = state.project_shares.get(job.project)
    return share_of is not None and share_of.over_limit(state.used, job.num_slots) is not None
