"""Explanations: for every job that stays, what binds it, with names and numbers."""

from __future__ import annotations

from phalanx.core.gang.placement import GangShape, Role
from phalanx.core.reasons import Reason, ReasonCode
from phalanx.core.scheduling.index.cluster_index import Line
from phalanx.core.scheduling.index.slots import SlotIndex, Taking, pick
from phalanx.core.scheduling.index.topology import Ask, part_ask
from phalanx.core.scheduling.model.outcome import Stays
from phalanx.core.scheduling.model.snapshot import US, Project, Waiting
from phalanx.core.scheduling.stages.scheduling_pass import Draft


def stays(draft: Draft) -> Stays:
    """A reason for every job that waits and was not started."""
    world, reasons = draft.world, draft.reasons
    for num, at in world.deferred.items():
        left_s = (at - draft.now) / US
        text = f"waits {left_s:.0f} s before its next attempt"
        reasons[num] = Reason(ReasonCode.WAITING_FOR_SLOTS, text)
    lines = [(reason, tuple(line.jobs)) for line, reason in draft.limited]
    lines += [(_blocked(draft, line), tuple(line.jobs)) for line, _ in draft.blocked]
    for hole in draft.holes:
        if hole.victims:
            reasons[hole.job] = coming(draft, hole.job)
    return Stays(reasons, lines, frozenset(draft.started))


def coming(draft: Draft, num: int) -> Reason:
    """The job has been promised a hole."""
    hole = next((h for h in draft.holes if h.job == num), None)
    if hole is None:
        return Reason(ReasonCode.WAITING_FOR_VICTIMS, "waits for an elastic job to give nodes back")
    names = ", ".join(f"j-{victim}" for victim in hole.victims[:4])
    more = f" and {len(hole.victims) - 4} more" if len(hole.victims) > 4 else ""
    text = f"starts on {_short(hole.nodes)} once {names}{more} have saved and left"
    return Reason(ReasonCode.WAITING_FOR_VICTIMS, text)


def over_limit(limit: Project, used: int, job: Waiting) -> Reason:
    """The project, or one that it is part of, may not hold that much."""
    whose = f"project {limit.name}"
    if limit.name != job.project:
        whose += f", which {job.project} is part of,"
    text = f"needs {job.num_slots} slots; {whose} holds {used} of at most {limit.max_slots}"
    return Reason(ReasonCode.WAITING_FOR_QUOTA, text)


def need(job: Waiting) -> str:
    """The gang in words."""
    parts = [_part(shape) for shape in (job.shape, *job.roles)]
    extra = f", {job.cpus_per_node} CPUs a node" if job.cpus_per_node else ""
    where = f" in one {job.required}" if job.required else ""
    return f"needs {' + '.join(parts)} slots{extra}{where}"


def _part(shape: GangShape) -> str:
    said = f"{shape.nodes} × {shape.slots_per_node}"
    if not isinstance(shape, Role):
        return said
    cpus = f" with {shape.cpus_per_node} CPUs" if shape.cpus_per_node else ""
    return f"{said}{cpus} ({shape.name})"


def _blocked(draft: Draft, line: Line) -> Reason:
    job = line.sample
    if not line.groups:
        return Reason(ReasonCode.UNPLACEABLE, f"{need(job)}; {_nowhere(draft, job)}")
    owner = draft.owner_of(line)
    if owner is not None and draft.world.line_of.get(owner) is not line:
        text = f"j-{owner} is first in line for these slots; {need(job)}"
        return Reason(ReasonCode.WAITING_BEHIND, text)
    free = sum(group.num_free for group in line.groups)
    have = "; ".join(_room(draft, line, pool) for pool in line.ask.pools or draft.index.pools)
    code = ReasonCode.WAITING_FOR_SLOTS
    if free >= job.num_slots and not _kept(draft):
        code = ReasonCode.WAITING_FOR_TOPOLOGY
        have += "; the free slots are scattered over too many nodes"
    return Reason(code, f"{need(job)}; {have}")


def _kept(draft: Draft) -> bool:
    return any(block.takings for block in draft.blocks)


def _nowhere(draft: Draft, job: Waiting) -> str:
    pools = job.pools or draft.index.pools
    known = [pool for pool in pools if pool in draft.index.pools]
    if not known:
        return f"no such pool: {', '.join(pools) or 'there are no nodes'}"
    return f"no node of pool {', '.join(known)} has that many slots of that kind"


def _room(draft: Draft, line: Line, pool: str) -> str:
    groups = [g for g in line.groups if g.key.pool == pool]
    if not groups:
        return f"pool {pool}: no suitable nodes"
    free = sum(g.num_free for g in groups) + _kept_for(draft, line, pool)
    total = sum(g.num_nodes * g.size for g in groups)
    whole = sum(len(g.by_free[g.size]) for g in groups)
    return f"pool {pool}: {free} of {total} free, {whole} nodes entirely"


def _kept_for(draft: Draft, line: Line, pool: str) -> int:
    """Free slots of a pool that a reservation keeps for this very line: to it they are free."""
    nodes, owner_of = draft.index.nodes, draft.world.line_of
    return sum(
        taking.mask.bit_count()
        for block in draft.blocks
        if owner_of.get(block.hole.job) is line
        for taking in block.takings
        if nodes[taking.node].pool == pool
    )


def _short(names: tuple[str, ...]) -> str:
    known = list(dict.fromkeys(names))
    return ", ".join(known[:3]) + (f" and {len(known) - 3} more" if len(known) > 3 else "")


def exactly(index: SlotIndex, ask: Ask, job: Waiting, nodes: list[int]) -> list[Taking] | None:
    """The gang's shares on just these nodes, or None while one of them lacks room."""
    left: dict[int, int] = {}
    takings = []
    others = [role for role in job.roles for _ in range(role.nodes)]
    shapes = [job.shape] * (len(nodes) - len(others)) + others
    for node, shape in zip(nodes, shapes, strict=True):
        free, own = left.get(node, index.free[node]), part_ask(ask, shape)
        if free.bit_count() < shape.slots_per_node or index.cpus[node] < own.cpus:
            return None
        mask = pick(free, shape.slots_per_node)
        left[node] = free & ~mask
        takings.append(Taking(node, mask, own.cpus, own.memory_bytes))
    return takings
