"""Explanations: for every job that stays queued, the binding constraint with numbers."""

from __future__ import annotations

from dataclasses import replace

from phalanx.core.gang.placement import GangShape, RoleShape
from phalanx.core.reasons import Reason, ReasonCode
from phalanx.core.residency import residency_of
from phalanx.core.scheduling.index.cluster_index import EquivalenceClass
from phalanx.core.scheduling.index.topology import request_of, suitable
from phalanx.core.scheduling.model.entitlement import QuotaLimit
from phalanx.core.scheduling.model.outcome import PendingReasons
from phalanx.core.scheduling.model.planning_input import US, QueuedJob
from phalanx.core.scheduling.stages.scheduling_pass import KeptSlots, Pass


def explain(state: Pass) -> None:
    """Give every queued job that does not start the reason that binds it."""
    cluster, decisions = state.cluster, state.decisions
    reasons = decisions.reasons
    for num, at in cluster.deferred.items():
        left_s = (at - state.now) / US
        text = f"waits {left_s:.0f} s before its next attempt"
        reasons[num] = Reason(ReasonCode.WAITING_FOR_SLOTS, text)
    classes = [(reason, tuple(eq_class.jobs)) for eq_class, reason in decisions.limited]
    classes += [
        (_blocked(state, eq_class), tuple(eq_class.jobs)) for eq_class, _ in decisions.blocked
    ]
    for reservation in decisions.reservations:
        if reservation.victims:
            reasons[reservation.job] = coming(state, reservation.job)
    state.decisions.pending = PendingReasons(reasons, classes, frozenset(decisions.started))


def coming(state: Pass, num: int) -> Reason:
    """Return the reason of a job that has a reservation."""
    reservation = next((h for h in state.decisions.reservations if h.job == num), None)
    if reservation is None:
        return Reason(ReasonCode.WAITING_FOR_VICTIMS, "waits for an elastic job to release nodes")
    names = ", ".join(f"j-{victim}" for victim in reservation.victims[:4])
    more = f" and {len(reservation.victims) - 4} more" if len(reservation.victims) > 4 else ""
    text = f"starts on {_short(reservation.nodes)} once {names}{more} have saved and exited"
    return Reason(ReasonCode.WAITING_FOR_VICTIMS, text)


def over_limit(limit: QuotaLimit, job: QueuedJob) -> Reason:
    """Return the reason of a job over a limit of its project, of one above, of a slot type or of a user."""
    name = holder(limit, job.project)
    kind = f"{limit.slot_type} slots" if limit.slot_type else "slots"
    if limit.kept_for is not None:
        text = (
            f"the free {kind} of {name} are kept for j-{limit.kept_for}, which waits at its limit"
        )
        return Reason(ReasonCode.WAITING_BEHIND, text)
    if limit.unit == "jobs":
        text = f"{name} runs {limit.holds} jobs of at most {limit.most}"
    else:
        suffix = f" {kind}" if limit.slot_type else ""
        text = f"needs {job.num_slots} slots; {name} holds {limit.holds} of at most {limit.most}"
        text += suffix
    code = ReasonCode.WAITING_FOR_QUOTA
    if limit.user:
        code = ReasonCode.WAITING_FOR_USER_QUOTA
    elif limit.slot_type:
        code = ReasonCode.WAITING_FOR_TYPE_QUOTA
    return Reason(code, text)


def holder(limit: QuotaLimit, project: str) -> str:
    """Return in words what a limit limits, for a job of a project."""
    name = f"project {limit.project}"
    if limit.project and limit.project != project:
        name += f", which {project} is part of,"
    if not limit.user:
        return name
    return f"user {limit.user} in {name}" if limit.project else f"user {limit.user}"


def need(job: QueuedJob) -> str:
    """Return the shape of the gang in words."""
    parts = [_part(shape) for shape in (job.shape, *job.roles)]
    extra = f", {job.cpus_per_node} CPUs a node" if job.cpus_per_node else ""
    where = (
        f" in {'one' if job.domains == 1 else job.domains} {job.required}" if job.required else ""
    )
    return f"needs {' + '.join(parts)} slots{extra}{where}"


def _part(shape: GangShape) -> str:
    said = f"{shape.nodes} × {shape.slots_per_node}"
    if not isinstance(shape, RoleShape):
        return said
    cpus = f" with {shape.cpus_per_node} CPUs" if shape.cpus_per_node else ""
    return f"{said}{cpus} ({shape.name})"


def _blocked(state: Pass, eq_class: EquivalenceClass) -> Reason:
    job = eq_class.sample
    if not eq_class.groups:
        if job.residency is not None and suitable(
            state.index, replace(eq_class.request, residency=None)
        ):
            text = f"{need(job)}; {_residency(state, job)}"
            return Reason(ReasonCode.OUTSIDE_RESIDENCY, text)
        return Reason(ReasonCode.UNPLACEABLE, f"{need(job)}; {_nowhere(state, job)}")
    owner = _owner_in_front(state, eq_class)
    if owner is not None and not _is_of(state, owner, eq_class):
        gang = (
            "the overdue gang "
            if any(one.reservation.job == owner for one in _overdue(state))
            else ""
        )
        text = f"the free slots are reserved for {gang}j-{owner}; {need(job)}"
        return Reason(ReasonCode.WAITING_BEHIND, text)
    free = sum(group.num_free for group in eq_class.groups)
    have = "; ".join(
        _room(state, eq_class, pool) for pool in eq_class.request.pools or state.index.pools
    )
    code = ReasonCode.WAITING_FOR_SLOTS
    if free >= job.num_slots and not _kept(state):
        code = ReasonCode.WAITING_FOR_TOPOLOGY
        have += "; the free slots are scattered over too many nodes"
    return Reason(code, f"{need(job)}; {have}{_kept_for_overdue(state, eq_class)}")


def _residency(state: Pass, job: QueuedJob) -> str:
    """Return where the suitable nodes are, and where the job may run."""
    bare = replace(request_of(job), residency=None)
    there = {residency_of(group.key.labels) for group in suitable(state.index, bare)}
    places = ", ".join(sorted(there - {""}))
    have = f"in {places}" if places else "without a residency"
    return f"suitable nodes are {have}, {residency_text(job.residency or ())}"


def residency_text(allowed: tuple[str, ...]) -> str:
    """Return in words where a job may run."""
    if not allowed:
        return "and the rules of the job and its projects have no residency in common"
    return f"and the job may run in {', '.join(allowed)} alone"


def _overdue(state: Pass) -> list[KeptSlots]:
    """Return the reservations of overdue gangs, also those with no free slot on their nodes yet."""
    return [one for one in state.kept if one.firm]


def _kept_for_overdue(state: Pass, eq_class: EquivalenceClass) -> str:
    """Return on which nodes that a class could use the slots that become free go to an overdue gang."""
    pools = eq_class.request.pools or state.index.pools
    nodes, num_of = state.index.nodes, state.index.num_of
    for one in _overdue(state):
        names = one.reservation.nodes
        here = tuple(name for name in names if nodes[num_of[name]].pool in pools)
        if here:
            owner = one.reservation.job
            return f"; slots that become free on {_short(here)} are kept for the overdue gang j-{owner}"
    return ""


def _owner_in_front(state: Pass, eq_class: EquivalenceClass) -> int | None:
    """Return the owner of the reservation that keeps this class out, if slots are free but kept."""
    kept = [one for one in state.kept if one.allocations]
    free = sum(group.num_free for group in eq_class.groups) + sum(one.num_slots for one in kept)
    if not kept or free < eq_class.sample.num_slots:
        return None
    pools = eq_class.request.pools or state.index.pools
    nodes = state.index.nodes
    return next(
        (one.reservation.job for one in kept if nodes[one.allocations[0].node].pool in pools), None
    )


def _kept(state: Pass) -> bool:
    return any(kept.allocations for kept in state.kept)


def _nowhere(state: Pass, job: QueuedJob) -> str:
    pools = job.pools or state.index.pools
    known = [pool for pool in pools if pool in state.index.pools]
    if not known:
        return f"no such pool: {', '.join(pools)}" if pools else "there are no nodes"
    return f"no node of pool {', '.join(known)} has that many slots of that kind"


def _room(state: Pass, eq_class: EquivalenceClass, pool: str) -> str:
    groups = [g for g in eq_class.groups if g.key.pool == pool]
    if not groups:
        return f"pool {pool}: no suitable nodes"
    free = sum(g.num_free for g in groups) + _kept_for(state, eq_class, pool)
    total = sum(g.num_nodes * g.size for g in groups)
    whole = sum(len(g.by_free[g.size]) for g in groups)
    return f"pool {pool}: {free} of {total} free, {whole} nodes entirely"


def _kept_for(state: Pass, eq_class: EquivalenceClass, pool: str) -> int:
    """Return the free slots of a pool that a reservation keeps for this very class."""
    nodes = state.index.nodes
    return sum(
        allocation.mask.bit_count()
        for kept in state.kept
        if _is_of(state, kept.reservation.job, eq_class)
        for allocation in kept.allocations
        if nodes[allocation.node].pool == pool
    )


def _is_of(state: Pass, num: int, eq_class: EquivalenceClass) -> bool:
    """Return whether a job is of this class, narrowed or not: both share their jobs."""
    own = state.cluster.class_of.get(num)
    return own is not None and own.jobs is eq_class.jobs


def _short(names: tuple[str, ...]) -> str:
    known = list(dict.fromkeys(names))
    return ", ".join(known[:3]) + (f" and {len(known) - 3} more" if len(known) > 3 else "")
