"""T6: openb pods packed onto uneven machines, against FGD and BestFit and their artifact's figures."""

from __future__ import annotations

import csv
import time
from collections.abc import Sequence
from pathlib import Path

from bench.scheduler.fgd import (
    BestFit,
    Fgd,
    ProductionPacking,
    arrivals,
    machines,
    pods,
    replay,
)
from bench.scheduler.table import Table

_RATIO = 1.3
_SEEDS = 3
_POLICIES = {"best-fit": "05-BestFit", "fgd": "06-FGD"}


def t6(where: Path, seed: int, table: Table) -> None:
    folder = where / "openb_fgd"
    hosts = machines(folder / "openb_node_list_gpu_node.csv")
    capacity = 1000 * sum(host.num_devices for host in hosts)
    for workload in ("default", "multigpu50"):
        asked = pods(folder / f"openb_pod_list_{workload}.csv")
        print(f"\nT6 openb {workload}: {len(asked)} pods, {capacity // 1000} devices", flush=True)
        found: dict[str, list[float]] = {}
        for one in range(_SEEDS * seed, _SEEDS * seed + _SEEDS):
            arriving = arrivals(asked, capacity, _RATIO, 42 + one)
            for packer in (ProductionPacking(hosts), BestFit(hosts), Fgd(hosts, asked)):
                began = time.process_time()
                packed = replay(hosts, arriving, packer)
                found.setdefault(packed.packer, []).append(100 * packed.allocated)
                took_s = time.process_time() - began
                print(
                    f"  {packed.packer:10} order {one}: {100 * packed.allocated:.2f} % of the devices "
                    f"handed out, {packed.num_turned_away} of {packed.num_pods} pods turned away "
                    f"({took_s:.0f} s)",
                    flush=True,
                )
        artifact = published(folder / "expected_alloc_fgd_artifact.csv", workload)
        for name, label in _POLICIES.items():
            gap = abs(mean_of(found[name]) - artifact[label])
            what = f"{workload}: our {name} within 0.5 points of {artifact[label]} %"
            table.at_most("T6", what, gap, 0.5, "points")
        ours, fgd = mean_of(found["phalanx"]), mean_of(found["fgd"])
        table.goal("T6", f"{workload}: >= our FGD ({fgd:.2f} %)", f"{ours:.2f} %", ours >= fgd)
        best = artifact["06-FGD"]
        table.goal("T6", f"{workload}: >= FGD's artifact ({best} %)", f"{ours:.2f} %", ours >= best)


def published(path: Path, workload: str) -> dict[str, float]:
    """The artifact's mean allocation of each policy, percent."""
    with path.open() as file:
        rows = csv.DictReader(file)
        wanted = f"openb_pod_list_{workload}"
        return {r["sc_policy"]: float(r["mean"]) for r in rows if r["workload"] == wanted}


def mean_of(values: Sequence[float]) -> float:
    return sum(values) / len(values)
