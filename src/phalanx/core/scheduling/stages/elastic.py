"""Elastic jobs: they shrink before any job is evicted, and grow into unused nodes.

Their sizes are decided together: each slot goes to the job with the largest gain, by measured
speeds where there are any. (Weighting the gain by the expected time left was tried, and made mean
completion times worse.) A resize costs a restart, so a job grows only when it gains at least 15 %,
and not again within the cool-down. A job that is outside of its range, because that was changed,
comes back into it without such conditions.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from phalanx.core.gang.placement import GangShape, Placement
from phalanx.core.reasons import Reason, ReasonCode
from phalanx.core.residency import permits
from phalanx.core.scheduling.index.cluster_index import EquivalenceClass
from phalanx.core.scheduling.index.slots import Allocation, pick
from phalanx.core.scheduling.index.topology import place
from phalanx.core.scheduling.model.outcome import Resize
from phalanx.core.scheduling.model.planner_state import Reservation
from phalanx.core.scheduling.model.planning_input import US, QueuedJob, RunningJob
from phalanx.core.scheduling.model.scaling import speed
from phalanx.core.scheduling.search.ledger import QuotaClaim
from phalanx.core.scheduling.stages.scheduling_pass import Pass

_MIN_GAIN = 1.15


@dataclass(frozen=True, slots=True)
class _ElasticJob:
    """One elastic job, running or waiting."""

    num: int
    least: int
    most: int
    per_node: int
    speeds: tuple[float, ...]

    def gain(self, nodes: int) -> float:
        """Return the relative speed gained by one more node, per slot."""
        more = speed(self.speeds, nodes + 1) - speed(self.speeds, nodes)
        return more / speed(self.speeds, 1) / max(self.per_node, 1)


def size(state: Pass) -> None:
    """Set how many nodes each elastic job should have, of the free slots and those they hold."""
    cluster = state.cluster
    classes = [
        eq_class for eq_class in cluster.classes.values() if eq_class.sample.min_nodes is not None
    ]
    running = [
        cluster.held[num] for num in sorted(cluster.elastic) if not cluster.held[num].stopping
    ]
    jobs = [_of_running(held) for held in running]
    waiting = [entry for eq_class in classes for entry in eq_class.jobs]
    jobs += [_of_queued(cluster.waiting[num]) for _, num in sorted(waiting)]
    left = sum(group.num_free for group in state.index.groups)
    left += sum(held.num_slots for held in running)
    found: dict[int, int] = {}
    heap: list[tuple[float, int, _ElasticJob]] = []
    for job in jobs:
        need = job.least * job.per_node
        if need <= left:
            left -= need
            found[job.num] = job.least
            heapq.heappush(heap, (-job.gain(job.least), job.num, job))
    while heap:
        gain, num, job = heapq.heappop(heap)
        if gain >= 0 or found[num] >= job.most or job.per_node > left:
            continue
        left -= job.per_node
        found[num] += 1
        heapq.heappush(heap, (-job.gain(found[num]), num, job))
    state.sizes = found


def _of_running(held: RunningJob) -> _ElasticJob:
    per_node = len(held.placement.shares[0].slots) if held.placement.shares else 1
    most = held.max_nodes or len(held.placement.shares)
    return _ElasticJob(held.job, held.min_nodes or most, most, per_node, held.speeds)


def _of_queued(job: QueuedJob) -> _ElasticJob:
    shape = job.shape
    least = job.min_nodes or shape.nodes
    return _ElasticJob(job.num, least, shape.nodes, shape.slots_per_node, job.speeds)


# -- ranges that were changed --------------------------------------------------------------------


def fit(state: Pass) -> None:
    """Shrink running jobs that have more nodes than they may have; their range was changed."""
    for num in sorted(state.cluster.elastic):
        held = state.cluster.held[num]
        shares, most = held.placement.shares, held.max_nodes or 0
        if len(shares) <= most or not _may_leave(state, held):
            continue
        smaller = Placement(held.placement.pool, shares[:most])
        text = f"shrinks from {len(shares)} to {most} nodes, the most that it may have now"
        state.decisions.resize(held, Resize(num, smaller, Reason(ReasonCode.RESIZED, text)))


def _is_too_small(held: RunningJob) -> bool:
    return len(held.placement.shares) < (held.min_nodes or 0)


# -- shrink --------------------------------------------------------------------------------------


def shrink_for(
    state: Pass, eq_class: EquivalenceClass, num: int, claim: QuotaClaim | None = None
) -> bool:
    """Make room for a blocked job by shrinking elastic ones of at most its priority.

    A rigid job may shrink them to their least size, an elastic one to their decided size. For a job at a
    limit, only jobs of the project that the limit belongs to shrink.
    """
    job = state.cluster.waiting[num]
    givers = [
        (held, spare)
        for held in _elastic(state)
        if held.priority <= job.priority
        and held.preemptible
        and (claim is None or claim.concerns(state.ledger.charges(held, held.num_slots)))
        and (spare := _spare(state, held, job))
    ]
    if not givers:
        return False
    wanted = job.shape
    if job.min_nodes is not None:
        nodes = max(job.min_nodes, state.sizes.get(num, job.min_nodes))
        nodes = job.min_nodes if claim is not None else nodes
        wanted = GangShape(nodes, wanted.slots_per_node, wanted.ranks_per_node)
    given: dict[int, list[Allocation]] = {}
    mark = state.index.mark()
    allocations = None
    for held, spare in sorted(givers, key=lambda g: (g[0].priority, _cost(g[0]), g[0].job)):
        for share in reversed(spare):
            state.index.give(share)
            given.setdefault(held.job, []).append(share)
            state.decisions.num_steps += 1
            if claim is None or claim.is_covered(_freed(state, given)):
                allocations = place(state.index, eq_class.request, eq_class.groups, wanted)
            if allocations is not None:
                break
        if allocations is not None:
            break
    state.index.rollback(mark)
    if allocations is None:
        return False
    used = {allocation.node for allocation in allocations}
    near = {j: s for j, s in given.items() if any(share.node in used for share in s)}
    if claim is None or claim.is_covered(_freed(state, near)):
        given = near
    if not given:
        return False
    _commit(state, job, allocations, given)
    return True


def _freed(state: Pass, given: dict[int, list[Allocation]]) -> dict[str, list[int]]:
    """Return the slots, by project, that the shares free; no job ends."""
    freed: dict[str, list[int]] = {}
    for num, shares in given.items():
        slots = sum(share.mask.bit_count() for share in shares)
        for name, part in state.ledger.charges(state.cluster.held[num], slots, shares):
            got = freed.setdefault(name, [0, 0])
            got[0] += part
    return freed


def _cost(held: RunningJob) -> float:
    """Return the sort key of shrinking: restart seconds per held slot, the lowest first."""
    return held.restart_s / max(held.num_slots, 1)


def _spare(state: Pass, held: RunningJob, job: QueuedJob) -> list[Allocation]:
    least = held.min_nodes or len(held.placement.shares)
    if job.min_nodes is not None:
        least = max(least, state.sizes.get(held.job, least))
    index = state.index
    return index.allocations(
        Placement(held.placement.pool, held.placement.shares[least:]),
        held.cpus_per_node,
        held.memory_per_node_bytes,
    )


def _commit(
    state: Pass, job: QueuedJob, allocations: list[Allocation], given: dict[int, list[Allocation]]
) -> None:
    wait_s = 0.0
    for num, shares in given.items():
        held = state.cluster.held[num]
        keep = len(held.placement.shares) - len(shares)
        smaller = Placement(held.placement.pool, held.placement.shares[:keep])
        text = f"gives {len(shares)} nodes to j-{job.num}"
        state.decisions.resize(held, Resize(num, smaller, Reason(ReasonCode.PREEMPTED, text)))
        wait_s = max(wait_s, held.save_s or 0.0)
        slots = sum(share.mask.bit_count() for share in shares)
        state.ledger.leave(held, slots, 0, shares)
    names = tuple(state.index.nodes[allocation.node].id for allocation in allocations)
    ready_at = state.now + int(wait_s * US)
    expires_at = ready_at + int(state.config.reservation_ttl_s * US)
    reservation = Reservation(job.num, names, ready_at, expires_at, tuple(given))
    state.reserve(reservation, job)
    state.ledger.promise(job, names)


def _elastic(state: Pass) -> list[RunningJob]:
    cluster = state.cluster
    return [cluster.held[n] for n in sorted(cluster.elastic) if _may_resize(state, cluster.held[n])]


def _may_leave(state: Pass, held: RunningJob) -> bool:
    is_leaving = held.stopping or held.job in state.decisions.leaving
    return held.started_at is not None and not is_leaving


def _may_resize(state: Pass, held: RunningJob) -> bool:
    if not _may_leave(state, held) or held.max_nodes is None or held.min_nodes is None:
        return False
    if _is_too_small(held):
        return True
    since = held.started_at or 0 if held.resized_at is None else held.resized_at
    return (state.now - since) / US >= state.config.resize_cooldown_s


# -- grow ----------------------------------------------------------------------------------------


def grow(state: Pass) -> None:
    """Give unused free nodes to running elastic jobs, up to the size of each."""
    growers = []
    for held in _elastic(state):
        now, most = len(held.placement.shares), held.max_nodes or 0
        wanted = min(most, max(state.sizes.get(held.job, most), now))
        if wanted > now > 0:
            gain = speed(held.speeds, wanted) / speed(held.speeds, now)
            growers.append((-held.priority, -gain, held.job, held, wanted))
    for _, _, _, held, wanted in sorted(growers, key=lambda one: one[:3]):
        _grow(state, held, wanted)


def _grow(state: Pass, held: RunningJob, wanted: int) -> None:
    shares = held.placement.shares
    if shares[0].node not in state.index.num_of:
        return
    index, per_node = state.index, len(shares[0].slots)
    home = index.group_of[index.num_of[shares[0].node]]
    if not permits(held.residency, home.key.labels):
        return  # the label of its nodes has changed since its start
    room = _room_near(state, held, per_node)
    extra = room[: min(wanted - len(shares), state.ledger.left(held) // max(per_node, 1))]
    num = len(shares) + len(extra)
    faster = speed(held.speeds, num) / speed(held.speeds, len(shares))
    is_worth_it = num >= (held.min_nodes or 0) if _is_too_small(held) else faster >= _MIN_GAIN
    if not extra or not is_worth_it:
        return
    allocations = []
    for node in extra:
        mask = pick(index.free[node], per_node)
        allocation = Allocation(node, mask, held.cpus_per_node, held.memory_per_node_bytes)
        index.take(allocation)
        allocations.append(allocation)
    larger = Placement(held.placement.pool, shares + index.placement(allocations).shares)
    state.ledger.grow(held, allocations)
    text = f"grows from {len(shares)} to {len(larger.shares)} nodes that no other job can use"
    state.decisions.resize(held, Resize(held.job, larger, Reason(ReasonCode.PLACED, text)))


def _room_near(state: Pass, held: RunningJob, per_node: int) -> list[int]:
    """Nodes of its own leaf domain with room for a share; a splittable one as often as it has room."""
    index = state.index
    first = index.num_of[held.placement.shares[0].node]
    group, home = index.group_of[first], index.leaf_of[first]
    taken = {index.num_of.get(share.node, -1) for share in held.placement.shares}
    room: list[int] = []
    for count in range(max(per_node, 1), group.size + 1):
        for node in group.by_free[count]:
            here = index.nodes[node]
            short = index.cpus[node] < held.cpus_per_node
            short = short or index.memory[node] < held.memory_per_node_bytes
            if index.leaf_of[node] != home or short:
                continue
            if here.splittable:
                room += [node] * (count // max(per_node, 1))
            elif node not in taken:
                room.append(node)
    # Its own nodes first: fewer links to cross.
    return sorted(room, key=lambda node: node not in taken)
