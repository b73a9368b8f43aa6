"""The search for the time at which a blocked gang will find room, and for the nodes.

The end of a job is never guessed: where neither a limit, nor progress, nor a history says when slots become
free, the time is unknown (`NEVER`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from phalanx.core.scheduling.index.cluster_index import ClusterIndex, EquivalenceClass
from phalanx.core.scheduling.index.running import NEVER
from phalanx.core.scheduling.index.slots import Allocation, NodeGroup, SlotIndex
from phalanx.core.scheduling.index.topology import place
from phalanx.core.scheduling.model.planning_input import US, QueuedJob
from phalanx.core.scheduling.search.candidates import shares_time_at
from phalanx.core.scheduling.search.decisions import Decisions


@dataclass(slots=True)
class OpeningSearch:
    """The memo of all searches for openings of one pass."""

    cluster: ClusterIndex
    now: int
    decisions: Decisions
    index: SlotIndex = field(init=False)
    _timelines: dict[tuple[int, int, int | None], SlotTimeline] = field(default_factory=dict)
    _ends: dict[int | None, list[tuple[int, int]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.index = self.cluster.index

    def soonest(
        self, eq_class: EquivalenceClass, job: QueuedJob, overdue: bool = False
    ) -> tuple[int, list[int]] | None:
        """Return when the gang can start and on which nodes; None if it never could.

        The time is in microseconds, `NEVER` if it is unknown. An overdue gang can start where jobs of its
        priority may be preempted.
        """
        if job.roles:
            return _soonest_for_roles(self, eq_class, job)
        best: tuple[int, list[int]] | None = None
        for group in eq_class.groups:
            found = _soonest(self, group, job, overdue)
            if found is not None and (best is None or found[0] < best[0]):
                best = found
        return best

    def ends(self, overdue: QueuedJob | None = None) -> list[tuple[int, int]]:
        """Return (expected end, job) of every running job, the earliest first.

        For an overdue gang a job of its priority or a lower one ends when the gang may preempt it.
        """
        priority = None if overdue is None else overdue.priority
        known = self._ends.get(priority)
        if known is None:
            if overdue is None:
                known = self.cluster.running.ends(self.now)
            else:
                known = [
                    (leaves_at(self.cluster, num, at, overdue, self.now), num)
                    for at, num in self.ends()
                ]
                known.sort()
            self._ends[priority] = known
        return known

    def timeline(
        self, group: NodeGroup, need: int, overdue: QueuedJob | None = None
    ) -> SlotTimeline:
        """Return the openings of a group for shares of so many slots."""
        key = (id(group), need, None if overdue is None else overdue.priority)
        known = self._timelines.get(key)
        if known is None:
            known = self._timelines[key] = SlotTimeline(self, group, need, overdue)
        return known


def leaves_at(cluster: ClusterIndex, num: int, end: int, gang: QueuedJob, now: int) -> int:
    """Return when a job can be gone: at its expected end, or when an overdue gang may preempt it."""
    held = cluster.held[num]
    if held.priority != gang.priority or held.save_s is None or held.stopping:
        return end
    if held.num_slots >= gang.num_slots:
        return end
    at = shares_time_at(held, cluster.config)
    return end if at is None else min(end, max(at, now + US) + int(held.save_s * US))


def _soonest(
    search: OpeningSearch, group: NodeGroup, job: QueuedJob, overdue: bool
) -> tuple[int, list[int]] | None:
    """Return when a domain of this group first has room for the gang, and its nodes; None if none can.

    The narrowest domains that are large enough are tried first, wider ones where it is unknown when
    those will have room.
    """
    need = job.shape.slots_per_node
    openings = search.timeline(group, need, job if overdue else None)
    unknown: tuple[int, list[int]] | None = None
    for domains in _levels(search, group, job):
        if overdue:
            found = _emptiest_full(openings, domains, job.shape.nodes, _MORE)
        else:
            found = _first_full(openings, domains, job.shape.nodes)
        if found is not None and found[0] < NEVER:
            return found
        unknown = unknown or found
    return unknown


def _levels(
    search: OpeningSearch, group: NodeGroup, job: QueuedJob
) -> Iterator[Callable[[int], object]]:
    """Yield functions from a node to its domain, one for each level, the narrowest that suffices first."""
    index = search.index
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
    openings: SlotTimeline, domain_of: Callable[[int], object], num: int
) -> tuple[int, list[int]] | None:
    """Follow the openings until a domain has room for `num` shares."""
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


_SOON = 2
"""Openings of an overdue gang count up to this many times the time until the first."""
_MORE = 4
"""An overdue gang that cannot start soon keeps up to this many times the nodes that it needs."""


def _emptiest_full(
    openings: SlotTimeline, domain_of: Callable[[int], object], num: int, most: int
) -> tuple[int, list[int]] | None:
    """Return the emptiest nodes of the domain that has most free slots among those that open soon.

    So the nodes stay the same from pass to pass while estimates change. Where they do not open soon, up to
    `most` times as many are kept, of which the first to open will do.
    """
    now, free = openings.search.now, openings.search.index.num_free
    rooms: dict[object, list[tuple[int, int, int]]] = {}
    until: int | None = None
    for at, node, shares in openings:
        if until is not None and at > until:
            break
        here = rooms.setdefault(domain_of(node), [])
        here += [(-free[node], at, node)] * shares
        if until is None and len(here) >= num:
            until = NEVER if at >= NEVER else _SOON * at - now
    full = [sorted(here) for here in rooms.values() if len(here) >= num]
    if not full:
        return None
    best = min(full, key=lambda here: [one[0] for one in here[:num]])
    ready_at = max(at for _, at, _ in best[:num])
    soon = ready_at - now <= openings.search.cluster.config.overdue_after_s * US
    return ready_at, [node for _, _, node in best[: num if soon else most * num]]


def _soonest_for_roles(
    search: OpeningSearch, eq_class: EquivalenceClass, job: QueuedJob
) -> tuple[int, list[int]] | None:
    """Return the first expected end after which all parts of the gang find room, by bisection."""
    index, cluster, ends = search.index, search.cluster, search.ends()

    def room(num_gone: int) -> list[Allocation] | None:
        mark = index.mark()
        try:
            for _, num in ends[:num_gone]:
                held = cluster.held[num]
                for allocation in index.allocations(
                    held.placement, held.cpus_per_node, held.memory_per_node_bytes, held.roles
                ):
                    index.give(allocation)
            search.decisions.num_steps += num_gone
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
    return search.now if high == 0 else ends[high - 1][0], [allocation.node for allocation in best]


class SlotTimeline:
    """Openings (time, node, shares) in order of time: free now, as running jobs end, at an unknown time.

    It is computed once in a pass, as far as it is read. Nodes that the pass has used since are left out,
    so that nodes kept for one gang are not promised to another.
    """

    def __init__(
        self, search: OpeningSearch, group: NodeGroup, need: int, overdue: QueuedJob | None = None
    ) -> None:
        self.search = search
        self.overdue = overdue
        self.group = group
        self.need = max(need, 1)
        self.began = len(search.index.journal)
        self.found: list[tuple[int, int, int]] = []
        self.more = self._search()

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        journal = self.search.index.journal
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
        search, index, need = self.search, self.search.index, self.need
        on_node, nodes_of, nodes = search.cluster.on_node, search.cluster.nodes_of, index.nodes
        split = self.group.splittable
        free = {n: index.num_free[n] for bucket in self.group.by_free for n in bucket}
        for bucket in self.group.by_free[need:]:
            for node in bucket:
                yield search.now, node, free[node] // need if nodes[node].splittable else 1
        for at, num in search.ends(self.overdue):
            search.decisions.num_steps += 1
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
