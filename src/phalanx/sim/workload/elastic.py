"""T5: the Sia workloads as elastic jobs, their speeds from the measured profiles.

A job may run on 1 to 16 slots at the batch size its user asked for; how fast it is on each comes from
the measured step times of its application at that batch. The traces contain no run times: hours on
one slot follow the size classes of the paper (`traces.sia_hours`), so times compare between policies
here and not with published ones.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from phalanx.core.gang.placement import GangShape, Node
from phalanx.sim.cluster.engine import Result
from phalanx.sim.costs import Costs
from phalanx.sim.jobs import TraceJob, gang_of
from phalanx.sim.model import SchedulingPolicy, SimulationSetup
from phalanx.sim.peers.catalog import Production
from phalanx.sim.peers.elastic import pollux_like, sia_like
from phalanx.sim.peers.preemptive import las
from phalanx.sim.workload import traces

_MOST = 16
_NODE = 4
POLICIES: Mapping[str, Callable[[], SchedulingPolicy]] = {
    "phalanx": Production,
    "sia-like": sia_like,
    "pollux-like": pollux_like,
    "las": las,
}
"""The policies compared on elastic jobs; `las` runs them rigid, at the requested size."""


def sia(folder: Path, number: int) -> tuple[list[TraceJob], SimulationSetup]:
    """Workload `number` (1 to 3) on 16 nodes of 4 slots in one rack, with 60 s rounds."""
    jobs = []
    curves: dict[tuple[str, float], tuple[float, ...]] = {}
    path = folder / "workloads" / "philly" / f"workload-{number}.csv"
    rigid_jobs = traces.sia(path, _NODE)
    with path.open() as file:
        for job, row in zip(rigid_jobs, csv.DictReader(file), strict=True):
            key = (row["application"], float(row["batch_size"]))
            if key not in curves:
                curves[key] = curve(folder / "profiles" / key[0] / "placements.csv", key[1])
            alone_s = traces.sia_hours(row["application"]) * 3600.0
            speeds = curves[key]
            shape = GangShape(_MOST, 1, 1)
            fastest = alone_s * speeds[0] / speeds[-1]
            relative = tuple(one / speeds[-1] for one in speeds)
            jobs.append(replace(job, shape=shape, duration_s=fastest, min_nodes=1, speeds=relative))
    nodes = [
        Node(f"n{i}", "t4", "h", _NODE, 96, 0, splittable=True, domains=(("rack", "r0"),))
        for i in range(16)
    ]
    return jobs, SimulationSetup(nodes, costs=Costs(start_s=30.0, restart_s=60.0, save_s=15.0))


def curve(path: Path, batch: float) -> tuple[float, ...]:
    """Samples a second on 1 to 16 slots, packed on as few nodes as possible; never falling."""
    found: dict[tuple[str, int], float] = {}
    with path.open() as file:
        for row in csv.DictReader(file):
            found[row["placement"], int(float(row["local_bsz"]))] = float(row["step_time"])
    speeds: list[float] = []
    for slots in range(1, _MOST + 1):
        full, rest = divmod(slots, 4)
        packed = (str(rest) if rest else "") + "4" * full
        sizes = sorted(size for placement, size in found if placement == packed)
        fits = [size for size in sizes if size * slots <= batch] or sizes[:1]
        local = fits[-1]
        step_s = found[packed, local]
        speeds.append(max(local * slots / step_s, speeds[-1] if speeds else 0.0))
    return tuple(speeds)


def rigid(job: TraceJob, slots: int = 4) -> TraceJob:
    """Return the job with the same work on a fixed number of slots."""
    seconds = job.duration_s / job.speeds[slots - 1]
    shape = gang_of(slots, _NODE)
    return replace(job, shape=shape, duration_s=seconds, min_nodes=None, speeds=())


def restarts(result: Result) -> float:
    """Restarts a job: resizes, evictions and failures."""
    runs = result.runs.values()
    total = sum(run.resizes + run.preemptions + run.failures for run in runs)
    return total / max(len(runs), 1)
