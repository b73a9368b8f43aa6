"""T1s and T3s: how much of a cluster does useful work once arrivals and ends balance.

A trace of one week or two starts on an empty cluster and most of its long work ends after the last
arrival; the useful share of its window says as much of that as of the scheduler. So the trace comes twice,
one period after the other, its arrivals squeezed or stretched until one period brings exactly 0.9 of what
the cluster can do in it, and the second period counts. No job is longer than a period.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from bench.scheduler.philly import blind, shuffled, week
from bench.scheduler.table import Bench

from phalanx.core.gang.placement import Node
from phalanx.sim.audit.evictions import EvictionRecorder
from phalanx.sim.cluster.engine import Result
from phalanx.sim.jobs import TraceJob
from phalanx.sim.model import SimulationSetup
from phalanx.sim.workload import generated, traces

_DAY_S = 86_400.0
_PERIODS = 2
_LOAD = 0.9
_GOAL = 0.86
_POLICIES = ["phalanx", "fifo-skip", "easy", "las"]
# EASY looks again at everybody who waits in each pass, and took longest; seed 0 shows where it stands.
_FURTHER = ["phalanx", "fifo-skip", "las"]


def t1s(bench: Bench) -> None:
    jobs = blind(week(bench.traces, bench.seed))
    _steady(bench, jobs, 7 * _DAY_S, traces.grid_nodes(60, 8, 15, 4))


def t3s(bench: Bench) -> None:
    jobs = blind(generated.llm_mix(bench.seed))
    _steady(bench, jobs, 14 * _DAY_S, traces.grid_nodes(256, 8, 16, 8))


def repeated(
    jobs: Sequence[TraceJob], period_s: float, capacity: int, seed: int
) -> tuple[list[TraceJob], float]:
    """Two periods of the jobs at a load of 0.9, and how long a period then is, seconds.

    With a seed above 0 the second period has its days in an order of its own.
    """
    short = [replace(job, duration_s=min(job.duration_s, period_s)) for job in jobs]
    demand = sum(job.num_slots * job.duration_s for job in short)
    real_s = demand / (_LOAD * capacity)
    found: list[TraceJob] = []
    for turn in range(_PERIODS):
        order = random.Random(1000 * seed + turn).randrange(1, 1 << 30) if seed and turn else 0
        for job in shuffled(short, order):
            at_s = (turn + job.submit_s / period_s) * real_s
            found.append(replace(job, num=len(found) + 1, submit_s=at_s))
    return found, real_s


def without_end(jobs: Sequence[TraceJob], start_s: float, period_s: float, capacity: int) -> float:
    """The useful share of the second period if every job ran from its submission on."""
    useful = 0.0
    for job in jobs:
        began_s = job.submit_s + start_s
        inside = min(began_s + job.duration_s, 2 * period_s) - max(began_s, period_s)
        useful += job.num_slots * max(inside, 0.0)
    return useful / (period_s * capacity)


def _steady(bench: Bench, jobs: Sequence[TraceJob], period_s: float, nodes: Sequence[Node]) -> None:
    capacity = sum(node.num_slots for node in nodes)
    many, real_s = repeated(jobs, period_s, capacity, bench.seed)
    setup = SimulationSetup(nodes, until_s=_PERIODS * real_s)
    endless = without_end(many, setup.costs.start_s, real_s, capacity)

    def second(result: Result, _: EvictionRecorder) -> dict[str, float]:
        return {"useful": result.timeline.useful_between(real_s, 2 * real_s)}

    policies = _FURTHER if bench.seed else _POLICIES
    found = bench.compare(bench.scenario, many, setup, policies, second)
    useful = {name: round(one.more["useful"], 3) for name, one in found.items()}
    bench.say(f"useful share of the second period: {useful}; a cluster without end {endless:.3f}")
    ours = found["phalanx"].more["useful"]
    best = max(one.more["useful"] for name, one in found.items() if name != "phalanx")
    measured = f"{ours:.3f} ({best:.3f}; {endless:.3f})"
    what = "useful share >= 0.86 (best peer; cluster without end)"
    bench.table.goal(bench.scenario, what, measured, ours >= _GOAL)
