"""T3, T4 and T7: the LLM mix on a grid and on a real Clos network; spot nodes, failures, priorities."""

from __future__ import annotations

import random
from dataclasses import replace

from bench.scheduler.philly import blind
from bench.scheduler.table import Bench

from phalanx.core.gang.placement import Node
from phalanx.core.scheduling.stages.preference import NOTHING
from phalanx.sim.audit.evictions import EvictionRecorder, lost_to_evictions_h
from phalanx.sim.cluster.engine import Result
from phalanx.sim.costs import Costs
from phalanx.sim.jobs import TraceJob
from phalanx.sim.model import Outage, SimulationSetup
from phalanx.sim.output.report import delays_h, mean
from phalanx.sim.peers.catalog import POLICIES
from phalanx.sim.workload import generated, traces

_SPAN_S = 6e5
T3 = ["phalanx", "skip-first-fit", "fifo-skip", "easy", "kai-like", "las", "gavel-max-min"]


def t3(bench: Bench) -> None:
    """A draw of the LLM mix; the seed is that of the draw."""
    jobs, table = blind(generated.llm_mix(bench.seed)), bench.table
    setup = SimulationSetup(traces.grid_nodes(256, 8, 16, 8))
    found = bench.compare("T3", jobs, setup, T3, large_jobs)
    large_job = {name: one.more["pretrain_h"] for name, one in found.items()}
    bench.say(f"pre-training delay h: { {name: round(h, 1) for name, h in large_job.items()} }")
    rows = {name: one.row for name, one in found.items()}
    ours, peers = rows["phalanx"], [rows[name] for name in T3[1:]]
    best = min(large_job[name] for name in T3[1:])
    table.at_most("T3", "pre-training delay <= best peer", large_job["phalanx"] / best, 1.0)
    fastest = min(row.makespan_h for row in peers)
    table.at_most("T3", "makespan <= best peer", ours.makespan_h / fastest, 1.0)
    table.at_most("T3", "gangs slowed < 2 %", ours.slowed_percent, 1.999, "%")
    table.at_most(
        "T3",
        "gangs slowed, of those a rack holds < 2 %",
        found["phalanx"].more["slowed"],
        1.999,
        "%",
    )
    table.at_most("T3", "mean <= LAS", ours.delay_h / rows["las"].delay_h, 1.0)


def large_jobs(result: Result, _: EvictionRecorder) -> dict[str, float]:
    """The delay of pre-training, and how many gangs run slowed that one rack could hold, per cent."""
    gangs = [run for run in result.runs.values() if run.job.num_slots > 1]
    held = [run for run in gangs if run.job.shape.nodes <= 16]
    return {
        "pretrain_h": mean(delays_h(result, lambda run: run.job.label == "pretrain")),
        "slowed": 100.0 * sum(run.factor > 1.0 for run in held) / len(gangs),
    }


def t4(bench: Bench) -> None:
    """Cross-rack time of gangs; also with a planner that prefers nothing."""
    nodes = traces.lingjun_nodes(bench.traces / "lingjun_topology_847.csv")
    jobs = [
        replace(job, submit_s=job.submit_s / 3.3) for job in blind(generated.llm_mix(bench.seed))
    ]
    setup = SimulationSetup(nodes)
    found = bench.compare("T4", jobs, setup, ["phalanx", "skip-first-fit", "kueue-like"], crossing)
    anywhere = [replace(job, preferred=NOTHING) for job in jobs]
    name = "phalanx, prefers nothing"
    found[name] = bench.run(name, anywhere, setup, POLICIES["phalanx"], crossing)
    for what in ("cross-rack", "avoidable cross-rack"):
        hours = {name: one.more[what] for name, one in found.items()}
        bench.say(f"{what} slot-hours: { {n: round(h) for n, h in hours.items()} }")
        to_first = hours["phalanx"] / max(hours["skip-first-fit"], 1e-9)
        to_kueue = hours["phalanx"] / max(hours["kueue-like"], 1e-9)
        bench.table.at_most("T4", f"{what} <= 0.2 x first-fit", to_first, 0.2)
        bench.table.at_most("T4", f"{what} <= 0.5 x Kueue-like", to_kueue, 0.5)
    ratio = found["phalanx"].row.delay_h / found["kueue-like"].row.delay_h
    bench.table.at_most("T4", "mean delay <= Kueue-like", ratio, 1.0)


def crossing(result: Result, _: EvictionRecorder) -> dict[str, float]:
    """Slot-hours of gangs beyond one rack; avoidable: of those that one rack could hold."""
    slot_times = result.slot_times
    return {
        "cross-rack": slot_times.scattered / 3600,
        "avoidable cross-rack": slot_times.avoidable / 3600,
    }


def t7(bench: Bench) -> None:
    """A third of the nodes may be reclaimed, some break, and a fifth of the jobs is urgent."""
    nodes, table = _spot_and_sure(), bench.table
    jobs = _mixed(bench.seed)
    kill = SimulationSetup(nodes, outages=_outages(nodes, bench.seed), costs=Costs(graceful=False))
    names = ["phalanx", "phalanx-blind", "kueue-like", "kai-like", "las"]
    rough = bench.compare("T7", jobs, kill, names, evicted)
    lost = {name: one.more["lost_to_evictions_h"] for name, one in rough.items()}
    bench.say(f"lost to evictions, slot-hours: { {n: round(h) for n, h in lost.items()} }")
    ratio = lost["phalanx"] / max(lost["phalanx-blind"], 1.0)
    table.at_most("T7", "kill mode: lost to evictions <= 0.5 x blind planner", ratio, 0.5)
    best = min(lost[name] for name in names[2:])
    ratio = lost["phalanx"] / max(best, 1.0)
    table.at_most("T7", "kill mode: lost to evictions <= 0.5 x best peer", ratio, 0.5)
    kind = replace(kill, costs=Costs())
    saved = bench.compare("saves on request", jobs, kind, ["phalanx", "kai-like"])
    ratio = saved["phalanx"].row.lost_h / rough["phalanx-blind"].row.lost_h
    table.at_most("T7", "lost in all <= 0.5 x blind planner that kills", ratio, 0.5)


def evicted(result: Result, _: EvictionRecorder) -> dict[str, float]:
    return {"lost_to_evictions_h": lost_to_evictions_h(result.slot_times)}


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
    found = generated.training(1500, 0.95 * 512, seed=7 + seed)
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
