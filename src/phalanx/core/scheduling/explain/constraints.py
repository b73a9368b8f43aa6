"""What binds a waiting job: every constraint that keeps it out, with names and numbers.

A constraint is stated as what the job needs against what there is now, after the starts that the plan
has decided. The reason of a plan is one line; this is the whole list.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from phalanx.core.gang.placement import Node, Role
from phalanx.core.scheduling.index.cluster_index import World
from phalanx.core.scheduling.index.slots import NodeGroup, SlotIndex, Taking, pick
from phalanx.core.scheduling.index.topology import ask_of, hosts, part_ask, place
from phalanx.core.scheduling.model.outcome import Plan
from phalanx.core.scheduling.model.reservation import Hole
from phalanx.core.scheduling.model.snapshot import US, Waiting
from phalanx.core.scheduling.stages.entitlement import rolled_up, standings

_MANY = 4


class Binding(StrEnum):
    """What kind of thing keeps a job out."""

    BACK_OFF = "back_off"
    QUOTA = "quota"
    NO_SUCH_NODES = "no_such_nodes"
    CLOSED_NODES = "closed_nodes"
    SLOTS = "slots"
    TOPOLOGY = "topology"
    CPUS = "cpus"
    MEMORY = "memory"
    KEPT = "kept"
    LEAVING = "leaving"


@dataclass(frozen=True, slots=True)
class Constraint:
    """One thing in the way: `need` against `have` in `unit`, and the names that it is about."""

    binding: Binding
    text: str
    need: float = 0.0
    have: float = 0.0
    unit: str = "slots"
    names: tuple[str, ...] = ()


def constraints(world: World, decided: Plan, job: Waiting, now: int) -> tuple[Constraint, ...]:
    """Everything that keeps `job` from starting now, the most final first. Leaves the world as it was."""
    found = [*_back_off(job, now), *_quota(world, decided, job)]
    index, mark = world.index, world.index.mark()
    try:
        _apply_starts(world, decided)
        groups = world.groups_for(ask_of(job))
        if not groups:
            found.append(_no_such_nodes(index, job))
        else:
            found += _closed(index, job, groups)
            found += _room(world, job, groups, _kept_for_others(index, decided, job, world))
    finally:
        index.rollback(mark)
    found += _leaving(decided, job)
    return tuple(found)


def _apply_starts(world: World, decided: Plan) -> None:
    for start in decided.starts:
        job = world.waiting[start.job]
        for taking in world.index.takings(
            start.placement, job.cpus_per_node, job.memory_per_node_bytes, job.roles
        ):
            world.index.take(taking)


def _back_off(job: Waiting, now: int) -> list[Constraint]:
    if job.not_before is None or job.not_before <= now:
        return []
    left_s = (job.not_before - now) / US
    text = f"waits {left_s:.0f} s before its next attempt"
    return [Constraint(Binding.BACK_OFF, text, left_s, 0.0, "s")]


def _quota(world: World, decided: Plan, job: Waiting) -> list[Constraint]:
    capacity = sum(group.num_nodes * group.size for group in world.index.groups)
    standing = standings(world.projects, world.used, world.demand, capacity).get(job.project)
    if standing is None:
        return []
    used = dict(world.used)
    for start in decided.starts:
        project = world.waiting[start.job].project
        slots = sum(len(share.slots) for share in start.placement.shares)
        used[project] = used.get(project, 0) + slots
    used = rolled_up(world.projects, used)
    limit = standing.over_limit(used, job.num_slots)
    if limit is None or limit.max_slots is None:
        return []
    holds, most = used.get(limit.name, 0), limit.max_slots
    part = "" if limit.name == job.project else f", which {job.project} is part of,"
    text = (
        f"project {limit.name}{part} holds {holds} of at most {most} slots; {job.num_slots} more "
        f"are {holds + job.num_slots - most} too many"
    )
    left = max(most - holds, 0)
    return [Constraint(Binding.QUOTA, text, job.num_slots, left, "slots", (limit.name,))]


def _no_such_nodes(index: SlotIndex, job: Waiting) -> Constraint:
    """Which demand no node meets: the first one, in a fixed order, that leaves none."""
    nodes = list(index.nodes)
    where = ""
    if job.pools:
        known = [pool for pool in job.pools if pool in index.pools]
        if not known:
            there = ", ".join(index.pools) or "none"
            text = f"there is no pool {', '.join(job.pools)}; there is {there}"
            return Constraint(Binding.NO_SUCH_NODES, text, names=job.pools)
        where = f" of pool {', '.join(known)}"
        nodes = [node for node in nodes if node.pool in known]
    for text, fits in _demands(job):
        left = [node for node in nodes if fits(node)]
        if not left:
            most = max((node.num_slots for node in nodes), default=0)
            need = job.shape.slots_per_node
            return Constraint(
                Binding.NO_SUCH_NODES, f"no node{where} {text}", need, most, "slots", job.pools
            )
        nodes = left
    return Constraint(Binding.NO_SUCH_NODES, "there are no nodes")


def _demands(job: Waiting) -> list[tuple[str, Callable[[Node], bool]]]:
    need = job.shape.slots_per_node
    return [
        (
            f"is of slot type {job.slot_type}",
            lambda n: not job.slot_type or n.slot_type == job.slot_type,
        ),
        (f"has {need} slots", lambda n: n.num_slots >= need),
        (
            f"has devices with {job.device_memory_bytes >> 30} GB",
            lambda n: n.device_memory_bytes >= job.device_memory_bytes,
        ),
        (
            "is free of taints that the job does not tolerate",
            lambda n: set(n.taints) <= set(job.tolerates),
        ),
        (
            f"has the labels {', '.join(f'{key}={value}' for key, value in job.selector)}",
            lambda n: set(job.selector) <= set(n.labels),
        ),
        (
            f"says which {job.required} it is in",
            lambda n: job.required in {None, "node"} or job.required in dict(n.domains),
        ),
    ]


def _closed(index: SlotIndex, job: Waiting, groups: Sequence[NodeGroup]) -> list[Constraint]:
    closed = [
        node for i, node in enumerate(index.nodes) if node.closed and index.group_of[i] in groups
    ]
    if not closed:
        return []
    slots = sum(node.num_slots for node in closed)
    why = ", ".join(sorted({node.closed for node in closed}))
    text = f"{len(closed)} suitable nodes with {slots} slots take nothing ({why}): {_some(closed)}"
    names = tuple(node.id for node in closed)
    return [Constraint(Binding.CLOSED_NODES, text, job.num_slots, slots, "slots", names)]


def _some(nodes: Sequence[Node]) -> str:
    more = f" and {len(nodes) - _MANY} more" if len(nodes) > _MANY else ""
    return ", ".join(node.id for node in nodes[:_MANY]) + more


def _kept_for_others(
    index: SlotIndex, decided: Plan, job: Waiting, world: World
) -> list[tuple[Hole, Taking]]:
    """Free slots that open holes and reservations keep for other jobs."""
    kept: list[tuple[Hole, Taking]] = []
    left = dict(enumerate(index.free))
    for hole in decided.holes:
        owner = world.waiting.get(hole.job)
        if hole.job == job.num or owner is None:
            continue
        for name, width in zip(hole.nodes, owner.widths(len(hole.nodes)), strict=True):
            node = index.num_of.get(name)
            if node is None:
                continue
            mask = pick(left[node], min(left[node].bit_count(), width))
            if mask:
                left[node] &= ~mask
                kept.append((hole, Taking(node, mask)))
    return kept


def _room(
    world: World, job: Waiting, groups: list[NodeGroup], kept: list[tuple[Hole, Taking]]
) -> list[Constraint]:
    index, found = world.index, []
    free = sum(group.num_free for group in groups)
    if free < job.num_slots:
        found.append(_too_few(world, job, groups, free))
        return found
    if place(index, ask_of(job), groups, job.shape) is None:
        # Without its CPUs and its memory, would the gang find its slots?
        bare = replace(job, cpus_per_node=0, memory_per_node_bytes=0)
        if place(index, ask_of(bare), groups, job.shape) is None:
            found.append(_scattered(world, job, groups, free))
        else:
            found += _starved_of(index, job, groups)
        return found
    if kept:
        owners = tuple(dict.fromkeys(f"j-{hole.job}" for hole, _ in kept))
        slots = sum(taking.mask.bit_count() for _, taking in kept)
        text = f"{slots} free slots are kept for {', '.join(owners[:_MANY])}, first in line"
        found.append(
            Constraint(Binding.KEPT, text, job.num_slots, max(free - slots, 0), "slots", owners)
        )
    return found


def _too_few(world: World, job: Waiting, groups: Sequence[NodeGroup], free: int) -> Constraint:
    total = sum(group.num_nodes * group.size for group in groups)
    by_project: dict[str, int] = {}
    for held in world.held.values():
        if any(
            world.index.group_of[world.index.num_of[share.node]] in groups
            for share in held.placement.shares
            if share.node in world.index.num_of
        ):
            by_project[held.project] = by_project.get(held.project, 0) + held.num_slots
    holders = sorted(by_project.items(), key=lambda item: (-item[1], item[0]))[:3]
    by = ", ".join(f"{name or 'no project'} {slots}" for name, slots in holders)
    text = f"needs {job.num_slots} slots; {free} of {total} are free"
    if by:
        text += f" (held: {by})"
    pools = tuple(dict.fromkeys(group.key.pool for group in groups))
    return Constraint(Binding.SLOTS, text, job.num_slots, free, "slots", pools)


def _role_without_room(
    world: World, job: Waiting, groups: Sequence[NodeGroup], free: int
) -> Constraint:
    """The first part of a gang for which too few nodes have room; else that they are too far apart."""
    index, ask = world.index, ask_of(job)
    for shape in (job.shape, *job.roles):
        own, width = part_ask(ask, shape), shape.slots_per_node
        fitting = [group for group in groups if hosts(group, ask, shape)]
        room = [i for group in fitting for bucket in group.by_free[width:] for i in bucket]
        wide = [
            i for i in room if index.cpus[i] >= own.cpus and index.memory[i] >= own.memory_bytes
        ]
        shares = [
            index.free[i].bit_count() // width if width and index.nodes[i].splittable else 1
            for i in wide
        ]
        if sum(shares) < shape.nodes:
            name = shape.name if isinstance(shape, Role) else "the first role"
            cpus = f" and {own.cpus} CPUs" if own.cpus else ""
            memory = f" and {own.memory_bytes / (1 << 30):.1f} GB" if own.memory_bytes else ""
            text = (
                f"{name} needs {shape.nodes} nodes with {width} free slots{cpus}{memory} each; "
                f"{sum(shares)} have that, though {free} slots are free in all"
            )
            return Constraint(Binding.TOPOLOGY, text, shape.nodes, sum(shares), "nodes", (name,))
    within = job.required or "pool"
    text = (
        f"each role finds room, but not all of them at once in one {within}; {free} slots are free"
    )
    return Constraint(Binding.TOPOLOGY, text, job.num_slots, free, "slots")


def _scattered(world: World, job: Waiting, groups: Sequence[NodeGroup], free: int) -> Constraint:
    if job.roles:
        return _role_without_room(world, job, groups, free)
    need, index = job.shape.slots_per_node, world.index
    wide = {i for group in groups for bucket in group.by_free[need:] for i in bucket}
    level = job.required
    if level is None or level == "node":
        have = len(wide)
        text = (
            f"needs {job.shape.nodes} nodes with {need} free slots each; {have} have that, "
            f"though {free} slots are free in all"
        )
        return Constraint(Binding.TOPOLOGY, text, job.shape.nodes, have, "nodes")
    by_domain: dict[str, int] = {}
    for i in wide:
        name = dict(index.nodes[i].domains).get(level, "")
        by_domain[name] = by_domain.get(name, 0) + 1
    have, best = max(((n, name) for name, n in by_domain.items()), default=(0, "none"))
    text = (
        f"needs {job.shape.nodes} nodes with {need} free slots each in one {level}; "
        f"the best, {best}, has {have}, though {free} slots are free in all"
    )
    return Constraint(Binding.TOPOLOGY, text, job.shape.nodes, have, "nodes", (best,))


def _starved_of(index: SlotIndex, job: Waiting, groups: Sequence[NodeGroup]) -> list[Constraint]:
    found = []
    need = job.shape.slots_per_node
    nodes = [i for group in groups for bucket in group.by_free[need:] for i in bucket]
    for binding, unit, wanted, left in (
        (Binding.CPUS, "CPUs", job.cpus_per_node, index.cpus),
        (Binding.MEMORY, "bytes", job.memory_per_node_bytes, index.memory),
    ):
        have = sum(left[i] >= wanted for i in nodes)
        if wanted and have < job.shape.nodes:
            most = max((left[i] for i in nodes), default=0)
            amount = f"{wanted}" if unit == "CPUs" else f"{wanted / (1 << 30):.1f} GB"
            top = f"{most}" if unit == "CPUs" else f"{most / (1 << 30):.1f} GB"
            text = (
                f"needs {amount} {binding} a node; {have} of {len(nodes)} nodes with enough free "
                f"slots have that (most: {top})"
            )
            found.append(Constraint(binding, text, wanted, most, unit))
    return found


def _leaving(decided: Plan, job: Waiting) -> list[Constraint]:
    hole = next((h for h in decided.holes if h.job == job.num and h.victims), None)
    if hole is None:
        return []
    names = tuple(f"j-{victim}" for victim in hole.victims)
    more = f" and {len(names) - _MANY} more" if len(names) > _MANY else ""
    text = f"waits for {', '.join(names[:_MANY])}{more} to save and leave {len(hole.nodes)} nodes"
    return [Constraint(Binding.LEAVING, text, len(hole.nodes), 0, "nodes", names)]
