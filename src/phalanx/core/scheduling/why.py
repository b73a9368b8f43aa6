"""Why a job waits: what binds it, its position, when it may start, and what would start it now.

The forecast runs the production planner forward on expected ends, and the counterfactuals plan again
with one thing changed: both say what would really happen, not what a formula supposes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from phalanx.core.placement import GangShape, Placement
from phalanx.core.reasons import Reason, ReasonCode
from phalanx.core.scheduling.draft import Draft
from phalanx.core.scheduling.entitlement import standings
from phalanx.core.scheduling.estimates import KindKey, size_class
from phalanx.core.scheduling.order import expected_end, expected_s
from phalanx.core.scheduling.planner import plan, plan_pass
from phalanx.core.scheduling.snapshot import US, Held, Snapshot, Waiting
from phalanx.core.scheduling.world import World

_MAX_PASSES = 400


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that would let the job start now; `by_preemption`: once its victims have left."""

    text: str
    by_preemption: bool


@dataclass(frozen=True, slots=True)
class Why:
    """The whole answer. `position` counts from 1; ETAs are microseconds UTC, None if unknown."""

    reason: Reason
    position: int
    num_waiting: int
    eta_p50_at: int | None
    eta_p90_at: int | None
    changes: tuple[Change, ...]


def why(snapshot: Snapshot, num: int, now: int) -> Why | None:
    """Explain one waiting job; None if it does not wait."""
    job = next((w for w in snapshot.waiting if w.num == num), None)
    if job is None:
        return None
    decided = plan(snapshot, now)
    reasons = dict(decided.stays)
    reason = reasons.get(num, Reason(ReasonCode.PLACED, "starts at the next pass"))
    return Why(
        reason,
        position(snapshot, num, now),
        len(snapshot.waiting),
        forecast(snapshot, num, now, 0.5),
        forecast(snapshot, num, now, 0.9),
        counterfactuals(snapshot, job, now),
    )


def position(snapshot: Snapshot, num: int, now: int) -> int:
    """How many jobs the planner looks at up to and including this one."""
    world = World.of(snapshot)
    world.ripen(now)
    capacity = sum(group.num_nodes * group.size for group in world.index.groups)
    standing = standings(world.projects, world.used, world.demand, capacity)
    draft = Draft(world, now, standing, dict(world.used))
    ranked = [
        (draft.rank(line, place), job)
        for line in world.lines.values()
        for place, (_, job) in enumerate(line.jobs)
    ]
    ranked.sort()
    order = [job for _, job in ranked]
    return order.index(num) + 1 if num in order else len(order) + 1


def forecast(snapshot: Snapshot, num: int, now: int, quantile: float) -> int | None:
    """When the job starts if everything takes its time at this quantile; None if nobody knows."""
    world = World.of(snapshot)
    ends: dict[int, int] = {}
    for held in world.held.values():
        end = expected_end(held, world.history, now, quantile)
        if end is not None:
            ends[held.job] = end
    at = now
    for _ in range(_MAX_PASSES):
        decided = plan_pass(world, at)
        for preemption in decided.preemptions:
            ends[preemption.job] = at + int((world.held[preemption.job].save_s or 0.0) * US)
            world.update(replace(world.held[preemption.job], stopping=True))
        world.holes = {hole.job: hole for hole in decided.holes if hole.victims}
        for start in decided.starts:
            if start.job == num:
                return at
            job = world.waiting[start.job]
            kind = KindKey(job.project, job.kind, size_class(job.num_slots))
            lasts_s = expected_s(job, kind, world.history, quantile)
            world.start(job.num, start.placement, _as_held(job, at))
            if lasts_s is not None:
                ends[job.num] = at + int(lasts_s * US) + 1
        later = [t for t in (*ends.values(), decided.wake_at or 0) if t > at]
        if not later:
            return None
        at = min(later)
        for gone in [job for job, end in ends.items() if end <= at]:
            world.release(gone)
            del ends[gone]
    return None


def _as_held(job: Waiting, now: int) -> Held:
    return Held(
        job.num,
        Placement("", ()),
        project=job.project,
        priority=job.priority,
        kind=job.kind,
        started_at=now,
        attained_slot_s=job.attained_slot_s,
        max_duration_s=job.max_duration_s,
        cpus_per_node=job.cpus_per_node,
        memory_per_node_bytes=job.memory_per_node_bytes,
    )


def counterfactuals(snapshot: Snapshot, job: Waiting, now: int) -> tuple[Change, ...]:
    """What would start this job now: a smaller gang, another pool, a higher priority."""
    found = []
    for text, changed in (*_smaller(job), *_elsewhere(snapshot, job)):
        verdict = _outcome(snapshot, changed, now)
        if verdict is not None:
            found.append(Change(f"starts now with {text}", verdict == "hole"))
            if "slots" in text:
                break
    for priority in range((job.priority // 10 + 1) * 10, 101, 10):
        verdict = _outcome(snapshot, replace(job, priority=priority), now)
        if verdict is not None:
            found.append(Change(f"starts now at priority {priority}", verdict == "hole"))
            break
    return tuple(found)


def _outcome(snapshot: Snapshot, changed: Waiting, now: int) -> str | None:
    others = tuple(w for w in snapshot.waiting if w.num != changed.num)
    decided = plan(replace(snapshot, waiting=(*others, changed)), now)
    if any(start.job == changed.num for start in decided.starts):
        return "start"
    if any(p.beneficiary == changed.num for p in decided.preemptions):
        return "hole"
    return None


def _elsewhere(snapshot: Snapshot, job: Waiting) -> list[tuple[str, Waiting]]:
    pools = dict.fromkeys(node.pool for node in snapshot.nodes)
    if not job.pools:
        return []
    return [(f"pool {p}", replace(job, pools=(p,))) for p in pools if p not in job.pools]


def _smaller(job: Waiting) -> list[tuple[str, Waiting]]:
    shape, found = job.shape, []
    for nodes in range(shape.nodes - 1, 0, -1):
        smaller = GangShape(nodes, shape.slots_per_node, shape.ranks_per_node)
        found.append((f"{nodes * shape.slots_per_node} slots on {nodes} nodes", smaller))
    for slots in range(shape.slots_per_node - 1, 0, -1):
        found.append((f"{slots} slots on 1 node", GangShape(1, slots, slots)))
    step = max(1, len(found) // 8)
    return [(text, replace(job, shape=smaller, roles=())) for text, smaller in found[::step]]
