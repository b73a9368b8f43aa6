"""A live third party: AccaSim's FIFO and EASY on the same jobs, where it is installed (extra `peers`).

Its EASY tells its allocator that no nodes are reserved, so it lets everybody pass the head of the queue,
and comes near to FIFO-skip; a test holds ours to an independent EASY instead.

AccaSim counts cores and knows no nodes, so ours runs on one node with all slots and without any costs. It
takes four names from `collections` that Python moved to `collections.abc`; they are lent to it here.
"""

from __future__ import annotations

import collections
import collections.abc
import importlib.util
import json
import logging
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bench.scheduler.philly import blind, week
from bench.scheduler.table import Table

from phalanx.core.gang.placement import GangShape
from phalanx.sim.cluster.engine import simulate
from phalanx.sim.costs import Costs
from phalanx.sim.jobs import TraceJob
from phalanx.sim.model import SimulationSetup
from phalanx.sim.output.report import mean
from phalanx.sim.peers.backfill import user_limit
from phalanx.sim.peers.catalog import POLICIES
from phalanx.sim.workload import traces

NODES, SIZE = 60, 8


def accasim(where: Path, seed: int, table: Table) -> None:
    if importlib.util.find_spec("accasim") is None:
        print("\nT1a: skipped, accasim is not installed (the extra `peers`)")
        return
    jobs = blind(week(where, seed))
    for name in ("FIFO", "EASY"):
        ours, theirs = mean_waits(jobs, NODES, name)
        print(f"\nT1a {name}: mean wait {ours:.0f} s, in AccaSim {theirs:.0f} s", flush=True)
        apart = abs(ours / max(theirs, 1.0) - 1.0) * 100.0
        table.at_most("T1a", f"{name} within 15 % of AccaSim", apart, 15.0, "%")


def mean_waits(found: Sequence[TraceJob], num_nodes: int, name: str) -> tuple[float, float]:
    """Seconds of waiting under one policy, here and there, with the same drawn limits."""
    jobs = [
        replace(
            job,
            submit_s=float(int(job.submit_s)),
            duration_s=float(int(job.duration_s)),
            shape=GangShape(1, job.num_slots, job.num_slots),
            limit_s=float(int(user_limit(0, job.num, job.duration_s))),
        )
        for job in found
    ]
    costs = Costs(start_s=0.0, restart_s=0.0, save_s=0.0, slowdown=False)
    nodes = traces.grid_nodes(1, num_nodes * SIZE, 1)
    setup = SimulationSetup(nodes, costs=costs, pass_s=0.0, recheck_s=3600.0)
    result = simulate(jobs, setup, POLICIES[name.lower()]())
    theirs = wait_in_accasim(jobs, num_nodes, name)
    return mean(run.waited_s for run in result.runs.values()), theirs


def wait_in_accasim(jobs: Sequence[TraceJob], num_nodes: int, name: str) -> float:
    """Mean wait in seconds, from its own statistics."""
    for moved in ("Iterable", "Mapping", "MutableMapping", "Sequence"):
        setattr(collections, moved, getattr(collections.abc, moved))
    from accasim.base.allocator_class import BestFit
    from accasim.base.scheduler_class import EASYBackfilling, FirstInFirstOut
    from accasim.base.simulator_class import Simulator

    policy = {"FIFO": FirstInFirstOut, "EASY": EASYBackfilling}[name]
    with tempfile.TemporaryDirectory() as folder:
        trace, system = Path(folder, "jobs.swf"), Path(folder, "system.json")
        trace.write_text("".join(map(_swf, jobs)))
        cluster = {"groups": {"g": {"core": SIZE}}, "resources": {"g": num_nodes}, "start_time": 0}
        system.write_text(json.dumps(cluster | {"equivalence": {"processor": {"core": 1}}}))
        program = Simulator(
            str(trace),
            str(system),
            policy(BestFit()),
            scheduling_output=False,
            show_statistics=False,
            RESULTS_FOLDER_PATH=folder,
            LOG_LEVEL=logging.getLevelName(logging.ERROR),
        )
        found = program.start_simulation()
        lines = Path(next(iter(found.values()))).read_text().splitlines()
    (line,) = [line for line in lines if line.startswith("Avg. waiting times")]
    return float(line.rpartition(":")[2])


def _swf(job: TraceJob) -> str:
    slots, lasts, limit = job.num_slots, int(job.duration_s), int(job.limit_s or 0)
    at = int(job.submit_s)
    return f"{job.num} {at} -1 {lasts} {slots} -1 -1 {slots} {limit} -1 1 1 1 1 1 1 -1 -1\n"
