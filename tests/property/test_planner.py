"""The planner's invariants under random streams of events, duplicates and late messages included."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.core.gang.placement import GangShape, Node, NodeShare, Placement, RoleShape
from phalanx.core.reasons import Reason, ReasonCode
from phalanx.core.scheduling import (
    ClusterIndex,
    PlannerConfig,
    Project,
    QueuedJob,
    RunningJob,
    plan,
    plan_pass,
)
from phalanx.core.scheduling.index.slots import mask_of
from phalanx.core.scheduling.model.durations import EDGES, History, KindKey, bin_of, size_class
from phalanx.core.scheduling.model.entitlement import rolled_up
from phalanx.core.scheduling.model.outcome import Plan, Resize, Start
from phalanx.errors import InvariantBroken
from phalanx.sim.audit import promises
from phalanx.sim.audit.auditor import Auditor

pytestmark = pytest.mark.unit

US = 1_000_000
PROJECTS = (
    Project("a", guaranteed_slots=8, weight=2.0),
    Project("b", guaranteed_slots=4, max_slots=12),
    Project("c"),
)
TREE = (
    Project("lab", guaranteed_slots=8, max_slots=14),
    Project("a", guaranteed_slots=6, weight=2.0, parent="lab"),
    Project("b", max_slots=12, parent="lab"),
    Project("c"),
)


EU, US_EAST = (("residency", "eu"),), (("residency", "us"),)
PLACES = (EU, EU, EU, (("disk", "nvme"), *US_EAST), US_EAST, ())


def make_nodes(num: int = 6) -> list[Node]:
    return [
        Node(
            f"n{i}",
            "main" if i < 4 else "side",
            f"10.0.0.{i}",
            4,
            8,
            64,
            domains=(("block", "b0"), ("rack", f"r{i // 2}")),
            labels=PLACES[i],
        )
        for i in range(num)
    ]


@st.composite
def jobs(draw: st.DrawFn, num: int) -> QueuedJob:
    shape = GangShape(draw(st.integers(1, 4)), draw(st.integers(1, 4)), 1)
    role = GangShape(draw(st.integers(1, 2)), draw(st.integers(1, 3)), 1)
    if draw(st.booleans()):
        cpus = draw(st.sampled_from([0, 2, 5]))
        role = RoleShape(role.nodes, draw(st.integers(0, 3)), 1, "server", cpus)
    roles = (role,) if draw(st.sampled_from([False, False, False, True])) else ()
    required = draw(st.sampled_from([None, None, "rack"]))
    elastic = shape.nodes > 1 and not roles and draw(st.booleans())
    equal = required and shape.nodes in (2, 4) and not roles and not elastic
    return QueuedJob(
        num,
        shape,
        draw(st.sampled_from([10, 50, 90])),
        num,
        project=draw(st.sampled_from(["a", "b", "c"])),
        pools=draw(st.sampled_from([(), ("main",), ("side", "main")])),
        cpus_per_node=draw(st.sampled_from([0, 0, 3])),
        max_duration_s=draw(st.sampled_from([None, 600.0, 36_000.0])),
        min_nodes=1 if elastic else None,
        required=required,
        domains=2 if equal and draw(st.booleans()) else 1,
        roles=roles,
        residency=draw(st.sampled_from([None, None, None, ("eu",), ("ch", "us"), ()])),
    )


class Stream:
    """Applies plans as a control plane does, and invents what may happen in between."""

    def __init__(self, seed: int, projects: tuple[Project, ...]) -> None:
        self.rng = random.Random(seed)
        self.cluster = ClusterIndex(make_nodes(), projects, config=PlannerConfig(min_run_s=60.0))
        self.auditor = Auditor()
        self.now = 0
        self.submitted: list[QueuedJob] = []

    def happen(self) -> None:
        self.now += self.rng.randrange(1, 900) * US
        cluster, rng = self.cluster, self.rng
        kind = rng.choice(["end", "end", "end", "left", "twice", "node", "save"])
        running = sorted(cluster.held)
        if kind in ("end", "left") and running:
            num = rng.choice(running)
            held = cluster.release(num)
            cluster.release(num)
            if kind == "end" and held is not None:
                key = KindKey(held.project, held.kind, size_class(held.num_slots))
                for _ in range(8):
                    cluster.history.observe(key, held.attained(self.now))
            if kind == "left" and held is not None:
                job = next(w for w in self.submitted if w.num == num)
                back = replace(job, queued_at=self.now, attained_slot_s=held.attained(self.now))
                cluster.submit(back)
        elif kind == "twice" and self.submitted:
            cluster.submit(rng.choice([*cluster.waiting.values(), *self.submitted[:1]]))
        elif kind == "node":
            node = rng.choice(cluster.index.nodes)
            cluster.replace_node(replace(node, closed="" if node.closed else "drained"))
        elif kind == "save" and running:
            held = cluster.held[rng.choice(running)]
            cluster.update(replace(held, saved_at=self.now))

    def step(self) -> None:
        cluster = self.cluster
        decided = plan_pass(cluster, self.now)
        self.auditor.check_plan(cluster, decided, self.now)
        self.auditor.check_deeply(
            cluster, decided, self.now, lambda again: plan_pass(again, self.now)
        )
        assert plan(cluster.snapshot(), self.now) == decided
        cluster.reservations = {
            reservation.job: reservation
            for reservation in decided.reservations
            if reservation.victims
        }
        for preemption in decided.preemptions:
            cluster.update(replace(cluster.held[preemption.job], stopping=True))
        for resize in decided.resizes:
            held = cluster.release(resize.job)
            assert held is not None
            cluster.hold(replace(held, placement=resize.placement, resized_at=self.now))
        for start in decided.starts:
            cluster.start(start.job, start.placement, held_of(cluster.waiting[start.job], self.now))


def held_of(job: QueuedJob, now: int) -> RunningJob:
    return RunningJob(
        job.num,
        plan_placeholder,
        project=job.project,
        priority=job.priority,
        started_at=now,
        attained_slot_s=job.attained_slot_s,
        max_duration_s=job.max_duration_s,
        min_nodes=job.min_nodes,
        max_nodes=None if job.min_nodes is None else job.shape.nodes,
        cpus_per_node=job.cpus_per_node,
        roles=job.roles,
        residency=job.residency,
    )


plan_placeholder = Placement("", ())


STREAM = (st.data(), st.integers(0, 2**16), st.sampled_from([(), PROJECTS, TREE]))


@given(*STREAM)
@settings(max_examples=20, deadline=None)
def test_random_streams_keep_every_promise(
    data: st.DataObject, seed: int, projects: tuple[Project, ...]
) -> None:
    keeps_every_promise(data, seed, projects)


@pytest.mark.proof
@given(*STREAM)
@settings(max_examples=500, deadline=None)
def test_many_random_streams_keep_every_promise(
    data: st.DataObject, seed: int, projects: tuple[Project, ...]
) -> None:
    keeps_every_promise(data, seed, projects)


def keeps_every_promise(data: st.DataObject, seed: int, projects: tuple[Project, ...]) -> None:
    stream = Stream(seed, projects)
    for num in range(1, data.draw(st.integers(4, 14)) + 1):
        job = data.draw(jobs(num))
        stream.submitted.append(job)
        stream.cluster.submit(job)
        stream.step()
        for _ in range(stream.rng.randrange(3)):
            stream.happen()
            stream.step()
    tree = {project.name: project for project in projects}
    used: dict[str, int] = {}
    for held in stream.cluster.held.values():
        if not held.stopping:
            used[held.project] = used.get(held.project, 0) + held.num_slots
    for name, slots in rolled_up(tree, used).items():
        limit = tree[name].max_slots if name in tree else None
        assert limit is None or slots <= limit


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_the_order_of_the_snapshot_does_not_matter(data: st.DataObject) -> None:
    waiting = [data.draw(jobs(num)) for num in range(1, 9)]
    shuffled = data.draw(st.permutations(waiting))
    clusters = []
    for order in (waiting, shuffled):
        cluster = ClusterIndex(make_nodes())
        for job in order:
            cluster.submit(job)
        clusters.append(plan_pass(cluster, 100 * US))
    assert clusters[0] == clusters[1]


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_nothing_that_fits_free_unreserved_slots_stays(data: st.DataObject) -> None:
    cluster = ClusterIndex(make_nodes(), config=PlannerConfig(num_reservations=0))
    for num in range(1, 12):
        cluster.submit(data.draw(jobs(num)))
    decided = plan_pass(cluster, 100 * US)
    for start in decided.starts:
        job = cluster.waiting[start.job]
        cluster.start(job.num, start.placement, held_of(job, 100 * US))
    again = plan_pass(cluster, 101 * US)
    assert again.starts == ()


@given(st.data())
@settings(max_examples=30, deadline=None)
def test_every_job_starts_in_the_end(data: st.DataObject) -> None:
    """Bounded wait: whatever could ever be placed gets its turn, with nothing ever ending early."""
    cluster = ClusterIndex(make_nodes(4))
    plain = {"pools": (), "required": None, "domains": 1, "roles": (), "residency": None}
    waiting = [replace(data.draw(jobs(n)), **plain) for n in range(1, 10)]
    for job in waiting:
        cluster.submit(job)
    for round_ in range(40):
        now = (round_ + 1) * 3600 * US
        decided = plan_pass(cluster, now)
        for start in decided.starts:
            job = cluster.waiting[start.job]
            cluster.start(job.num, start.placement, RunningJob(job.num, start.placement))
        for num in sorted(cluster.held):
            cluster.release(num)
        if not cluster.waiting:
            return
    raise AssertionError(f"still waiting: {sorted(cluster.waiting)}")


@given(st.lists(st.floats(1.0, 4e9), max_size=60), st.integers(0, len(EDGES) - 2))
@settings(max_examples=40, deadline=None)
def test_the_learned_index_is_the_best_rate_of_ends_at_any_horizon(
    ended: list[float], spot: int
) -> None:
    history, key = History(), KindKey("", "k", 0)
    for slot_s in ended:
        history.observe(key, slot_s)
    num_bins = len(EDGES) - 1
    weights = [20.0 / 48] * num_bins
    for slot_s in ended:
        weights[bin_of(slot_s)] += 0.5 + 1.0 + 20.0
    best = cost = ends = 0.0
    for b in range(spot, num_bins):
        ends += weights[b]
        cost += sum(weights[b:]) * (EDGES[b + 1] - EDGES[b])
        best = max(best, ends / cost)
    assert history.index(key, spot) == pytest.approx(best, rel=1e-9)


def test_the_audit_sees_a_corrupt_index() -> None:
    cluster = ClusterIndex(make_nodes())
    cluster.index.set_free(0, mask_of([0]))
    with pytest.raises(InvariantBroken, match="differs from its rebuild"):
        promises.check_rebuild(cluster)


def test_the_audit_sees_a_start_and_a_growth_outside_the_residency() -> None:
    """The check that every stream runs: a planner that ignored the rule would fail it."""
    elsewhere = Placement("side", (NodeShare("n4", "10.0.0.4", (0,)),))
    cluster = ClusterIndex(make_nodes())
    asked = QueuedJob(1, GangShape(1, 1, 1), 50, 0, residency=("eu",))
    cluster.submit(asked)
    with pytest.raises(InvariantBroken, match="n4 is outside the residency"):
        promises.check_starts(cluster, Plan((Start(1, elsewhere),), ()))
    (start,) = plan_pass(cluster, US).starts
    promises.check_starts(cluster, Plan((start,), ()))
    cluster.start(1, start.placement, held_of(asked, US))
    both = replace(start.placement, shares=(*start.placement.shares, *elsewhere.shares))
    grown = Resize(1, both, Reason(ReasonCode.PLACED, ""))
    with pytest.raises(InvariantBroken, match="n4 is outside the residency"):
        promises.check_starts(cluster, Plan((), (), resizes=(grown,)))


def test_an_elastic_job_does_not_grow_where_the_label_of_its_nodes_has_changed() -> None:
    shape = GangShape(2, 4, 1)
    cluster = ClusterIndex(make_nodes())
    asked = QueuedJob(1, shape, 50, 0, residency=("eu",), min_nodes=1)
    share = NodeShare("n0", "10.0.0.0", (0, 1, 2, 3))
    for allowed, grows in ((("eu",), True), (None, True), (("ch",), False)):
        cluster = ClusterIndex(make_nodes())
        job = replace(held_of(asked, 0), placement=Placement("main", (share,)), residency=allowed)
        cluster.hold(job)
        assert bool(plan_pass(cluster, 10_000 * US).resizes) is grows


def test_the_audit_sees_a_double_start() -> None:
    cluster = ClusterIndex(make_nodes())
    cluster.submit(QueuedJob(1, GangShape(1, 4, 1), 50, 0))
    decided = plan_pass(cluster, 1)
    twice = replace(decided, starts=decided.starts * 2)
    with pytest.raises(InvariantBroken, match="given twice"):
        promises.check_starts(cluster, twice)
