"""The sets of jobs by name: those for tuning, and those that policies are judged on.

Constants, ours and the peers', are chosen on tuning sets alone: the first five weeks of the Philly days
and half of every other family. Judging sets are the rest, models that no constant was chosen on, and any
log in the Standard Workload Format. A seed above 0 puts the days of a trace in another order and draws the
sensitivity to placement anew; of a generated set it is another draw.
"""

from __future__ import annotations

import gzip
import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bench.scheduler.philly import DAY_S, blind, day, quotas, shuffled

from phalanx.core.scheduling import Project
from phalanx.errors import UserError
from phalanx.sim.jobs import TraceJob
from phalanx.sim.model import SimulationSetup
from phalanx.sim.workload import elastic, generated, models, traces

TUNING, JUDGING = "tuning", "judging"
Jobs = tuple[Sequence[TraceJob], SimulationSetup]
Source = Callable[[Path, int, bool], Jobs]


@dataclass(frozen=True, slots=True)
class WorkloadSet:
    """One set: its part, whether its jobs are those of GPU clusters, and how to make it.

    A quarter of a trace is every fourth job on a quarter of the nodes; a quarter of a generated set is
    its first jobs on the same nodes.
    """

    name: str
    part: str
    is_gpu: bool
    make: Source
    needs_traces: bool = True
    has_tenants: bool = False


def _grid(num_nodes: int, rack: int = 16, block: int = 8) -> SimulationSetup:
    return SimulationSetup(traces.grid_nodes(num_nodes, 8, rack, block))


def _thinned(jobs: Sequence[TraceJob]) -> list[TraceJob]:
    return [replace(job, num=num) for num, job in enumerate(jobs[::4], start=1)]


def _philly(first: float) -> Source:
    """Return the source of a week of the Philly trace on 60 nodes of 8."""

    def make(where: Path, seed: int, quarter: bool) -> Jobs:
        path = where / "philly.csv.gz"
        found = traces.philly(path, first, first + 7 * DAY_S, seed=seed)
        jobs = blind(shuffled(found, seed))
        return (_thinned(jobs), _grid(15, 5, 4)) if quarter else (jobs, _grid(60, 15, 4))

    return make


def _gangs(first: float, last: float) -> Source:
    """Return the source of the gangs of two slots and more on 52 nodes of 8."""

    def make(where: Path, seed: int, quarter: bool) -> Jobs:
        path = where / "philly.csv.gz"
        found = traces.philly(path, first, last, min_slots=2, seed=seed, longest_s=10 * DAY_S)
        jobs = blind(shuffled(found, seed))
        return (_thinned(jobs), _grid(13, 5, 4)) if quarter else (jobs, _grid(52, 13, 4))

    return make


def _tenants(first: float) -> Source:
    """Return the source of a Philly week whose tenants have their published quotas as guarantees."""

    def make(where: Path, seed: int, quarter: bool) -> Jobs:
        path = where / "philly.csv.gz"
        found = shuffled(traces.philly(path, first, first + 7 * DAY_S, seed=seed), seed)
        setup = _grid(15, 5, 4) if quarter else _grid(60, 15, 4)
        # On a quarter of the nodes a tenant may own less than a node.
        owned = quotas(where / "philly_vc_quota.csv", 60)
        size = 2 if quarter else 8
        names = sorted({job.project for job in found})
        projects = [Project(name, guaranteed_slots=size * owned.get(name, 0)) for name in names]
        return _thinned(found) if quarter else found, replace(setup, projects=projects)

    return make


def _drawn(draw: int, generate: Callable[[int], list[TraceJob]], num_nodes: int) -> Source:
    """Return the source of generated jobs; seed s is the draw `draw` + s."""

    def make(where: Path, seed: int, quarter: bool) -> Jobs:
        jobs = blind(generate(draw + seed))
        return jobs[: len(jobs) // 4] if quarter else jobs, _grid(num_nodes)

    return make


def _research(draw: int) -> list[TraceJob]:
    return generated.research(3000, 0.9 * 128, seed=draw)


def _training(draw: int) -> list[TraceJob]:
    return generated.training(1200, 0.9 * 256, seed=draw)


def _lublin(draw: int) -> list[TraceJob]:
    return models.lublin(3000, 256, seed=draw)


def _downey(draw: int) -> list[TraceJob]:
    return models.downey(3000, 256, seed=draw)


def _sia(number: int) -> Source:
    """Return the source of a Sia workload whose jobs keep four slots, on 16 nodes of 4."""

    def make(where: Path, seed: int, quarter: bool) -> Jobs:
        jobs, setup = elastic.sia(where / "sia", number)
        return shuffled([elastic.rigid(job) for job in jobs], seed), setup

    return make


def _made(name: str, part: str, make: Source, is_gpu: bool = True) -> WorkloadSet:
    return WorkloadSet(name, part, is_gpu, make, needs_traces=False)


SETS: dict[str, WorkloadSet] = {
    one.name: one
    for one in (
        WorkloadSet("philly-0918", TUNING, True, _philly(day(9, 18))),
        WorkloadSet("philly-0925", TUNING, True, _philly(day(9, 25))),
        WorkloadSet("philly-1002", TUNING, True, _philly(day(10, 2))),
        WorkloadSet("gangs-0918", TUNING, True, _gangs(day(9, 18), day(10, 9))),
        WorkloadSet("tenants-1002", TUNING, True, _tenants(day(10, 2)), has_tenants=True),
        _made("llm-0", TUNING, _drawn(0, generated.llm_mix, 256)),
        _made("research-0", TUNING, _drawn(0, _research, 16)),
        _made("training-0", TUNING, _drawn(0, _training, 32)),
        WorkloadSet("sia-1", TUNING, True, _sia(1)),
        WorkloadSet("philly-1009", JUDGING, True, _philly(day(10, 9))),
        WorkloadSet("philly-1016", JUDGING, True, _philly(day(10, 16))),
        WorkloadSet("philly-1023", JUDGING, True, _philly(day(10, 23))),
        WorkloadSet("philly-1030", JUDGING, True, _philly(day(10, 30))),
        WorkloadSet("philly-1106", JUDGING, True, _philly(day(11, 6))),
        WorkloadSet("gangs-1009", JUDGING, True, _gangs(day(10, 9), day(11, 13))),
        WorkloadSet("tenants-1009", JUDGING, True, _tenants(day(10, 9)), has_tenants=True),
        WorkloadSet("tenants-1023", JUDGING, True, _tenants(day(10, 23)), has_tenants=True),
        _made("llm-100", JUDGING, _drawn(100, generated.llm_mix, 256)),
        _made("research-100", JUDGING, _drawn(100, _research, 16)),
        _made("training-100", JUDGING, _drawn(100, _training, 32)),
        WorkloadSet("sia-2", JUDGING, True, _sia(2)),
        WorkloadSet("sia-3", JUDGING, True, _sia(3)),
        _made("lublin", JUDGING, _drawn(0, _lublin, 32), is_gpu=False),
        _made("downey", JUDGING, _drawn(0, _downey, 32), is_gpu=False),
    )
}
"""Every set by name, the tuning sets first."""

TENANTS = "tenants-1002"
SMALL_TUNING = ("philly-0925", "philly-1002", "research-0", "training-0")
"""What `tune.py` compares settings on: quarters of traces, generated sets whole."""


def swf_set(path: Path, num_nodes: int | None, node_size: int = 8) -> WorkloadSet:
    """A log in the Standard Workload Format as a judging set.

    Without `num_nodes` the machine has the processors of the log's header (`MaxProcs`, else
    `MaxNodes`). Raises UserError where neither is known.
    """

    def make(where: Path, seed: int, quarter: bool) -> Jobs:
        nodes = num_nodes or -(-_declared_slots(path) // node_size)
        found = traces.swf(path, node_size)
        if not found:
            raise UserError(f"{path} has no job that can be replayed")
        first = found[0].submit_s
        jobs = blind([replace(job, submit_s=job.submit_s - first) for job in found])
        grid = traces.grid_nodes(nodes, node_size, 16, 8)
        jobs = shuffled(jobs, seed)
        return jobs[: len(jobs) // 4] if quarter else jobs, SimulationSetup(grid)

    return _made(path.name, JUDGING, make, is_gpu=False)


def _declared_slots(path: Path) -> int:
    open_it = gzip.open if path.suffix == ".gz" else open
    with open_it(path, "rt", errors="replace") as file:
        header = "".join(line for line in itertools.islice(file, 200) if line[:1] == ";")
    for name in ("MaxProcs", "MaxNodes"):
        found = re.search(rf";\s*{name}:\s*(\d+)", header)
        if found is not None:
            return int(found.group(1))
    raise UserError(f"{path} does not declare MaxProcs", "give --swf-nodes")
