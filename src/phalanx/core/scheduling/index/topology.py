"""Placement: the smallest topology domain that holds the whole gang, then best fit.

Whole-node gangs take entirely free nodes of the leaf with the least left over; parts of nodes go to
nodes that are partly used already, so that whole nodes and whole leaves stay free. Wider domains
are used only when no narrower one holds the gang, and then by the fewest leaves.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from phalanx.core.gang.placement import GangShape, RoleShape
from phalanx.core.residency import permits
from phalanx.core.scheduling.index.slots import NODE_BITS, Allocation, NodeGroup, SlotIndex, pick
from phalanx.core.scheduling.model.planning_input import QueuedJob

_NODE = (1 << NODE_BITS) - 1


@dataclass(frozen=True, slots=True)
class NodeRequest:
    """The part of `QueuedJob` that placement depends on."""

    shape: GangShape  # the gang's first part at full size
    roles: tuple[GangShape, ...]  # further parts, with their own shapes
    pools: tuple[str, ...]  # pools in order of preference; empty: any pool
    cpus: int  # CPUs of each share
    memory_bytes: int  # memory of each share
    slot_type: str  # required slot type; empty: any
    device_memory_bytes: int  # least device memory of a slot
    tolerates: tuple[str, ...]  # taints that the job tolerates
    required: str | None  # topology level that must hold the whole gang
    selector: tuple[tuple[str, str], ...] = ()  # labels that every node must have
    splits: tuple[GangShape, ...] = ()  # other shapes of the same size
    intensive: bool = False  # fast links go before price
    residency: tuple[str, ...] | None = None  # allowed values of the label; None: any
    without: tuple[str, ...] = ()  # slot types that parts without a type of their own do not use
    domains: int = 1  # equal parts of the gang, each in a domain of the required level of its own


def request_of(job: QueuedJob) -> NodeRequest:
    """The placement part of a queued job."""
    return NodeRequest(
        job.shape,
        job.roles,
        job.pools,
        job.cpus_per_node,
        job.memory_per_node_bytes,
        job.slot_type,
        job.device_memory_bytes,
        job.tolerates,
        job.required,
        job.selector,
        job.splits,
        job.intensive,
        job.residency,
        domains=job.domains,
    )


def suitable(index: SlotIndex, request: NodeRequest) -> list[NodeGroup]:
    """Groups that may host the job, in order of preference.

    Its pools go first, then cost, then fast links where the gang uses them, then tight nodes. A job with
    intensive communication prefers fast links to cost, and to the order of pools that it does not name.
    """
    wanted = request.pools or index.pools
    order = {pool: i for i, pool in enumerate(wanted)}
    fit = [
        group
        for group in index.groups
        if group.key.pool in order
        and any(hosts(group, request, shape) for shape in (request.shape, *request.roles))
        and set(group.key.taints) <= set(request.tolerates)
        and set(request.selector) <= set(group.key.labels)
        and permits(request.residency, group.key.labels)
        and (request.required in (None, "node") or request.required in group.levels)
    ]
    if not any(group.key.between or group.key.inside for group in fit):
        return sorted(fit, key=lambda g: (order[g.key.pool], _cost(g), g.size))
    several = request.shape.nodes > 1 or bool(request.roles)

    def slow(group: NodeGroup) -> tuple[float, float]:
        # Gangs that do not use a link leave the nodes that have a fast one to others.
        within = request.shape.slots_per_node > 1
        between = -group.key.between if several else group.key.between
        return (between, -group.key.inside if within else group.key.inside)

    if request.intensive:
        named = {pool: i if request.pools else 0 for pool, i in order.items()}
        return sorted(
            fit,
            key=lambda g: (named[g.key.pool], slow(g), order[g.key.pool], _cost(g), g.size),
        )
    return sorted(fit, key=lambda g: (order[g.key.pool], _cost(g), slow(g), g.size))


def _cost(group: NodeGroup) -> float:
    return group.key.price * (1 + group.key.hazard)


def hosts(group: NodeGroup, request: NodeRequest, shape: GangShape) -> bool:
    """Return whether nodes of this kind meet the request of one part of the gang."""
    if isinstance(shape, RoleShape):
        wanted, memory_bytes = shape.slot_type, 0
    else:
        wanted, memory_bytes = request.slot_type, request.device_memory_bytes
    return (
        group.size >= shape.slots_per_node
        and (
            group.key.slot_type == wanted if wanted else group.key.slot_type not in request.without
        )
        and group.key.device_memory_bytes >= memory_bytes
    )


def part_request(request: NodeRequest, shape: GangShape) -> NodeRequest:
    """Return what one part of the gang requests of each node."""
    if not isinstance(shape, RoleShape):
        return request
    return replace(request, cpus=shape.cpus_per_node, memory_bytes=shape.memory_per_node_bytes)


def place(
    index: SlotIndex, request: NodeRequest, groups: list[NodeGroup], shape: GangShape
) -> list[Allocation] | None:
    """Return allocations for the whole gang, in one group if possible, or None; changes nothing."""
    if request.roles:
        return _place_roles(index, request, groups, shape)
    if request.domains > 1:
        return _place_apart(index, request, groups, shape)
    for group in groups:
        found = _place_in(index, request, group, shape)
        if found is not None:
            return found
    if len(groups) > 1:
        return _across_groups(index, request, groups, shape)
    return None


def parts(shape: GangShape, roles: tuple[GangShape, ...]) -> list[tuple[int, GangShape]]:
    """All shapes of a gang with their positions, those that need most of a node first."""
    every = enumerate((shape, *roles))
    return sorted(every, key=lambda part: (-part[1].slots_per_node, -part[1].nodes, part[0]))


def levels(group: NodeGroup, required: str | None) -> list[str | None]:
    """Levels of the topology that may hold a whole gang, the narrowest first; None is everywhere."""
    if required == "node":
        return ["node"]
    found: list[str | None] = list(reversed(group.levels))
    return [*found, None] if required is None else found[: found.index(required) + 1]


def areas(
    index: SlotIndex, groups: Sequence[NodeGroup], level: str | None
) -> Iterator[frozenset[int]]:
    """The open nodes of each domain of a level, domain by domain."""
    found: dict[str, list[int]] = {}
    for group in groups:
        depth = -1 if level in (None, "node") else group.levels.index(str(level))
        for bucket in group.by_free:
            for node in bucket:
                if level == "node":
                    name = str(node)
                else:
                    name = "" if depth < 0 else group.leaves[index.leaf_of[node]][depth]
                found.setdefault(name, []).append(node)
    for name in sorted(found):
        yield frozenset(found[name])


def lands(groups: Sequence[NodeGroup], request: NodeRequest) -> Iterator[list[NodeGroup]]:
    """Sets of node kinds that may hold all parts of a gang: one kind alone, else a pool's together."""
    shapes = (request.shape, *request.roles)
    for group in groups:
        if all(hosts(group, request, shape) for shape in shapes):
            yield [group]
    if request.required == "node":
        return
    for pool in dict.fromkeys(group.key.pool for group in groups):
        inside = [group for group in groups if group.key.pool == pool]
        if len(inside) > 1 and len({group.levels for group in inside}) == 1:
            yield inside


def alike(groups: Sequence[NodeGroup]) -> list[list[NodeGroup]]:
    """The groups of each pool and slot type together: labels of domains divide their nodes."""
    found: dict[tuple[object, ...], list[NodeGroup]] = {}
    for group in groups:
        key = (group.key.pool, group.key.slot_type, group.size, group.levels)
        found.setdefault(key, []).append(group)
    return list(found.values())


def _place_apart(
    index: SlotIndex, request: NodeRequest, groups: Sequence[NodeGroup], shape: GangShape
) -> list[Allocation] | None:
    """Equal parts of a gang, part after part, in the tightest domains of the required level."""
    each = shape.nodes // request.domains
    for kinds in alike(groups):
        inside: dict[str, list[int]] = {}
        for group in kinds:
            depth = group.levels.index(str(request.required))
            for leaf, nodes in _rooms(index, request, group, shape.slots_per_node).items():
                inside.setdefault(group.leaves[leaf][depth], []).extend(nodes)
        wide = sorted((len(nodes), name) for name, nodes in inside.items() if len(nodes) >= each)
        if len(wide) >= request.domains:
            chosen = [node for _, name in wide[: request.domains] for node in inside[name][:each]]
            return _cut(index, request, chosen, shape.slots_per_node)
    return None


def _place_roles(
    index: SlotIndex, request: NodeRequest, groups: Sequence[NodeGroup], shape: GangShape
) -> list[Allocation] | None:
    for land in lands(groups, request):
        found = _all_roles(index, request, land, shape)
        if found is not None:
            return found
    return None


def _all_roles(
    index: SlotIndex, request: NodeRequest, groups: list[NodeGroup], shape: GangShape
) -> list[Allocation] | None:
    """All parts of a gang in one domain, the narrowest that holds them, and there the tightest."""
    slots = shape.num_slots + sum(role.num_slots for role in request.roles)
    if sum(group.num_free for group in groups) < slots:
        return None
    for level in levels(groups[0], request.required):
        rooms = [
            (sum(index.free[node].bit_count() for node in inside), at, inside)
            for at, inside in enumerate(areas(index, groups, level))
        ]
        for free, _, inside in sorted(rooms, key=lambda room: room[:2]):
            if free >= slots:
                found = _roles_inside(index, request, groups, shape, inside)
                if found is not None:
                    return found
    return None


def _roles_inside(
    index: SlotIndex,
    request: NodeRequest,
    groups: list[NodeGroup],
    shape: GangShape,
    inside: frozenset[int],
) -> list[Allocation] | None:
    mark = index.mark()
    placed: dict[int, list[Allocation]] = {}
    try:
        for at, part in parts(shape, request.roles):
            own, nodes = part_request(request, part), []
            # The smallest sufficient nodes: larger ones are left to parts that need them.
            for group in sorted(groups, key=lambda group: group.size):
                if hosts(group, request, part):
                    rooms = _rooms(index, own, group, part.slots_per_node)
                    nodes += [n for leaf in sorted(rooms) for n in rooms[leaf] if n in inside]
            if len(nodes) < part.nodes:
                return None
            placed[at] = _cut(index, own, nodes[: part.nodes], part.slots_per_node)
            for allocation in placed[at]:
                index.take(allocation)
    finally:
        index.rollback(mark)
    return [allocation for at in sorted(placed) for allocation in placed[at]]


def _place_in(
    index: SlotIndex, request: NodeRequest, group: NodeGroup, shape: GangShape
) -> list[Allocation] | None:
    num, per_node = shape.nodes, shape.slots_per_node
    if group.num_free < num * per_node or group.size < per_node:
        return None
    plain = not (request.cpus or request.memory_bytes or group.splittable or per_node == 0)
    if plain and num == 1:
        chosen = _one_node(group, per_node)
    elif plain and per_node == group.size:
        chosen = _whole_nodes(group, num, request.required)
    else:
        chosen = _least_stranding(index, request, group, num, per_node)
        if chosen is None:
            if plain and request.required != "node":
                chosen = _one_leaf(index, group, num, per_node)
            if chosen is None:
                rooms = _rooms(index, request, group, per_node)
                chosen = spread(group, rooms, num, request.required)
    return None if chosen is None else _cut(index, request, chosen, per_node)


def _least_stranding(
    index: SlotIndex, request: NodeRequest, group: NodeGroup, num: int, per_node: int
) -> list[int] | None:
    """Return the host where this gang leaves the least fragmentation; None if undecided.

    Gangs of several hosts are not placed this way: their locality is more important.
    """
    typical = index.demand_profile.typical() if request.cpus or request.memory_bytes else None
    alone = num > 1 and (request.required == "node" or not index.beside)
    if typical is None or group.splittable or alone:
        return None
    free, cpus, memory = index.free, index.cpus, index.memory
    wants = (num * request.cpus, num * request.memory_bytes)
    best: tuple[float, tuple[int, ...]] | None = None
    for host in group.hosts:
        first = host[0]
        if cpus[first] < wants[0] or memory[first] < wants[1]:
            continue
        frees = tuple([free[node].bit_count() for node in host])
        if max(frees) < per_node or (num > 1 and sum([n >= per_node for n in frees]) < num):
            continue
        regret = typical.regret(frees, cpus[first], memory[first], (num, per_node), wants)
        if best is None or regret < best[0]:
            best = (regret, host)
    if best is None:
        return None
    fitting = [node for node in best[1] if free[node].bit_count() >= per_node]
    return sorted(fitting, key=lambda node: (free[node].bit_count(), node))[:num]


def _cut(
    index: SlotIndex, request: NodeRequest, chosen: list[int], per_node: int
) -> list[Allocation]:
    left: dict[int, int] = {}
    allocations = []
    for node in chosen:
        free = left.get(node, index.free[node])
        mask = pick(free, per_node)
        left[node] = free & ~mask
        allocations.append(Allocation(node, mask, request.cpus, request.memory_bytes))
    return allocations


def _one_node(group: NodeGroup, per_node: int) -> list[int] | None:
    for count in range(per_node, group.size):
        if group.by_free[count]:
            return [group.by_free[count][0]]
    for leaves in group.leaves_by_full[1:]:
        if leaves:
            return [group.leaf_full[leaves[0]][0]]
    return None


def _whole_nodes(group: NodeGroup, num: int, required: str | None) -> list[int] | None:
    if required == "node":
        return None
    for leaves in group.leaves_by_full[num:]:
        if leaves:
            return group.leaf_full[leaves[0]][:num]
    if len(group.by_free[group.size]) < num:
        return None
    rooms = {leaf: full for leaf, full in enumerate(group.leaf_full) if full}
    return spread(group, rooms, num, required)


def _one_leaf(index: SlotIndex, group: NodeGroup, num: int, per_node: int) -> list[int] | None:
    """Return what `spread` finds first where only slots count.

    That is the leaf with the fewest nodes that have room, of those with enough of them.
    """
    least = per_node << NODE_BITS
    best: tuple[int, list[int], int] | None = None
    for here in index.in_order(group):
        at = bisect_left(here, least)
        wide = len(here) - at
        if wide >= num and (best is None or wide < best[0]):
            best = (wide, here, at)
    if best is None:
        return None
    _, here, at = best
    return [code & _NODE for code in here[at : at + num]]


def _rooms(
    index: SlotIndex, request: NodeRequest, group: NodeGroup, per_node: int
) -> dict[int, list[int]]:
    """Nodes with room for a share, by leaf, least room first; a splittable node counts repeatedly."""
    least = per_node << NODE_BITS
    plain = not (request.cpus or request.memory_bytes or group.splittable)
    found: list[tuple[int, int, int, list[int]]] = []
    for leaf, here in enumerate(index.in_order(group)):
        wide = here[bisect_left(here, least) :]
        if plain:
            nodes = [code & _NODE for code in wide]
        else:
            nodes = [node for code in wide for node in _shares(index, request, code, per_node)]
        if nodes:
            found.append((index.free[nodes[0]].bit_count(), nodes[0], leaf, nodes))
    # Leaves in the order of their fullest node.
    rooms = {leaf: nodes for _, _, leaf, nodes in sorted(found)}
    return _together_on_hosts(index, request, rooms) if index.beside else rooms


def _together_on_hosts(
    index: SlotIndex, request: NodeRequest, rooms: dict[int, list[int]]
) -> dict[int, list[int]]:
    """Only as many nodes of one machine as its CPUs and memory are enough for together."""
    found: dict[int, list[int]] = {}
    used: dict[int, int] = {}
    for leaf, nodes in rooms.items():
        for node in nodes:
            host = min(index.host(node))
            shares = used[host] = used.get(host, 0) + 1
            if (
                shares * request.cpus <= index.cpus[node]
                and shares * request.memory_bytes <= index.memory[node]
            ):
                found.setdefault(leaf, []).append(node)
    return found


def _shares(index: SlotIndex, request: NodeRequest, code: int, per_node: int) -> list[int]:
    """Return each node once for every share that it has room for."""
    node, count = code & _NODE, code >> NODE_BITS
    this = index.nodes[node]
    if not this.splittable:
        enough = index.cpus[node] >= request.cpus and index.memory[node] >= request.memory_bytes
        return [node] if enough else []
    if request.cpus > this.num_cpus:
        return []
    return [node] * (count // per_node if per_node else 64)


def spread(
    group: NodeGroup, rooms: dict[int, list[int]], num: int, required: str | None
) -> list[int] | None:
    """`num` entries of `rooms` from the narrowest domain that has them, by the fewest leaves."""
    if required == "node":
        return _same_node(rooms, num)
    best = min(
        ((len(nodes), leaf) for leaf, nodes in rooms.items() if len(nodes) >= num), default=None
    )
    if best is not None:
        return rooms[best[1]][:num]
    depth = len(group.levels) - 1
    while depth > 0 and (required is None or group.levels[depth] != required):
        depth -= 1
        found = _in_level(group, rooms, num, depth)
        if found is not None:
            return found
    if required is not None:
        return None
    return _fewest_leaves(rooms, list(rooms), num)


def _same_node(rooms: dict[int, list[int]], num: int) -> list[int] | None:
    for nodes in rooms.values():
        for node in dict.fromkeys(nodes):
            if nodes.count(node) >= num:
                return [node] * num
    return None


def _in_level(
    group: NodeGroup, rooms: dict[int, list[int]], num: int, depth: int
) -> list[int] | None:
    best: tuple[int, str] | None = None
    for name, leaves in group.domain_leaves[depth].items():
        total = sum(len(rooms[leaf]) for leaf in leaves if leaf in rooms)
        if total >= num and (best is None or (total, name) < best):
            best = (total, name)
    if best is None:
        return None
    return _fewest_leaves(rooms, group.domain_leaves[depth][best[1]], num)


def _fewest_leaves(rooms: dict[int, list[int]], leaves: list[int], num: int) -> list[int] | None:
    chosen: list[int] = []
    left = sorted((leaf for leaf in leaves if leaf in rooms), key=lambda x: (-len(rooms[x]), x))
    while left and len(chosen) < num:
        need = num - len(chosen)
        enough = [leaf for leaf in left if len(rooms[leaf]) >= need]
        leaf = min(enough, key=lambda x: (len(rooms[x]), x)) if enough else left[0]
        chosen += rooms[leaf][:need]
        left.remove(leaf)
    return chosen if len(chosen) == num else None


def _across_groups(
    index: SlotIndex, request: NodeRequest, groups: list[NodeGroup], shape: GangShape
) -> list[Allocation] | None:
    """Last resort inside one pool: nodes of different kinds, most suitable kind first."""
    if request.required is not None or shape.nodes == 1:
        return None
    for pool in dict.fromkeys(group.key.pool for group in groups):
        chosen: list[int] = []
        for group in groups:
            if group.key.pool == pool and group.key.slot_type == groups[0].key.slot_type:
                for nodes in _rooms(index, request, group, shape.slots_per_node).values():
                    chosen += nodes
        if len(chosen) >= shape.nodes:
            return _cut(index, request, chosen[: shape.nodes], shape.slots_per_node)
    return None


def num_leaves(index: SlotIndex, nodes: list[int]) -> int:
    """Return the number of leaf domains of these nodes."""
    return len({(id(index.group_of[n]), index.leaf_of[n]) for n in nodes})


def place_on(
    index: SlotIndex, request: NodeRequest, job: QueuedJob, nodes: list[int]
) -> list[Allocation] | None:
    """Return allocations for the gang on exactly these nodes, or None while one of them lacks room."""
    left: dict[int, int] = {}
    allocations = []
    others = [role for role in job.roles for _ in range(role.nodes)]
    shapes = [job.shape] * (len(nodes) - len(others)) + others
    for node, shape in zip(nodes, shapes, strict=True):
        free, own = left.get(node, index.free[node]), part_request(request, shape)
        short = index.cpus[node] < own.cpus or index.memory[node] < own.memory_bytes
        if short or free.bit_count() < shape.slots_per_node:
            return None
        mask = pick(free, shape.slots_per_node)
        left[node] = free & ~mask
        allocations.append(Allocation(node, mask, own.cpus, own.memory_bytes))
    return allocations
