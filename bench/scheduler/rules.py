"""R: priority inside a quota, gangs beside small jobs, and waits far beyond those of the same class."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from bench.scheduler.peers import tuned
from bench.scheduler.table import Bench, ratio_of

from phalanx.core.scheduling import Project
from phalanx.sim.cluster.engine import Result
from phalanx.sim.jobs import TraceJob, gang_of
from phalanx.sim.model import SimulationSetup
from phalanx.sim.output.report import mean
from phalanx.sim.workload import generated, traces
from phalanx.sim.workload.models import guessed_limit

_HOUR_S = 3600.0
_NODES = traces.grid_nodes(8, 8, 4, 2)
# Two passes and a save.
_GRACE_S = 150.0


def rules(bench: Bench) -> None:
    """Run the three kinds of scenario with the seed of the bench."""
    table, seed = bench.table, bench.seed
    for what, jobs, projects in quota_inversions(seed):
        urgent = {job.num for job in jobs if job.priority == 90}
        waits = _waits(bench, f"{what}: phalanx", "phalanx", jobs, projects)
        wait_s = max(waits[num] for num in urgent)
        table.at_most("R", f"{what}: longest wait <= {_GRACE_S:.0f} s", wait_s, _GRACE_S, "s")
    stream = gang_stream(seed)
    gangs = {job.num for job in stream if job.num_slots == 8}
    ours, easy = (
        _waits(bench, f"gangs of 8 in a stream: {name}", name, stream, ())
        for name in ("phalanx", "easy")
    )
    for text, of in (("mean", mean), ("longest", max)):
        ratio = ratio_of(of([ours[n] for n in gangs]), of([easy[n] for n in gangs]))
        table.at_most("R", f"gangs of 8 in a stream: {text} wait <= 1.5 x EASY", ratio, 1.5)
    stress = random_stress(seed)
    starved, theirs = (
        num_starved(stress, _waits(bench, f"random stress: {name}", name, stress, ()))
        for name in ("phalanx", "easy")
    )
    table.goal(
        "R",
        "waits above 10 x the median of their class: fewer than EASY",
        f"{starved} ({theirs})",
        starved < max(theirs, 1),
    )


def _waits(
    bench: Bench, label: str, name: str, jobs: Sequence[TraceJob], projects: Sequence[Project]
) -> dict[int, float]:
    """Seconds of waiting by job number."""

    def waited(result: Result, _: object) -> dict[str, float]:
        return {str(num): run.waited_s for num, run in result.runs.items()}

    setup = SimulationSetup(_NODES, projects)
    found = bench.run(label, jobs, setup, tuned(name), waited)
    return {int(num): wait_s for num, wait_s in found.more.items()}


def quota_inversions(seed: int) -> list[tuple[str, list[TraceJob], list[Project]]]:
    """Urgent jobs of a project that is at its limit: alone, and as gangs beside one-slot jobs."""
    rng = random.Random(seed)
    full = [_job(n, 0.0, 9.5 * _HOUR_S, 8, 30) for n in range(1, 5)]
    full.append(_job(5, 2 * _HOUR_S + 10.0, _HOUR_S, 8, 90))
    small, at_s = [], 0.0
    while at_s < 48 * _HOUR_S:
        at_s += rng.expovariate(0.95 * 32 / _HOUR_S)
        small.append(_job(len(small) + 1, at_s, rng.uniform(0.5, 1.5) * _HOUR_S, 1, 30))
    small += [_job(len(small) + n, 12.0 * n * _HOUR_S, _HOUR_S, 8, 90) for n in (1, 2, 3)]
    limit = [Project("team", max_slots=32)]
    return [("quota full of priority 30", full, limit), ("quota and small jobs", small, limit)]


def gang_stream(seed: int) -> list[TraceJob]:
    """Gangs of 8 every six hours among one-slot jobs of the same priority, at a load of 0.9."""
    rng = random.Random(1000 + seed)
    jobs, at_s = [], 0.0
    while at_s < 96 * _HOUR_S:
        at_s += rng.expovariate(0.87 * 64 / (2 * _HOUR_S))
        jobs.append((at_s, rng.uniform(0.5, 3.5) * _HOUR_S, 1))
    jobs += [(6.0 * n * _HOUR_S, _HOUR_S, 8) for n in range(1, 15)]
    return [
        replace(_job(num, at_s, run_s, slots, 50, project=""), limit_s=guessed_limit(rng, run_s))
        for num, (at_s, run_s, slots) in enumerate(sorted(jobs), start=1)
    ]


def random_stress(seed: int) -> list[TraceJob]:
    """A busy cluster with three priorities and users' guesses."""
    rng = random.Random(2000 + seed)
    found = generated.research(600, 1.05 * 64, seed=50 + seed)
    return [
        replace(
            job,
            project="",
            priority=rng.choice((30, 50, 70)),
            limit_s=guessed_limit(rng, job.duration_s),
        )
        for job in found
        if job.num_slots <= 64
    ]


def num_starved(jobs: Sequence[TraceJob], waits: dict[int, float]) -> int:
    """How many jobs waited above ten times the median of their size and priority, and a minute."""
    classes: dict[tuple[int, int], list[float]] = {}
    for job in jobs:
        classes.setdefault((job.num_slots, job.priority), []).append(waits[job.num])
    usual = {key: max(median(found), 60.0) for key, found in classes.items()}
    return sum(waits[job.num] > 10 * usual[job.num_slots, job.priority] for job in jobs)


def _job(
    num: int, at_s: float, run_s: float, slots: int, priority: int, project: str = "team"
) -> TraceJob:
    return TraceJob(num, at_s, run_s, gang_of(slots, 8), project=project, priority=priority)
