"""Choose the constants of every peer on the tuning sets, with the same budget for each.

    python bench/scheduler/tune.py [--only las,easy] [--traces DIR] [--workers 2] [--write]

Every peer has `BUDGET` settings, its defaults among them, about as many as were tried for the planner. All
of them run on all sets of `sets.SMALL_TUNING`; peers for tenants run on `sets.TENANTS`. The chosen setting
has the lowest geometric mean of its mean delays beside those of the defaults. With tenants only settings
count that honour guarantees as fast as the defaults, or as the goal of the planner asks. `--write` puts all
results into `tuned.json`, which the benchmark takes the constants of its peers from.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import multiprocessing
import random
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.scheduler import variants
from bench.scheduler.peers import WITH_TENANTS
from bench.scheduler.philly import GUARANTEE_S
from bench.scheduler.sets import SETS, SMALL_TUNING, TENANTS, Jobs

from phalanx.sim.audit.evictions import EvictionRecorder
from phalanx.sim.cluster.engine import simulate
from phalanx.sim.output.report import figures
from phalanx.sim.peers.catalog import POLICIES

BUDGET = 40
FILE = Path(__file__).with_name("tuned.json")
Setting = Mapping[str, Any]

_LIMITS = (
    *((3600, 36_000), (3250, 7200), (600, 3600), (1200, 14_400), (7200, 86_400)),
    *((600, 3600, 14_400, 86_400), (300, 1200, 3600, 14_400), (1800, 7200, 28_800, 115_200)),
    (300, 600, 1200, 2400, 4800, 9600, 19_200, 38_400, 76_800),
)
_PROTECTION = (0.0, 300.0, 600.0, 1200.0, 2400.0)
# 39 times from 2 min to 24 h, about a fifth apart. A shorter turn ends before a restarted job gets on.
_TIMES = tuple(round(120.0 * 1.189**n / 10) * 10.0 for n in range(39))
_FACTORS = (
    *(0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.25, 0.3),
    *(0.4, 0.5, 0.6, 0.75, 0.9, 1.0, 1.25, 1.5, 1.75, 2.0),
)
_SLURM = {
    "factor": (0.1, 0.25, 0.5, 1.0),
    "age": (0.0, 1000.0, 10_000.0),
    "size": (-100_000.0, -10_000.0, -1000.0, 0.0, 1000.0, 10_000.0),
}
_KAI = {
    "move_after_s": (0.0, 300.0, 600.0, 1800.0, 3600.0, 7200.0, 14_400.0, 43_200.0),
    "most_part": (0.125, 0.25, 0.5, 1.0, 2.0),
}
SPACES: Mapping[str, Mapping[str, Sequence[Any]]] = {
    "las": {"limits_slot_s": _LIMITS, "min_run_s": _PROTECTION},
    "las-authors": {"limits_slot_s": _LIMITS, "min_run_s": _PROTECTION},
    "gittins": {"min_run_s": _TIMES},
    "gavel-max-min": {"round_s": _TIMES},
    "gandiva-like": {"quantum_s": _TIMES},
    "easy": {"factor": _FACTORS, "shortest": (False, True)},
    "conservative": {
        "factor": (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 1.5, 2.0),
        "depth": (10, 50, 100, 500),
    },
    "slurm-like": _SLURM,
    "kai-like": _KAI,
}
"""The constants of each peer and their values; where they make more than the budget, a sample."""
TENANT_SPACES: Mapping[str, Mapping[str, Sequence[Any]]] = {
    "kueue-like" + WITH_TENANTS: {
        "strict": (False, True),
        "fair": (False, True),
        "min_run_s": (0.0, 60.0, 300.0),
        "borrow_part": (1000.0, 4.0, 1.0),
        "most_tries": (4, 16, 64),
    },
    "kai-like" + WITH_TENANTS: _KAI | {"min_run_s": (0.0, 60.0, 300.0)},
    "slurm-like" + WITH_TENANTS: _SLURM,
}
"""The same with guarantees."""


def settings(name: str) -> list[Setting]:
    """The settings of a peer, the defaults first, as many as the budget."""
    space = (SPACES | TENANT_SPACES)[name]
    found = [dict(zip(space, values, strict=True)) for values in itertools.product(*space.values())]
    chosen = random.Random(0).sample(found, min(BUDGET - 1, len(found)))
    return [{}, *chosen]


@cache
def _jobs(where: str, traces: Path) -> Jobs:
    is_whole = where not in SETS or not SETS[where].needs_traces
    return SETS[where].make(traces, 0, not is_whole)


def measured(name: str, setting: Setting, traces: Path) -> dict[str, Any]:
    """One setting on its tuning sets: mean delays in hours, and the longest wait for a guarantee."""
    has_tenants = name in TENANT_SPACES
    row: dict[str, Any] = {"setting": setting, "delay_h": {}}
    for where in (TENANTS,) if has_tenants else SMALL_TUNING:
        jobs, setup = _jobs(where, traces)
        policy = EvictionRecorder(POLICIES[name.removesuffix(WITH_TENANTS)](**setting))
        row["delay_h"][where] = round(figures(simulate(jobs, setup, policy)).delay_h, 4)
        if has_tenants:
            row["owed_s"] = round(policy.owed_s)
    return row


def best_of(rows: Sequence[Mapping[str, Any]]) -> tuple[Setting, float]:
    """The best setting of those that keep guarantees, and its score; `rows` begin with the defaults."""
    base = rows[0]
    most_s = max(base.get("owed_s", 0.0), GUARANTEE_S)
    kept = [row for row in rows if row.get("owed_s", 0.0) <= most_s]

    def score(row: Mapping[str, Any]) -> float:
        logs = [math.log(row["delay_h"][one] / base["delay_h"][one]) for one in base["delay_h"]]
        return math.exp(sum(logs) / len(logs))

    best = min(kept, key=score)
    return best["setting"], round(score(best), 4)


def tuned(name: str, traces: Path, pool: ProcessPoolExecutor) -> dict[str, Any]:
    """Every setting of a peer with its figures, and the best one."""
    tried = settings(name)
    rows = list(pool.map(measured, *zip(*((name, one, traces) for one in tried), strict=True)))
    best, score = best_of(rows)
    print(f"{name}: {len(rows)} settings, best {dict(best)}, {score} x", flush=True)
    return {"best": best, "score": score, "tried": rows}


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--only", default=",".join((*SPACES, *TENANT_SPACES)))
    asked.add_argument("--traces", type=Path, default=Path("../shared/traces"))
    asked.add_argument("--workers", type=int, default=2)
    asked.add_argument("--write", action="store_true")
    options = asked.parse_args()
    if variants.here().name == variants.PYTHON:
        found = variants.compiled()
        if found is not None:
            variants.run_again_with(found, __file__)
    known = json.loads(FILE.read_text()) if FILE.exists() else {}
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.workers, mp_context=context) as pool:
        for name in options.only.split(","):
            known[name] = tuned(name, options.traces, pool)
            if options.write:
                FILE.write_text(json.dumps(known, indent=None, separators=(",", ":")) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
