"""What the simulator answers: a year with failures, useful time under load, honest ETAs.

    python bench/simulator.py [--only year,load,eta] [--traces DIR] [--quick]

Prints a table of goals against what was measured.
"""

from __future__ import annotations

import argparse
import datetime
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from phalanx.core.scheduling import ClusterIndex, Plan, plan_pass
from phalanx.core.scheduling.explain.forecast import NUM_SCENARIOS
from phalanx.core.scheduling.explain.forecast import eta as start_estimate
from phalanx.sim.cluster.engine import simulate
from phalanx.sim.jobs import TraceJob
from phalanx.sim.model import Oracle, SimulationSetup
from phalanx.sim.output.report import HOUR, figures, mean, quantile, useful_under_load
from phalanx.sim.peers.catalog import POLICIES
from phalanx.sim.workload import faults, generated, traces

EPOCH = datetime.datetime(2017, 9, 4, 10, 30, 41, tzinfo=datetime.UTC)
DAY_S = 86_400.0
GOALS: list[tuple[str, str, str, bool]] = []


def goal(scenario: str, what: str, measured: str, met: bool) -> None:
    GOALS.append((scenario, what, measured, met))


def year(where: Path, quick: bool) -> None:
    """Failures at the published rates, with 512 slots at 0.9 load."""
    num_nodes, days = (16, 60) if quick else (64, 365)
    slots = num_nodes * 8
    nodes = traces.grid_nodes(num_nodes, 8, 16, 4)
    trial = generated.training(2000, 0.9 * slots, seed=1)
    per_job = trial[-1].submit_s / len(trial)
    jobs = generated.training(int(days * DAY_S / per_job), 0.9 * slots, seed=2)
    span_s = max(job.submit_s for job in jobs)
    outages, crashes = faults.draw(faults.PUBLISHED, nodes, span_s * 1.1, 3)
    setup = SimulationSetup(nodes, outages=outages, crashes=crashes, sample_s=6 * 3600.0)
    result = simulate(jobs, setup, POLICIES["phalanx"]())
    row = figures(result)
    restart_s = result.setup.costs.restart_s
    restarts = sum(r.failures * restart_s * r.job.num_slots for r in result.runs.values())
    lost = (result.slot_times.lost_to_failures + restarts) / result.slot_times.held
    done = row.num_done / row.num_jobs
    print(
        f"year: {days} days, {slots} slots, {row.num_jobs} jobs, {len(outages)} node failures, "
        f"{len(crashes)} rank failures drawn, {sum(r.failures for r in result.runs.values())} hit a "
        f"job; {result.lifecycles.num_events} events through the job machine; {result.wall_s:.0f} s\n"
        f"  done {done:.3%}, failed {row.num_failed}; lost to failures {row.lost_to_failures_h:.0f} "
        f"slot-h of {result.slot_times.held / HOUR:.0f}; useful under load {row.useful_under_load:.3f}; "
        f"delay h mean {row.delay_h:.2f} p99 {row.delay_p99_h:.1f} max {row.delay_max_h:.1f}",
        flush=True,
    )
    goal("year", ">= 99 % of jobs complete", f"{done:.2%}", done >= 0.99)
    goal("year", "< 0.5 % lost to hardware", f"{lost:.2%}", lost < 0.005)


def load(where: Path, quick: bool) -> None:
    """Useful slot time over capacity while jobs arrive, with arrivals scaled to a load of 0.9."""
    week = (datetime.datetime(2017, 10, 9, tzinfo=datetime.UTC) - EPOCH).total_seconds()
    cases: list[tuple[str, list[TraceJob], SimulationSetup]] = []
    if (where / "philly.csv.gz").exists():
        jobs = traces.philly(where / "philly.csv.gz", week, week + 7 * DAY_S)
        cases.append(("T1", jobs, SimulationSetup(traces.grid_nodes(60, 8, 15, 4), sample_s=600.0)))
        jobs = traces.llm_mix(where / "llm_synth_s0.csv")
        cases.append(
            ("T3", jobs, SimulationSetup(traces.grid_nodes(256, 8, 16, 8), sample_s=600.0))
        )
    for name, jobs, setup in cases:
        wanted = sum(job.num_slots * job.duration_s for job in jobs)
        span_s = max(job.submit_s for job in jobs)
        slots = sum(node.num_slots for node in setup.nodes)
        stretch = wanted / (0.9 * slots * span_s)
        scaled = [replace(job, project="", submit_s=job.submit_s * stretch) for job in jobs]
        for policy in ("phalanx", "fifo-skip"):
            result = simulate(scaled, setup, POLICIES[policy]())
            useful = useful_under_load(result)
            bound = at_once(scaled, slots)
            print(
                f"load 0.9 {name} {policy}: useful/capacity {useful:.3f}, of {bound:.3f} if every job "
                f"started at once on a cluster without end ({result.wall_s:.0f} s)",
                flush=True,
            )
            if policy == "phalanx":
                goal(name, "useful / capacity >= 0.86 at load 0.9", f"{useful:.3f}", useful >= 0.86)


def at_once(jobs: list[TraceJob], slots: int) -> float:
    """Work that could be done in the window by a cluster without end, over this one's capacity."""
    first, last = min(j.submit_s for j in jobs), max(j.submit_s for j in jobs)
    start_s = first + 0.1 * (last - first)
    done = sum(
        job.num_slots
        * max(min(job.submit_s + job.duration_s, last) - max(job.submit_s, start_s), 0.0)
        for job in jobs
    )
    return done / (slots * (last - start_s))


@dataclass(frozen=True, slots=True)
class Question:
    """One ETA that was forecast at `asked_at`, and the real start; microseconds."""

    job: int
    asked_at: int
    p50_at: int | None
    p90_at: int | None
    started_at: int


@dataclass(slots=True)
class _Asking:
    """The production planner with a forecast for one queued job at every `every`-th pass."""

    every: int
    num_scenarios: int
    name: str = "phalanx"
    passes: int = 0
    asked: list[tuple[int, int, int | None, int | None]] = field(default_factory=list)
    starts: dict[int, list[int]] = field(default_factory=dict)

    def plan(self, cluster: ClusterIndex, now: int, oracle: Oracle) -> Plan:
        """Run one pass and, at some passes, forecast the start of a queued job."""
        decided = plan_pass(cluster, now)
        for start in decided.starts:
            self.starts.setdefault(start.job, []).append(now)
        stays = [num for num, _ in decided.pending_reasons]
        if stays:
            self.passes += 1
            if self.passes % self.every == 0:
                num = stays[(self.passes // self.every * 7919) % len(stays)]
                when = start_estimate(cluster.snapshot(), num, now, self.num_scenarios)
                self.asked.append((num, now, when.p50_at, when.p90_at))
        return decided


def ask(
    jobs: Sequence[TraceJob], setup: SimulationSetup, every: int, num_scenarios: int = NUM_SCENARIOS
) -> list[Question]:
    """Run the jobs and return the forecasts, each with the real start of its job."""
    asking = _Asking(every, num_scenarios)
    simulate(jobs, setup, asking)
    found = []
    for num, now, p50_at, p90_at in asking.asked:
        later = [at for at in asking.starts.get(num, []) if at >= now]
        if later:
            found.append(Question(num, now, p50_at, p90_at, later[0]))
    return found


def eta(where: Path, quick: bool) -> None:
    """Asked of waiting jobs at random moments: how many start before p50, and before p90?"""
    asked = []
    for seed in (11,) if quick else (11, 12, 13):
        jobs = [j for j in generated.training(260, 1.4 * 32, seed=seed) if j.num_slots <= 16]
        nodes = traces.grid_nodes(4, 8, 4, 1)
        setup = SimulationSetup(nodes, pass_s=300.0, recheck_s=1800.0)
        asked += ask(jobs, setup, every=12)
    known = [one for one in asked if one.p50_at is not None and one.p90_at is not None]
    p50 = mean(float(one.started_at <= one.p50_at) for one in known)
    p90 = mean(float(one.started_at <= one.p90_at) for one in known)
    off = [abs(one.started_at - (one.p50_at or 0)) / 3.6e9 for one in known]
    print(
        f"eta: {len(asked)} questions, {len(known)} answered; started before p50 {p50:.1%}, before "
        f"p90 {p90:.1%}; error of p50 h: median {quantile(off, 0.5):.2f} p90 {quantile(off, 0.9):.2f}",
        flush=True,
    )
    goal("eta", "45-65 % start before p50", f"{p50:.1%}", 0.45 <= p50 <= 0.65)
    goal("eta", "85-95 % start before p90", f"{p90:.1%}", 0.85 <= p90 <= 0.95)


PARTS = {"year": year, "load": load, "eta": eta}


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--only", default=",".join(PARTS))
    asked.add_argument("--traces", type=Path, default=Path("../shared/traces"))
    asked.add_argument("--quick", action="store_true")
    options = asked.parse_args()
    for name in options.only.split(","):
        PARTS[name](options.traces, options.quick)
    print(f"\n{'':5} {'goal':40} {'measured':>10}  met")
    for scenario, what, measured, met in GOALS:
        print(f"{scenario:5} {what:40} {measured:>10}  {'yes' if met else 'NO'}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
