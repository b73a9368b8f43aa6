"""The audit of one simulation: the promises of each plan and those over time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from phalanx.core.scheduling import ClusterIndex, Plan, QueuedJob
from phalanx.core.scheduling.index.topology import place, request_of
from phalanx.core.scheduling.model.entitlement import lineage
from phalanx.core.scheduling.model.planning_input import US
from phalanx.core.scheduling.stages.entitlement import entitle
from phalanx.core.scheduling.stages.scheduling_pass import Pass
from phalanx.sim.audit import promises as audit
from phalanx.sim.audit.promises import require
from phalanx.sim.model import SimulatedJob, SlotTimes

HOUR = 3600 * US
# Promises that every policy must keep; the others bind the production planner only.
SAFETY = frozenset({1, 2, 4, 14, 18})
ALL = frozenset(audit.PROMISES)


@dataclass(slots=True)
class Auditor:
    """Checks plans before they are applied, and records the waits that must be finite.

    `owed_s` is the longest wait of a request within a guarantee; a wait above `reclaim_s` breaks a
    promise where evicting borrowers would have made room.
    """

    promises: frozenset[int] = ALL
    most_evictions: int = 20
    reclaim_s: float = 8 * 3600.0
    evictions: dict[int, list[int]] = field(default_factory=dict)
    owed_since: dict[int, int] = field(default_factory=dict)
    owed_s: float = 0.0
    num_plans: int = 0

    def check_world(self, cluster: ClusterIndex, now: int = 0) -> None:
        """Check what holds at every moment: promises 1 and 14."""
        audit.check_rebuild(cluster, now)
        audit.check_slots(cluster)

    def check_plan(self, cluster: ClusterIndex, plan: Plan, now: int) -> None:
        """Check every promise about one plan, including those that need earlier plans."""
        self.num_plans += 1
        audit.check_starts(cluster, plan)
        if self.promises != ALL:
            return
        audit.check_limits(cluster, plan)
        audit.check_reservations(cluster, plan)
        audit.check_victims(cluster, plan, now)
        audit.check_minimal(cluster, plan)
        audit.check_backfill(cluster, plan, now)
        audit.check_resizes(cluster, plan, now)
        audit.check_cost(cluster, plan)
        self._check_evictions(plan, now)
        self._check_reservations_end(plan, now)
        self.check_guarantees(cluster, plan, now)

    def check_deeply(
        self, cluster: ClusterIndex, plan: Plan, now: int, again: Callable[[ClusterIndex], Plan]
    ) -> None:
        """Check the expensive promises: 1, 11, 13 and 14."""
        self.check_world(cluster, now)
        if self.promises == ALL:
            audit.check_work_conserving(cluster, plan, now)
            audit.check_replay(cluster, plan, again)

    def check_end(
        self, cluster: ClusterIndex, slot_times: SlotTimes, runs: Iterable[SimulatedJob]
    ) -> None:
        """Check the end of a simulation: promises 12 and 14."""
        audit.check_books(slot_times)
        if self.promises == ALL and not cluster.held:
            audit.check_all_started(cluster, list(cluster.waiting.values()))
            for run in runs:
                over = run.end_s is not None or run.failed_s is not None
                known = run.job.num in cluster.waiting
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

    def _check_reservations_end(self, plan: Plan, now: int) -> None:
        for reservation in plan.reservations:
            require(
                reservation.expires_at >= now,
                f"the reservation of j-{reservation.job} is kept beyond its time",
            )

    def check_guarantees(self, cluster: ClusterIndex, plan: Plan, now: int) -> None:
        """Check 5: a request within a guarantee is met once borrowers have had time to leave."""
        if not cluster.projects:
            return
        served = {start.job for start in plan.starts} | {
            h.job for h in plan.reservations if h.victims
        }
        owed, state = {}, Pass(cluster, now)
        entitle(state)
        used = state.ledger.used
        for num, job in cluster.waiting.items():
            above = lineage(cluster.projects, job.project)
            if not above or num in served or num in cluster.deferred:
                continue
            holds = used.get(job.project, 0) + job.num_slots
            if not state.ledger.over_limit(job) and holds <= above[0].guaranteed_slots:
                owed[num] = self.owed_since.get(num, now)
        self.owed_since = owed
        for num, since in owed.items():
            waited_s = (now - since) / US
            self.owed_s = max(self.owed_s, waited_s)
            if waited_s > self.reclaim_s:
                could = could_reclaim(cluster, cluster.waiting[num], now)
                require(not could, f"j-{num} waits {waited_s:.0f} s for what it is guaranteed")


def could_reclaim(cluster: ClusterIndex, job: QueuedJob, now: int) -> bool:
    """Return whether the job would fit without the use of other projects beyond guarantees."""
    before = cluster.snapshot()
    over = {
        name: used - (cluster.projects[name].guaranteed_slots if name in cluster.projects else 0)
        for name, used in cluster.used.items()
        if name != job.project
    }
    kept = []
    for held in sorted(before.held, key=lambda h: (h.num_slots, h.job)):
        excess = over.get(held.project, 0)
        if held.preemptible and held.protected_until <= now and excess >= held.num_slots > 0:
            over[held.project] = excess - held.num_slots
        else:
            kept.append(held)
    emptier = ClusterIndex.of(replace(before, held=tuple(kept), waiting=(), reservations=()))
    ask = request_of(job)
    return place(emptier.index, ask, emptier.groups_for(ask), job.shape) is not None
