"""The production planner as a policy of the simulator."""

from __future__ import annotations

from phalanx.core.scheduling import Plan, World, plan_pass
from phalanx.sim.engine import Truth


class Production:
    """Phalanx itself."""

    name = "phalanx"

    def plan(self, world: World, now: int, truth: Truth) -> Plan:
        """One production pass."""
        return plan_pass(world, now)
