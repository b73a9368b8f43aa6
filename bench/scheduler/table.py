"""Runs policies on the same jobs, prints a line each, and keeps the goals for the table at the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from phalanx.sim.catalog import POLICIES
from phalanx.sim.engine import Policy, Result, Setup, simulate
from phalanx.sim.evictions import Witness
from phalanx.sim.jobs import TraceJob
from phalanx.sim.report import figures

KNOW_THE_TRUTH = frozenset({"srpt-oracle", "sjf-oracle", "themis-like"})
"""Policies that look at true durations: bounds, not rivals."""


class Table:
    """The goals and what was measured, seed by seed."""

    def __init__(self) -> None:
        self.goals: dict[tuple[str, str], list[tuple[str, bool]]] = {}

    def goal(self, scenario: str, what: str, measured: str, met: bool) -> None:
        self.goals.setdefault((scenario, what), []).append((measured, met))

    def at_most(
        self, scenario: str, what: str, value: float, limit: float, unit: str = "x"
    ) -> None:
        self.goal(scenario, what, f"{value:.2f} {unit}".strip(), value <= limit)

    def __str__(self) -> str:
        lines = [f"{'':5} {'goal':58} {'measured':>24}  met"]
        for (scenario, what), found in self.goals.items():
            measured = ", ".join(figure for figure, _ in found)
            met = "yes" if all(ok for _, ok in found) else "NO"
            lines.append(f"{scenario:5} {what:58} {measured:>24}  {met}")
        return "\n".join(lines)


class Compared:
    """Finished runs by policy, with the witnesses of their evictions."""

    def __init__(self) -> None:
        self.runs: dict[str, Result] = {}
        self.witnesses: dict[str, Witness] = {}


def run_one(
    name: str, jobs: Sequence[TraceJob], setup: Setup, make: Callable[[], Policy]
) -> tuple[Result, Witness]:
    witness = Witness(make())
    result = simulate(jobs, setup, witness)
    row = figures(result)
    print(
        f"  {name:20} delay h mean {row.delay_h:7.3f} p99 {row.delay_p99_h:7.2f} "
        f"max {row.delay_max_h:6.1f} gangs>=8 {row.gang_delay_h:6.2f} | makespan {row.makespan_h:5.0f}"
        f" | evictions/job {row.preemptions_per_job:.2f} lost h {row.lost_h:6.0f} slowed "
        f"{row.slowed_percent:4.1f} % scattered {row.scattered_percent:4.1f} % | pass ms "
        f"{row.pass_p50_ms:.2f}/{row.pass_p99_ms:.2f} | {row.wall_s:.0f} s",
        flush=True,
    )
    return result, witness


def compare(name: str, jobs: Sequence[TraceJob], setup: Setup, policies: Sequence[str]) -> Compared:
    slots = sum(node.num_slots for node in setup.nodes)
    print(f"\n{name}: {len(jobs)} jobs, {slots} slots", flush=True)
    found = Compared()
    for policy in policies:
        run, witness = run_one(policy, jobs, setup, POLICIES[policy])
        found.runs[policy], found.witnesses[policy] = run, witness
    return found


Scenario = Callable[[Path, int, Table], None]
"""What runs: the folder of the traces, the seed, and the table for the goals."""
