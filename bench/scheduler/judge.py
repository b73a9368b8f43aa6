"""The tuning and the judging sets: the shipped planner beside every peer with its best constants."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median

from bench.scheduler.peers import tuned
from bench.scheduler.philly import GUARANTEE_S
from bench.scheduler.sets import JUDGING, TUNING, WorkloadSet
from bench.scheduler.table import Bench, Measured, SetFigures, Table, ratio_of

from phalanx.sim.audit.evictions import EvictionRecorder
from phalanx.sim.cluster.engine import Result
from phalanx.sim.costs import Costs
from phalanx.sim.jobs import TraceJob
from phalanx.sim.model import SimulationSetup
from phalanx.sim.output.report import delay_s

OURS, ORACLE = "phalanx", "srpt-oracle"
PEERS = (
    *("fifo-skip", "easy", "conservative", "slurm-like", "kai-like", "gandiva-like"),
    *("gavel-max-min", "las", "las-authors", "gittins"),
)
"""Peers that know no true durations. Without projects Kueue-like is FIFO-skip."""
TENANT_PEERS = ("kueue-like", "kai-like", "slurm-like")
"""With tenants: the peers that know quotas."""
_DAY_S = 86_400.0
_RESAMPLES = 1000


def judge(one: WorkloadSet, bench: Bench) -> None:
    """Run every policy on one set, and write the goals of judging sets into the table."""
    jobs, setup = one.make(bench.traces, bench.seed, bench.quarter)
    slots = sum(node.num_slots for node in setup.nodes)
    bench.say(f"{one.part}: {len(jobs)} jobs, {slots} slots")
    rivals = TENANT_PEERS if one.has_tenants else PEERS
    has_kill = one.is_gpu and not one.has_tenants
    found = {
        name: bench.run(name, jobs, setup, tuned(name, one.has_tenants), by_day)
        for name in dict.fromkeys((*rivals, "las", "easy", ORACLE))
    }
    if bench.peers_only:
        if has_kill:
            _kill_runs(("las",), jobs, setup, bench)
        return
    found[OURS] = bench.run(OURS, jobs, setup, tuned(OURS), by_day)
    ours, peers = found[OURS], {name: found[name] for name in rivals}
    best = min(_equals(ours, peers), key=lambda name: peers[name].row.delay_h)
    low, high = interval(ours.more, peers[best].more)
    figures = SetFigures(
        one.name,
        bench.seed,
        one.part,
        has_kill,
        one.has_tenants,
        ours,
        best,
        found,
        low,
        high,
    )
    bench.say(
        f"{figures.ratio:.2f} ({low:.2f} to {high:.2f}) x {best} in the mean, "
        f"{figures.p99_ratio:.2f} x in p99"
    )
    _goals(figures, bench.table)
    if has_kill:
        lost = _killed(figures, jobs, setup, bench)
        figures = replace(figures, kill_lost=lost)
    bench.table.sets.append(figures)


def _equals(ours: Measured, peers: Mapping[str, Measured]) -> Sequence[str]:
    """The peers that honour guarantees as fast as the goal asks or as we do; all, if none does."""
    most_s = max(GUARANTEE_S, ours.more["owed_s"])
    return [name for name, one in peers.items() if one.more["owed_s"] <= most_s] or list(peers)


def by_day(result: Result, recorder: EvictionRecorder) -> dict[str, float]:
    """Sum of the delays by day of submission, the most evictions of a job in an hour, and `owed_s`.

    `owed_s` is the longest wait of a request within a guarantee, seconds; 0 without tenants. Where jobs
    come for less than ten days, a tenth of that time stands for a day.
    """
    found = {"most": float(recorder.most_in_an_hour()), "owed_s": recorder.owed_s}
    times = [run.job.submit_s for run in result.runs.values()]
    block_s = min(_DAY_S, max((max(times) - min(times)) / 10, 1.0))
    for run in result.runs.values():
        block = f"sum {int(run.job.submit_s // block_s)}"
        found[block] = found.get(block, 0.0) + delay_s(result, run) / 3600.0
    return found


def interval(ours: Mapping[str, float], theirs: Mapping[str, float]) -> tuple[float, float]:
    """The 95 % interval of the ratio of means: a paired bootstrap over days of submission.

    Days and not jobs are drawn, because the jobs of a day wait in the same queue.
    """
    days = [key.removeprefix("sum ") for key in ours if key.startswith("sum ")]
    rng = random.Random(0)
    ratios = []
    for _ in range(_RESAMPLES):
        drawn = rng.choices(days, k=len(days))
        mine = sum(ours[f"sum {day}"] for day in drawn)
        other = sum(theirs[f"sum {day}"] for day in drawn)
        ratios.append(ratio_of(mine, other))
    ratios.sort()
    return ratios[int(0.025 * _RESAMPLES)], ratios[int(0.975 * _RESAMPLES) - 1]


def _goals(one: SetFigures, table: Table) -> None:
    name = f"{one.part}: {one.name}"
    row, peers = one.ours.row, one.peers
    if one.has_tenants:
        table.at_most(f"tenants {name}", "mean <= 1.0 x best peer", one.ratio, 1.0)
        owed_s = one.ours.more["owed_s"]
        what = f"guarantee honoured in {GUARANTEE_S:.0f} s"
        table.at_most(f"tenants {name}", what, owed_s, GUARANTEE_S, "s")
        return
    table.at_most(name, f"mean <= {_limit(one)} x best peer", one.ratio, _limit(one))
    table.at_most(name, "p99 <= 1.0 x that peer", one.p99_ratio, 1.0)
    longest = ratio_of(row.delay_max_h, peers["las"].row.delay_max_h)
    table.at_most(name, "max <= 1.2 x LAS", longest, 1.2)
    oracle = ratio_of(row.delay_h, peers[ORACLE].row.delay_h)
    table.at_most(name, "mean <= 1.3 x SRPT oracle", oracle, 1.3)
    if row.gang_delay_h:
        gangs = ratio_of(row.gang_delay_h, peers["easy"].row.gang_delay_h)
        table.at_most(name, "gangs >= 8: mean <= EASY's", gangs, 1.0)
    table.at_most(name, "evictions <= 2 a job", row.preemptions_per_job, 2.0, "")
    table.at_most(name, "evictions <= 8 in any hour of a job", one.ours.more["most"], 8.0, "")


def _limit(one: SetFigures) -> float:
    return 0.85 if one.is_gpu else 1.0


def _killed(
    one: SetFigures, jobs: Sequence[TraceJob], setup: SimulationSetup, bench: Bench
) -> float:
    """The same jobs when none saves on request, and a fifth of them never saves; lost beside LAS."""
    found = _kill_runs((OURS, "las"), jobs, setup, bench)
    name = f"{one.part}: {one.name}"
    lost = found[OURS].row.lost_h / max(found["las"].row.lost_h, 1.0)
    bench.table.at_most(name, "kill mode: lost <= 0.3 x LAS", lost, 0.3)
    evicted = found[OURS].more["scripts"]
    bench.table.at_most(name, "kill mode: evictions of jobs that never save", evicted, 0.0, "")
    return lost


def _kill_runs(
    names: Sequence[str], jobs: Sequence[TraceJob], setup: SimulationSetup, bench: Bench
) -> dict[str, Measured]:
    never = [replace(job, checkpoint_s=0.0) if job.num % 5 == 0 else job for job in jobs]
    rough = replace(setup, costs=Costs(graceful=False))
    return {name: bench.run(f"kill: {name}", never, rough, tuned(name), scripts) for name in names}


def scripts(result: Result, _: EvictionRecorder) -> dict[str, float]:
    """Evictions of jobs that never save."""
    runs = result.runs.values()
    return {"scripts": float(sum(r.preemptions for r in runs if r.job.checkpoint_s == 0.0))}


def columns(found: Sequence[SetFigures]) -> str:
    """Both parts as tables in Markdown: every set and seed, then every peer."""
    lines = []
    for part in (TUNING, JUDGING):
        rows = [one for one in found if one.part == part]
        if not rows:
            continue
        lines += [
            "",
            f"| {part} set | seed | planner, h | best peer, h | ratio (95 % interval) | p99 | max / LAS | "
            "gangs of 8 / EASY | mean / SRPT | evictions a job | kill mode: lost / LAS |",
            "|---" * 11 + "|",
            *(_line(one) for one in rows),
        ]
        ratios = [one.ratio for one in rows if one.is_gpu]
        if ratios:
            lines.append(
                f"\nMedian ratio of the {len(ratios)} runs of GPU jobs: {median(ratios):.2f}"
            )
    lines += ["", "| set | seed | mean delays, h |", "|---|---|---|"]
    for one in found:
        means = sorted((measured.row.delay_h, name) for name, measured in one.peers.items())
        text = ", ".join(f"`{name}` {delay_h:.3f}" for delay_h, name in means)
        lines.append(f"| {one.name} | {one.seed} | {text} |")
    return "\n".join(lines)


def _line(one: SetFigures) -> str:
    row, peers = one.ours.row, one.peers
    best = peers[one.best].row
    figures = [
        f"{row.delay_h:.3f}",
        f"`{one.best}` {best.delay_h:.3f}",
        f"{one.ratio:.2f} ({one.low:.2f} to {one.high:.2f})",
        f"{one.p99_ratio:.2f}",
        f"{ratio_of(row.delay_max_h, peers['las'].row.delay_max_h):.2f}",
        f"{ratio_of(row.gang_delay_h, peers['easy'].row.gang_delay_h):.2f}"
        if row.gang_delay_h
        else "",
        f"{ratio_of(row.delay_h, peers[ORACLE].row.delay_h):.2f}",
        f"{row.preemptions_per_job:.2f}",
        "" if one.kill_lost is None else f"{one.kill_lost:.2f}",
    ]
    return f"| {one.name} | {one.seed} | " + " | ".join(figures) + " |"


def overall(found: Sequence[SetFigures], table: Table) -> None:
    """The goals over all judging sets."""
    for seed in sorted({one.seed for one in found}):
        ratios = [
            one.ratio for one in found if one.part == JUDGING and one.is_gpu and one.seed == seed
        ]
        if ratios:
            table.at_most("judging", "median of the GPU sets <= 0.75", median(ratios), 0.75)
