"""The production planner as a policy, and a variant that ignores checkpoint times."""

from __future__ import annotations

from dataclasses import replace

from phalanx.core.scheduling import ClusterIndex, Plan, plan_pass
from phalanx.sim.model import Oracle


class Production:
    """The production planner."""

    name = "phalanx"

    def plan(self, cluster: ClusterIndex, now: int, oracle: Oracle) -> Plan:
        """One production pass."""
        return plan_pass(cluster, now)


class Blind:
    """The same planner with every job's last checkpoint set to the present.

    Every victim is then equally cheap for its size, as for schedulers without checkpoint times.
    """

    name = "phalanx-blind"

    def plan(self, cluster: ClusterIndex, now: int, oracle: Oracle) -> Plan:
        """Run one production pass on changed checkpoint times, which are restored afterwards."""
        told = {num: held.saved_at for num, held in cluster.held.items()}
        for num in told:
            cluster.saved(num, now)
        try:
            return plan_pass(cluster, now)
        finally:
            for num, saved_at in told.items():
                cluster.held[num] = replace(cluster.held[num], saved_at=saved_at)
