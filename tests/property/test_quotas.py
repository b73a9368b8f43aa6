"""Random streams at the limits of slot types and users."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.core.gang.placement import GangShape, Placement
from phalanx.core.scheduling import ClusterIndex, Project, QueuedJob, RunningJob, plan_pass
from phalanx.core.scheduling.model.entitlement import lineage
from phalanx.core.scheduling.model.planning_input import UserQuota
from phalanx.core.scheduling.model.quotas import NarrowLimits
from phalanx.core.scheduling.search.narrow_ledger import NarrowLedger
from phalanx.sim.workload import traces

pytestmark = pytest.mark.unit

_US = 1_000_000
PROJECTS = (
    Project("lab", max_slots_by_type=(("H100", 10),), users=(UserQuota("", 9, 4),)),
    Project("vision", parent="lab", max_slots_by_type=(("H100", 6), ("A100", 7))),
    Project("free"),
)
USERS = (UserQuota("", 11), UserQuota("ada", None, 3, (("H100", 5),)))


def cluster_of(
    projects: tuple[Project, ...], users: tuple[UserQuota, ...], num_nodes: int = 10
) -> ClusterIndex:
    nodes = traces.grid_nodes(num_nodes, 4, 5, 2)
    typed = [replace(node, slot_type="H100" if i % 2 else "A100") for i, node in enumerate(nodes)]
    cluster = ClusterIndex(typed, projects)
    cluster.users = users
    return cluster


def random_job(rng: random.Random, num: int, now: int) -> QueuedJob:
    shape = GangShape(rng.choice([1, 1, 1, 2]), rng.choice([1, 2, 4]), 1)
    return QueuedJob(
        num,
        shape,
        rng.choice([10, 50, 50, 90]),
        now,
        project=rng.choice(["lab", "vision", "free"]),
        slot_type=rng.choice(["", "H100", "A100"]),
        min_nodes=1 if shape.nodes == 2 and rng.random() < 0.3 else None,
        user=rng.choice(["ada", "bob", "eve"]),
    )


def held_by(cluster: ClusterIndex, project: str, user: str, slot_type: str) -> tuple[int, int]:
    """Slots and jobs that count against a limit, counted without the planner's ledger."""
    slots = jobs = 0
    types = {node.id: node.slot_type for node in cluster.index.nodes}
    for held in cluster.held.values():
        names = {one.name for one in lineage(cluster.projects, held.project)}
        if (project and project not in names) or user not in ("", held.user):
            continue
        jobs += 1
        slots += sum(
            len(share.slots)
            for share in held.placement.shares
            if slot_type in ("", types[share.node])
        )
    return slots, jobs


def broken(cluster: ClusterIndex) -> list[str]:
    """The limits that are exceeded."""
    found = []
    limits = NarrowLimits({one.name: one for one in PROJECTS}, USERS)
    for project in ("lab", "vision", "free"):
        for user in ("ada", "bob", "eve"):
            for one in limits.on(
                QueuedJob(0, GangShape(1, 1, 1), 0, 0, project=project, user=user)
            ):
                slots, jobs = held_by(cluster, one.project, one.user, one.slot_type)
                if one.max_slots is not None and slots > one.max_slots:
                    found.append(f"{one}: {slots}")
                if one.max_running is not None and jobs > one.max_running:
                    found.append(f"{one}: {jobs} jobs")
    return found


def live(seed: int, cluster: ClusterIndex) -> list[str]:
    """Submit, start, preempt, resize and end jobs at random; return the limits that were exceeded."""
    rng, now, found = random.Random(seed), 0, list[str]()
    jobs: dict[int, QueuedJob] = {}
    for num in range(1, 41):
        jobs[num] = random_job(rng, num, now)
        cluster.submit(jobs[num])
        plan = plan_pass(cluster, now)
        cluster.reservations = {one.job: one for one in plan.reservations if one.victims}
        for one in plan.preemptions:
            cluster.update(replace(cluster.held[one.job], stopping=True))
        for resize in plan.resizes:
            before = cluster.release(resize.job)
            if before is not None:
                cluster.hold(replace(before, placement=resize.placement))
        for start in plan.starts:
            job = cluster.waiting[start.job]
            most = None if job.min_nodes is None else job.shape.nodes
            held = RunningJob(
                job.num,
                Placement("", ()),
                project=job.project,
                priority=job.priority,
                started_at=now,
                min_nodes=job.min_nodes,
                max_nodes=most,
                user=job.user,
            )
            cluster.start(job.num, start.placement, held)
        found += broken(cluster)
        now += rng.choice([60, 900, 5000]) * _US
        for num_held, held in list(cluster.held.items()):
            if held.stopping:
                cluster.release(num_held)
                cluster.submit(replace(jobs[num_held], queued_at=now))
            elif rng.random() < 0.1:
                cluster.release(num_held)
    return found


@given(st.integers(0, 2**32))
@settings(max_examples=25, deadline=None)
def test_no_plan_exceeds_a_limit_of_a_slot_type_or_user(seed: int) -> None:
    assert not live(seed, cluster_of(PROJECTS, USERS))


def test_without_the_limits_the_same_streams_exceed_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NarrowLedger, "over_limit", lambda *_: None)
    monkeypatch.setattr(NarrowLedger, "closed_types", lambda *_: ())
    assert any(live(seed, cluster_of(PROJECTS, USERS)) for seed in range(5))


@given(st.integers(0, 2**32))
@settings(max_examples=25, deadline=None)
def test_without_limits_of_users_no_job_fewer_starts(seed: int) -> None:
    """Jobs of one slot, of which none waits for nodes: a limit is all that keeps one back."""
    rng = random.Random(seed)
    started = []
    for users in (USERS, ()):
        cluster = cluster_of((), users, 20)
        rng.seed(seed)
        for num in range(1, 31):
            job = random_job(rng, num, 0)
            cluster.submit(replace(job, shape=GangShape(1, 1, 1), min_nodes=None))
        started.append({one.job for one in plan_pass(cluster, 0).starts})
    assert started[0] <= started[1]
