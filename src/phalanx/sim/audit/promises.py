"""The planner's twenty promises, checked inside every simulation that asks for it.

Each check states one promise over an index and the plan made for it, and raises `InvariantBroken`
at the pass that broke it. `auditor` has the promises that span several passes. Numbers are those of
`PROMISES`. Peers must keep only what every scheduler must keep; the production planner keeps all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from phalanx.core.gang.placement import GangShape, Node
from phalanx.core.residency import permits
from phalanx.core.scheduling import ClusterIndex, Plan, QueuedJob, Reservation, fits_ever
from phalanx.core.scheduling.index.empty_cluster import EmptyCluster
from phalanx.core.scheduling.index.running import NEVER
from phalanx.core.scheduling.index.slots import Allocation, mask_of, pick, wants_of
from phalanx.core.scheduling.index.topology import place
from phalanx.core.scheduling.model.entitlement import lineage, never_allowed, rolled_up
from phalanx.core.scheduling.model.planning_input import US
from phalanx.core.scheduling.model.urgency import expected_s, kind_key
from phalanx.core.scheduling.search.openings import leaves_at
from phalanx.core.scheduling.stages.entitlement import entitle
from phalanx.core.scheduling.stages.scheduling_pass import Pass
from phalanx.errors import InvariantBroken

if TYPE_CHECKING:
    from phalanx.sim.model import SlotTimes

PROMISES: Mapping[int, str] = {
    1: "no slot is given twice, and every index equals its rebuild",
    2: "a gang starts whole, within its range of sizes",
    3: "a required topology level holds the whole gang",
    4: "nothing starts on a closed node, and nothing starts or grows outside its residency",
    5: "a guarantee is honoured within the time to reclaim it",
    6: "no project holds more than its limit",
    7: "no more important job is evicted, except to reclaim borrowed slots",
    8: "an eviction has a reservation that its beneficiary fits, and no other job starts there",
    9: "no job is evicted again and again",
    10: "no victim is superfluous",
    11: "a job that fits into free slots that are not reserved starts",
    12: "every job that could ever run starts in the end",
    13: "equal snapshots give equal plans",
    14: "slot time adds up",
    15: "another node never makes a job impossible",
    16: "equal projects with equal demand get equal shares",
    17: "backfill does not delay a reservation",
    18: "repeated and late messages change nothing",
    19: "an elastic job stays within its range and rests between resizes",
    20: "the work of a pass is bounded",
}


def require(holds: bool, message: str) -> None:
    """Raise InvariantBroken unless it holds."""
    if not holds:
        raise InvariantBroken(message)


# -- the state ---------------------------------------------------------------------------------------


def check_rebuild(cluster: ClusterIndex, now: int = 0) -> None:
    """Check 1: every index equals one rebuilt from the same facts, as of `now`."""
    fresh = ClusterIndex.of(cluster.snapshot())
    fresh.advance(now)
    require(fresh.state() == cluster.state(), "an index differs from its rebuild")


def check_slots(cluster: ClusterIndex) -> None:
    """Check 14 at one moment: every slot is free or held, once."""
    index = cluster.index
    held: dict[int, int] = {}
    for one in cluster.held.values():
        for share in one.placement.shares:
            node = index.num_of.get(share.node)
            if node is not None:
                mask = mask_of(share.slots)
                require(not held.get(node, 0) & mask, f"a slot of {share.node} is held twice")
                held[node] = held.get(node, 0) | mask
    for node, free in enumerate(index.free):
        whole = (1 << index.nodes[node].num_slots) - 1
        name = index.nodes[node].id
        require(free ^ held.get(node, 0) == whole, f"{name}: a slot is neither free nor held")


# -- starts ------------------------------------------------------------------------------------------


def check_starts(cluster: ClusterIndex, plan: Plan) -> None:
    """Check 1 to 4: slots are free and given once, gangs whole, topology kept, nodes open and allowed."""
    index = cluster.index
    _check_residency(cluster, plan)
    taken: set[tuple[int, int]] = set()
    for start in plan.starts:
        job = cluster.waiting.get(start.job)
        if job is None:
            raise InvariantBroken(f"j-{start.job} starts but does not wait")
        _check_gang(job, [len(share.slots) for share in start.placement.shares])
        for share in start.placement.shares:
            node = index.num_of[share.node]
            require(not index.nodes[node].closed, f"j-{job.num} starts on closed {share.node}")
            for slot in share.slots:
                require(bool(index.free[node] >> slot & 1), f"{share.node}/{slot} is held")
                require((node, slot) not in taken, f"{share.node}/{slot} is given twice")
                taken.add((node, slot))
        _check_topology(cluster, job, [share.node for share in start.placement.shares])


def _check_residency(cluster: ClusterIndex, plan: Plan) -> None:
    index = cluster.index
    found = [(cluster.waiting.get(one.job), one.placement.shares) for one in plan.starts]
    grown = []
    for resize in plan.resizes:
        held = cluster.held[resize.job]
        before = {share.node for share in held.placement.shares}
        more = (share for share in resize.placement.shares if share.node not in before)
        grown.append((held, tuple(more)))
    for job, shares in [*found, *grown]:
        for share in shares:
            node = index.nodes[index.num_of[share.node]]
            inside = job is None or permits(job.residency, node.labels)
            require(inside, f"{share.node} is outside the residency of its job")


def _check_gang(job: QueuedJob, sizes: list[int]) -> None:
    roles = sum(role.nodes for role in job.roles)
    least = job.min_nodes or job.shape.nodes
    num = len(sizes) - roles
    equal = set(sizes[: max(num, 0)]) <= {job.shape.slots_per_node}
    whole = sum(sizes) == job.num_slots
    require(
        whole or (equal and least <= num <= job.shape.nodes),
        f"j-{job.num}: {num} shares of a gang of {job.shape.nodes}",
    )


def _check_topology(cluster: ClusterIndex, job: QueuedJob, names: list[str]) -> None:
    if job.required is None:
        return
    index = cluster.index
    if job.required == "node":
        found = set(names)
    else:
        found = {dict(index.nodes[index.num_of[n]].domains).get(job.required, "") for n in names}
        if job.domains > 1:
            each = len(names) // job.domains
            of = [dict(index.nodes[index.num_of[n]].domains).get(job.required, "") for n in names]
            parts = [set(of[at : at + each]) for at in range(0, len(of), each)]
            alone = len(found) == job.domains == len(parts) and all(len(p) == 1 for p in parts)
            require(alone, f"j-{job.num} is not in {job.domains} {job.required}, part after part")
            return
    require(len(found) == 1, f"j-{job.num} leaves its required {job.required}")


def check_limits(cluster: ClusterIndex, plan: Plan) -> None:
    """Check 6: held plus started plus grown stays within every project's limit, also while victims save."""
    used = rolled_up(cluster.projects, cluster.used)

    def count(project: str, slots: int) -> None:
        for name in [one.name for one in lineage(cluster.projects, project)] or [project]:
            used[name] = used.get(name, 0) + slots

    for resize in plan.resizes:
        held = cluster.held[resize.job]
        grown = sum(len(share.slots) for share in resize.placement.shares) - held.num_slots
        count(held.project, max(grown, 0))
        for one in lineage(cluster.projects, held.project) if grown > 0 else ():
            require(
                one.max_slots is None or used[one.name] <= one.max_slots,
                f"project {one.name} would grow to {used[one.name]} of at most {one.max_slots} slots",
            )
    for start in plan.starts:
        project = cluster.waiting[start.job].project
        count(project, sum(len(share.slots) for share in start.placement.shares))
        for one in lineage(cluster.projects, project):
            require(
                one.max_slots is None or used[one.name] <= one.max_slots,
                f"project {one.name} would hold {used[one.name]} of at most {one.max_slots} slots",
            )


# -- evictions ---------------------------------------------------------------------------------------


def check_victims(cluster: ClusterIndex, plan: Plan, now: int) -> None:
    """Check 7 and 8: an eviction has a reserved beneficiary and no victim is more important."""
    owners = {reservation.job: reservation for reservation in plan.reservations}
    for preemption in plan.preemptions:
        held = cluster.held[preemption.job]
        reservation = owners.get(preemption.beneficiary)
        require(
            reservation is not None and preemption.job in reservation.victims,
            "an eviction without a reservation",
        )
        job = cluster.waiting[preemption.beneficiary]
        reclaims = bool(cluster.projects) and held.project != job.project
        require(
            reclaims or held.priority <= job.priority,
            f"j-{job.num} (priority {job.priority}) evicts j-{held.job} ({held.priority})",
        )
        require(held.preemptible, f"j-{held.job} may not be evicted")
        require(held.protected_until <= now, f"j-{held.job} is protected")


def check_reservations(cluster: ClusterIndex, plan: Plan) -> None:
    """Check 8: a reservation has room for its owner after all starts, without its victims."""
    started = {start.job for start in plan.starts}
    for reservation in plan.reservations:
        require(
            reservation.job in cluster.waiting,
            f"slots are reserved for j-{reservation.job}, which does not wait",
        )
        require(
            reservation.job not in started, f"j-{reservation.job} starts and keeps its reservation"
        )
        if not reservation.victims:
            continue
        job, needs = cluster.waiting[reservation.job], _needs(cluster, reservation)
        leaving = {p.job for p in plan.preemptions} | set(reservation.victims)
        leaving |= {num for num, held in cluster.held.items() if held.stopping}
        for name, room in _room_in(cluster, plan, reservation, leaving).items():
            require(
                room >= needs[name],
                f"the reservation of j-{job.num} on {name} cannot hold its share",
            )


def _needs(cluster: ClusterIndex, reservation: Reservation) -> dict[str, int]:
    """Return the slots that the shares of a reservation need on each of its nodes."""
    needs: dict[str, int] = {}
    widths = cluster.waiting[reservation.job].widths(len(reservation.nodes))
    for name, width in zip(reservation.nodes, widths, strict=True):
        needs[name] = needs.get(name, 0) + width
    return needs


def _room_in(
    cluster: ClusterIndex, plan: Plan, reservation: Reservation, leaving: set[int]
) -> dict[str, int]:
    """Return the slots on each reserved node after all starts and departures."""
    index = cluster.index
    left: dict[str, int] = {}
    for name in set(reservation.nodes):
        node = index.num_of[name]
        mask = index.free[node]
        for start in plan.starts:
            for share in start.placement.shares:
                if share.node == name:
                    mask &= ~mask_of(share.slots)
        left[name] = mask.bit_count() + sum(
            slots for num, slots in cluster.on_node[node].items() if num in leaving
        )
    return left


def check_minimal(cluster: ClusterIndex, plan: Plan) -> None:
    """Check 10: without any one of the evictions the gang would not fit its nodes or its limits."""
    fresh: dict[int, list[int]] = {}
    for preemption in plan.preemptions:
        fresh.setdefault(preemption.beneficiary, []).append(preemption.job)
    for reservation in plan.reservations:
        victims = fresh.get(reservation.job, [])
        job = cluster.waiting[reservation.job]
        shapes = (job.shape, *job.roles)
        wants = [wants_of(shape, job.cpus_per_node, job.memory_per_node_bytes) for shape in shapes]
        if any(map(any, wants)) or len(victims) > 200:
            continue
        others, needs = _kept_on(cluster, plan, reservation), _needs(cluster, reservation)
        for victim in victims:
            room = _room_in(cluster, plan, reservation, set(reservation.victims) - {victim})
            enough = all(slots - others.get(name, 0) >= needs[name] for name, slots in room.items())
            require(
                not enough or _over_limit_with(cluster, plan, job, victim),
                f"j-{job.num} evicts j-{victim} and does not need its slots",
            )


def _over_limit_with(cluster: ClusterIndex, plan: Plan, job: QueuedJob, victim: int) -> bool:
    """Return whether a project of this job would exceed a limit if this victim stayed.

    Victims of later claims do not count: what those free beyond their need was not known before.
    """
    last = max(i for i, one in enumerate(plan.preemptions) if one.beneficiary == job.num)
    gone = {one.job for one in plan.preemptions[: last + 1]} - {victim}
    own = next(i for i, one in enumerate(plan.reservations) if one.job == job.num)
    stay = [h for num, h in cluster.held.items() if num not in gone and not h.stopping]
    slots: dict[str, int] = {}
    jobs: dict[str, int] = {}
    amounts = [(held.project, held.num_slots) for held in stay]
    for start in plan.starts:
        placed = sum(len(share.slots) for share in start.placement.shares)
        amounts.append((cluster.waiting[start.job].project, placed))
    for reservation in plan.reservations[: own + 1]:
        if reservation.victims:
            owner = cluster.waiting[reservation.job]
            amounts.append((owner.project, sum(owner.widths(len(reservation.nodes)))))
    for resize in plan.resizes:
        held = cluster.held[resize.job]
        now = sum(len(share.slots) for share in resize.placement.shares)
        slots[held.project] = slots.get(held.project, 0) + now - held.num_slots
    for project, num in amounts:
        slots[project] = slots.get(project, 0) + num
        jobs[project] = jobs.get(project, 0) + 1
    held_slots, held_jobs = rolled_up(cluster.projects, slots), rolled_up(cluster.projects, jobs)
    shared = {one.name for one in lineage(cluster.projects, cluster.held[victim].project)}
    return any(
        (one.max_slots is not None and held_slots[one.name] > one.max_slots)
        or (one.max_running is not None and held_jobs[one.name] > one.max_running)
        for one in lineage(cluster.projects, job.project)
        if one.name in shared
    )


def _kept_on(cluster: ClusterIndex, plan: Plan, mine: Reservation) -> dict[str, int]:
    kept: dict[str, int] = {}
    for reservation in plan.reservations:
        if reservation is not mine:
            for name, slots in _needs(cluster, reservation).items():
                kept[name] = kept.get(name, 0) + slots
    return kept


# -- pending jobs ------------------------------------------------------------------------------------


def check_work_conserving(cluster: ClusterIndex, plan: Plan, now: int) -> None:
    """Check 11: every job that fits free, unreserved slots has been started."""
    index, mark = cluster.index, cluster.index.mark()
    started = {start.job for start in plan.starts}
    owners = {reservation.job for reservation in plan.reservations}
    state = Pass(cluster, now)
    entitle(state)
    try:
        for start in plan.starts:
            job = cluster.waiting[start.job]
            for allocation in index.allocations(
                start.placement, job.cpus_per_node, job.memory_per_node_bytes, job.roles
            ):
                index.take(allocation)
            slots = sum(len(share.slots) for share in start.placement.shares)
            state.ledger.use(job.project, slots, 1)
        _take_growth(cluster, plan)
        for reservation in plan.reservations:
            _close(cluster, reservation)
            owner = cluster.waiting[reservation.job]
            state.ledger.use(owner.project, owner.num_slots, 1)
        for line in cluster.classes.values():
            for _, num in line.jobs:
                if num in started or num in owners:
                    continue
                job = cluster.waiting[num]
                if state.ledger.over_limit(job):
                    break
                least = job.shape if job.min_nodes is None else _least(job)
                fits = place(index, line.request, line.groups, least)
                require(fits is None, f"j-{num} fits into free slots and stays")
                break
    finally:
        index.rollback(mark)


def _least(job: QueuedJob) -> GangShape:
    return GangShape(job.min_nodes or 1, job.shape.slots_per_node, job.shape.ranks_per_node)


def _take_growth(cluster: ClusterIndex, plan: Plan) -> None:
    index = cluster.index
    for resize in plan.resizes:
        old = {
            share.node: mask_of(share.slots) for share in cluster.held[resize.job].placement.shares
        }
        for allocation in index.allocations(resize.placement, 0, 0):
            mask = allocation.mask & ~old.get(index.nodes[allocation.node].id, 0)
            if mask & index.free[allocation.node]:
                index.take(Allocation(allocation.node, mask & index.free[allocation.node]))


def _close(cluster: ClusterIndex, reservation: Reservation) -> None:
    index = cluster.index
    for name, need in _needs(cluster, reservation).items():
        node = index.num_of.get(name)
        if node is not None:
            free = index.free[node]
            mask = pick(free, min(free.bit_count(), need))
            if mask:
                index.take(Allocation(node, mask))


def check_backfill(cluster: ClusterIndex, plan: Plan, now: int) -> None:
    """Check 17: reserved nodes will have room in time, as far as ends are known."""
    ends = {start.job: _end_of_start(cluster, start.job, now) for start in plan.starts}
    for reservation in plan.reservations:
        if reservation.victims or reservation.ready_at is None or reservation.ready_at <= now:
            continue
        owner = cluster.waiting[reservation.job]
        # Behind the nodes that it needs an overdue gang keeps others, which open later.
        num_shares = owner.shape.nodes + sum(role.nodes for role in owner.roles)
        needed = replace(reservation, nodes=reservation.nodes[:num_shares])
        for name, need in _needs(cluster, needed).items():
            node = cluster.index.num_of[name]
            room = cluster.index.free[node].bit_count()
            for num, slots in cluster.on_node[node].items():
                expected = cluster.end_of(num, now)
                due = NEVER if expected is None else expected
                leaves = leaves_at(cluster, cluster.held[num], due, owner, now)
                room += slots if leaves <= reservation.ready_at else 0
            late = 0
            for start in plan.starts:
                end = ends[start.job]
                for share in start.placement.shares:
                    if share.node == name and (end is None or end > reservation.ready_at):
                        late += len(share.slots)
            require(
                not late or room - late >= need,
                f"a start on {name} delays the reservation of j-{reservation.job}",
            )


def _end_of_start(cluster: ClusterIndex, num: int, now: int) -> int | None:
    job = cluster.waiting[num]
    lasts_s = expected_s(job, kind_key(job), cluster.history)
    return None if lasts_s is None else now + int(lasts_s * US)


def check_resizes(cluster: ClusterIndex, plan: Plan, now: int) -> None:
    """Check 19: resizes keep the range, equal shares, the cool-down and the limits."""
    seen: set[int] = set()
    for resize in plan.resizes:
        held = cluster.held[resize.job]
        require(resize.job not in seen, f"j-{held.job} is resized twice in one plan")
        seen.add(resize.job)
        num, least, most = len(resize.placement.shares), held.min_nodes or 0, held.max_nodes or 0
        require(least <= num <= most, f"j-{held.job} would have {num} of {least} to {most} nodes")
        since = held.started_at if held.resized_at is None else held.resized_at
        rested_s = (now - (since or 0)) / US
        is_inside = least <= len(held.placement.shares) <= most
        require(
            not is_inside or rested_s >= cluster.config.resize_cooldown_s,
            f"j-{held.job} is resized {rested_s:.0f} s after its last change",
        )


def check_cost(cluster: ClusterIndex, plan: Plan) -> None:
    """Check 20: the steps of a pass are bounded by the sizes of queue and cluster."""
    sizes = (
        len(cluster.classes)
        + len(cluster.index.nodes)
        + len(cluster.held)
        + len(cluster.reservations)
    )
    starts = len(plan.starts) + len(plan.resizes)
    reach = max((line.sample.shape.nodes for line in cluster.classes.values()), default=1)
    bound = cluster.config.step_budget + 64 * (sizes + 1) + 8 * starts * reach
    require(plan.num_steps <= bound, f"a pass took {plan.num_steps} steps, at most {bound} are due")


# -- beyond one pass ---------------------------------------------------------------------------------


def check_replay(cluster: ClusterIndex, plan: Plan, again: Callable[[ClusterIndex], Plan]) -> None:
    """Check 13: an index rebuilt from the same facts leads to the same plan."""
    require(
        again(ClusterIndex.of(cluster.snapshot())) == plan, "equal snapshots gave different plans"
    )


def check_monotone(shape: GangShape, nodes: Sequence[Node], more: Node) -> None:
    """Check 15: what fits an empty cluster fits it with one more node."""
    if fits_ever(QueuedJob(0, shape, 0, 0), nodes):
        still = fits_ever(QueuedJob(0, shape, 0, 0), (*nodes, more))
        require(still, f"a gang of {shape.nodes} no longer fits with one node more")


def check_fair(used: Mapping[str, float], weights: Mapping[str, float], within: float) -> None:
    """Check 16: service by weight differs by no more than `within`, a part of the mean."""
    per_weight = {name: used.get(name, 0.0) / weight for name, weight in weights.items()}
    mean = sum(per_weight.values()) / max(len(per_weight), 1)
    for name, got in per_weight.items():
        require(
            abs(got - mean) <= within * mean,
            f"project {name} got {got / max(mean, 1e-9):.2f} of its fair share",
        )


def check_books(slot_times: SlotTimes) -> None:
    """Check 14 over time: held slot time is useful, overhead, slowed or lost."""
    spent = slot_times.useful + slot_times.overhead + slot_times.slowed + slot_times.lost
    off = abs(spent - slot_times.held)
    require(
        off <= 1e-6 * max(slot_times.held, 1.0) + 1.0, f"{off:.0f} slot-seconds are unaccounted for"
    )


def check_all_started(cluster: ClusterIndex, unstarted: Sequence[QueuedJob]) -> None:
    """Check 12: no job that an empty cluster could hold is left in the queue at the end."""
    empty = EmptyCluster(node for node in cluster.index.nodes if not node.closed)
    for job in unstarted:
        possible = empty.can_hold(job) and not never_allowed(cluster.projects, job)
        require(not possible, f"j-{job.num} could run and never started")
