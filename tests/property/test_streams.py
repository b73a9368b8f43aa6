"""Whole simulations over random jobs, quotas, failures, resizes and repeated messages, fully audited."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.core.gang.placement import GangShape, Node, Placement
from phalanx.core.reasons import Cause
from phalanx.core.scheduling import (
    ClusterIndex,
    PlannerConfig,
    Project,
    QueuedJob,
    RunningJob,
    plan_pass,
)
from phalanx.sim.audit import promises
from phalanx.sim.cluster.engine import simulate
from phalanx.sim.costs import Costs
from phalanx.sim.jobs import TraceJob
from phalanx.sim.model import Crash, Outage, SimulationSetup
from phalanx.sim.peers.catalog import POLICIES
from phalanx.sim.workload import traces

pytestmark = pytest.mark.unit

US = 1_000_000
PROJECTS = (
    Project("a", guaranteed_slots=8, weight=2.0),
    Project("b", guaranteed_slots=4, max_slots=16),
    Project("c", lend_slots=0),
)


def random_jobs(rng: random.Random, num: int) -> list[TraceJob]:
    jobs = []
    for i in range(1, num + 1):
        shape = GangShape(rng.choice([1, 1, 1, 2, 3]), rng.choice([1, 2, 4]), 1)
        jobs.append(
            TraceJob(
                i,
                rng.random() * 20_000.0,
                rng.choice([60.0, 900.0, 9_000.0]) * (0.5 + rng.random()),
                shape,
                project=rng.choice(["a", "b", "c"]),
                kind=rng.choice(["x", "y"]),
                priority=rng.choice([10, 50, 50, 90]),
                min_nodes=1 if shape.nodes > 1 and rng.random() < 0.5 else None,
                limit_s=rng.choice([None, 40_000.0]),
                required=rng.choice([None, None, "rack"]) if shape.nodes <= 2 else None,
                checkpoint_s=rng.choice([0.0, 300.0, 1800.0]),
            )
        )
    return sorted(jobs, key=lambda job: job.submit_s)


def random_setup(
    rng: random.Random, projects: tuple[Project, ...], graceful: bool
) -> SimulationSetup:
    nodes = traces.grid_nodes(6, 4, 2, 2)
    outages, free_at = [], dict.fromkeys((node.id for node in nodes), 0.0)
    for _ in range(rng.randrange(6)):
        node, at_s = rng.choice(nodes).id, rng.random() * 30_000.0 + 200.0
        if at_s > free_at[node] + 200.0:
            free_at[node] = at_s + 2400.0
            outages.append(Outage(at_s, node, 2400.0, rng.choice([0.0, 120.0])))
    crashes = [
        Crash(rng.random() * 30_000.0, rng.choice(nodes).id, rng.randrange(4), cause)
        for cause in rng.choices([Cause.RANK_CRASH, Cause.STALLED, Cause.OOM], k=rng.randrange(8))
    ]
    return SimulationSetup(
        nodes,
        projects,
        PlannerConfig(min_run_s=60.0, guard_after_s=7200.0, guard_quantum_s=3600.0),
        Costs(graceful=graceful),
        outages,
        crashes,
        audit_every=1,
        deliveries=2,
    )


@given(st.integers(0, 2**32), st.booleans(), st.booleans())
@settings(max_examples=12, deadline=None)
def test_whole_lives_keep_every_promise(seed: int, quotas: bool, graceful: bool) -> None:
    rng = random.Random(seed)
    jobs = random_jobs(rng, rng.randrange(4, 30))
    setup = random_setup(rng, PROJECTS if quotas else (), graceful)
    result = simulate(jobs, setup, POLICIES["phalanx"]())
    for run in result.runs.values():
        assert (run.end_s is None) != (run.failed_s is None)
    machines = result.lifecycles.jobs.values()
    assert all(job.is_terminal and job.attempt is None for job in machines)
    assert all(job.restarts <= 1_000 for job in machines)


@given(st.integers(0, 2**32))
@settings(max_examples=6, deadline=None)
def test_repeated_messages_lead_to_the_same_end(seed: int) -> None:
    rng = random.Random(seed)
    jobs, setup = random_jobs(rng, 12), random_setup(rng, (), True)
    once = simulate(jobs, replace(setup, deliveries=1), POLICIES["phalanx"]())
    thrice = simulate(jobs, replace(setup, deliveries=3), POLICIES["phalanx"]())
    assert once.lifecycles.jobs == thrice.lifecycles.jobs


@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 6), st.integers(1, 4))
@settings(max_examples=30, deadline=None)
def test_another_node_never_makes_a_gang_impossible(
    nodes: int, per_node: int, num: int, size: int
) -> None:
    made = traces.grid_nodes(num, 4, 2, 2)
    more = Node("extra", "pool", "extra", size, 96, 0, domains=made[0].domains)
    promises.check_monotone(GangShape(nodes, per_node, per_node), made, more)


def test_equal_projects_with_equal_demand_get_equal_shares_of_a_day() -> None:
    rng = random.Random(1)
    names = ("a", "b", "c")
    jobs = [
        TraceJob(num, 0.0, 600.0 + 3600.0 * rng.random(), GangShape(1, size, 1), project=name)
        for num, (name, size) in enumerate(
            ((name, size) for _ in range(200) for name in names for size in (1, 2)), start=1
        )
    ]
    nodes = traces.grid_nodes(2, 8, 2, 2)
    equal = tuple(Project(name) for name in names)
    day_s = 86_400.0
    setup = SimulationSetup(nodes, equal, until_s=day_s, audit_every=200, half_life_s=day_s / 4)
    result = simulate(jobs, setup, POLICIES["phalanx"]())
    assert len(result.lifecycles.jobs) == len(jobs) and any(
        run.end_s is None for run in result.runs.values()
    )
    promises.check_fair(result.slot_times.by_project, dict.fromkeys(names, 1.0), 0.05)


@given(st.integers(0, 2**32))
@settings(max_examples=8, deadline=None)
def test_evictions_end_when_nothing_else_happens(seed: int) -> None:
    """No livelock: with only victims leaving and coming back, the plans come to rest."""
    rng = random.Random(seed)
    cluster = ClusterIndex(traces.grid_nodes(4, 4, 2, 2), config=PlannerConfig(min_run_s=0.0))
    jobs = {job.num: job.waiting() for job in random_jobs(rng, 14)}
    for job in jobs.values():
        cluster.submit(replace(job, submitted_at=job.num, project=""))
    evictions = 0
    for second in range(1, 60):
        now = second * US
        decided = plan_pass(cluster, now)
        cluster.reservations = {
            reservation.job: reservation
            for reservation in decided.reservations
            if reservation.victims
        }
        for preemption in decided.preemptions:
            evictions += 1
            held = cluster.release(preemption.job)
            assert held is not None
            back = world_job(jobs[preemption.job], now, held.attained(now))
            cluster.submit(back)
        for resize in decided.resizes:
            held = cluster.release(resize.job)
            assert held is not None
            cluster.hold(replace(held, placement=resize.placement, resized_at=now))
        for start in decided.starts:
            job = cluster.waiting[start.job]
            cluster.start(job.num, start.placement, held_of(job, now))
    assert evictions <= 3 * len(jobs)


def world_job(job: QueuedJob, now: int, attained_slot_s: float) -> QueuedJob:
    return replace(job, project="", queued_at=now, attained_slot_s=attained_slot_s)


def held_of(job: QueuedJob, now: int) -> RunningJob:
    return RunningJob(
        job.num,
        Placement("", ()),
        priority=job.priority,
        kind=job.kind,
        started_at=now,
        attained_slot_s=job.attained_slot_s,
        max_duration_s=job.max_duration_s,
        min_nodes=job.min_nodes,
        max_nodes=None if job.min_nodes is None else job.shape.nodes,
    )
