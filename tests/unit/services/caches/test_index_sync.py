"""The living world of the control plane: whatever changes between two passes, it equals a rebuild."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.core.gang.placement import GangShape, NodeShare, Placement
from phalanx.core.scheduling import (
    ClusterIndex,
    PlanningInput,
    Project,
    QueuedJob,
    Reservation,
    RunningJob,
    plan_pass,
)
from phalanx.services.caches.index_sync import only_longer_classes, sync
from support.clusters import nodes

pytestmark = pytest.mark.unit

US = 1_000_000
NODES = nodes(4)


def changed(rng: random.Random, before: PlanningInput, at: int) -> PlanningInput:
    """Some jobs come, start, save, end, or come back; a node closes; a quota changes."""
    waiting = {job.num: job for job in before.waiting}
    held = {one.job: one for one in before.held}
    for _ in range(rng.randrange(1, 6)):
        kind = rng.choice(["come", "start", "save", "end", "back", "priority", "node", "quota"])
        num = rng.randrange(1, 12)
        if kind == "come" and num not in waiting and num not in held:
            shape = GangShape(rng.choice([1, 2]), rng.choice([1, 2, 4]), 1)
            due = at + 60 * US if rng.random() < 0.2 else None
            waiting[num] = QueuedJob(num, shape, 50, at, not_before=due, project=rng.choice("ab"))
        elif kind == "start" and num in waiting:
            decided = plan_pass(ClusterIndex.of(replace(before, waiting=(waiting[num],))), at)
            if decided.starts and num not in held:
                job = waiting.pop(num)
                where = decided.starts[0].placement
                held[num] = RunningJob(num, where, project=job.project, priority=50, started_at=at)
                before = replace(before, held=tuple(held.values()))
        elif kind == "save" and num in held:
            held[num] = replace(held[num], saved_at=at, stopping=rng.random() < 0.3)
        elif kind in ("end", "back") and num in held:
            gone = held.pop(num)
            before = replace(before, held=tuple(held.values()))
            if kind == "back":
                waiting[num] = QueuedJob(num, GangShape(1, 1, 1), 50, 1, queued_at=at)
            assert gone.job == num
        elif kind == "priority" and num in waiting:
            waiting[num] = replace(waiting[num], priority=rng.choice([10, 90]))
        elif kind == "node":
            nodes = list(before.nodes)
            i = rng.randrange(len(nodes))
            nodes[i] = replace(nodes[i], closed="" if nodes[i].closed else "drained")
            before = replace(before, nodes=tuple(nodes))
        elif kind == "quota":
            before = replace(before, projects=(Project("a", max_slots=rng.randrange(1, 9)),))
    reservations = tuple(Reservation(num, ("n0",), at, at + US) for num in list(waiting)[:1])
    return replace(
        before,
        waiting=tuple(waiting.values()),
        held=tuple(held.values()),
        reservations=reservations,
    )


@given(st.integers(0, 2**32))
@settings(max_examples=20, deadline=None)
def test_following_equals_building_anew(seed: int) -> None:
    rng = random.Random(seed)
    snapshot, cluster = PlanningInput(NODES, (), ()), None
    for step in range(1, 25):
        at = step * 100 * US
        snapshot = changed(rng, snapshot, at)
        cluster = sync(cluster, snapshot)
        fresh = ClusterIndex.of(snapshot)
        for one in (cluster, fresh):
            one.advance(at)
        assert cluster.state() == fresh.state()
        assert cluster.projects == fresh.projects
        assert plan_pass(cluster, at) == plan_pass(fresh, at)


def test_a_world_that_missed_a_change_would_be_seen() -> None:
    """The negative control: without following, the states differ."""
    shares = (NodeShare("n0", "h", (0, 1)),)
    running = PlanningInput(NODES, (RunningJob(1, Placement("p", shares)),), ())
    assert sync(None, PlanningInput(NODES, (), ())).state() != ClusterIndex.of(running).state()


def job(num: int, width: int = 2, project: str = "a", **rest: object) -> QueuedJob:
    return QueuedJob(num, GangShape(1, width, 1), 50, num, project=project, **rest)  # type: ignore[arg-type]


def after_a_pass(*waiting: QueuedJob) -> tuple[ClusterIndex, PlanningInput, frozenset[int]]:
    """The world of a pass, the snapshot with its starts done, and who they were."""
    cluster = ClusterIndex.of(PlanningInput(NODES[:1], (), waiting))
    starts = plan_pass(cluster, US).starts
    held = tuple(RunningJob(one.job, one.placement, project="a", priority=50) for one in starts)
    started = frozenset(one.job for one in starts)
    left = tuple(one for one in waiting if one.num not in started)
    return cluster, PlanningInput(NODES[:1], held, left, history=cluster.history), started


def test_more_jobs_behind_others_that_wait_are_nothing_to_plan_for() -> None:
    first = job(1)
    cluster, snapshot, started = after_a_pass(first, job(2), job(3))
    assert started == {1, 2}  # the node is full
    assert only_longer_classes(cluster, snapshot, started)
    longer = replace(snapshot, waiting=(*snapshot.waiting, job(4)))
    assert (
        only_longer_classes(cluster, longer, started)
        and not plan_pass(ClusterIndex.of(longer), US).starts
    )
    others = {
        "an end": replace(longer, held=snapshot.held[1:]),
        "a start that was refused": replace(
            longer, held=snapshot.held[1:], waiting=(first, *longer.waiting)
        ),
        "another line": replace(snapshot, waiting=(*snapshot.waiting, job(4, width=1))),
        "another project": replace(snapshot, waiting=(*snapshot.waiting, job(4, project="b"))),
        "a job that left": replace(snapshot, waiting=()),
        "a job that changed": replace(snapshot, waiting=(replace(job(3), submitted_at=9),)),
        "a node": replace(longer, nodes=NODES[:2]),
        "a hole": replace(longer, reservations=(Reservation(3, ("n0",), US, 9 * US),)),
    }
    assert [
        what for what, one in others.items() if only_longer_classes(cluster, one, started)
    ] == []


def test_a_line_of_which_all_started_does_not_stand_still() -> None:
    cluster, snapshot, started = after_a_pass(job(1))
    assert started == {1}
    behind = replace(snapshot, waiting=(job(2),))
    assert not only_longer_classes(cluster, behind, started)
    assert plan_pass(ClusterIndex.of(behind), US).starts


@given(st.integers(0, 2**32))
@settings(max_examples=40, deadline=None)
def test_within_one_project_nothing_could_start_where_only_lines_have_grown(seed: int) -> None:
    rng = random.Random(seed)
    fresh = iter(range(1, 1000))
    snapshot, cluster = PlanningInput(NODES, (), ()), None
    started: frozenset[int] = frozenset()
    moving = (
        False  # the last pass started jobs and kept room for others: that may lie elsewhere now
    )
    for step in range(1, 20):
        at = step * US
        wide, ends = rng.choice([1, 2, 4]), rng.random() < 0.3
        more = [job(next(fresh), wide) for _ in range(rng.randrange(1, 4))]
        held = snapshot.held[1:] if ends else snapshot.held
        snapshot = replace(
            snapshot,
            waiting=(*snapshot.waiting, *more),
            held=held,
            history=snapshot.history if cluster is None else cluster.history,
        )
        if cluster is not None and not moving and only_longer_classes(cluster, snapshot, started):
            assert not plan_pass(ClusterIndex.of(snapshot), at).starts
        cluster = sync(cluster, snapshot)
        plan = plan_pass(cluster, at)
        starts, moving = plan.starts, bool(plan.starts and plan.reservations)
        started = frozenset(one.job for one in starts)
        new = [RunningJob(one.job, one.placement, project="a", priority=50) for one in starts]
        left = tuple(one for one in snapshot.waiting if one.num not in started)
        snapshot = replace(snapshot, held=(*snapshot.held, *new), waiting=left)
