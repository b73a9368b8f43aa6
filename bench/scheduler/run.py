"""The scheduler's benchmark: one table of goals against what was measured.

    python bench/scheduler/run.py [--quick] [--only T1,T9] [--seeds 0,1,2] [--traces DIR]

Runs the production planner and its peers in the same simulator on the same jobs; a peer runs where the
scenario tells it from the others. Scenarios whose trace is absent say so; T7, T8 and T9 need none. A seed
above 0 puts the days of a trace in another order and draws the sensitivity to placement anew; the
measured figures of all seeds stand side by side, and a goal is met only if every seed meets it. T6 has
three orders of its own.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.scheduler.elastic import t5
from bench.scheduler.live import accasim
from bench.scheduler.llm import t3, t4, t7
from bench.scheduler.packing import t6
from bench.scheduler.philly import t1, t2, tenants
from bench.scheduler.scale import t9
from bench.scheduler.storms import t8
from bench.scheduler.table import Scenario, Table, compare

from phalanx.sim import storms, traces, workloads
from phalanx.sim.catalog import POLICIES
from phalanx.sim.engine import Setup
from phalanx.sim.report import figures

SCENARIOS: dict[str, Scenario] = {
    "T9": t9,
    "T8": t8,
    "T1": t1,
    "T1a": accasim,
    "T1q": tenants,
    "T2": t2,
    "T3": t3,
    "T4": t4,
    "T5": t5,
    "T6": t6,
    "T7": t7,
}
SEEDED = {"T1", "T1q", "T2", "T3", "T4", "T7", "T8"}
NEED_TRACES = {"T1", "T1a", "T1q", "T2", "T3", "T4", "T5", "T6"}


def quick(table: Table) -> None:
    """Generated jobs, every policy once, and the storms: seconds instead of most of an hour."""
    jobs = workloads.research(300, 1.4 * 64, seed=1)
    setup = Setup(traces.grid_nodes(8, 8, 4, 2), audit_every=20)
    runs = compare("quick: generated jobs", jobs, setup, list(POLICIES)).runs
    ours = figures(runs["phalanx"])
    queues = ("skip-first-fit", "fifo-skip", "easy", "kueue-like")
    best = min(figures(runs[name]).delay_h for name in queues)
    table.at_most("quick", "mean below every queue", ours.delay_h / best, 1.0)
    storm = storms.weather(storms.uneven_leavers(), POLICIES["phalanx"]())
    table.at_most("quick", "a storm: evictions in vain", storm.num_needless, 0, "")


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--quick", action="store_true")
    asked.add_argument("--only", default=",".join(SCENARIOS))
    asked.add_argument("--seeds", default="0,1,2")
    asked.add_argument("--traces", type=Path, default=Path("../shared/traces"))
    options = asked.parse_args()
    wanted = options.only.split(",")
    unknown = [name for name in wanted if name not in SCENARIOS]
    if unknown:
        asked.error(f"no scenario {', '.join(unknown)}; there are {', '.join(SCENARIOS)}")
    table, began = Table(), time.perf_counter()
    if options.quick:
        quick(table)
        wanted = []
    for name in wanted:
        if name in NEED_TRACES and not options.traces.exists():
            print(f"\n{name}: skipped, no traces at {options.traces}")
            continue
        for seed in options.seeds.split(",") if name in SEEDED else ["0"]:
            if seed != "0":
                print(f"\nseed {seed}")
            SCENARIOS[name](options.traces, int(seed), table)
    print(f"\n{table}\n{time.perf_counter() - began:.0f} s")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
