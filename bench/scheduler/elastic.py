"""T5: the Sia workloads as elastic jobs, against Sia- and Pollux-like division of the slots."""

from __future__ import annotations

from pathlib import Path

from bench.scheduler.table import Table

from phalanx.sim.cluster.engine import Result, simulate
from phalanx.sim.output.report import figures, mean
from phalanx.sim.workload import elastic


def t5(where: Path, seed: int, table: Table) -> None:
    """T5: the Sia workloads, elastic between one slot and the size of their curve."""
    rows: dict[str, list[Result]] = {}
    for number in (1, 2, 3):
        jobs, setup = elastic.sia(where / "sia", number)
        for name in ("phalanx", "sia-like", "pollux-like", "las"):
            rigid = name == "las"
            mine = [elastic.rigid(job) for job in jobs] if rigid else jobs
            result = simulate(mine, setup, elastic.POLICIES[name]())
            rows.setdefault(name, []).append(result)
            row = figures(result)
            print(
                f"T5 workload-{number} {name:12} JCT h {row.jct_h:.2f} makespan {row.makespan_h:.1f} "
                f"restarts/job {elastic.restarts(result):.2f} pass ms "
                f"{row.pass_p50_ms:.2f}/{row.pass_p99_ms:.2f} ({result.wall_s:.0f} s)",
                flush=True,
            )
    jct = {name: mean(figures(one).jct_h for one in found) for name, found in rows.items()}
    again = mean(elastic.restarts(one) for one in rows["phalanx"])
    slow = max(figures(one).pass_p99_ms for one in rows["phalanx"])
    ratio = jct["phalanx"] / jct["sia-like"]
    table.at_most("T5", "mean JCT <= Sia-like", ratio, 1.0)
    table.at_most("T5", "<= 3 restarts a job", again, 3.0, "")
    table.goal("T5", "pass p99 < 5 ms", f"{slow:.1f} ms", slow < 5)
