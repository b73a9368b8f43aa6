"""The constraints that keep a queued job from starting, with names and numbers.

A constraint is stated as what the job needs against what there is now, after the starts that the plan
has decided. The reason of a plan is one line; this is the whole list.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from phalanx.core.gang.placement import Node, RoleShape
from phalanx.core.residency import residency_of
from phalanx.core.scheduling.index.cluster_index import ClusterIndex
from phalanx.core.scheduling.index.slots import Allocation, NodeGroup, SlotIndex, pick
from phalanx.core.scheduling.index.topology import (
    hosts,
    part_request,
    place,
    request_of,
    suitable,
)
from phalanx.core.scheduling.model.entitlement import QuotaLimit, lineage
from phalanx.core.scheduling.model.outcome import Plan
from phalanx.core.scheduling.model.planner_state import Reservation
from phalanx.core.scheduling.model.planning_input import US, QueuedJob
from phalanx.core.scheduling.stages.entitlement import entitle
from phalanx.core.scheduling.stages.reasons import holder, over_limit
from phalanx.core.scheduling.stages.scheduling_pass import Pass
from phalanx.kit.units import format_size

_MANY = 4


class Binding(StrEnum):
    """The kind of a constraint."""

    BACK_OFF = "back_off"
    QUOTA = "quota"
    NO_SUCH_NODES = "no_such_nodes"
    RESIDENCY = "residency"
    CLOSED_NODES = "closed_nodes"
    SLOTS = "slots"
    TOPOLOGY = "topology"
    CPUS = "cpus"
    MEMORY = "memory"
    KEPT = "kept"
    LEAVING = "leaving"


@dataclass(frozen=True, slots=True)
class Constraint:
    """One constraint: `need` against `have` in `unit`, and the names concerned."""

    binding: Binding
    text: str
    need: float = 0.0
    have: float = 0.0
    unit: str = "slots"
    names: tuple[str, ...] = ()


def constraints(
    cluster: ClusterIndex, decided: Plan, job: QueuedJob, now: int
) -> tuple[Constraint, ...]:
    """Return the constraints on `job`, the most permanent first; the index stays unchanged."""
    found = [*_back_off(job, now), *_quota(cluster, decided, job, now)]
    index, mark = cluster.index, cluster.index.mark()
    try:
        _apply_starts(cluster, decided)
        groups = cluster.groups_for(request_of(job))
        if not groups:
            found.append(_no_such_nodes(index, job))
        else:
            found += _closed(index, job, groups)
            found += _room(cluster, job, groups, _kept_for_others(index, decided, job, cluster))
    finally:
        index.rollback(mark)
    found += _leaving(decided, job)
    return tuple(found)


def _apply_starts(cluster: ClusterIndex, decided: Plan) -> None:
    for start in decided.starts:
        job = cluster.waiting[start.job]
        for allocation in cluster.index.allocations(
            start.placement, job.cpus_per_node, job.memory_per_node_bytes, job.roles
        ):
            cluster.index.take(allocation)


def _back_off(job: QueuedJob, now: int) -> list[Constraint]:
    if job.not_before is None or job.not_before <= now:
        return []
    left_s = (job.not_before - now) / US
    text = f"waits {left_s:.0f} s before its next attempt"
    return [Constraint(Binding.BACK_OFF, text, left_s, 0.0, "s")]


def _quota(cluster: ClusterIndex, decided: Plan, job: QueuedJob, now: int) -> list[Constraint]:
    state = Pass(cluster, now)
    entitle(state)
    for start in decided.starts:
        allocations = cluster.index.allocations(start.placement, 0, 0)
        state.ledger.start(cluster.waiting[start.job], allocations)
    limit = state.ledger.over_limit(job)
    if limit is None:
        return []
    left = max(limit.most - limit.holds, 0)
    holders = _holders(cluster, limit)
    names = tuple(one for one in (limit.project, limit.user, limit.slot_type) if one)
    if limit.unit == "jobs":
        text = f"{over_limit(limit, job).message}{holders}"
        return [Constraint(Binding.QUOTA, text, 1, left, "jobs", names)]
    kind = f"{limit.slot_type} slots" if limit.slot_type else "slots"
    text = (
        f"{holder(limit, job.project)} holds {limit.holds} of at most {limit.most} {kind}; "
        f"{job.num_slots} more are {limit.holds + job.num_slots - limit.most} too many"
    )
    narrow = limit.user or limit.slot_type
    text += f"; held by{holders[1:]}" if narrow and holders else ""
    return [Constraint(Binding.QUOTA, text, job.num_slots, left, "slots", names)]


def _holders(cluster: ClusterIndex, limit: QuotaLimit) -> str:
    """Return the first running jobs that count against a limit, after a colon."""
    nodes, num_of = cluster.index.nodes, cluster.index.num_of
    names = [
        f"j-{num}"
        for num, held in sorted(cluster.held.items())
        if not limit.project
        or any(one.name == limit.project for one in lineage(cluster.projects, held.project))
        if limit.user in ("", held.user)
        if not limit.slot_type
        or any(
            nodes[num_of[share.node]].slot_type == limit.slot_type
            for share in held.placement.shares
            if share.node in num_of
        )
    ]
    return f": {', '.join(names[:_MANY])}" if names else ""


def _no_such_nodes(index: SlotIndex, job: QueuedJob) -> Constraint:
    """Return the first requirement, in a fixed order, that no node meets."""
    nodes = list(index.nodes)
    where = ""
    if job.pools:
        known = [pool for pool in job.pools if pool in index.pools]
        if not known:
            there = ", ".join(index.pools) or "none"
            text = f"there is no pool {', '.join(job.pools)}; known: {there}"
            return Constraint(Binding.NO_SUCH_NODES, text, names=job.pools)
        where = f" of pool {', '.join(known)}"
        nodes = [node for node in nodes if node.pool in known]
    elsewhere = _elsewhere(index, job, where)
    if elsewhere is not None:
        return elsewhere
    for text, fits in _demands(job) if nodes else ():
        left = [node for node in nodes if fits(node)]
        if not left:
            most = max((node.num_slots for node in nodes), default=0)
            need = job.shape.slots_per_node
            return Constraint(
                Binding.NO_SUCH_NODES, f"no node{where} {text}", need, most, "slots", job.pools
            )
        nodes = left
    return Constraint(Binding.NO_SUCH_NODES, "there are no nodes")


def _elsewhere(index: SlotIndex, job: QueuedJob, where: str) -> Constraint | None:
    """Return the constraint of a job for which all suitable nodes are outside its residency."""
    if job.residency is None:
        return None
    groups = suitable(index, replace(request_of(job), residency=None))
    if not groups:
        return None
    there = sorted({residency_of(group.key.labels) or "(none)" for group in groups})
    wanted = ", ".join(job.residency) or "nowhere: its rules have nothing in common"
    text = f"no suitable node{where} has the residency that the job needs ({wanted}); "
    text += f"they have {', '.join(there)}"
    return Constraint(Binding.RESIDENCY, text, job.num_slots, 0, "slots", tuple(there))


def _demands(job: QueuedJob) -> list[tuple[str, Callable[[Node], bool]]]:
    need = job.shape.slots_per_node
    return [
        (
            f"is of slot type {job.slot_type}",
            lambda n: not job.slot_type or n.slot_type == job.slot_type,
        ),
        (f"has {need} slots", lambda n: n.num_slots >= need),
        (
            f"has devices with {format_size(job.device_memory_bytes)}",
            lambda n: n.planned_device_memory_bytes >= job.device_memory_bytes,
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
            f"has a {job.required} in its topology",
            lambda n: job.required in {None, "node"} or job.required in dict(n.domains),
        ),
    ]


def _closed(index: SlotIndex, job: QueuedJob, groups: Sequence[NodeGroup]) -> list[Constraint]:
    closed = [
        node for i, node in enumerate(index.nodes) if node.closed and index.group_of[i] in groups
    ]
    found = _closed_slots(index, job, groups)
    if not closed:
        return found
    slots = sum(node.num_slots for node in closed)
    why = ", ".join(sorted({node.closed for node in closed}))
    text = f"{len(closed)} suitable nodes with {slots} slots are closed ({why}): {_some(closed)}"
    names = tuple(node.id for node in closed)
    return [Constraint(Binding.CLOSED_NODES, text, job.num_slots, slots, "slots", names), *found]


def _closed_slots(
    index: SlotIndex, job: QueuedJob, groups: Sequence[NodeGroup]
) -> list[Constraint]:
    """Single slots of open nodes that are not offered."""
    nodes = [
        node
        for i, node in enumerate(index.nodes)
        if node.closed_slots and not node.closed and index.group_of[i] in groups
    ]
    if not nodes:
        return []
    slots = sum(len(node.closed_slots) for node in nodes)
    why = ", ".join(sorted({reason for node in nodes for _, reason in node.closed_slots}))
    text = f"{slots} suitable slots are closed ({why}): {_some(nodes)}"
    names = tuple(node.id for node in nodes)
    return [Constraint(Binding.CLOSED_NODES, text, job.num_slots, slots, "slots", names)]


def _some(nodes: Sequence[Node]) -> str:
    more = f" and {len(nodes) - _MANY} more" if len(nodes) > _MANY else ""
    return ", ".join(node.id for node in nodes[:_MANY]) + more


def _kept_for_others(
    index: SlotIndex, decided: Plan, job: QueuedJob, cluster: ClusterIndex
) -> list[tuple[Reservation, Allocation]]:
    """Free slots that open reservations keep for other jobs."""
    kept: list[tuple[Reservation, Allocation]] = []
    left = dict(enumerate(index.free))
    for reservation in decided.reservations:
        owner = cluster.waiting.get(reservation.job)
        if reservation.job == job.num or owner is None:
            continue
        for name, width in zip(
            reservation.nodes, owner.widths(len(reservation.nodes)), strict=True
        ):
            node = index.num_of.get(name)
            if node is None:
                continue
            mask = pick(left[node], min(left[node].bit_count(), width))
            if mask:
                left[node] &= ~mask
                kept.append((reservation, Allocation(node, mask)))
    return kept


def _room(
    cluster: ClusterIndex,
    job: QueuedJob,
    groups: list[NodeGroup],
    kept: list[tuple[Reservation, Allocation]],
) -> list[Constraint]:
    index, found = cluster.index, []
    free = sum(group.num_free for group in groups)
    if free < job.num_slots:
        found.append(_too_few(cluster, job, groups, free))
        return found
    if place(index, request_of(job), groups, job.shape) is None:
        # Check whether the gang would fit without its CPUs and its memory.
        bare = replace(job, cpus_per_node=0, memory_per_node_bytes=0)
        if place(index, request_of(bare), groups, job.shape) is None:
            found.append(_scattered(cluster, job, groups, free))
        else:
            found += _starved_of(index, job, groups)
        return found
    if kept:
        owners = tuple(dict.fromkeys(f"j-{reservation.job}" for reservation, _ in kept))
        slots = sum(allocation.mask.bit_count() for _, allocation in kept)
        text = f"{slots} free slots are reserved for {', '.join(owners[:_MANY])}"
        found.append(
            Constraint(Binding.KEPT, text, job.num_slots, max(free - slots, 0), "slots", owners)
        )
    return found


def _too_few(
    cluster: ClusterIndex, job: QueuedJob, groups: Sequence[NodeGroup], free: int
) -> Constraint:
    total = sum(group.num_nodes * group.size for group in groups)
    by_project: dict[str, int] = {}
    for held in cluster.held.values():
        if any(
            cluster.index.group_of[cluster.index.num_of[share.node]] in groups
            for share in held.placement.shares
            if share.node in cluster.index.num_of
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
    cluster: ClusterIndex, job: QueuedJob, groups: Sequence[NodeGroup], free: int
) -> Constraint:
    """Return the first part of a gang without enough nodes, else a lack of room in one domain."""
    index, request = cluster.index, request_of(job)
    for shape in (job.shape, *job.roles):
        own, width = part_request(request, shape), shape.slots_per_node
        fitting = [group for group in groups if hosts(group, request, shape)]
        room = [i for group in fitting for bucket in group.by_free[width:] for i in bucket]
        wide = [
            i for i in room if index.cpus[i] >= own.cpus and index.memory[i] >= own.memory_bytes
        ]
        shares = [
            index.free[i].bit_count() // width if width and index.nodes[i].splittable else 1
            for i in wide
        ]
        if sum(shares) < shape.nodes:
            name = shape.name if isinstance(shape, RoleShape) else "the first role"
            cpus = f" and {own.cpus} CPUs" if own.cpus else ""
            memory = f" and {own.memory_bytes / (1 << 30):.1f} GB" if own.memory_bytes else ""
            text = (
                f"{name} needs {shape.nodes} nodes with {width} free slots{cpus}{memory} each; "
                f"{sum(shares)} have that, though {free} slots are free in all"
            )
            return Constraint(Binding.TOPOLOGY, text, shape.nodes, sum(shares), "nodes", (name,))
    within = job.required or "pool"
    text = f"each role fits alone, but not all at once in one {within}; {free} slots are free"
    return Constraint(Binding.TOPOLOGY, text, job.num_slots, free, "slots")


def _scattered(
    cluster: ClusterIndex, job: QueuedJob, groups: Sequence[NodeGroup], free: int
) -> Constraint:
    if job.roles:
        return _role_without_room(cluster, job, groups, free)
    need, index = job.shape.slots_per_node, cluster.index
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
    if job.domains > 1:
        return _too_few_domains(job, list(by_domain.values()), free)
    have, best = max(((n, name) for name, n in by_domain.items()), default=(0, "none"))
    text = (
        f"needs {job.shape.nodes} nodes with {need} free slots each in one {level}; "
        f"the best, {best}, has {have}, though {free} slots are free in all"
    )
    return Constraint(Binding.TOPOLOGY, text, job.shape.nodes, have, "nodes", (best,))


def _too_few_domains(job: QueuedJob, num_wide: Sequence[int], free: int) -> Constraint:
    """Return the constraint of a gang of equal parts; `num_wide` are wide enough nodes by domain."""
    each, level = job.shape.nodes // job.domains, job.required
    have = sum(num >= each for num in num_wide)
    text = (
        f"needs {job.domains} domains of the level {level} with {each} nodes with "
        f"{job.shape.slots_per_node} free slots each; {have} of them are there, though {free} slots are "
        "free in all"
    )
    return Constraint(Binding.TOPOLOGY, text, job.domains, have, "domains")


def _starved_of(index: SlotIndex, job: QueuedJob, groups: Sequence[NodeGroup]) -> list[Constraint]:
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


def _leaving(decided: Plan, job: QueuedJob) -> list[Constraint]:
    reservation = next((h for h in decided.reservations if h.job == job.num and h.victims), None)
    if reservation is None:
        return []
    names = tuple(f"j-{victim}" for victim in reservation.victims)
    more = f" and {len(names) - _MANY} more" if len(names) > _MANY else ""
    text = f"waits for {', '.join(names[:_MANY])}{more} to save and release {len(reservation.nodes)} nodes"
    return [Constraint(Binding.LEAVING, text, len(reservation.nodes), 0, "nodes", names)]
