"""The planner: an immutable snapshot in; starts, preemptions, holes and a reason for the rest out.

One pass, in named stages:
 1. holes        owners of open holes start in them, or the holes stay closed to everybody else
 2. entitlement  what each project may count on
 3. order        lines of like jobs, best first: tier, fair share, priority, guard, learned urgency
 4. placement    the smallest domain that holds the whole gang
 5. shrink and preemption   for a blocked claim, the cheapest set of jobs in one domain
 6. reservation  a blocked gang keeps the domain that is free first
 7. backfill     short jobs use kept slots until then
 8. growth       elastic jobs take what nobody wants
 9. explanation  a reason for everything that stays
Deterministic: equal snapshots give equal plans, and the order of events before it does not matter.
"""

from __future__ import annotations

import heapq

from phalanx.core.gang.placement import GangShape, Node
from phalanx.core.reasons import Reason
from phalanx.core.scheduling.explain import reasons
from phalanx.core.scheduling.index.cluster_index import ClusterIndex, EquivalenceClass
from phalanx.core.scheduling.index.slots import SlotIndex
from phalanx.core.scheduling.index.topology import place, request_of, suitable
from phalanx.core.scheduling.model.outcome import Plan, Start
from phalanx.core.scheduling.model.planning_input import US, PlanningInput, QueuedJob, RunningJob
from phalanx.core.scheduling.model.reservation import Reservation
from phalanx.core.scheduling.search import preemption
from phalanx.core.scheduling.stages import elastic, reservations
from phalanx.core.scheduling.stages.entitlement import project_shares, rolled_up
from phalanx.core.scheduling.stages.order import is_guarded
from phalanx.core.scheduling.stages.scheduling_pass import Pass, Rank

_Entry = tuple[Rank, int, EquivalenceClass, int]


def plan(snapshot: PlanningInput, now: int) -> Plan:
    """Plan from a snapshot. `now` in microseconds UTC."""
    return plan_pass(ClusterIndex.of(snapshot), now)


def plan_pass(cluster: ClusterIndex, now: int) -> Plan:
    """Plan on a living world, which is left as it was (but for back-offs that are over)."""
    cluster.activate_deferred(now)
    mark = cluster.index.mark()
    try:
        return _run(cluster, now)
    finally:
        cluster.index.rollback(mark)


def fits_ever(shape: GangShape, cpus_per_node: int, nodes: tuple[Node, ...]) -> bool:
    """Whether the gang would fit if nothing else ran."""
    index = SlotIndex(nodes)
    request = request_of(QueuedJob(0, shape, 0, 0, cpus_per_node=cpus_per_node))
    return place(index, request, suitable(index, request), shape) is not None


def _run(cluster: ClusterIndex, now: int) -> Plan:
    capacity = sum(group.num_nodes * group.size for group in cluster.index.groups)
    state = Pass(
        cluster,
        now,
        project_shares(cluster.projects, cluster.used, cluster.demand, capacity),
        rolled_up(cluster.projects, cluster.used),
    )
    state.sizes = elastic.sizes(state)
    honour_reservations(state)
    _serve_lines(state)
    if state.blocked and state.blocks:
        reservations.backfill(state, state.blocked)
    elastic.grow(state)
    pending_reasons = reasons.pending_reasons(state)
    started = {start.job for start in state.starts}
    return Plan(
        tuple(state.starts),
        pending_reasons,
        _wake_at(state),
        tuple(state.preemptions),
        # Who started elsewhere after all needs its hole no longer.
        tuple(reservation for reservation in state.reservations if reservation.job not in started),
        tuple(state.resizes),
        tuple(state.migrations),
        state.steps,
    )


def honour_reservations(state: Pass) -> None:
    """Start owners of open holes in them, and keep the other holes closed to everybody else."""
    cluster = state.cluster
    open_ = []
    for num in sorted(cluster.reservations):
        reservation, eq_class = cluster.reservations[num], cluster.class_of.get(num)
        if (
            eq_class is None
            or state.now >= reservation.expires_at
            or not _still_there(state, reservation)
        ):
            continue
        if not _coming(state, reservation, eq_class):
            state.hold_back(reservation, *eq_class.sample.widths(len(reservation.nodes)))
            open_.append((num, eq_class, state.blocks[-1]))
    # Only now that every hole is closed may an owner start elsewhere, without entering another's.
    for num, eq_class, hold_back in open_:
        state.release(hold_back)
        state.blocks.remove(hold_back)
        if state.try_start(eq_class, num):
            continue
        state.hold_back(
            hold_back.reservation, *eq_class.sample.widths(len(hold_back.reservation.nodes))
        )
        state.reservations.append(hold_back.reservation)
        job = cluster.waiting[num]
        state.use(job.project, job.num_slots)


def _still_there(state: Pass, reservation: Reservation) -> bool:
    index = state.index
    return all(
        name in index.num_of and not index.nodes[index.num_of[name]].closed
        for name in reservation.nodes
    )


def _coming(state: Pass, reservation: Reservation, eq_class: EquivalenceClass) -> bool:
    """Start the owner exactly in its hole, if the hole is wide enough by now."""
    index, job = state.index, state.cluster.waiting[reservation.job]
    if job.shape.nodes + sum(role.nodes for role in job.roles) != len(reservation.nodes):
        return False
    allocations = reasons.exactly(
        index, eq_class.request, job, [index.num_of[n] for n in reservation.nodes]
    )
    if allocations is None:
        return False
    state.start(job, allocations)
    return True


def _serve_lines(state: Pass) -> None:
    heap: list[_Entry] = []
    owners = {reservation.job for reservation in state.reservations}
    for eq_class in state.cluster.classes.values():
        _push(state, heap, eq_class, 0, owners)
    reserved = tries = 0
    while heap:
        rank, num, eq_class, position = heapq.heappop(heap)
        if rank[:2] != state.fair_share_key(eq_class.sample):
            _push(state, heap, eq_class, position, owners)
            continue
        if _limited(state, eq_class, num):
            continue
        if state.try_start(eq_class, num):
            _push(state, heap, eq_class, position + 1, owners)
            continue
        since = eq_class.jobs[position][0]
        if tries < state.config.preemption_budget and state.steps < state.config.step_budget:
            tries += 1
            if elastic.shrink_for(state, eq_class, num) or preemption.make_room(
                state, eq_class, since, num
            ):
                owners.add(num)
                state.reasons[num] = reasons.coming(state, num)
                _push(state, heap, eq_class, position + 1, owners)
                continue
        state.blocked.append((eq_class, position))
        reserved += _reserve(state, eq_class, since, num, reserved)


def _push(
    state: Pass, heap: list[_Entry], eq_class: EquivalenceClass, position: int, owners: set[int]
) -> None:
    jobs = eq_class.jobs
    while position < len(jobs) and (
        jobs[position][1] in state.started or jobs[position][1] in owners
    ):
        position += 1
    if position < len(jobs):
        heapq.heappush(
            heap, (state.rank(eq_class, position), jobs[position][1], eq_class, position)
        )


def _limited(state: Pass, eq_class: EquivalenceClass, num: int) -> bool:
    job = state.cluster.waiting[num]
    share_of = state.project_shares.get(job.project)
    limit = None if share_of is None else share_of.over_limit(state.used, job.num_slots)
    if limit is None:
        return False
    state.limited.append((eq_class, reasons.over_limit(limit, state.used.get(limit.name, 0), job)))
    return True


def _reserve(state: Pass, eq_class: EquivalenceClass, since: int, num: int, reserved: int) -> int:
    waited_s = (state.now - since) / US
    due = waited_s >= state.config.reserve_after_s or is_guarded(since, state.now, state.config)
    if reserved >= state.config.num_reservations or not due:
        return 0
    return int(reservations.reserve(state, eq_class, num))


def _wake_at(state: Pass) -> int | None:
    times = list(state.cluster.deferred.values())
    times += [reservation.expires_at for reservation in state.reservations if reservation.victims]
    return min((at for at in times if at > state.now), default=None)


__all__ = [
    "Plan",
    "PlanningInput",
    "QueuedJob",
    "Reason",
    "RunningJob",
    "Start",
    "fits_ever",
    "plan",
    "plan_pass",
]
