"""The scheduler's benchmark: one table of goals against what was measured.

    python bench/scheduler/run.py [--quick] [--only judging,T9] [--seeds 0,1,2] [--traces DIR] [--keep DIR]
                                  [--swf FILE.swf ...] [--swf-nodes 64] [--quarter] [--pure]
                                  [--peers-only] [--fresh]

`judging` and `tuning` are the sets of `sets.py`: on each of them the planner as it is shipped runs beside
every peer with the constants that `tune.py` chose, and an oracle; a log given with `--swf` is one more
judging set. With `--quarter` each set is a quarter of its jobs. `R` and T1 to T9 are further scenarios.

Runs the production planner and its peers in the same simulator on the same jobs; a peer runs where the
scenario tells it from the others. Two scenarios run side by side, but for T9 and T8, which measure the
time of a pass and run alone before. Scenarios whose trace is absent say so; T3, T7, T8 and T9 need none. A
seed above 0 puts the days of a trace in another order and draws the sensitivity to placement anew, or draws
the generated jobs anew; the measured figures of all seeds stand side by side, and a goal is met only if
every seed meets it. T6 has three orders of its own. Finished runs of the sets of jobs are kept in
`bench/scheduler/kept`, those of all scenarios with `--keep`: a bench that was stopped goes on where it
was, and a run is made anew only if its jobs, its policy or the simulator have changed (`kept.py`).
`--peers-only` runs the peers of the sets, `--fresh` makes kept runs anew. Where there is a C compiler the
planner and the simulator are compiled first, unless `--pure` is asked for; T9 is measured both ways.
`--quick` takes them as they are.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.scheduler import bars, variants
from bench.scheduler.elastic import t5
from bench.scheduler.judge import columns, judge, overall
from bench.scheduler.kept import FOLDER, KeptRuns
from bench.scheduler.live import accasim
from bench.scheduler.llm import t3, t4, t7
from bench.scheduler.packing import t6
from bench.scheduler.philly import t1, t2, tenants
from bench.scheduler.rules import rules
from bench.scheduler.scale import t9
from bench.scheduler.sets import JUDGING, SETS, TUNING, WorkloadSet, swf_set
from bench.scheduler.steady import t1s, t3s
from bench.scheduler.storms import t8
from bench.scheduler.table import Bench, Scenario, Table

from phalanx.sim.model import SimulationSetup
from phalanx.sim.peers.catalog import POLICIES
from phalanx.sim.workload import generated, storms, traces


def printing(scenario: Callable[[Path, int, Table], None]) -> Scenario:
    """A scenario that prints for itself and keeps no runs."""
    return lambda bench: scenario(bench.traces, bench.seed, bench.table)


SCENARIOS: dict[str, Scenario] = {
    "T9": printing(t9),
    "T8": printing(t8),
    "T1": t1,
    "T1a": printing(accasim),
    "T1q": tenants,
    "T1s": t1s,
    "T2": t2,
    "T3": t3,
    "T3s": t3s,
    "T4": t4,
    "T5": printing(t5),
    "T6": printing(t6),
    "T7": t7,
    "R": rules,
    **{name: partial(judge, one) for name, one in SETS.items()},
}
GROUPS = {
    part: [name for name, one in SETS.items() if one.part == part] for part in (TUNING, JUDGING)
}
ALONE = ("T9", "T8")
SEEDED = {"T1", "T1q", "T1s", "T2", "T3", "T3s", "T4", "T7", "T8", "R", *SETS}
NEED_TRACES = {"T1", "T1a", "T1q", "T1s", "T2", "T4", "T5", "T6"} | {
    name for name, one in SETS.items() if one.needs_traces
}
# Minutes of seed 0 and of a further one, which has fewer peers: from single runs in Python on a shared
# machine where there are any (T1, T2, T3s), else a guess. For the time left, and to begin with the longest.
MINUTES = {
    "T1": (24.0, 9.0),
    "T1q": (5.0, 5.0),
    "T1s": (10.0, 6.0),
    "T2": (16.0, 4.0),
    "T3": (4.0, 4.0),
    "T3s": (10.0, 6.0),
    "T6": (3.0, 3.0),
}
_OTHER = (1.0, 1.0)
_WORKERS = 2
Task = tuple[str, int]


def quick(table: Table) -> None:
    """Generated jobs, every policy once, and the storms: seconds instead of most of an hour."""
    bench = Bench("quick", 1, Path(), table=table)
    jobs = generated.research(300, 1.4 * 64, seed=1)
    setup = SimulationSetup(traces.grid_nodes(8, 8, 4, 2), audit_every=20)
    rows = {
        name: one.row for name, one in bench.compare("quick", jobs, setup, list(POLICIES)).items()
    }
    queues = ("skip-first-fit", "fifo-skip", "easy", "kueue-like")
    best = min(rows[name].delay_h for name in queues)
    table.at_most("quick", "mean below every queue", rows["phalanx"].delay_h / best, 1.0)
    storm = storms.run_storm(storms.uneven_leavers(), POLICIES["phalanx"]())
    table.at_most("quick", "a storm: evictions in vain", storm.num_needless, 0, "")


@dataclass(frozen=True, slots=True)
class Options:
    """What all scenarios share: traces, folder of kept runs, further logs, and how much to run."""

    traces: Path
    kept: Path | None = None
    logs: tuple[Path, ...] = ()
    log_nodes: int | None = None
    quarter: bool = False
    peers_only: bool = False
    fresh: bool = False

    def log_sets(self) -> dict[str, WorkloadSet]:
        """The given logs as judging sets."""
        return {path.name: swf_set(path, self.log_nodes) for path in self.logs}

    def kept_runs(self, name: str, seed: int) -> KeptRuns | None:
        """The kept runs of a scenario; those of the sets of jobs are kept in the repository."""
        folder = self.kept or (FOLDER if name in SETS else None)
        if folder is None:
            return None
        path = folder / f"{name}{'-quarter' if self.quarter else ''}.{seed}.jsonl"
        if self.fresh:
            path.unlink(missing_ok=True)
        return KeptRuns(path)


def measure(task: Task, options: Options) -> Table:
    """One scenario with one seed; gives its goals."""
    name, seed = task
    kept = options.kept_runs(name, seed)
    bench = Bench(name, seed, options.traces, kept, options.quarter, options.peers_only)
    logs = options.log_sets()
    if name in logs:
        judge(logs[name], bench)
    else:
        SCENARIOS[name](bench)
    return bench.table


def run_all(tasks: Sequence[Task], options: Options) -> Table:
    """Those that measure time first and alone, then the others two by two, the longest first."""
    tables: dict[Task, Table] = {}
    progress = _Progress(tasks)
    for task in [task for task in tasks if task[0] in ALONE]:
        tables[task] = measure(task, options)
        progress.ended(task)
    rest = sorted((t for t in tasks if t[0] not in ALONE), key=lambda t: -_minutes(t))
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(_WORKERS, mp_context=context) as pool:
        pending = {pool.submit(measure, task, options): task for task in rest}
        for future in as_completed(pending):
            tables[pending[future]] = future.result()
            progress.ended(pending[future])
    table = Table()
    for task in tasks:
        table.add(tables[task])
    overall(table.sets, table)
    return table


class _Progress:
    """A line after each scenario: how many of how many, and about how long the rest takes."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self._left = list(tasks)
        self._num = len(tasks)
        self._all = sum(_minutes(task) for task in tasks)
        self._began = time.perf_counter()

    def ended(self, task: Task) -> None:
        self._left.remove(task)
        took = (time.perf_counter() - self._began) / 60
        left = sum(_minutes(one) for one in self._left)
        speed = took / max(self._all - left, 1e-9)
        print(
            f"== {task[0]} seed {task[1]} done: {self._num - len(self._left)} of {self._num} after "
            f"{took:.0f} min, about {speed * left:.0f} min left",
            flush=True,
        )


def _minutes(task: Task) -> float:
    first, further = MINUTES.get(task[0], _OTHER)
    return further if task[1] else first


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--quick", action="store_true")
    asked.add_argument("--only", default=",".join(SCENARIOS))
    asked.add_argument("--seeds", default="0,1,2")
    asked.add_argument("--traces", type=Path, default=Path("../shared/traces"))
    asked.add_argument("--pure", action="store_true", help="compile nothing")
    asked.add_argument("--keep", type=Path, help="a folder for finished runs of all scenarios")
    asked.add_argument("--fresh", action="store_true", help="make kept runs anew")
    asked.add_argument("--peers-only", action="store_true", help="sets of jobs: only the peers")
    asked.add_argument("--swf", type=Path, nargs="*", default=[], help="further judging logs")
    asked.add_argument(
        "--swf-nodes", type=int, help="nodes of 8 of those logs; default: their header"
    )
    asked.add_argument("--quarter", action="store_true", help="a quarter of each set of jobs")
    options = asked.parse_args()
    shared = Options(
        options.traces,
        options.keep,
        tuple(options.swf),
        options.swf_nodes,
        options.quarter,
        options.peers_only,
        options.fresh,
    )
    logs = shared.log_sets()
    asked_for = [name for name in options.only.split(",") if name]
    wanted = [one for name in asked_for for one in GROUPS.get(name, [name])] + list(logs)
    unknown = [name for name in wanted if name not in SCENARIOS and name not in logs]
    if unknown:
        known = ", ".join((*GROUPS, *SCENARIOS))
        asked.error(f"no scenario {', '.join(unknown)}; there are {known}")
    missing = [str(path) for path in options.swf if not path.exists()]
    if missing:
        asked.error(f"no log at {', '.join(missing)}")
    tasks = _tasks(wanted, options.seeds, options.traces)
    if tasks and not (options.quick or options.pure):
        _compile_first()
    began = time.perf_counter()
    if options.quick:
        table = Table()
        quick(table)
    else:
        for name in wanted:
            if name not in {task[0] for task in tasks}:
                print(f"\n{name}: skipped, no traces at {options.traces}")
        table = run_all(tasks, shared)
    print(columns(table.sets))
    print(f"\nplanner: {variants.here().name}\n{table}\n\n{bars.lines(table)}")
    print(f"\n{time.perf_counter() - began:.0f} s")
    return 0


def _compile_first() -> None:
    """Go on with a compiled planner, if this is not one and there can be one."""
    if variants.here().name == variants.PYTHON:
        found = variants.compiled()
        if found is not None:
            variants.run_again_with(found, __file__)


def _tasks(wanted: Sequence[str], seeds: str, where: Path) -> list[Task]:
    tasks: list[Task] = []
    for name in wanted:
        if name in NEED_TRACES and not where.exists():
            continue
        tasks += [(name, int(seed)) for seed in (seeds.split(",") if name in SEEDED else ["0"])]
    return tasks


if __name__ == "__main__":
    raise SystemExit(main())
