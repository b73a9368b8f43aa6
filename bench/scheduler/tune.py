"""Choose the constants of every peer on the tuning sets, with the same budget for each.

    python bench/scheduler/tune.py [--only las,easy] [--traces DIR] [--write]

Every peer has at most 40 settings, about as many as were tried for the planner; one with fewer has no other
constants. Each runs on a quarter of the last tuning set of `sets.SMALL_TUNING`, and the five best
and the defaults run on quarters of all four. The chosen one has the lowest geometric mean of its mean delay
there beside that of the defaults. `--write` puts all results into `tuned.json`, which the benchmark takes
the constants of its peers from.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.scheduler import variants
from bench.scheduler.sets import SETS, SMALL_TUNING, TENANTS

from phalanx.sim.cluster.engine import simulate
from phalanx.sim.output.report import figures
from phalanx.sim.peers.catalog import POLICIES

BUDGET = 40
_FINALISTS = 5
FILE = Path(__file__).with_name("tuned.json")
Setting = Mapping[str, Any]

_LIMITS = (
    *((3600, 36_000), (3250, 7200), (600, 3600), (1200, 14_400), (7200, 86_400)),
    *((600, 3600, 14_400, 86_400), (300, 1200, 3600, 14_400), (1800, 7200, 28_800, 115_200)),
    (300, 600, 1200, 2400, 4800, 9600, 19_200, 38_400, 76_800),
)
_PROTECTION = (0.0, 300.0, 600.0, 1200.0, 2400.0)
_TIMES = (60, 120, 180, 240, 300, 360, 480, 600, 720, 900, 1200, 1500, 1800, 2400, 3000, 3600)
_LONG_TIMES = (*_TIMES, 4500, 5400, 7200, 9000, 10_800, 14_400, 21_600, 28_800)
_FACTORS = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.75, 1.0, 1.25, 1.5, 2.0)
SPACES: Mapping[str, Mapping[str, Sequence[Any]]] = {
    "las": {"limits_slot_s": _LIMITS, "min_run_s": _PROTECTION},
    "las-authors": {"limits_slot_s": _LIMITS, "min_run_s": _PROTECTION},
    "gittins": {"min_run_s": _LONG_TIMES},
    "gavel-max-min": {"round_s": _LONG_TIMES},
    "gandiva-like": {"quantum_s": _LONG_TIMES},
    "easy": {"factor": _FACTORS, "shortest": (False, True)},
    "conservative": {
        "factor": (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5),
        "depth": (10, 50, 100, 500),
    },
    "slurm-like": {
        "factor": (0.1, 0.25, 0.5, 1.0),
        "age": (0.0, 1000.0, 10_000.0),
        "size": (-100_000.0, -10_000.0, -1000.0, 0.0, 1000.0, 10_000.0),
    },
    "kai-like": {
        "move_after_s": (0.0, 600.0, 1800.0, 3600.0, 7200.0, 14_400.0),
        "most_part": (0.25, 0.5, 1.0, 2.0),
    },
}
"""The constants of each peer and their values; where they make more than the budget, a sample."""
TENANT_SPACES: Mapping[str, Mapping[str, Sequence[Any]]] = {
    "kueue-like with tenants": {"strict": (False, True), "fair": (False, True)},
    "kai-like with tenants": {"move_after_s": (600.0, 3600.0), "most_part": (0.5, 1.0)},
}
"""The same on a tuning set with guarantees. Protection of borrowers (`min_run_s`) is left out: with it a
guarantee is honoured hours later, and the comparison is at equal guarantees."""


def settings(name: str) -> list[Setting]:
    """The settings of a peer, the defaults first, at most as many as the budget."""
    space = (SPACES | TENANT_SPACES)[name]
    found = [dict(zip(space, values, strict=True)) for values in itertools.product(*space.values())]
    chosen = random.Random(0).sample(found, min(BUDGET - 1, len(found)))
    return [{}, *chosen]


def delay_h(name: str, setting: Setting, where: str, traces: Path) -> float:
    """The mean delay on a quarter of one tuning set, hours."""
    jobs, setup = SETS[where].make(traces, 0, True)
    policy = POLICIES[name.split()[0]](**setting)
    return figures(simulate(jobs, setup, policy)).delay_h


def tuned(name: str, traces: Path) -> dict[str, Any]:
    """Every setting of a peer with its figures, and the best one."""
    wheres = (TENANTS,) if name in TENANT_SPACES else SMALL_TUNING
    *rest, first = wheres
    rows: list[dict[str, Any]] = []
    for setting in settings(name):
        rows.append({"setting": setting, "delay_h": {first: delay_h(name, setting, first, traces)}})
    ranked = sorted(rows[1:], key=lambda row: float(row["delay_h"][first]))
    base, finalists = rows[0], [rows[0], *ranked[:_FINALISTS]]
    for row in finalists:
        row["delay_h"] |= {one: delay_h(name, row["setting"], one, traces) for one in rest}
        logs = [math.log(row["delay_h"][one] / base["delay_h"][one]) for one in wheres]
        row["score"] = round(math.exp(sum(logs) / len(logs)), 4)
    best = min(finalists, key=lambda row: float(row["score"]))
    for row in rows:
        row["delay_h"] = {one: round(value, 4) for one, value in row["delay_h"].items()}
    print(f"{name}: {len(rows)} settings, best {best['setting']}, {best['score']} x", flush=True)
    return {"best": best["setting"], "score": best["score"], "tried": rows}


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--only", default=",".join((*SPACES, *TENANT_SPACES)))
    asked.add_argument("--traces", type=Path, default=Path("../shared/traces"))
    asked.add_argument("--write", action="store_true")
    options = asked.parse_args()
    if variants.here().name == variants.PYTHON:
        found = variants.compiled()
        if found is not None:
            variants.run_again_with(found, __file__)
    known = json.loads(FILE.read_text()) if FILE.exists() else {}
    for name in options.only.split(","):
        known[name] = tuned(name, options.traces)
        if options.write:
            FILE.write_text(json.dumps(known, indent=None, separators=(",", ":")) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
