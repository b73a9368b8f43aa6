"""Calibration of the ETAs of `why`: forecasts in a simulation compared with the real starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from phalanx.core.scheduling import ClusterIndex, Plan, plan_pass
from phalanx.core.scheduling.explain.forecast import NUM_SCENARIOS, eta
from phalanx.sim.cluster.engine import simulate
from phalanx.sim.jobs import TraceJob
from phalanx.sim.model import Oracle, SimulationSetup


@dataclass(frozen=True, slots=True)
class Question:
    """One ETA that was forecast at `asked_at`, and the real start; microseconds."""

    job: int
    asked_at: int
    p50_at: int | None
    p90_at: int | None
    started_at: int


@dataclass(slots=True)
class _Asking:
    """The production planner with a forecast for one queued job at every `every`-th pass."""

    every: int
    num_scenarios: int
    name: str = "phalanx"
    passes: int = 0
    asked: list[tuple[int, int, int | None, int | None]] = field(default_factory=list)
    starts: dict[int, list[int]] = field(default_factory=dict)

    def plan(self, cluster: ClusterIndex, now: int, oracle: Oracle) -> Plan:
        """Run one pass and, at some passes, forecast the start of a queued job."""
        decided = plan_pass(cluster, now)
        for start in decided.starts:
            self.starts.setdefault(start.job, []).append(now)
        stays = [num for num, _ in decided.pending_reasons]
        if stays:
            self.passes += 1
            if self.passes % self.every == 0:
                num = stays[(self.passes // self.every * 7919) % len(stays)]
                when = eta(cluster.snapshot(), num, now, self.num_scenarios)
                self.asked.append((num, now, when.p50_at, when.p90_at))
        return decided


def ask(
    jobs: Sequence[TraceJob], setup: SimulationSetup, every: int, num_scenarios: int = NUM_SCENARIOS
) -> list[Question]:
    """Run the jobs and return the forecasts, each with the real start of its job."""
    asking = _Asking(every, num_scenarios)
    simulate(jobs, setup, asking)
    found = []
    for num, now, p50_at, p90_at in asking.asked:
        later = [at for at in asking.starts.get(num, []) if at >= now]
        if later:
            found.append(Question(num, now, p50_at, p90_at, later[0]))
    return found
