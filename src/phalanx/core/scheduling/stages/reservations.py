"""Reservations: nodes kept for one gang from pass to pass, and nodes that a blocked gang gets first."""

from __future__ import annotations

from phalanx.core.scheduling.index.cluster_index import EquivalenceClass
from phalanx.core.scheduling.index.running import NEVER
from phalanx.core.scheduling.index.topology import num_leaves, place_on
from phalanx.core.scheduling.model.planner_state import Reservation
from phalanx.core.scheduling.model.planning_input import US, QueuedJob
from phalanx.core.scheduling.model.urgency import is_guarded
from phalanx.core.scheduling.search.quota import keep_room
from phalanx.core.scheduling.stages.queue import QueueHead, Verdict
from phalanx.core.scheduling.stages.scheduling_pass import Pass


def honour(state: Pass) -> None:
    """Start owners of open reservations in them, and keep the others closed to all other jobs."""
    cluster = state.cluster
    valid: list[tuple[Reservation, EquivalenceClass]] = []
    for num in sorted(cluster.reservations):
        reservation, eq_class = cluster.reservations[num], cluster.class_of.get(num)
        if eq_class is None or state.now >= reservation.expires_at or _is_void(state, reservation):
            continue
        valid.append((reservation, eq_class))
        state.ledger.promise(cluster.waiting[num], reservation.nodes)
    open_ = []
    for reservation, eq_class in valid:
        if not _start_inside(state, reservation, eq_class):
            kept = state.hold_back(reservation, *eq_class.sample.widths(len(reservation.nodes)))
            open_.append((reservation.job, eq_class, kept))
    # Only now that every reservation is closed may an owner start elsewhere, outside the others.
    for num, eq_class, kept in open_:
        reservation, job = kept.reservation, cluster.waiting[num]
        state.release(kept)
        state.kept.remove(kept)
        state.ledger.promise(job, reservation.nodes, -1)
        if state.ledger.over_limit(job) is None and state.try_start(eq_class, num):
            continue
        state.ledger.promise(job, reservation.nodes)
        state.hold_back(reservation, *eq_class.sample.widths(len(reservation.nodes)))
        state.decisions.reservations.append(reservation)


def _is_void(state: Pass, reservation: Reservation) -> bool:
    """Return whether a node of the reservation is gone or closed."""
    index = state.index
    return any(
        name not in index.num_of or index.nodes[index.num_of[name]].closed
        for name in reservation.nodes
    )


def _start_inside(state: Pass, reservation: Reservation, eq_class: EquivalenceClass) -> bool:
    """Start the owner exactly in its reservation, if all of it is free."""
    index, job = state.index, state.cluster.waiting[reservation.job]
    if job.shape.nodes + sum(role.nodes for role in job.roles) != len(reservation.nodes):
        return False
    nodes = [index.num_of[name] for name in reservation.nodes]
    state.ledger.promise(job, reservation.nodes, -1)
    if _may_start(state, job, reservation):
        allocations = place_on(index, eq_class.request, job, nodes)
        if allocations is not None:
            state.start(job, allocations)
            return True
    state.ledger.promise(job, reservation.nodes)
    return False


def _may_start(state: Pass, job: QueuedJob, reservation: Reservation) -> bool:
    """Return whether no limit keeps the owner of a reservation from its nodes."""
    if state.ledger.over_limit(job, job.num_slots) is not None:
        return False
    narrow = state.ledger.narrow
    if narrow is None:
        return True
    parts = list(zip(reservation.nodes, job.widths(len(reservation.nodes)), strict=True))
    return not narrow.exceeds(job, narrow.types_on(parts))


def reserve(state: Pass, head: QueueHead) -> Verdict:
    """Note the class as blocked, and keep the nodes that can hold its first job soonest."""
    state.decisions.blocked.append((head.eq_class, head.position))
    waited_s = (state.now - head.since) / US
    due = waited_s >= state.config.reserve_after_s or is_guarded(
        head.since, state.now, state.config
    )
    if state.num_reserved < state.config.num_reservations and due:
        state.num_reserved += _keep_soonest(state, head)
    return Verdict.BLOCKED


def _keep_soonest(state: Pass, head: QueueHead) -> bool:
    job = state.cluster.waiting[head.num]
    best = state.openings.soonest(head.eq_class, job, head.overdue)
    if best is None:
        return False
    ready_at, nodes = best
    # One reservation may span several of the narrowest domains: more would empty the cluster.
    is_wide = num_leaves(state.index, nodes) > 1
    if is_wide and state.wide_kept:
        return False
    state.wide_kept = state.wide_kept or is_wide
    names = tuple(state.index.nodes[node].id for node in nodes)
    at = None if ready_at >= NEVER else ready_at
    state.reserve(Reservation(head.num, names, at, state.now), job)
    if head.overdue:
        state.kept[-1].firm = True
        state.victims.closed.update(nodes)
    keep_room(state.openings, state.ledger, job, head.overdue)
    return True


def keep_below_limits(state: Pass, head: QueueHead) -> None:
    """Keep room below the limits of its project for a job at a limit: a reservation without nodes."""
    job = state.cluster.waiting[head.num]
    ready_at = keep_room(state.openings, state.ledger, job, head.overdue)
    if ready_at is not None:
        at = None if ready_at >= NEVER else ready_at
        state.decisions.reservations.append(Reservation(head.num, (), at, state.now))
