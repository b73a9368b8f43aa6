"""T3, T4 and T7: the LLM mix on a grid and on a real Clos network; spot nodes, failures, priorities."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

from bench.scheduler.philly import blind, shuffled
from bench.scheduler.table import Table, compare, run_one

from phalanx.core.placement import Node
from phalanx.sim import traces, workloads
from phalanx.sim.catalog import POLICIES
from phalanx.sim.costs import Costs
from phalanx.sim.engine import Outage, Setup
from phalanx.sim.evictions import lost_to_evictions_h
from phalanx.sim.jobs import TraceJob
from phalanx.sim.report import delays_h, figures, mean

_SPAN_S = 6e5
_PATIENCE_S = 3600.0


def t3(where: Path, seed: int, table: Table) -> None:
    jobs = shuffled(blind(traces.llm_mix(where / "llm_synth_s0.csv")), seed)
    names = ["phalanx", "skip-first-fit", "fifo-skip", "easy", "kai-like", "las", "gavel-max-min"]
    runs = compare("T3 LLM mix", jobs, Setup(traces.grid_nodes(256, 8, 16, 8)), names).runs
    hero = {
        name: mean(delays_h(result, lambda run: run.job.label == "pretrain"))
        for name, result in runs.items()
    }
    print("  pre-training delay h:", {name: round(h, 1) for name, h in hero.items()})
    rows = {name: figures(result) for name, result in runs.items()}
    best = min(hero[name] for name in names[1:])
    table.at_most("T3", "pre-training delay <= best peer", hero["phalanx"] / best, 1.0)
    fastest = min(rows[name].makespan_h for name in names[1:])
    table.at_most("T3", "makespan <= best peer", rows["phalanx"].makespan_h / fastest, 1.0)
    table.at_most("T3", "gangs slowed < 2 %", rows["phalanx"].slowed_percent, 1.999, "%")


def t4(where: Path, seed: int, table: Table) -> None:
    """Cross-rack time of gangs; also with gangs that insist on one rack for their first hour."""
    nodes = traces.lingjun_nodes(where / "lingjun_topology_847.csv")
    jobs = [
        replace(job, submit_s=job.submit_s / 3.3)
        for job in shuffled(blind(traces.llm_mix(where / "llm_synth_s0.csv")), seed)
    ]
    setup = Setup(nodes)
    runs = dict(
        compare("T4 Clos network", jobs, setup, ["phalanx", "skip-first-fit", "kueue-like"]).runs
    )
    patient = [
        replace(job, preferred="rack", patience_s=_PATIENCE_S) if job.shape.nodes > 1 else job
        for job in jobs
    ]
    name = "phalanx, prefer rack"
    runs[name], _ = run_one(name, patient, setup, POLICIES["phalanx"])
    cross = {name: result.tally.scattered / 3600 for name, result in runs.items()}
    spare = {name: result.tally.avoidable / 3600 for name, result in runs.items()}
    print("  cross-rack slot-hours of gangs:", {n: round(h) for n, h in cross.items()})
    print("  of those that one rack could hold:", {n: round(h) for n, h in spare.items()})
    for ours in ("phalanx", name):
        for what, hours in (("cross-rack", cross), ("avoidable cross-rack", spare)):
            to_first = hours[ours] / max(hours["skip-first-fit"], 1e-9)
            to_kueue = hours[ours] / max(hours["kueue-like"], 1e-9)
            table.at_most("T4", f"{ours}: {what} <= 0.2 x first-fit", to_first, 0.2)
            table.at_most("T4", f"{ours}: {what} <= 0.5 x Kueue-like", to_kueue, 0.5)


def t7(where: Path, seed: int, table: Table) -> None:
    """A third of the nodes may be reclaimed, some break, and a fifth of the jobs is urgent."""
    nodes = _spot_and_sure()
    jobs = _mixed(seed)
    kill = Setup(nodes, outages=_outages(nodes, seed), costs=Costs(graceful=False))
    names = ["phalanx", "phalanx-blind", "kueue-like", "kai-like", "las"]
    rough = compare("T7 spot, failures, priorities; nobody saves on request", jobs, kill, names)
    lost = {name: lost_to_evictions_h(result) for name, result in rough.runs.items()}
    print("  lost to evictions, slot-hours:", {n: round(h) for n, h in lost.items()})
    ratio = lost["phalanx"] / max(lost["phalanx-blind"], 1.0)
    table.at_most("T7", "kill mode: lost to evictions <= 0.5 x blind planner", ratio, 0.5)
    best = min(lost[name] for name in names[2:])
    ratio = lost["phalanx"] / max(best, 1.0)
    table.at_most("T7", "kill mode: lost to evictions <= 0.5 x best peer", ratio, 0.5)
    kind = replace(kill, costs=Costs())
    saved = compare("T7 with saves on request and on notice", jobs, kind, ["phalanx", "kai-like"])
    ours = figures(saved.runs["phalanx"]).lost_h
    theirs = figures(rough.runs["phalanx-blind"]).lost_h
    table.at_most("T7", "lost in all <= 0.5 x blind planner that kills", ours / theirs, 0.5)


def _spot_and_sure() -> list[Node]:
    spot = traces.grid_nodes(20, 8, 16, 4, pool="spot")
    sure = traces.grid_nodes(44, 8, 16, 4, pool="sure")
    return [replace(n, price_per_slot_hour=0.8, hazard_per_hour=0.09) for n in spot] + [
        replace(n, price_per_slot_hour=2.0) for n in sure
    ]


def _outages(nodes: list[Node], seed: int) -> list[Outage]:
    """Reclaims one by one and in six storms, with two minutes' notice; failures without any."""
    rng = random.Random(100 + seed)
    spot = [node.id for node in nodes if node.hazard_per_hour > 0]
    drawn = [Outage(rng.random() * _SPAN_S, rng.choice(spot), 1800.0, 120.0) for _ in range(180)]
    for _ in range(6):
        at_s = rng.random() * _SPAN_S
        drawn += [Outage(at_s + 600.0 * rng.random(), name, 3600.0, 120.0) for name in spot]
    names = [node.id for node in nodes]
    drawn += [Outage(rng.random() * _SPAN_S, rng.choice(names), 3600.0) for _ in range(60)]
    free_at: dict[str, float] = {}
    kept = []
    for one in sorted(drawn, key=lambda outage: outage.at_s):
        # Nobody takes a node that is away already.
        if one.at_s - one.notice_s > free_at.get(one.node, -1.0):
            kept.append(one)
            free_at[one.node] = one.at_s + one.for_s
    return kept


def _mixed(seed: int) -> list[TraceJob]:
    """Hours to days of work, each saving at its own pace; a fifth may push others aside."""
    rng = random.Random(200 + seed)
    found = workloads.training(1500, 0.95 * 512, seed=7 + seed)
    return [
        replace(
            job,
            project="",
            priority=70 if rng.random() < 0.2 else 50,
            checkpoint_s=rng.choice([600.0, 1800.0, 3600.0, 10_800.0]),
        )
        for job in found
        if job.num_slots <= 64
    ]
