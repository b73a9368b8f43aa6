"""The production planner as a policy of the simulator, and a copy of it that is kept in the dark."""

from __future__ import annotations

from dataclasses import replace

from phalanx.core.scheduling import Plan, World, plan_pass
from phalanx.sim.cluster.engine import Truth


class Production:
    """Phalanx itself."""

    name = "phalanx"

    def plan(self, world: World, now: int, truth: Truth) -> Plan:
        """One production pass."""
        return plan_pass(world, now)


class Blind:
    """The same planner, told of every job that it saved this moment.

    So it takes every victim to be equally cheap for its size, as schedulers do that know nothing of
    checkpoints.
    """

    name = "phalanx-blind"

    def plan(self, world: World, now: int, truth: Truth) -> Plan:
        """One production pass on false facts, which are put right afterwards."""
        told = {num: held.saved_at for num, held in world.held.items()}
        for num in told:
            world.saved(num, now)
        try:
            return plan_pass(world, now)
        finally:
            for num, saved_at in told.items():
                world.held[num] = replace(world.held[num], saved_at=saved_at)
