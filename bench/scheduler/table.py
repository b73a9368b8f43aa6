"""Runs policies on the same jobs, prints a line each, and keeps the goals for the table at the end."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.scheduler.kept import KeptRuns, key_of, workload_digest

from phalanx.sim.audit.evictions import EvictionRecorder
from phalanx.sim.cluster.engine import Result, simulate
from phalanx.sim.jobs import TraceJob
from phalanx.sim.model import SchedulingPolicy, SimulationSetup
from phalanx.sim.output.report import RunFigures, figures
from phalanx.sim.peers.catalog import POLICIES

KNOW_THE_TRUTH = frozenset({"srpt-oracle", "sjf-oracle", "sjf-predicted", "themis-like"})
"""Policies that look at true durations, exactly or with an error: bounds, not rivals."""


@dataclass(frozen=True, slots=True)
class Found:
    """What was measured for a goal: as text, whether it is met, and the number, where it is one."""

    measured: str
    met: bool
    value: float | None = None


class Table:
    """The goals and what was measured, seed by seed."""

    def __init__(self) -> None:
        self.goals: dict[tuple[str, str], list[Found]] = {}
        self.sets: list[SetFigures] = []

    def goal(
        self, scenario: str, what: str, measured: str, met: bool, value: float | None = None
    ) -> None:
        self.goals.setdefault((scenario, what), []).append(Found(measured, met, value))

    def at_most(
        self, scenario: str, what: str, value: float, limit: float, unit: str = "x"
    ) -> None:
        self.goal(scenario, what, f"{value:.2f} {unit}".strip(), value <= limit, value)

    def add(self, other: Table) -> None:
        """What another process found, behind what is known."""
        for key, found in other.goals.items():
            self.goals.setdefault(key, []).extend(found)
        self.sets += other.sets

    def __str__(self) -> str:
        lines = [f"{'':22} {'goal':58} {'measured':>30}  met"]
        for (scenario, what), found in self.goals.items():
            measured = ", ".join(one.measured for one in found)
            met = "yes" if all(one.met for one in found) else "NO"
            lines.append(f"{scenario:22} {what:58} {measured:>30}  {met}")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Measured:
    """What is kept of a run: the usual row, and what its scenario wants to know beyond."""

    row: RunFigures
    more: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class SetFigures:
    """What one set with one seed showed."""

    name: str
    seed: int
    part: str
    is_gpu: bool  # jobs of GPU clusters, without tenants
    has_tenants: bool
    ours: Measured
    best: str  # the best peer by mean delay that does not know the truth
    peers: Mapping[str, Measured]
    low: float  # bounds of the 95 % interval of the ratio of means
    high: float
    kill_lost: float | None = None  # lost in kill mode beside LAS

    @property
    def ratio(self) -> float:
        """Our mean delay beside that of the best peer."""
        return ratio_of(self.ours.row.delay_h, self.peers[self.best].row.delay_h)

    @property
    def p99_ratio(self) -> float:
        """Our 99th percentile beside that of the same peer."""
        return ratio_of(self.ours.row.delay_p99_h, self.peers[self.best].row.delay_p99_h)


def ratio_of(ours: float, theirs: float) -> float:
    """A ratio of delays in hours; a hundredth of a second counts as none."""
    return (ours + 3e-6) / (theirs + 3e-6)


Probe = Callable[[Result, EvictionRecorder], Mapping[str, float]]


def nothing(_: Result, __: EvictionRecorder) -> Mapping[str, float]:
    """For scenarios that the usual row is enough for."""
    return {}


@dataclass(frozen=True, slots=True)
class Bench:
    """One scenario with one seed: its traces, the table for its goals, and its kept runs.

    `quarter`: sets of jobs are run on a quarter of them. `peers_only`: the planner does not run.
    """

    scenario: str
    seed: int
    traces: Path
    kept: KeptRuns | None = None
    quarter: bool = False
    peers_only: bool = False
    table: Table = field(default_factory=Table)

    def say(self, text: str) -> None:
        """One line, marked with the scenario and the seed: several may run side by side."""
        print(f"[{self.scenario} seed {self.seed}] {text}", flush=True)

    def run(
        self,
        name: str,
        jobs: Sequence[TraceJob],
        setup: SimulationSetup,
        make: Callable[[], SchedulingPolicy],
        probe: Probe = nothing,
    ) -> Measured:
        """One policy; taken from the kept runs if it is there."""
        key = "" if self.kept is None else key_of(workload_digest(jobs, setup), make, setup)
        found = None if self.kept is None else self.kept.get(name, key)
        if found is not None:
            measured = Measured(RunFigures(**found["row"]), found["more"])
        else:
            recorder = EvictionRecorder(make())
            result = simulate(jobs, setup, recorder)
            measured = Measured(figures(result), probe(result, recorder))
            if self.kept is not None:
                self.kept.put(name, key, dataclasses.asdict(measured.row), measured.more)
        self.say(_line(name, measured.row))
        return measured

    def compare(
        self,
        name: str,
        jobs: Sequence[TraceJob],
        setup: SimulationSetup,
        policies: Sequence[str],
        probe: Probe = nothing,
        makers: Callable[[str], Callable[[], SchedulingPolicy]] = POLICIES.__getitem__,
    ) -> dict[str, Measured]:
        """Several policies on the same jobs, by name; without `makers` peers have their defaults."""
        slots = sum(node.num_slots for node in setup.nodes)
        self.say(f"{name}: {len(jobs)} jobs, {slots} slots")
        label = "" if name == self.scenario else f"{name}: "
        return {
            policy: self.run(f"{label}{policy}", jobs, setup, makers(policy), probe)
            for policy in policies
        }


def _line(name: str, row: RunFigures) -> str:
    return (
        f"{name.rpartition(': ')[2]:14} delay h mean {row.delay_h:7.3f} p99 {row.delay_p99_h:7.2f} "
        f"max {row.delay_max_h:6.1f} gangs>=8 {row.gang_delay_h:6.2f} | makespan {row.makespan_h:5.0f}"
        f" | evictions/job {row.preemptions_per_job:.2f} lost h {row.lost_h:6.0f} slowed "
        f"{row.slowed_percent:4.1f} % scattered {row.scattered_percent:4.1f} % | pass ms "
        f"{row.pass_p50_ms:.2f}/{row.pass_p99_ms:.2f} | {row.wall_s:.0f} s"
    )


Scenario = Callable[[Bench], None]
"""What runs: it measures and writes its goals into the table of the bench."""
