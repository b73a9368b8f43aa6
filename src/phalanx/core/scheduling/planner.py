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
from phalanx.core.scheduling.explain import explain
from phalanx.core.scheduling.index.cluster_index import Line, World
from phalanx.core.scheduling.index.slots import SlotIndex
from phalanx.core.scheduling.index.topology import ask_of, place, suitable
from phalanx.core.scheduling.model.outcome import Plan, Start
from phalanx.core.scheduling.model.reservation import Hole
from phalanx.core.scheduling.model.snapshot import US, Held, Snapshot, Waiting
from phalanx.core.scheduling.search import preemption
from phalanx.core.scheduling.stages import elastic, reservations
from phalanx.core.scheduling.stages.entitlement import rolled_up, standings
from phalanx.core.scheduling.stages.order import is_guarded
from phalanx.core.scheduling.stages.scheduling_pass import Draft, Rank

_Entry = tuple[Rank, int, Line, int]


def plan(snapshot: Snapshot, now: int) -> Plan:
    """Plan from a snapshot. `now` in microseconds UTC."""
    return plan_pass(World.of(snapshot), now)


def plan_pass(world: World, now: int) -> Plan:
    """Plan on a living world, which is left as it was (but for back-offs that are over)."""
    world.ripen(now)
    mark = world.index.mark()
    try:
        return _run(world, now)
    finally:
        world.index.rollback(mark)


def fits_ever(shape: GangShape, cpus_per_node: int, nodes: tuple[Node, ...]) -> bool:
    """Whether the gang would fit if nothing else ran."""
    index = SlotIndex(nodes)
    ask = ask_of(Waiting(0, shape, 0, 0, cpus_per_node=cpus_per_node))
    return place(index, ask, suitable(index, ask), shape) is not None


def _run(world: World, now: int) -> Plan:
    capacity = sum(group.num_nodes * group.size for group in world.index.groups)
    draft = Draft(
        world,
        now,
        standings(world.projects, world.used, world.demand, capacity),
        rolled_up(world.projects, world.used),
    )
    draft.sizes = elastic.sizes(draft)
    honour_holes(draft)
    _serve_lines(draft)
    if draft.blocked and draft.blocks:
        reservations.backfill(draft, draft.blocked)
    elastic.grow(draft)
    stays = explain.stays(draft)
    started = {start.job for start in draft.starts}
    return Plan(
        tuple(draft.starts),
        stays,
        _wake_at(draft),
        tuple(draft.preemptions),
        # Who started elsewhere after all needs its hole no longer.
        tuple(hole for hole in draft.holes if hole.job not in started),
        tuple(draft.resizes),
        tuple(draft.migrations),
        draft.steps,
    )


def honour_holes(draft: Draft) -> None:
    """Start owners of open holes in them, and keep the other holes closed to everybody else."""
    world = draft.world
    open_ = []
    for num in sorted(world.holes):
        hole, line = world.holes[num], world.line_of.get(num)
        if line is None or draft.now >= hole.expires_at or not _still_there(draft, hole):
            continue
        if not _coming(draft, hole, line):
            draft.block(hole, *line.sample.widths(len(hole.nodes)))
            open_.append((num, line, draft.blocks[-1]))
    # Only now that every hole is closed may an owner start elsewhere, without entering another's.
    for num, line, block in open_:
        draft.lift(block)
        draft.blocks.remove(block)
        if draft.try_start(line, num):
            continue
        draft.block(block.hole, *line.sample.widths(len(block.hole.nodes)))
        draft.holes.append(block.hole)
        job = world.waiting[num]
        draft.use(job.project, job.num_slots)


def _still_there(draft: Draft, hole: Hole) -> bool:
    index = draft.index
    return all(
        name in index.num_of and not index.nodes[index.num_of[name]].closed for name in hole.nodes
    )


def _coming(draft: Draft, hole: Hole, line: Line) -> bool:
    """Start the owner exactly in its hole, if the hole is wide enough by now."""
    index, job = draft.index, draft.world.waiting[hole.job]
    if job.shape.nodes + sum(role.nodes for role in job.roles) != len(hole.nodes):
        return False
    takings = explain.exactly(index, line.ask, job, [index.num_of[n] for n in hole.nodes])
    if takings is None:
        return False
    draft.start(job, takings)
    return True


def _serve_lines(draft: Draft) -> None:
    heap: list[_Entry] = []
    owners = {hole.job for hole in draft.holes}
    for line in draft.world.lines.values():
        _push(draft, heap, line, 0, owners)
    reserved = tries = 0
    while heap:
        rank, num, line, position = heapq.heappop(heap)
        if rank[:2] != draft.footing(line.sample):
            _push(draft, heap, line, position, owners)
            continue
        if _limited(draft, line, num):
            continue
        if draft.try_start(line, num):
            _push(draft, heap, line, position + 1, owners)
            continue
        since = line.jobs[position][0]
        if tries < draft.terms.preemption_budget and draft.steps < draft.terms.step_budget:
            tries += 1
            if elastic.shrink_for(draft, line, num) or preemption.make_room(
                draft, line, since, num
            ):
                owners.add(num)
                draft.reasons[num] = explain.coming(draft, num)
                _push(draft, heap, line, position + 1, owners)
                continue
        draft.blocked.append((line, position))
        reserved += _reserve(draft, line, since, num, reserved)


def _push(draft: Draft, heap: list[_Entry], line: Line, position: int, owners: set[int]) -> None:
    jobs = line.jobs
    while position < len(jobs) and (
        jobs[position][1] in draft.started or jobs[position][1] in owners
    ):
        position += 1
    if position < len(jobs):
        heapq.heappush(heap, (draft.rank(line, position), jobs[position][1], line, position))


def _limited(draft: Draft, line: Line, num: int) -> bool:
    job = draft.world.waiting[num]
    standing = draft.standings.get(job.project)
    limit = None if standing is None else standing.over_limit(draft.used, job.num_slots)
    if limit is None:
        return False
    draft.limited.append((line, explain.over_limit(limit, draft.used.get(limit.name, 0), job)))
    return True


def _reserve(draft: Draft, line: Line, since: int, num: int, reserved: int) -> int:
    waited_s = (draft.now - since) / US
    due = waited_s >= draft.terms.reserve_after_s or is_guarded(since, draft.now, draft.terms)
    if reserved >= draft.terms.num_reservations or not due:
        return 0
    return int(reservations.reserve(draft, line, num))


def _wake_at(draft: Draft) -> int | None:
    times = list(draft.world.deferred.values())
    times += [hole.expires_at for hole in draft.holes if hole.victims]
    return min((at for at in times if at > draft.now), default=None)


__all__ = [
    "Held",
    "Plan",
    "Reason",
    "Snapshot",
    "Start",
    "Waiting",
    "fits_ever",
    "plan",
    "plan_pass",
]
