"""The search for the time at which a blocked gang will find room, and for the nodes.

The end of a job is never guessed: where neither a limit, nor progress, nor a history says when slots become
free, the time is unknown (`NEVER`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from phalanx.core.scheduling.index.cluster_index import ClusterIndex, EquivalenceClass
from phalanx.core.scheduling.index.running import NEVER
from phalanx.core.scheduling.index.slots import Allocation, NodeGroup, SlotIndex
from phalanx.core.scheduling.index.topology import place
from phalanx.core.scheduling.model.planning_input import US, QueuedJob, RunningJob
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
        if job.roles or job.domains > 1:
            return _soonest_of_parts(self, eq_class, job)
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
                held_by, known = self.cluster.held, self.ends().copy()
                for position, (end, num) in enumerate(known):
                    held = held_by[num]
                    if held.priority == overdue.priority and held.num_slots < overdue.num_slots:
                        at = leaves_at(self.cluster, held, end, overdue, self.now)
                        if at != end:
                            known[position] = (at, num)
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


def leaves_at(cluster: ClusterIndex, held: RunningJob, end: int, gang: QueuedJob, now: int) -> int:
    """Return when a job can be gone: at its expected end, or when an overdue gang may preempt it."""
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
    for depth in _levels(group, job):
        if overdue:
            found = _emptiest_full(openings, depth, job.shape.nodes, _MORE)
        else:
            found = openings.first_full(depth, job.shape.nodes)
        if found is not None and found[0] < NEVER:
            return found
        unknown = unknown or found
    return unknown


def _levels(group: NodeGroup, job: QueuedJob) -> list[int]:
    """Return the depths of the levels that may hold the gang, the narrowest first.

    Beyond the last level of the group a domain is one node; -1 is the whole group.
    """
    if job.required == "node":
        return [len(group.levels)]
    split = group.size // max(job.shape.slots_per_node, 1) if group.splittable else 1
    widest = -1 if job.required is None else group.levels.index(job.required)
    return [
        depth
        for depth in range(len(group.levels) - 1, widest - 1, -1)
        if depth < 0 or group.largest[depth] * split >= job.shape.nodes
    ]


_SOON = 2
"""Openings of an overdue gang count up to this many times the time until the first."""
_MORE = 4
"""An overdue gang that cannot start soon keeps up to this many times the nodes that it needs."""


def _emptiest_full(
    openings: SlotTimeline, depth: int, num: int, most: int
) -> tuple[int, list[int]] | None:
    """Return the emptiest nodes of the domain that has most free slots among those that open soon.

    So the nodes stay the same from pass to pass while estimates change. Where they do not open soon, up to
    `most` times as many are kept, of which the first to open will do.
    """
    now, free = openings.search.now, openings.search.index.num_free
    rooms: dict[int, list[tuple[int, int, int]]] = {}
    level, until = openings.level(depth), NEVER + 1
    found, gone, position = openings.found, openings.left_out(), 0
    while position < len(found) or openings.extend():
        at, node, shares = found[position]
        position += 1
        if node in gone:
            continue
        if at > until:
            break
        domain = level.domain_of(node)
        here = rooms.get(domain)
        if here is None:
            here = rooms[domain] = []
        entry = (-free[node], at, node)
        if shares == 1:
            here.append(entry)
        else:
            here += [entry] * shares
        if until > NEVER and len(here) >= num:
            until = NEVER if at >= NEVER else _SOON * at - now
    full = [sorted(here) for here in rooms.values() if len(here) >= num]
    if not full:
        return None
    best = min(full, key=lambda here: [one[0] for one in here[:num]])
    ready_at = max(at for _, at, _ in best[:num])
    soon = ready_at - now <= openings.search.cluster.config.overdue_after_s * US
    return ready_at, [node for _, _, node in best[: num if soon else most * num]]


def _soonest_of_parts(
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


class DomainRooms:
    """The openings of a timeline by domain of one level, as far as searches of this level have read it.

    Domains are numbered in the order of their names.
    """

    def __init__(self, group: NodeGroup, depth: int, leaf_of: list[int], num_nodes: int) -> None:
        self.num_read = 0
        self.leaf_of = leaf_of
        self.by_node = depth >= 0 and depth == len(group.levels)
        self.of_leaf: list[int] = []
        num_domains = num_nodes
        if not self.by_node:
            if depth < 0:
                self.of_leaf = [0] * len(group.leaves)
                num_domains = 1
            elif depth == len(group.levels) - 1:
                self.of_leaf = list(range(len(group.leaves)))
                num_domains = len(group.leaves)
            else:
                names = sorted({path[depth] for path in group.leaves})
                number_of = {name: at for at, name in enumerate(names)}
                self.of_leaf = [number_of[path[depth]] for path in group.leaves]
                num_domains = len(names)
        #: By domain: positions in the timeline, once for each share.
        self.rooms: list[list[int]] = [[] for _ in range(num_domains)]

    def domain_of(self, node: int) -> int:
        """Return the domain of a node."""
        return node if self.by_node else self.of_leaf[self.leaf_of[node]]


class SlotTimeline:
    """Openings (time, node, shares) in order of time: free now, as running jobs end, at an unknown time.

    It is computed once in a pass, as far as it is read. Nodes that the pass has used since are left out,
    so that nodes kept for one gang are not promised to another. Gangs of all sizes share what was read:
    `first_full` looks at one opening in each domain, not at all of them.
    """

    def __init__(
        self, search: OpeningSearch, group: NodeGroup, need: int, overdue: QueuedJob | None = None
    ) -> None:
        index = search.index
        self.search = search
        self.group = group
        self.need = max(need, 1)
        self.found: list[tuple[int, int, int]] = []
        self._ends: list[tuple[int, int]] | None = None
        self._overdue = overdue
        self._num_ended = 0
        self._free = index.num_free.copy()
        self._gone: set[int] = set()
        self._began = self._journal_read = len(index.journal)
        self._last_taken: Allocation | None = None
        self._by_level: dict[int, DomainRooms] = {}
        for bucket in group.by_free[self.need :]:
            for node in bucket:
                split = index.nodes[node].splittable
                shares = self._free[node] // self.need if split else 1
                self.found.append((search.now, node, shares))

    def level(self, depth: int) -> DomainRooms:
        """Return the openings by domain of the level at this depth."""
        known = self._by_level.get(depth)
        if known is None:
            index = self.search.index
            known = DomainRooms(self.group, depth, index.leaf_of, len(index.nodes))
            self._by_level[depth] = known
        return known

    def first_full(self, depth: int, num: int) -> tuple[int, list[int]] | None:
        """Return when a domain first has room for `num` shares, and its nodes; None if none ever has.

        The timeline is read until the first opening after that time.
        """
        found, gone, level = self.found, self.left_out(), self.level(depth)
        rooms, leaf_of, of_leaf, by_node = (
            level.rooms,
            level.leaf_of,
            level.of_leaf,
            level.by_node,
        )
        full_at = NEVER + 1
        for here in rooms:
            if len(here) >= num and found[here[num - 1]][0] < full_at:
                full_at = found[here[num - 1]][0]
        at = level.num_read
        last = at - 1
        while last >= 0 and found[last][1] in gone:
            last -= 1
        while last < 0 or found[last][0] <= full_at:
            if at == len(found) and not self.extend():
                break
            opens_at, node, shares = found[at]
            if node not in gone:
                last = at
                here = rooms[node if by_node else of_leaf[leaf_of[node]]]
                if shares == 1:
                    here.append(at)
                else:
                    here += [at] * shares
                if full_at > NEVER and len(here) >= num:
                    full_at = opens_at
            at += 1
        level.num_read = at
        for here in rooms:
            if len(here) >= num and found[here[num - 1]][0] == full_at:
                return full_at, [found[one][1] for one in here[:num]]
        return None

    def left_out(self) -> set[int]:
        """Return the nodes that the pass has used since the timeline was made; they are left out."""
        journal, gone = self.search.index.journal, self._gone
        last = self._last_taken
        if len(journal) < self._journal_read or (
            last is not None and journal[self._journal_read - 1][1] is not last
        ):
            # What was taken has been rolled back: its nodes come back.
            gone.clear()
            self._by_level.clear()
            self._journal_read = self._began
        fresh = {one.node for _, one in journal[self._journal_read :]} - gone
        self._journal_read = len(journal)
        self._last_taken = journal[-1][1] if len(journal) > self._began else None
        if not fresh:
            return gone
        gone |= fresh
        found = self.found
        for level in self._by_level.values():
            for domain in {level.domain_of(node) for node in fresh if self._is_inside(node)}:
                here = level.rooms[domain]
                level.rooms[domain] = [at for at in here if found[at][1] not in gone]
        return gone

    def _is_inside(self, node: int) -> bool:
        index = self.search.index
        return index.group_of[node] is self.group and not index.closed[node]

    def extend(self) -> bool:
        """Add the openings of the next job that ends and leaves some; False if no job is left."""
        search, index, need, free = self.search, self.search.index, self.need, self._free
        on_node, nodes_of, nodes = search.cluster.on_node, search.cluster.nodes_of, index.nodes
        group, group_of, closed = self.group, index.group_of, index.closed
        if self._ends is None:
            self._ends = search.ends(self._overdue)
        ends, split, found = self._ends, self.group.splittable, self.found
        before_all = len(found)
        while self._num_ended < len(ends) and len(found) == before_all:
            at, num = ends[self._num_ended]
            self._num_ended += 1
            search.decisions.num_steps += 1
            for node in nodes_of[num]:
                before = free[node]
                free[node] = after = before + on_node[node][num]
                shares = 0
                if split and nodes[node].splittable:
                    shares = after // need - before // need
                elif before < need <= after:
                    shares = 1
                if shares and group_of[node] is group and not closed[node]:
                    found.append((at, node, shares))
        return len(found) > before_all
