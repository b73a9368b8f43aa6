"""T8: sudden loads under which schedulers thrash, and measures of the thrashing.

Each storm is jobs and a set-up; `run_storm` runs one and returns the evictions in vain, the most
evictions of one job within an hour, and the longest wait of a project for its guarantee.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from phalanx.core.scheduling import Project
from phalanx.sim.audit.evictions import EvictionRecorder
from phalanx.sim.cluster.engine import simulate
from phalanx.sim.jobs import TraceJob, gang_of
from phalanx.sim.model import SchedulingPolicy, SimulationSetup
from phalanx.sim.output.report import figures
from phalanx.sim.workload.traces import grid_nodes

_HOUR_S = 3600.0
_CLAIMS = "claims"


@dataclass(frozen=True, slots=True)
class Storm:
    """The jobs and the set-up of one storm."""

    jobs: tuple[TraceJob, ...]
    setup: SimulationSetup


@dataclass(frozen=True, slots=True)
class StormOutcome:
    """The result of a storm. `latest_s` is the longest wait of a job labelled as a claim."""

    num_evictions: int
    num_needless: int
    most_in_an_hour: int
    latest_s: float
    num_done: int
    num_jobs: int


def borrow_and_reclaim(seed: int = 0) -> Storm:
    """One project borrows everything; the other repeatedly claims its whole guarantee at once."""
    rng = random.Random(seed)
    projects = (Project("lender", guaranteed_slots=128), Project("borrower", guaranteed_slots=128))
    rows = [(0.0, 20 * _HOUR_S * (0.5 + rng.random()), 8, "borrower", "") for _ in range(64)]
    for step in range(1, 7):
        at_s = step * 3 * _HOUR_S + 600.0 * rng.random()
        sizes = [8] * 8 + [16, 16, 32]
        rows += [(at_s, _HOUR_S * (0.5 + rng.random()), n, "lender", _CLAIMS) for n in sizes]
    jobs = tuple(
        TraceJob(num, at_s, lasts_s, gang_of(slots, 8), project=project, label=label)
        for num, (at_s, lasts_s, slots, project, label) in enumerate(rows, start=1)
    )
    return Storm(jobs, SimulationSetup(grid_nodes(32, 8, 8, 2), projects, audit_every=50))


def priorities(seed: int = 0) -> Storm:
    """A full cluster, and a hundred urgent jobs of all sizes within ten minutes."""
    rng = random.Random(seed)
    sizes = rng.choices([1, 2, 4, 8, 16, 32], [6, 2, 2, 3, 2, 1], k=160)
    rows = [(0.0, _HOUR_S * (4 + 16 * rng.random()), size, 50, "") for size in sizes]
    urgent = rng.choices([1, 4, 8, 16, 32, 64], [3, 2, 3, 2, 1, 0.5], k=100)
    rows += [
        (3 * _HOUR_S + 600.0 * rng.random(), 1800.0 + _HOUR_S * rng.random(), size, 90, _CLAIMS)
        for size in urgent
    ]
    jobs = tuple(
        TraceJob(num, at_s, lasts_s, gang_of(slots, 8), priority=priority, label=label)
        for num, (at_s, lasts_s, slots, priority, label) in enumerate(rows, start=1)
    )
    return Storm(jobs, SimulationSetup(grid_nodes(64, 8, 8, 2), audit_every=50))


def never_fits(seed: int = 0) -> Storm:
    """An urgent gang that insists on one rack and is larger than any, on a full cluster."""
    rng = random.Random(seed)
    jobs = [TraceJob(n, 0.0, _HOUR_S * (1 + rng.random()), gang_of(8, 8)) for n in range(1, 40)]
    jobs.append(TraceJob(99, 600.0, _HOUR_S, gang_of(72, 8), priority=90, required="rack"))
    return Storm(tuple(jobs), SimulationSetup(grid_nodes(32, 8, 8, 2), audit_every=50))


def uneven_leavers(seed: int = 0) -> Storm:
    """Gangs compete for victims of which some save in seconds and some in minutes."""
    rng = random.Random(seed)
    jobs = [
        TraceJob(
            num,
            0.0,
            _HOUR_S * (6 + 6 * rng.random()),
            gang_of(rng.choice([4, 8, 8, 16]), 8),
            save_s=rng.choice([5.0, 30.0, 120.0, 300.0]),
        )
        for num in range(1, 50)
    ]
    jobs += [
        TraceJob(100 + n, _HOUR_S + 20.0 * n, _HOUR_S, gang_of(size, 8), priority=80, label=_CLAIMS)
        for n, size in enumerate([64, 32, 64, 16, 32, 64])
    ]
    return Storm(tuple(jobs), SimulationSetup(grid_nodes(32, 8, 8, 2), audit_every=50))


STORMS: Mapping[str, Callable[[int], Storm]] = {
    "borrow and reclaim": borrow_and_reclaim,
    "a hundred priorities": priorities,
    "never fits": never_fits,
    "uneven leavers": uneven_leavers,
}


def run_storm(storm: Storm, policy: SchedulingPolicy) -> StormOutcome:
    """Run a storm. Raises InvariantBroken if a promise of the policy breaks on the way."""
    recorder = EvictionRecorder(policy)
    result = simulate(storm.jobs, storm.setup, recorder)
    claims = [run for run in result.runs.values() if run.job.label == _CLAIMS]
    waits = [(run.first_start_s or result.end_s) - run.job.submit_s for run in claims]
    return StormOutcome(
        len(recorder.evictions),
        len(recorder.needless()),
        recorder.most_in_an_hour(),
        max(waits, default=0.0),
        figures(result).num_done,
        len(storm.jobs),
    )
