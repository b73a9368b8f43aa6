"""Simulated costs: starts, saves, restarts, and the slow-down of scattered gangs."""

from __future__ import annotations

from dataclasses import dataclass

from phalanx.core.gang.placement import Placement
from phalanx.core.scheduling.index.slots import SlotIndex
from phalanx.sim.jobs import TraceJob


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds of virtual time. `graceful`: victims save on request; otherwise work is lost."""

    start_s: float = 30.0
    restart_s: float = 60.0
    save_s: float = 30.0
    graceful: bool = True
    resize_s: float = 60.0
    slowdown: bool = True

    def stop_s(self) -> float:
        """Return how long a victim holds its slots after it was asked to leave, seconds."""
        return self.save_s if self.graceful else 0.0

    def stop_of(self, job: TraceJob) -> float:
        """The same for one job, which may take its own time to save."""
        return self.stop_s() if job.save_s is None or not self.graceful else job.save_s


def slow_down(index: SlotIndex, job: TraceJob, placement: Placement) -> float:
    """Factor on the run time: 1 on a good placement.

    More nodes than needed cost the full sensitivity for a one-node gang and half of it for others;
    leaving the narrowest domain costs half of it more.
    """
    if job.num_slots == 1 or job.sensitivity == 0.0:
        return 1.0
    nodes = {index.num_of[share.node] for share in placement.shares}
    factor = 1.0
    fewest = job.shape.nodes
    if len(nodes) > fewest:
        factor += job.sensitivity * (1.0 if fewest == 1 else 0.5)
    if num_domains(index, placement) > 1:
        factor += job.sensitivity * 0.5
    return factor


def num_domains(index: SlotIndex, placement: Placement) -> int:
    """How many narrowest domains a placement touches."""
    domains = set()
    for share in placement.shares:
        node = index.nodes[index.num_of[share.node]]
        domains.add(node.domains[-1] if node.domains else ("", node.pool))
    return len(domains)
