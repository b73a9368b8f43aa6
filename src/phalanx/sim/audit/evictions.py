"""A record of evictions: victims, beneficiaries, their later starts, and unmet guarantees."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from phalanx.core.scheduling import ClusterIndex, Plan
from phalanx.core.scheduling.model.planning_input import US
from phalanx.sim.audit.auditor import Auditor
from phalanx.sim.model import Oracle, SchedulingPolicy, SlotTimes


@dataclass(frozen=True, slots=True)
class Eviction:
    """One job preempted for another. `ready_s` is when the reserved slots were due to be free."""

    victim: int
    beneficiary: int
    at_s: float
    ready_s: float


class EvictionRecorder:
    """A wrapper that records the evictions of any policy and decides nothing itself."""

    def __init__(self, policy: SchedulingPolicy) -> None:
        self.name = policy.name
        self.evictions: list[Eviction] = []
        self.starts: dict[int, list[float]] = {}
        self.auditor = Auditor(reclaim_s=float("inf"))
        self._policy = policy

    def plan(self, cluster: ClusterIndex, now: int, oracle: Oracle) -> Plan:
        """Return the plan of the policy and record its evictions."""
        made = self._policy.plan(cluster, now, oracle)
        ready = {reservation.job: reservation.ready_at or now for reservation in made.reservations}
        for one in made.preemptions:
            ready_s = ready.get(one.beneficiary, now) / US
            self.evictions.append(Eviction(one.job, one.beneficiary, now / US, ready_s))
        for start in made.starts:
            self.starts.setdefault(start.job, []).append(now / US)
        self.auditor.check_guarantees(cluster, made, now)
        return made

    def needless(self, grace_s: float = 900.0) -> list[Eviction]:
        """Return evictions without a start of the beneficiary within `grace_s` after `ready_s`."""
        return [
            one
            for one in self.evictions
            if not any(
                one.at_s <= start <= one.ready_s + grace_s
                for start in self.starts.get(one.beneficiary, ())
            )
        ]

    def most_in_an_hour(self) -> int:
        """Return the maximum number of evictions of one job within any hour."""
        times: dict[int, list[float]] = {}
        for one in self.evictions:
            times.setdefault(one.victim, []).append(one.at_s)
        return max(
            (
                bisect_right(all_s, at_s + 3600.0) - i
                for all_s in times.values()
                for i, at_s in enumerate(all_s)
            ),
            default=0,
        )

    @property
    def owed_s(self) -> float:
        """Return the longest wait of a request within a guarantee, seconds."""
        return self.auditor.owed_s


def lost_to_evictions_h(times: SlotTimes) -> float:
    """Return slot-hours of work that evictions threw away, failures not counted."""
    return (times.lost - times.lost_to_failures) / 3600.0
