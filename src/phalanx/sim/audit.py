"""The planner's promises, checked inside every simulation that asks for it.

A broken promise raises `InvariantBroken` at the pass that broke it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from phalanx.core.scheduling import Plan, World
from phalanx.errors import InvariantBroken


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise InvariantBroken(message)


def check_rebuild(world: World) -> None:
    """Every index equals one built anew from the same facts."""
    fresh = World.of(world.snapshot())
    _require(fresh.state() == world.state(), "an index differs from its rebuild")


@dataclass(slots=True)
class Watch:
    """Checks plans before they are applied, and remembers what must be finite."""

    evictions: dict[int, list[int]] = field(default_factory=dict)
    num_plans: int = 0

    def check_plan(self, world: World, plan: Plan, now: int) -> None:
        """Starts fit, gangs are whole, victims are legitimate, holes are respected."""
        self.num_plans += 1
        check_starts(world, plan)
        check_holes(world, plan)
        check_victims(world, plan, now)
        for preemption in plan.preemptions:
            recent = [
                at for at in self.evictions.get(preemption.job, []) if now - at < 3_600_000_000
            ]
            recent.append(now)
            self.evictions[preemption.job] = recent
            _require(
                len(recent) <= 20, f"j-{preemption.job} was evicted {len(recent)} times in an hour"
            )


def check_starts(world: World, plan: Plan) -> None:
    """No slot is given twice, no gang is split, no closed node is used, topology holds."""
    index = world.index
    taken: dict[tuple[int, int], int] = {}
    for start in plan.starts:
        job = world.waiting.get(start.job)
        if job is None:
            raise InvariantBroken(f"j-{start.job} starts but does not wait")
        least = job.min_nodes or job.shape.nodes
        roles = sum(role.nodes for role in job.roles)
        num = len(start.placement.shares) - roles
        sizes = [len(share.slots) for share in start.placement.shares]
        _require(
            sum(sizes) == job.num_slots or least <= num <= job.shape.nodes,
            f"j-{job.num}: {num} shares of a gang of {job.shape.nodes}",
        )
        for share in start.placement.shares:
            node = index.num_of[share.node]
            _require(not index.nodes[node].closed, f"j-{job.num} starts on closed {share.node}")
            for slot in share.slots:
                _require(bool(index.free[node] >> slot & 1), f"{share.node}/{slot} is held")
                _require((node, slot) not in taken, f"{share.node}/{slot} is given twice")
                taken[node, slot] = job.num
        if job.required is not None and job.required != "node":
            names = {
                dict(index.nodes[index.num_of[s.node]].domains).get(job.required)
                for s in start.placement.shares
            }
            _require(len(names) == 1, f"j-{job.num} leaves its required {job.required}")


def check_holes(world: World, plan: Plan) -> None:
    """A kept hole still has room for its owner after all starts, once its victims have left."""
    started = {start.job: start for start in plan.starts}
    for hole in plan.holes:
        _require(hole.job in world.waiting, f"a hole is kept for j-{hole.job}, which does not wait")
        _require(hole.job not in started, f"j-{hole.job} starts and keeps a hole")
        if not hole.victims:
            continue
        leaving = set(hole.victims) | {p.job for p in plan.preemptions}
        job = world.waiting[hole.job]
        for name in set(hole.nodes):
            node = world.index.num_of[name]
            mask = world.index.free[node]
            for start in plan.starts:
                for share in start.placement.shares:
                    if share.node == name:
                        for slot in share.slots:
                            mask &= ~(1 << slot)
            room = mask.bit_count() + sum(
                m.bit_count()
                for num, m in world.on_node[node].items()
                if num in leaving or world.held[num].stopping
            )
            need = job.shape.slots_per_node * hole.nodes.count(name)
            _require(room >= need, f"the hole of j-{job.num} on {name} cannot hold its share")


def check_victims(world: World, plan: Plan, now: int) -> None:
    """Every eviction has a beneficiary with a hole; nobody more important is evicted."""
    owners = {hole.job: hole for hole in plan.holes}
    for preemption in plan.preemptions:
        held = world.held[preemption.job]
        hole = owners.get(preemption.beneficiary)
        _require(hole is not None and preemption.job in hole.victims, "an eviction without a hole")
        job = world.waiting[preemption.beneficiary]
        reclaims = bool(world.projects) and held.project != job.project
        _require(
            reclaims or held.priority <= job.priority,
            f"j-{job.num} (priority {job.priority}) evicts j-{held.job} ({held.priority})",
        )
        _require(held.protected_until <= now, f"j-{held.job} is protected")
