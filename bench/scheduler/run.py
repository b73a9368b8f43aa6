"""The scheduler's benchmark: one table of goals against what was measured.

    python bench/scheduler/run.py [--quick] [--only T1,T9] [--seeds 0,1,2] [--traces DIR]

Runs the production planner and its peers in the same simulator on the same jobs. Scenarios whose
trace is absent say so. A seed above 0 puts the days of a trace in another order and draws the
sensitivity to placement anew; the measured figures of all seeds stand side by side and a goal is met
only if every seed meets it. T9 and T8 need no trace. T5 and T6 are not built yet and are listed as such.
"""

from __future__ import annotations

import argparse
import datetime
import random
import resource
import statistics
import time
from dataclasses import replace
from pathlib import Path

from phalanx.core.placement import GangShape, NodeShare, Placement
from phalanx.core.scheduling import Held, Terms, Waiting, World, plan_pass
from phalanx.core.scheduling.estimates import KindKey, size_class
from phalanx.sim import traces, workloads
from phalanx.sim.catalog import POLICIES
from phalanx.sim.costs import Costs
from phalanx.sim.engine import Outage, Result, Setup, simulate
from phalanx.sim.jobs import US, TraceJob
from phalanx.sim.report import delays_h, figures, mean

DAY_S = 86_400.0
EPOCH = datetime.datetime(
    2017, 9, 4, 10, 30, 41, tzinfo=datetime.UTC
)  # the time zero of the Philly trace
GOALS: dict[tuple[str, str], list[tuple[str, bool]]] = {}
SEED = [0]


def day(month: int, date: int) -> float:
    return (datetime.datetime(2017, month, date, tzinfo=datetime.UTC) - EPOCH).total_seconds()


def goal(scenario: str, what: str, measured: str, met: bool) -> None:
    GOALS.setdefault((scenario, what), []).append((measured, met))


def compare(
    name: str, jobs: list[TraceJob], setup: Setup, policies: list[str]
) -> dict[str, Result]:
    print(f"\n{name}: {len(jobs)} jobs, {sum(n.num_slots for n in setup.nodes)} slots", flush=True)
    found = {}
    for policy in policies:
        result = found[policy] = simulate(jobs, setup, POLICIES[policy]())
        row = figures(result)
        print(
            f"  {policy:15} delay h mean {row.delay_h:7.3f} p99 {row.delay_p99_h:7.2f} "
            f"max {row.delay_max_h:6.1f} gangs>=8 {row.gang_delay_h:6.2f} | makespan {row.makespan_h:5.0f}"
            f" | evictions/job {row.preemptions_per_job:.2f} lost h {row.lost_h:6.0f} slowed "
            f"{row.slowed_percent:4.1f} % scattered {row.scattered_percent:4.1f} % | pass ms "
            f"{row.pass_p50_ms:.2f}/{row.pass_p99_ms:.2f} | {row.wall_s:.0f} s",
            flush=True,
        )
    return found


def blind(jobs: list[TraceJob]) -> list[TraceJob]:
    """Without quotas: tenants only lend their name to the learned history."""
    return [replace(job, project="") for job in jobs]


def shuffled(jobs: list[TraceJob]) -> list[TraceJob]:
    """The same jobs with the days of the trace in the order of this seed; seed 0: as they were."""
    if not SEED[0]:
        return jobs
    num_days = int(max(job.submit_s for job in jobs) // DAY_S) + 1
    order = list(range(num_days))
    random.Random(SEED[0]).shuffle(order)
    place = {date: position for position, date in enumerate(order)}
    moved = []
    for job in jobs:
        date = int(job.submit_s // DAY_S)
        moved.append(replace(job, submit_s=job.submit_s + DAY_S * (place[date] - date)))
    moved.sort(key=lambda job: (job.submit_s, job.num))
    return [replace(job, num=num) for num, job in enumerate(moved, start=1)]


def t1(where: Path) -> None:
    trace = where / "philly.csv.gz"
    jobs = shuffled(blind(traces.philly(trace, day(10, 9), day(10, 16), seed=SEED[0])))
    setup = Setup(traces.grid_nodes(60, 8, 15, 4))
    names = ["phalanx", "skip-first-fit", "fifo-skip", "easy", "sjf-predicted", "gittins", "las"]
    runs = compare("T1 Philly week", jobs, setup, [*names, "srpt-oracle"])
    rows = {name: figures(result) for name, result in runs.items()}
    ours, best = rows["phalanx"], min((rows[n] for n in names[1:]), key=lambda r: r.delay_h)
    ratio = ours.delay_h / best.delay_h
    goal("T1", f"mean <= 0.75 x best peer ({best.policy})", f"{ratio:.2f} x", ratio <= 0.75)
    ratio = ours.delay_p99_h / best.delay_p99_h
    goal("T1", "p99 <= 0.6 x best peer", f"{ratio:.2f} x", ratio <= 0.6)
    goal("T1", "gangs >= 8: mean <= 6 h", f"{ours.gang_delay_h:.1f} h", ours.gang_delay_h <= 6)
    ratio = ours.delay_h / rows["srpt-oracle"].delay_h
    goal("T1", "<= 1.15 x SRPT oracle", f"{ratio:.2f} x", ratio <= 1.15)
    rough = replace(setup, costs=Costs(graceful=False))
    kill = compare("T1 without saving on request", jobs, rough, ["phalanx", "las"])
    lost = {name: figures(result).lost_h for name, result in kill.items()}
    ratio = lost["phalanx"] / max(lost["las"], 1.0)
    goal("T1", "kill mode: lost <= 0.5 x LAS", f"{ratio:.2f} x", ratio <= 0.5)


def t2(where: Path) -> None:
    jobs = blind(
        traces.philly(
            where / "philly.csv.gz",
            day(9, 25),
            day(11, 13),
            min_slots=2,
            seed=SEED[0],
            longest_s=864_000.0,
        )
    )
    jobs = shuffled(jobs)
    names = ["phalanx", "fifo-skip", "easy", "las", "srpt-oracle"]
    runs = compare("T2 gangs, 7 weeks", jobs, Setup(traces.grid_nodes(52, 8, 13, 4)), names)
    ours, las = figures(runs["phalanx"]), figures(runs["las"])
    for what, mine, theirs, limit in (
        ("mean <= 0.5 x LAS", ours.delay_h, las.delay_h, 0.5),
        ("p99 <= 1.3 x LAS", ours.delay_p99_h, las.delay_p99_h, 1.3),
        ("max <= LAS", ours.delay_max_h, las.delay_max_h, 1.0),
    ):
        goal("T2", what, f"{mine / theirs:.2f} x", mine / theirs <= limit)
    per_job = ours.preemptions_per_job
    goal("T2", "<= 3 evictions a job", f"{per_job:.2f}", per_job <= 3)


def t3(where: Path) -> None:
    jobs = blind(traces.llm_mix(where / "llm_synth_s0.csv"))
    names = ["phalanx", "skip-first-fit", "fifo-skip", "easy", "las"]
    runs = compare("T3 LLM mix", jobs, Setup(traces.grid_nodes(256, 8, 16, 8)), names)
    hero = {
        name: mean(delays_h(result, lambda run: run.job.label == "pretrain"))
        for name, result in runs.items()
    }
    print("  pre-training delay h:", {name: round(h, 1) for name, h in hero.items()})
    rows = {name: figures(result) for name, result in runs.items()}
    best = min(hero[name] for name in names[1:])
    goal(
        "T3",
        "pre-training delay <= best peer",
        f"{hero['phalanx'] / best:.2f} x",
        hero["phalanx"] <= best,
    )
    fastest = min(rows[name].makespan_h for name in names[1:])
    ours = rows["phalanx"]
    goal(
        "T3",
        "makespan <= best peer",
        f"{ours.makespan_h / fastest:.2f} x",
        ours.makespan_h <= fastest,
    )
    goal("T3", "gangs slowed < 2 %", f"{ours.slowed_percent:.1f} %", ours.slowed_percent < 2)


def t4(where: Path) -> None:
    nodes = traces.lingjun_nodes(where / "lingjun_topology_847.csv")
    jobs = [
        replace(job, submit_s=job.submit_s / 3.3)
        for job in blind(traces.llm_mix(where / "llm_synth_s0.csv"))
    ]
    runs = compare(
        "T4 Clos network", jobs, Setup(nodes), ["phalanx", "skip-first-fit", "fifo-skip"]
    )
    cross = {name: figures(result).scattered_percent for name, result in runs.items()}
    ratio = cross["phalanx"] / max(cross["skip-first-fit"], 1e-9)
    goal("T4", "cross-rack <= 0.2 x first-fit", f"{ratio:.2f} x", ratio <= 0.2)
    ratio = cross["phalanx"] / max(cross["fifo-skip"], 1e-9)
    goal("T4", "cross-rack <= 0.5 x Kueue-like", f"{ratio:.2f} x", ratio <= 0.5)
    spare = {name: result.tally.avoidable / 3600 for name, result in runs.items()}
    print(
        "  cross-rack slot-hours of gangs that one rack could hold:",
        {n: round(h) for n, h in spare.items()},
    )
    ratio = spare["phalanx"] / max(spare["skip-first-fit"], 1e-9)
    goal("T4", "avoidable cross-rack <= 0.2 x first-fit", f"{ratio:.2f} x", ratio <= 0.2)
    ratio = spare["phalanx"] / max(spare["fifo-skip"], 1e-9)
    goal("T4", "avoidable cross-rack <= 0.5 x Kueue-like", f"{ratio:.2f} x", ratio <= 0.5)


def t7(where: Path) -> None:
    nodes = traces.grid_nodes(64, 8, 16, 4)
    rng = random.Random(7)
    outages = []
    for _ in range(300):
        node = nodes[rng.randrange(20)]
        outages.append(Outage(rng.random() * 6e5, node.id, 1800.0, 120.0))
    for _ in range(60):
        outages.append(Outage(rng.random() * 6e5, nodes[rng.randrange(64)].id, 3600.0))
    jobs = workloads.research(3000, 0.85 * 512, seed=7)
    setup = Setup(nodes, outages=outages, costs=Costs(graceful=False))
    runs = compare("T7 spot and failures, kill mode", jobs, setup, ["phalanx", "las", "fifo-skip"])
    lost = {name: figures(result).lost_h for name, result in runs.items()}
    ratio = lost["phalanx"] / max(lost["las"], 1.0)
    goal("T7", "lost <= 0.5 x checkpoint-blind (LAS)", f"{ratio:.2f} x", ratio <= 0.5)


def t8(where: Path) -> None:
    nodes = traces.grid_nodes(2000, 8, 16, 8)
    world = World(nodes)
    for num, node in enumerate(nodes[:700], start=1):
        share = NodeShare(node.id, node.address, tuple(range(8)))
        world.hold(Held(num, Placement(node.pool, (share,)), priority=10, started_at=0))
    for num, node in enumerate(nodes[700:], start=1000):
        share = NodeShare(node.id, node.address, tuple(range(8)))
        world.hold(Held(num, Placement(node.pool, (share,)), priority=90, started_at=0))
    world.submit(Waiting(9999, GangShape(700, 8, 8), 50, 0))
    times = []
    for _ in range(5):
        began = time.process_time()
        decided = plan_pass(world, 3600 * US)
        times.append(1e3 * (time.process_time() - began))
    print(f"\nT8 one gang, {len(decided.preemptions)} victims on 2,000 nodes: {min(times):.1f} ms")
    exact = len(decided.preemptions) == 700
    goal(
        "T8",
        "plan with 700 victims < 50 ms",
        f"{statistics.median(times):.0f} ms",
        exact and statistics.median(times) < 50,
    )
    world.replace_node(replace(nodes[0], closed="drained"))
    needless = len(plan_pass(world, 3600 * US).preemptions)
    goal("T8", "no eviction for a gang that cannot fit", f"{needless}", needless == 0)


def t9(where: Path) -> None:
    rng = random.Random(9)
    world = World(traces.grid_nodes(1250, 8, 16, 8), terms=Terms())
    sizes, weights = [1, 2, 4, 8, 16, 32, 64, 256, 1024], [60, 10, 10, 9, 5, 3, 2, 0.9, 0.1]
    num = now = 0
    times: list[float] = []
    starts = 0
    running: list[int] = []
    for _ in range(420):
        now += 60 * US
        while len(world.waiting) < 5000 and num < 50_000:
            num += 1
            slots = rng.choices(sizes, weights)[0]
            shape = GangShape(max(1, slots // 8), min(slots, 8), 1)
            kind = f"k{rng.randrange(8)}"
            world.submit(Waiting(num, shape, rng.choice([50, 50, 50, 60]), now, kind=kind))
        rng.shuffle(running)
        for gone in [running.pop() for _ in range(min(len(running), 120))]:
            held = world.release(gone)
            if held is not None:
                key = KindKey("", held.kind, size_class(held.num_slots))
                world.history.observe(key, held.attained(now))
        began = time.process_time()
        decided = plan_pass(world, now)
        times.append(1e3 * (time.process_time() - began))
        world.holes = {hole.job: hole for hole in decided.holes if hole.victims}
        for preemption in decided.preemptions:
            world.release(preemption.job)
        for start in decided.starts:
            job = world.waiting[start.job]
            fresh = Held(
                job.num, start.placement, priority=job.priority, kind=job.kind, started_at=now
            )
            world.start(job.num, start.placement, fresh)
            running.append(job.num)
            starts += 1
    steady = sorted(times[20:])
    p50, p99 = steady[len(steady) // 2], steady[int(0.99 * len(steady))]
    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"\nT9 10,000 slots, {len(world.waiting)} queued, {len(world.held)} running, {num} submitted, "
        f"{starts} started: CPU ms a pass p50 {p50:.1f} p99 {p99:.1f}, first {times[0]:.0f}; {rss:.0f} MB"
    )
    goal("T9", "pass p99 < 10 ms", f"{p99:.1f} ms", p99 < 10)
    goal("T9", "memory < 300 MB", f"{rss:.0f} MB", rss < 300)


def quick(where: Path) -> None:
    jobs = workloads.research(500, 0.9 * 128, seed=1)
    setup = Setup(traces.grid_nodes(16, 8, 4, 2), audit_every=20)
    runs = compare(
        "quick: generated jobs", jobs, setup, ["phalanx", "skip-first-fit", "fifo-skip", "las"]
    )
    ours = figures(runs["phalanx"])
    best = min(figures(runs[name]).delay_h for name in ("skip-first-fit", "fifo-skip"))
    goal("quick", "mean below every queue", f"{ours.delay_h / best:.2f} x", ours.delay_h <= best)


SCENARIOS = {"T9": t9, "T8": t8, "T1": t1, "T2": t2, "T3": t3, "T4": t4, "T7": t7}
SEEDED = {"T1", "T2"}
NEEDS_TRACES = {"T1", "T2", "T3", "T4"}


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--quick", action="store_true")
    asked.add_argument("--only", default="")
    asked.add_argument("--seeds", default="0")
    asked.add_argument("--traces", type=Path, default=Path("../shared/traces"))
    options = asked.parse_args()
    if options.quick:
        quick(options.traces)
    else:
        for name in options.only.split(",") if options.only else SCENARIOS:
            if name in NEEDS_TRACES and not options.traces.exists():
                print(f"\n{name}: skipped, no traces at {options.traces}")
                continue
            for seed in options.seeds.split(",") if name in SEEDED else ["0"]:
                SEED[0] = int(seed)
                if SEED[0]:
                    print(f"\nseed {seed}")
                SCENARIOS[name](options.traces)
        print("\nnot built: T5 (elastic against Sia), T6 (packing against FGD)")
    print(f"\n{'':5} {'goal':45} {'measured':>12}  met")
    for (scenario, what), found in GOALS.items():
        measured = ", ".join(figure for figure, _ in found)
        met = all(ok for _, ok in found)
        print(f"{scenario:5} {what:45} {measured:>12}  {'yes' if met else 'NO'}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
