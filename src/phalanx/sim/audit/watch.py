"""The promises over time, and the whole audit of one simulation."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from phalanx.core.scheduling import Plan, Waiting, World
from phalanx.core.scheduling.index.topology import ask_of, place
from phalanx.core.scheduling.model.snapshot import US
from phalanx.core.scheduling.stages.entitlement import lineage, rolled_up
from phalanx.sim.audit import promises as audit
from phalanx.sim.audit.promises import require

if TYPE_CHECKING:
    from phalanx.sim.cluster.run import Run, Tally

HOUR = 3600 * US
# What every scheduler must keep, whatever its policy; the rest is what ours promises beyond that.
SAFETY = frozenset({1, 2, 4, 14, 18})
ALL = frozenset(audit.PROMISES)


@dataclass(slots=True)
class Watch:
    """Checks plans before they are applied, and remembers what must be finite.

    `owed_s` is the longest wait of a claim within a guarantee; more than `reclaim_s` of it, where
    evicting borrowers would have made room, breaks a promise.
    """

    promises: frozenset[int] = ALL
    most_evictions: int = 20
    reclaim_s: float = 8 * 3600.0
    evictions: dict[int, list[int]] = field(default_factory=dict)
    owed_since: dict[int, int] = field(default_factory=dict)
    owed_s: float = 0.0
    num_plans: int = 0

    def check_world(self, world: World, now: int = 0) -> None:
        """What holds at every moment: 1 and 14."""
        audit.check_rebuild(world, now)
        audit.check_slots(world)

    def check_plan(self, world: World, plan: Plan, now: int) -> None:
        """Every promise about one plan, and those that need the plans before it."""
        self.num_plans += 1
        audit.check_starts(world, plan)
        if self.promises != ALL:
            return
        audit.check_limits(world, plan)
        audit.check_holes(world, plan)
        audit.check_victims(world, plan, now)
        audit.check_minimal(world, plan)
        audit.check_backfill(world, plan, now)
        audit.check_resizes(world, plan, now)
        audit.check_cost(world, plan)
        self._check_evictions(plan, now)
        self._check_holes_end(plan, now)
        self.check_guarantees(world, plan, now)

    def check_deeply(
        self, world: World, plan: Plan, now: int, again: Callable[[World], Plan]
    ) -> None:
        """The dear ones: 1, 11, 13 and 14."""
        self.check_world(world, now)
        if self.promises == ALL:
            audit.check_work_conserving(world, plan, now)
            audit.check_replay(world, plan, again)

    def check_end(self, world: World, tally: Tally, runs: Iterable[Run]) -> None:
        """When nothing more will happen: 12 and 14."""
        audit.check_books(tally)
        if self.promises == ALL and not world.held:
            audit.check_all_started(world, list(world.waiting.values()))
            for run in runs:
                over = run.end_s is not None or run.failed_s is not None
                known = run.job.num in world.waiting
                require(over or known, f"j-{run.job.num} was lost on the way")

    def _check_evictions(self, plan: Plan, now: int) -> None:
        for preemption in plan.preemptions:
            recent = [at for at in self.evictions.get(preemption.job, []) if now - at < HOUR]
            recent.append(now)
            self.evictions[preemption.job] = recent
            require(
                len(recent) <= self.most_evictions,
                f"j-{preemption.job} was evicted {len(recent)} times in an hour",
            )

    def _check_holes_end(self, plan: Plan, now: int) -> None:
        for hole in plan.holes:
            require(
                hole.expires_at >= now,
                f"the hole of j-{hole.job} is kept beyond its time",
            )

    def check_guarantees(self, world: World, plan: Plan, now: int) -> None:
        """5: a claim within a guarantee is met once borrowers have had time to leave."""
        if not world.projects:
            return
        served = {start.job for start in plan.starts} | {h.job for h in plan.holes if h.victims}
        owed, used = {}, rolled_up(world.projects, world.used)
        for num, job in world.waiting.items():
            above = lineage(world.projects, job.project)
            if not above or num in served or num in world.deferred:
                continue
            holds = used.get(job.project, 0) + job.num_slots
            free = all(
                one.max_slots is None or used.get(one.name, 0) + job.num_slots <= one.max_slots
                for one in above
            )
            if free and holds <= above[0].guaranteed_slots:
                owed[num] = self.owed_since.get(num, now)
        self.owed_since = owed
        for num, since in owed.items():
            waited_s = (now - since) / US
            self.owed_s = max(self.owed_s, waited_s)
            if waited_s > self.reclaim_s:
                could = could_reclaim(world, world.waiting[num], now)
                require(not could, f"j-{num} waits {waited_s:.0f} s for what it is guaranteed")


def could_reclaim(world: World, job: Waiting, now: int) -> bool:
    """Whether it would fit if whatever other projects hold beyond their guarantees were gone."""
    before = world.snapshot()
    over = {
        name: used - (world.projects[name].guaranteed_slots if name in world.projects else 0)
        for name, used in world.used.items()
        if name != job.project
    }
    kept = []
    for held in sorted(before.held, key=lambda h: (h.num_slots, h.job)):
        excess = over.get(held.project, 0)
        if held.preemptible and held.protected_until <= now and excess >= held.num_slots > 0:
            over[held.project] = excess - held.num_slots
        else:
            kept.append(held)
    emptier = World.of(replace(before, held=tuple(kept), waiting=(), holes=()))
    ask = ask_of(job)
    return place(emptier.index, ask, emptier.groups_for(ask), job.shape) is not None
