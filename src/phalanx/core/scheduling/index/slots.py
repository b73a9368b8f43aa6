"""The incremental index of free slots by node, leaf domain and wider domain.

It always equals an index rebuilt from the same nodes and allocations, whatever the order of
changes: all state is counts, bit masks and sorted lists. Changes are journaled, so that a plan can
roll back.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from phalanx.core.gang import links
from phalanx.core.gang.placement import GangShape, Node, NodeShare, Placement, RoleShape
from phalanx.core.scheduling.index.fragmentation import DemandProfile
from phalanx.errors import InvariantBroken

NODE_BITS = 24
_MOST_SHARES = 16_384


@dataclass(frozen=True, slots=True)
class GroupKey:
    """The properties shared by nodes that differ only in location and load."""

    pool: str  # name of the pool
    slot_type: str  # model of the devices
    num_slots: int  # slots in all
    device_memory_bytes: int  # memory of each device
    taints: tuple[str, ...]  # jobs that do not tolerate them stay away
    price: float  # of a slot and hour
    hazard: float  # expected reclaims in an hour
    labels: tuple[tuple[str, str], ...] = ()  # those that jobs select by
    between: float = 0.0  # Gbit/s to other nodes; 0: unknown
    inside: float = 0.0  # Gbit/s between slots of the node; 0: unknown


class NodeGroup:
    """The nodes of one key, by free slots and by domain."""

    def __init__(self, key: GroupKey, levels: tuple[str, ...]) -> None:
        self.key = key
        self.size = key.num_slots
        self.levels = levels
        self.num_nodes = 0
        self.num_free = 0
        self.splittable = False
        self.hosts: list[tuple[int, ...]] = []
        self.by_free: list[list[int]] = [[] for _ in range(self.size + 1)]
        self.leaves: list[tuple[str, ...]] = []
        self.leaf_full: list[list[int]] = []
        self.leaves_by_full: list[list[int]] = [[]]
        self.in_order: list[list[int]] = []
        self.place_of: dict[int, int] = {}
        self.unsorted: set[int] = set()
        self.domain_full: list[dict[str, int]] = [{} for _ in levels]
        self.domain_leaves: list[dict[str, list[int]]] = [{} for _ in levels]
        self.largest_leaf = 0
        self.largest: list[int] = [0] * len(levels)

    def add_leaf(self, names: tuple[str, ...], members: int) -> int:
        """Declare a leaf domain by its path from the widest level; gives its number."""
        leaf = len(self.leaves)
        self.leaves.append(names)
        self.leaf_full.append([])
        self.in_order.append([])
        while len(self.leaves_by_full) <= members:
            self.leaves_by_full.append([])
        insort(self.leaves_by_full[0], leaf)
        for depth, name in enumerate(names):
            self.domain_full[depth].setdefault(name, 0)
            self.domain_leaves[depth].setdefault(name, []).append(leaf)
        self.largest_leaf = max(self.largest_leaf, members)
        return leaf

    def change_full(self, leaf: int, node: int, step: int) -> None:
        """Count a node of this leaf that became (+1) or is no longer (-1) entirely free."""
        full = self.leaf_full[leaf]
        _drop(self.leaves_by_full[len(full)], leaf)
        if step > 0:
            insort(full, node)
        else:
            _drop(full, node)
        insort(self.leaves_by_full[len(full)], leaf)
        for depth, name in enumerate(self.leaves[leaf]):
            self.domain_full[depth][name] += step

    def state(self) -> tuple[object, ...]:
        """Everything that must equal a rebuild."""
        return (self.by_free, self.leaf_full, self.leaves_by_full, self.domain_full, self.num_free)


def _drop(sorted_list: list[int], value: int) -> None:
    del sorted_list[bisect_left(sorted_list, value)]


class Allocation(NamedTuple):
    """The slots, CPUs and memory that one share takes from one node."""

    node: int
    mask: int
    cpus: int = 0
    memory_bytes: int = 0


class SlotIndex:
    """Free slots of all nodes. `take` and `give` are exact opposites."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        self.nodes: tuple[Node, ...] = tuple(nodes)
        self.num_of: dict[str, int] = {node.id: i for i, node in enumerate(self.nodes)}
        # Slots that may be held; others are closed, and count as held for ever.
        self.offered: list[int] = [_offered(node) for node in self.nodes]
        self.closed: list[bool] = [bool(node.closed) for node in self.nodes]
        self.free: list[int] = list(self.offered)
        self.num_free: list[int] = [mask.bit_count() for mask in self.free]
        self.cpus: list[int] = [node.num_cpus for node in self.nodes]
        self.memory: list[int] = [node.memory_bytes for node in self.nodes]
        self.groups: list[NodeGroup] = []
        self.group_of: list[NodeGroup] = []
        self.leaf_of: list[int] = []
        self.pools: tuple[str, ...] = tuple(dict.fromkeys(node.pool for node in self.nodes))
        self.journal: list[tuple[int, Allocation]] = []
        self.demand_profile = DemandProfile()
        self._shares: dict[tuple[int, int], NodeShare] = {}
        self.beside: dict[int, tuple[int, ...]] = _beside(self.nodes)
        self._group_nodes()

    def _group_nodes(self) -> None:
        keyed: dict[GroupKey, list[int]] = {}
        for i, node in enumerate(self.nodes):
            keyed.setdefault(_group_key(node), []).append(i)
        self.group_of = [None] * len(self.nodes)  # type: ignore[list-item]
        self.leaf_of = [0] * len(self.nodes)
        for key, members in keyed.items():
            first = self.nodes[members[0]]
            group = NodeGroup(key, tuple(level for level, _ in first.domains))
            group.splittable = any(self.nodes[i].splittable for i in members)
            leaves: dict[tuple[str, ...], list[int]] = {}
            for i in members:
                path = tuple(name for _, name in self.nodes[i].domains)
                leaves.setdefault(path[: len(group.levels)], []).append(i)
            for path, inside in leaves.items():
                leaf = group.add_leaf(path, len(inside))
                for i in inside:
                    self.group_of[i] = group
                    self.leaf_of[i] = leaf
            group.hosts = self._hosts(members)
            for i in members:
                if not self.nodes[i].closed:
                    group.num_nodes += 1
                    self._enter(i)
            for depth, full in enumerate(group.domain_full):
                group.largest[depth] = max(full.values(), default=0)
            self.groups.append(group)

    def _hosts(self, members: list[int]) -> list[tuple[int, ...]]:
        """Return the open nodes among these, grouped by machine."""
        found: dict[tuple[int, int], list[int]] = {}
        for i in members:
            if not self.nodes[i].closed:
                found.setdefault((self.leaf_of[i], min(self.host(i))), []).append(i)
        return [tuple(here) for here in found.values()]

    def _enter(self, node: int) -> None:
        group, count = self.group_of[node], self.num_free[node]
        group.num_free += count
        group.unsorted.add(node)
        insort(group.by_free[count], node)
        if count == group.size:
            group.change_full(self.leaf_of[node], node, +1)

    def set_free(self, node: int, mask: int) -> None:
        """Replace a node's free mask and bring every count up to date."""
        before, after = self.num_free[node], mask.bit_count()
        self.free[node], self.num_free[node] = mask, after
        if before == after or self.closed[node]:
            return
        group = self.group_of[node]
        group.num_free += after - before
        group.unsorted.add(node)
        by_free = group.by_free
        bucket = by_free[before]
        del bucket[bisect_left(bucket, node)]
        insort(by_free[after], node)
        if before == group.size:
            group.change_full(self.leaf_of[node], node, -1)
        elif after == group.size:
            group.change_full(self.leaf_of[node], node, +1)

    def in_order(self, group: NodeGroup) -> list[list[int]]:
        """The open nodes of each leaf as `free slots << NODE_BITS | node`, least room first.

        Changed nodes are sorted only here: most gangs are placed without this order.
        """
        num_free, leaf_of, place_of = self.num_free, self.leaf_of, group.place_of
        for node in group.unsorted:
            fresh, known = num_free[node] << NODE_BITS | node, place_of.get(node)
            if fresh != known:
                here = group.in_order[leaf_of[node]]
                if known is not None:
                    _drop(here, known)
                insort(here, fresh)
                place_of[node] = fresh
        group.unsorted.clear()
        return group.in_order

    def take(self, allocation: Allocation) -> None:
        """Hold these slots. They must be free: anything else is a bug of the caller."""
        node = allocation.node
        if allocation.mask & ~self.free[node]:
            raise InvariantBroken(
                f"node {self.nodes[node].id}: slots {allocation.mask:b} are not free"
            )
        if allocation.cpus or allocation.memory_bytes:
            self._use(allocation, 1)
        self.set_free(node, self.free[node] & ~allocation.mask)
        self.journal.append((-1, allocation))

    def give(self, allocation: Allocation) -> None:
        """Free these slots. They must be held."""
        node = allocation.node
        if allocation.mask & self.free[node]:
            raise InvariantBroken(
                f"node {self.nodes[node].id}: slots {allocation.mask:b} are not held"
            )
        if allocation.cpus or allocation.memory_bytes:
            self._use(allocation, -1)
        self.set_free(node, self.free[node] | allocation.mask)
        self.journal.append((+1, allocation))

    def _use(self, allocation: Allocation, sign: int) -> None:
        self.cpus[allocation.node] -= sign * allocation.cpus
        self.memory[allocation.node] -= sign * allocation.memory_bytes
        for other in self.beside.get(allocation.node, ()) if self.beside else ():
            self.cpus[other] -= sign * allocation.cpus
            self.memory[other] -= sign * allocation.memory_bytes

    def host(self, node: int) -> tuple[int, ...]:
        """The nodes of the machine that this node is part of, itself first."""
        return (node, *self.beside.get(node, ()))

    def mark(self) -> int:
        """Return a point to roll back to."""
        return len(self.journal)

    def rollback(self, mark: int) -> None:
        """Undo everything since the mark."""
        while len(self.journal) > mark:
            sign, allocation = self.journal.pop()
            node = allocation.node
            if allocation.cpus or allocation.memory_bytes:
                self._use(allocation, sign)
            mask = self.free[node]
            self.set_free(node, mask & ~allocation.mask if sign > 0 else mask | allocation.mask)

    def settle(self) -> None:
        """Clear the journal: earlier changes become permanent."""
        self.journal.clear()

    def allocations(
        self,
        placement: Placement,
        cpus: int,
        memory_bytes: int,
        roles: tuple[GangShape, ...] = (),
    ) -> list[Allocation]:
        """Return the allocations of a placement; shares on removed nodes are left out.

        CPUs and memory are those of each share, but for the last ones, which are those of `roles`.
        """
        found = []
        wants = [(cpus, memory_bytes)] * len(placement.shares)
        at = len(wants) - sum(role.nodes for role in roles)
        # Fewer shares than roles: a policy that splits gangs freely and ignores roles.
        for role in roles if at >= 0 else ():
            wants[at : at + role.nodes] = [wants_of(role, cpus, memory_bytes)] * role.nodes
            at += role.nodes
        for share, (num_cpus, num_bytes) in zip(placement.shares, wants, strict=True):
            node = self.num_of.get(share.node)
            if node is not None:
                inside = mask_of(share.slots) & self.offered[node]
                found.append(Allocation(node, inside, num_cpus, num_bytes))
        return found

    def placement(self, allocations: list[Allocation]) -> Placement:
        """Return allocations as a placement, in order of node rank."""
        shares = tuple(
            [self._share(allocation.node, allocation.mask) for allocation in allocations]
        )
        return Placement(self.nodes[allocations[0].node].pool, shares)

    def _share(self, num: int, mask: int) -> NodeShare:
        """Return the cached share object: most shares are whole nodes and recur often."""
        known = self._shares.get((num, mask))
        if known is None:
            node = self.nodes[num]
            known = NodeShare(node.id, node.address, slots_of(mask))
            if len(self._shares) < _MOST_SHARES:
                self._shares[num, mask] = known
        return known

    def state(self) -> tuple[object, ...]:
        """Everything that must equal a rebuild."""
        rooms = [[list(here) for here in self.in_order(group)] for group in self.groups]
        return (
            self.free,
            self.num_free,
            self.cpus,
            self.memory,
            [group.state() for group in self.groups],
            rooms,
        )


def _offered(node: Node) -> int:
    mask: int = (1 << node.num_slots) - 1
    for slot, _ in node.closed_slots:
        mask &= ~(1 << slot)
    return mask


def _group_key(node: Node) -> GroupKey:
    return GroupKey(
        node.pool,
        node.slot_type,
        node.num_slots,
        node.planned_device_memory_bytes,
        node.taints,
        node.price_per_slot_hour,
        node.hazard_per_hour,
        node.labels,
        links.between_gbps(node),
        links.inside_gbps(node),
    )


def _beside(nodes: tuple[Node, ...]) -> dict[int, tuple[int, ...]]:
    """Return the other nodes of the same machine, for nodes that are a part of one."""
    hosts: dict[str, list[int]] = {}
    for i, node in enumerate(nodes):
        if node.host:
            hosts.setdefault(node.host, []).append(i)
    return {i: tuple(j for j in here if j != i) for here in hosts.values() for i in here}


def wants_of(shape: GangShape, cpus: int, memory_bytes: int) -> tuple[int, int]:
    """CPUs and memory of each share of a part: a role's own, else those of the whole gang."""
    if isinstance(shape, RoleShape):
        return shape.cpus_per_node, shape.memory_per_node_bytes
    return cpus, memory_bytes


def mask_of(slots: Iterable[int]) -> int:
    """Slot numbers as a bit mask."""
    mask = 0
    for slot in slots:
        mask |= 1 << slot
    return mask


_SLOTS: dict[int, tuple[int, ...]] = {}


def slots_of(mask: int) -> tuple[int, ...]:
    """A bit mask as slot numbers, ascending."""
    known = _SLOTS.get(mask)
    if known is None:
        known = tuple(i for i in range(mask.bit_length()) if mask >> i & 1)
        if len(_SLOTS) < 4096:
            _SLOTS[mask] = known
    return known


def pick(free: int, wanted: int) -> int:
    """Choose `wanted` of the free slots: an aligned block where one exists, else the lowest."""
    if free.bit_count() == wanted:
        return free
    if not wanted:
        return 0
    if wanted & (wanted - 1) == 0:
        hold_back = (1 << wanted) - 1
        for shift in range(0, free.bit_length(), wanted):
            if free >> shift & hold_back == hold_back:
                return hold_back << shift
    mask = 0
    for _ in range(wanted):
        low = free & -free
        mask |= low
        free ^= low
    return mask
