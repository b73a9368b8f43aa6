"""`python -m phalanx.sim`: replay a trace, or generated jobs, under one or more policies.

Prints one table, or JSON with `--json`. Exit code 1 with one line for a bad request.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from phalanx.core.placement import Node
from phalanx.errors import PlatformError, UserError
from phalanx.sim import traces, workloads
from phalanx.sim.catalog import POLICIES
from phalanx.sim.costs import Costs
from phalanx.sim.engine import Setup, simulate
from phalanx.sim.jobs import TraceJob
from phalanx.sim.report import Figures, figures

_FORMATS = ("philly", "llm", "tiresias", "swf")
_COLUMNS = (
    ("policy", "policy", "{}"),
    ("jobs", "num_done", "{}"),
    ("mean delay h", "delay_h", "{:.3f}"),
    ("p50", "delay_p50_h", "{:.3f}"),
    ("p99", "delay_p99_h", "{:.2f}"),
    ("max", "delay_max_h", "{:.1f}"),
    ("gangs >= 8", "gang_delay_h", "{:.2f}"),
    ("makespan h", "makespan_h", "{:.1f}"),
    ("useful %", "useful", "{:.1%}"),
    ("evictions", "preemptions", "{}"),
    ("lost GPU h", "lost_h", "{:.0f}"),
    ("slowed gangs %", "slowed_percent", "{:.1f}"),
    ("pass p99 ms", "pass_p99_ms", "{:.1f}"),
)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(prog="phalanx simulate", description=__doc__.splitlines()[0])
    made.add_argument("--trace", type=Path, help="a trace file; absent: generated jobs")
    made.add_argument("--format", choices=_FORMATS, default="philly")
    made.add_argument("--policy", default="phalanx,fifo-skip", help="comma list, or `all`")
    made.add_argument("--nodes", type=int, default=16)
    made.add_argument("--slots-per-node", type=int, default=8)
    made.add_argument("--rack", type=int, default=16, help="nodes in a rack")
    made.add_argument("--jobs", type=int, default=1000, help="how many generated or read")
    made.add_argument("--load", type=float, default=0.9, help="wanted share of the slots")
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--kill", action="store_true", help="victims do not save first")
    made.add_argument(
        "--what-if", action="append", default=[], metavar="nodes=+4", help="also with this change"
    )
    made.add_argument("--json", action="store_true")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; gives the exit code."""
    asked = parser().parse_args(arguments)
    try:
        rows = run(asked)
    except PlatformError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return error.exit_code
    text = json.dumps([asdict(row) for row in rows], indent=1) if asked.json else table(rows)
    print(text)  # noqa: T201
    return 0


def run(asked: argparse.Namespace) -> list[Figures]:
    """One row for every policy and every what-if."""
    names = list(POLICIES) if asked.policy == "all" else asked.policy.split(",")
    unknown = [name for name in names if name not in POLICIES]
    if unknown:
        raise UserError(f"unknown policy {unknown[0]!r}; there are {', '.join(POLICIES)}")
    if asked.nodes < 1 or asked.slots_per_node < 1 or asked.rack < 1 or asked.jobs < 1:
        raise UserError("--nodes, --slots-per-node, --rack and --jobs must be at least 1")
    jobs = _jobs(asked)
    rows = []
    for label, num_nodes in [("", asked.nodes), *_what_if(asked)]:
        nodes = traces.grid_nodes(num_nodes, asked.slots_per_node, asked.rack)
        _check(jobs, nodes)
        setup = Setup(nodes, costs=Costs(graceful=not asked.kill))
        for name in names:
            row = figures(simulate(jobs, setup, POLICIES[name]()))
            rows.append(replace(row, policy=f"{row.policy}{label}"))
    return rows


def _what_if(asked: argparse.Namespace) -> list[tuple[str, int]]:
    found = []
    for text in asked.what_if:
        key, _, value = text.partition("=")
        try:
            change = int(value)
        except ValueError:
            raise UserError(f"--what-if {text}: write for example nodes=+4 or nodes=20") from None
        if key != "nodes":
            raise UserError(f"--what-if {text}: only nodes can be changed")
        total = asked.nodes + change if value[0] in "+-" else change
        if total < 1:
            raise UserError(f"--what-if {text}: leaves no node")
        found.append((f" [nodes={total}]", total))
    return found


def _jobs(asked: argparse.Namespace) -> list[TraceJob]:
    size = asked.slots_per_node
    if asked.trace is None:
        wanted = asked.load * asked.nodes * size
        return workloads.research(asked.jobs, wanted, size, asked.seed)
    if asked.format == "philly":
        found = traces.philly(asked.trace, 0.0, float("inf"), size, seed=asked.seed)
    elif asked.format == "llm":
        found = traces.llm_mix(asked.trace, size)
    elif asked.format == "tiresias":
        found = traces.tiresias(asked.trace, size)
    else:
        found = traces.swf(asked.trace, size)
    return found[: asked.jobs]


def _check(jobs: Sequence[TraceJob], nodes: Sequence[Node]) -> None:
    total = sum(node.num_slots for node in nodes)
    for job in jobs:
        if job.num_slots > total or job.shape.nodes > len(nodes):
            raise UserError(
                f"job {job.num} needs {job.shape.nodes} × {job.shape.slots_per_node} slots; "
                f"the cluster has {len(nodes)} nodes with {total}",
                "more --nodes, or another trace",
            )


def table(rows: Sequence[Figures]) -> str:
    """The rows as aligned text."""
    cells = [[title for title, _, _ in _COLUMNS]]
    cells += [[form.format(getattr(row, name)) for _, name, form in _COLUMNS] for row in rows]
    widths = [max(len(line[i]) for line in cells) for i in range(len(_COLUMNS))]
    lines = []
    for line in cells:
        first, *rest = zip(line, widths, strict=True)
        lines.append("  ".join([first[0].ljust(first[1]), *(c.rjust(w) for c, w in rest)]))
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
