"""A pool that grows and shrinks against a fixed one: the same generated days, in the same simulator.

    python bench/scheduler/autoscaling.py [--tune] [--seeds 10,11,12,13] [--nodes 16] [--load 0.35]

Both run the production planner. The scaled pool runs the production scaling policy (`core/scaling`) at each
pass beside it, and an autoscaler that adds what is requested `--boot` seconds later and removes a released
node after `--removal` seconds without jobs. A day has 24 hours of arrivals, most in the working hours;
a run ends with its last job. Node-hours count from the begin of the day to that end, starting nodes and
nodes that wait for their removal included. The fixed pool has all `--nodes` from begin to end.

`--tune` runs the settings of `settings` on the tuning seeds and names the one with the fewest node-hours
whose mean wait is at most `--wait` seconds above that of the fixed pool. Without it the fixed pool, the
settings that a pool file has by default, and the ones that tuning chose run on the judging seeds.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from phalanx.core.gang.placement import Node
from phalanx.core.scaling.demand import demand_for
from phalanx.core.scaling.model import (
    NodeFacts,
    NodeWish,
    PoolDemand,
    PoolFacts,
    PoolFindings,
    PoolScaling,
    ScalingPolicy,
)
from phalanx.core.scaling.step import begin, finish
from phalanx.core.scheduling import ClusterIndex, Plan, RunningJob, plan_pass
from phalanx.sim.cluster.engine import simulate
from phalanx.sim.jobs import US, TraceJob, gang_of
from phalanx.sim.model import Oracle, Outage, SimulationSetup
from phalanx.sim.workload import traces

HOUR_S, DAY_S = 3600.0, 86_400.0
NODE_SLOTS = 8
TUNING_SEEDS = (0, 1, 2)
JUDGING_SEEDS = (10, 11, 12, 13)
FIXED, DEFAULT = "fixed", "default"
POOL, CLOCK = "pool", "clock"
_TICK_S = 60.0
_TICKS_S = 4 * DAY_S
_GONE = "not started"


def _policy(nodes: int, idle_s: float = 600, least: int = 0) -> ScalingPolicy:
    return ScalingPolicy(
        max_nodes=nodes,
        min_nodes=least,
        idle_after_us=round(idle_s * US),
    )


def settings(nodes: int) -> Mapping[str, ScalingPolicy]:
    """The settings that tuning chooses from; the first one is that of a pool file with `max` alone."""
    return {
        DEFAULT: _policy(nodes),
        "idle_after 1m": _policy(nodes, 60),
        "idle_after 5m": _policy(nodes, 300),
        "idle_after 20m": _policy(nodes, 1200),
        "min 2": _policy(nodes, least=2),
        "min 2, idle_after 20m": _policy(nodes, 1200, 2),
    }


def day(seed: int, nodes: int, load: float) -> list[TraceJob]:
    """The jobs of a day that keep a part `load` of the fixed pool busy on average over 24 hours."""
    rng = random.Random(seed)
    wanted_s, rows = load * nodes * NODE_SLOTS * DAY_S, []
    while wanted_s > 0:
        slots = rng.choices([1, 2, 4, 8, 16, 32], [0.45, 0.12, 0.13, 0.2, 0.07, 0.03])[0]
        slots = min(slots, nodes * NODE_SLOTS)
        lasts_s = min(max(rng.lognormvariate(math.log(1500.0), 1.3), 60.0), 8 * HOUR_S)
        rows.append((_moment(rng), slots, lasts_s))
        wanted_s -= slots * lasts_s
    return [
        TraceJob(num, at_s, lasts_s, gang_of(slots, NODE_SLOTS), project=f"team-{num % 4}")
        for num, (at_s, slots, lasts_s) in enumerate(sorted(rows), start=1)
    ]


def _moment(rng: random.Random) -> float:
    """A time of the day: nine times as likely at two in the afternoon as at two in the morning."""
    while True:
        at_s = rng.random() * DAY_S
        likely = 0.5 - 0.4 * math.cos((at_s - 2 * HOUR_S) / DAY_S * 2 * math.pi)
        if rng.random() < likely / 0.9:
            return at_s


@dataclass(slots=True)
class Autoscaler:
    """Adds the nodes that a demand needs, and removes those that nothing holds."""

    boot_us: int
    removal_us: int
    boots: list[int] = field(default_factory=list)  # when each starting node will be there
    unneeded: dict[str, int] = field(default_factory=dict)  # nodes that may go, and since when

    def arrived(self, now: int) -> int:
        """The number of nodes that have come by now."""
        there = [at for at in self.boots if at <= now]
        self.boots = [at for at in self.boots if at > now]
        return len(there)

    def follow(self, demand: PoolDemand, free: Sequence[int], now: int) -> None:
        """Start as many nodes as the gangs need beyond the free slots and the nodes that start already.

        What is not needed any more starts all the same: a started machine is paid for.
        """
        lacking = new_nodes([one.nodes for one in demand.gangs], free) - len(self.boots)
        self.boots += [now + self.boot_us] * max(0, lacking)

    def gone(self, idle: set[str], keep: Sequence[str], now: int) -> list[str]:
        """The nodes to remove: without jobs and not kept for long enough."""
        loose = idle - set(keep)
        self.unneeded = {name: self.unneeded.get(name, now) for name in loose}
        found = sorted(n for n, since in self.unneeded.items() if now >= since + self.removal_us)
        for name in found:
            del self.unneeded[name]
        return found


def new_nodes(gangs: Sequence[Sequence[NodeWish]], free: Sequence[int]) -> int:
    """How many new nodes first-fit needs for these gangs, each share of a gang on a node of its own."""
    bins, there = list(free), len(free)
    for gang in gangs:
        used: set[int] = set()
        for wish in gang:
            fits = (i for i, left in enumerate(bins) if left >= wish.slots and i not in used)
            place = next(fits, len(bins))
            if place == len(bins):
                bins.append(NODE_SLOTS)
            bins[place] -= wish.slots
            used.add(place)
    return len(bins) - there


class ScaledPlanner:
    """The production planner with the production scaling of one pool beside it; nodes come and go."""

    name = "phalanx"

    def __init__(self, policy: ScalingPolicy, autoscaler: Autoscaler) -> None:
        self._policy, self._autoscaler = policy, autoscaler
        self.state = PoolScaling()
        self.node_us = 0
        self._counted_at = 0

    def plan(self, cluster: ClusterIndex, now: int, oracle: Oracle) -> Plan:
        """One pass: count, add and remove nodes, plan, and a step of the scaling."""
        self.count(cluster, now)
        for node in _pool(cluster, future=True)[: self._autoscaler.arrived(now)]:
            cluster.replace_node(replace(node, closed="", future=False))
        made = plan_pass(cluster, now)
        self._scale(cluster, made, now)
        return made

    def count(self, cluster: ClusterIndex, now: int) -> None:
        """Count the time of the present and the starting nodes up to now."""
        there = len(_pool(cluster, future=False)) + len(self._autoscaler.boots)
        self.node_us += there * (now - self._counted_at)
        self._counted_at = now

    def _scale(self, cluster: ClusterIndex, made: Plan, now: int) -> None:
        """One step of the scaling on the cluster as it is after the plan."""
        snapshot = cluster.snapshot()
        started = {one.job: one for one in made.starts}
        jobs = {one.num: one for one in snapshot.waiting}
        held = [RunningJob(num, one.placement) for num, one in started.items() if num in jobs]
        snapshot = replace(
            snapshot,
            held=(*snapshot.held, *held),
            waiting=tuple(job for job in snapshot.waiting if job.num not in started),
        )
        on: dict[str, Counter[int]] = {}
        for one in snapshot.held:
            for share in one.placement.shares:
                on.setdefault(share.node, Counter())[one.job] += len(share.slots)
        present = _pool(cluster, future=False)
        facts = PoolFacts(
            nodes=tuple(
                NodeFacts(node.id, node.num_slots, jobs=tuple(on.get(node.id, ())))
                for node in present
            ),
            new_slots=NODE_SLOTS,
            new_nano=0,
            waiting=frozenset(job.num for job in snapshot.waiting),
            held=frozenset(one.job for one in snapshot.held),
        )
        asked = begin(self._policy, self.state, facts, now)
        wants, most = (
            demand_for(
                snapshot, {POOL: number}, now, joining=asked.joining, leave_out=asked.leave_out
            )
            for number in (asked.offer, asked.most)
        )
        findings = PoolFindings(wants.of(POOL), most.of(POOL), wants.fit_now)
        step = finish(self._policy, asked, facts, findings, now)
        self.state = step.state
        free = [node.num_slots - on.get(node.id, Counter()).total() for node in present]
        self._autoscaler.follow(step.demand, free, now)
        idle = {node.id for node in present if node.id not in on}
        gone = self._autoscaler.gone(idle, step.demand.keep, now)
        for node in present:
            if node.id in gone:
                cluster.replace_node(replace(node, closed=_GONE, future=True))


def _pool(cluster: ClusterIndex, *, future: bool) -> list[Node]:
    return [one for one in cluster.index.nodes if one.pool == POOL and one.future == future]


@dataclass(frozen=True, slots=True)
class Figures:
    """What one day of one pool has come to."""

    node_h: float
    waits_s: tuple[float, ...]  # from the submission of each job to its first start
    held_h: float  # slot-hours that jobs held
    decisions: Counter[str]

    @property
    def used(self) -> float:
        """The held part of the slots of all nodes."""
        return self.held_h / (self.node_h * NODE_SLOTS)


def run(
    jobs: Sequence[TraceJob], nodes: int, policy: ScalingPolicy | None, times: Times
) -> Figures:
    """One day in one pool; no policy: a fixed one."""
    there = traces.grid_nodes(nodes, NODE_SLOTS, pool=POOL)
    if policy is not None:
        there = [replace(node, closed=_GONE, future=True) for node in there]
    # Passes come with events of jobs. The scaling wants them in any case: a node that no job can
    # use is lost and comes back, over and over.
    clock = Node(CLOCK, CLOCK, CLOCK, 1, 1, 0, taints=(CLOCK,))
    ticks = [Outage(n * _TICK_S, CLOCK, _TICK_S / 2) for n in range(int(_TICKS_S / _TICK_S))]
    domains = there[0].domains
    setup = SimulationSetup([*there, replace(clock, domains=domains)], outages=ticks, sample_s=0.0)
    planner = ScaledPlanner(
        _policy(nodes) if policy is None else policy,
        Autoscaler(round(times.boot_s * US), round(times.removal_s * US)),
    )
    result = simulate(jobs, setup, planner if policy is not None else _Fixed())
    undone = [num for num, one in result.runs.items() if one.end_s is None]
    if undone:
        raise SystemExit(f"{len(undone)} jobs have not ended, the first one is {undone[0]}")
    node_h = nodes * result.end_s / HOUR_S
    if policy is not None:
        node_h = planner.node_us / US / HOUR_S
    return Figures(
        node_h,
        tuple((one.first_start_s or 0.0) - one.job.submit_s for one in result.runs.values()),
        result.slot_times.held / HOUR_S,
        Counter(dict(planner.state.counts)) if policy is not None else Counter(),
    )


class _Fixed:
    """The production planner alone."""

    name = "phalanx"

    def plan(self, cluster: ClusterIndex, now: int, oracle: Oracle) -> Plan:
        """One production pass."""
        return plan_pass(cluster, now)


@dataclass(frozen=True, slots=True)
class Times:
    """The times of the autoscaler, in seconds."""

    boot_s: float = 180.0
    removal_s: float = 120.0


@dataclass(frozen=True, slots=True)
class Row:
    """The mean of several days, and the waits of all of their jobs."""

    name: str
    node_h: float
    mean_wait_s: float
    p95_wait_s: float
    used: float
    decisions: Counter[str]

    @classmethod
    def of(cls, name: str, days: Sequence[Figures]) -> Row:
        """Days weigh by their node-hours and jobs."""
        waits = sorted(wait for one in days for wait in one.waits_s)
        node_h = sum(one.node_h for one in days)
        total: Counter[str] = Counter()
        for one in days:
            total.update(one.decisions)
        return cls(
            name,
            node_h / len(days),
            sum(waits) / len(waits),
            waits[math.ceil(0.95 * len(waits)) - 1],
            sum(one.held_h for one in days) / (node_h * NODE_SLOTS),
            total,
        )

    def __str__(self) -> str:
        told = ", ".join(f"{kind} {number}" for kind, number in sorted(self.decisions.items()))
        return (
            f"{self.name:24} {self.node_h:9.1f} {self.mean_wait_s:9.0f} {self.p95_wait_s:9.0f} "
            f"{self.used:11.0%}  {told or '-'}"
        )


HEAD = f"{'':24} {'node-h':>9} {'wait s':>9} {'p95 s':>9} {'utilisation':>11}  decisions"
"""The head of the table of rows."""


def rows_of(
    seeds: Sequence[int],
    wanted: Mapping[str, ScalingPolicy | None],
    nodes: int,
    load: float,
    times: Times,
) -> dict[str, Row]:
    """A row for each setting, over the days of the seeds."""
    days = [day(seed, nodes, load) for seed in seeds]
    print(f"seeds {','.join(map(str, seeds))}: {sum(map(len, days))} jobs in {len(days)} days")
    print(HEAD)
    found = {}
    for name, policy in wanted.items():
        found[name] = Row.of(name, [run(jobs, nodes, policy, times) for jobs in days])
        print(found[name], flush=True)
    return found


def choose(rows: Mapping[str, Row], most_wait_s: float) -> str | None:
    """The setting with the fewest node-hours among those that do not wait too long; None: there is none."""
    limit = rows[FIXED].mean_wait_s + most_wait_s
    allowed = [row for row in rows.values() if row.name != FIXED and row.mean_wait_s <= limit]
    return min(allowed, key=lambda row: row.node_h).name if allowed else None


# What `--tune` chose; `tests/sim/test_bench_autoscaling.py` runs a small part of it.
CHOSEN = "idle_after 1m"


def main() -> int:
    """Run as the arguments say."""
    asked = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    asked.add_argument("--tune", action="store_true", help="all settings on the tuning seeds")
    asked.add_argument("--seeds", help="instead of the tuning or judging seeds")
    asked.add_argument("--nodes", type=int, default=16)
    asked.add_argument("--load", type=float, default=0.35, help="mean use of the fixed pool")
    asked.add_argument("--boot", type=float, default=180.0, help="seconds until a node is there")
    asked.add_argument("--removal", type=float, default=120.0, help="seconds until one is gone")
    asked.add_argument("--wait", type=float, default=240.0, help="most seconds of additional wait")
    options = asked.parse_args()
    times = Times(options.boot, options.removal)
    given = settings(options.nodes)
    seeds = TUNING_SEEDS if options.tune else JUDGING_SEEDS
    if options.seeds:
        seeds = tuple(int(one) for one in options.seeds.split(","))
    wanted: dict[str, ScalingPolicy | None] = {FIXED: None}
    wanted |= given if options.tune else {name: given[name] for name in (DEFAULT, CHOSEN)}
    rows = rows_of(seeds, wanted, options.nodes, options.load, times)
    if options.tune:
        print(f"chosen: {choose(rows, options.wait) or 'none waits so little'}")
    else:
        before, after = rows[FIXED], rows[CHOSEN]
        print(
            f"{CHOSEN} beside {FIXED}: {after.node_h / before.node_h:.0%} of the node-hours, "
            f"{after.mean_wait_s - before.mean_wait_s:+.0f} s of mean wait"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
