"""The production planner as a policy of the simulator, and a copy of it that is kept in the dark."""

from __future__ import annotations

from dataclasses import replace

from phalanx.core.scheduling import ClusterIndex, Plan, plan_pass
from phalanx.sim.model import Oracle


class Production:
    """Phalanx itself."""

    name = "phalanx"

    def plan(self, cluster: ClusterIndex, now: int, oracle: Oracle) -> Plan:
        """One production pass."""
        return plan_pass(cluster, now)


class Blind:
    """The same planner, told of every job that it saved this moment.

    So it takes every victim to be equally cheap for its size, as schedulers do that know nothing of
    checkpoints.
    """

    name = "phalanx-blind"

    def plan(self, cluster: ClusterIndex, now: int, oracle: Oracle) -> Plan:
        """One production pass on false facts, which are put right afterwards."""
        told = {num: held.saved_at for num, held in cluster.held.items()}
        for num in told:
            cluster.saved(num, now)
        try:
            return plan_pass(cluster, now)
        finally:
            for num, saved_at in told.items():
                cluster.held[num] = replace(cluster.held[num], saved_at=saved_at)
