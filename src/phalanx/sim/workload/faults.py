"""Failures drawn from published rates: nodes that go down for repair, and ranks that die in place.

`PUBLISHED` takes the node failure rate of Meta's RSC-1 research cluster (6.5 failures in 1,000
node-days, "Revisiting Reliability in Large-Scale Machine Learning Research Clusters", 2024) and the rate
of unexpected interruptions of the Llama 3 405B run (419 in 54 days on 16,384 GPUs, "The Llama 3 Herd of
Models", 2024) for what a restart in place repairs.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from phalanx.core.gang.placement import Node
from phalanx.core.reasons import Cause
from phalanx.sim.model import Crash, Outage

_DAY_S = 86_400.0
_CAUSES = (Cause.RANK_CRASH, Cause.STALLED)


@dataclass(frozen=True, slots=True)
class Rates:
    """Failures a node-day and a slot-hour. Repairs last `repair_s` on average."""

    node_per_day: float
    rank_per_slot_hour: float
    repair_s: float = 4 * 3600.0

    def times(self, factor: float) -> Rates:
        """Return the rates multiplied by `factor`."""
        return Rates(self.node_per_day * factor, self.rank_per_slot_hour * factor, self.repair_s)


PUBLISHED = Rates(6.5 / 1000.0, 419.0 / (54.0 * 24.0 * 16_384.0))


def draw(
    rates: Rates, nodes: Sequence[Node], span_s: float, seed: int
) -> tuple[list[Outage], list[Crash]]:
    """Draw outages and crashes within `span_s`; a node under repair does not fail again."""
    rng = random.Random(seed)
    outages: list[Outage] = []
    crashes: list[Crash] = []
    for node in nodes:
        at_s = 0.0
        while rates.node_per_day > 0:
            at_s += rng.expovariate(rates.node_per_day / _DAY_S)
            if at_s >= span_s:
                break
            for_s = rng.expovariate(1.0 / rates.repair_s) + 600.0
            outages.append(Outage(at_s, node.id, for_s))
            at_s += for_s
        at_s = 0.0
        per_s = rates.rank_per_slot_hour * node.num_slots / 3600.0
        while per_s > 0:
            at_s += rng.expovariate(per_s)
            if at_s >= span_s:
                break
            cause = rng.choice(_CAUSES)
            crashes.append(Crash(at_s, node.id, rng.randrange(node.num_slots), cause))
    return outages, crashes
