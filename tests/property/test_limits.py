"""Random streams at the limits of projects, and of gangs among smaller jobs of their priority."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.core.gang.placement import GangShape
from phalanx.core.scheduling import (
    ClusterIndex,
    Plan,
    PlannerConfig,
    Project,
    QueuedJob,
    RunningJob,
    plan_pass,
)
from phalanx.core.scheduling.model.durations import History, KindKey, size_class
from phalanx.core.scheduling.model.entitlement import lineage, never_allowed, rolled_up
from phalanx.core.scheduling.model.urgency import protected_until
from phalanx.errors import InvariantBroken
from phalanx.sim.audit.auditor import Auditor
from phalanx.sim.workload import traces
from phalanx.sim.workload.history import US

pytestmark = pytest.mark.unit

SAVE_S = 30.0
TREE = (
    Project("lab", max_slots=14, guaranteed_slots=6),
    Project("vision", parent="lab", max_slots=9),
    Project("text", parent="lab", guaranteed_slots=4, max_running=3),
    Project("other", max_slots=12),
)


class Live:
    """Applies plans as a control plane does: victims save for half a minute, then queue again."""

    def __init__(self, cluster: ClusterIndex) -> None:
        self.cluster = cluster
        self.auditor = Auditor()
        self.now = 0
        self.jobs: dict[int, QueuedJob] = {}
        self.preempted_at: dict[int, list[int]] = {}
        self.leaves_at: dict[int, int] = {}
        self.ends_at: dict[int, int] = {}
        self.scripts: set[int] = set()  # jobs that never save

    def submit(self, job: QueuedJob) -> None:
        self.jobs[job.num] = job
        self.cluster.submit(job)

    def go_on(self, seconds: float) -> None:
        """Let time pass; jobs that have ended or saved leave."""
        self.now += int(seconds * US)
        cluster = self.cluster
        for num, at in list(self.ends_at.items()):
            if at <= self.now and num in cluster.held and num not in self.leaves_at:
                cluster.release(num)
        for num, at in list(self.leaves_at.items()):
            if at <= self.now:
                del self.leaves_at[num]
                held = cluster.release(num)
                if held is not None:
                    back = replace(
                        self.jobs[num],
                        queued_at=self.now,
                        attained_slot_s=held.attained(self.now),
                        delayed_s=held.delayed_s,
                    )
                    cluster.submit(back)

    def step(self, lasts_s: dict[int, float]) -> Plan:
        cluster = self.cluster
        decided = plan_pass(cluster, self.now)
        self.auditor.check_plan(cluster, decided, self.now)
        cluster.reservations = {one.job: one for one in decided.reservations if one.victims}
        for one in decided.preemptions:
            cluster.update(replace(cluster.held[one.job], stopping=True))
            self.leaves_at[one.job] = self.now + int(SAVE_S * US)
            self.preempted_at.setdefault(one.job, []).append(self.now)
        for start in decided.starts:
            job = cluster.waiting[start.job]
            delayed_s, times = (self.now - job.owed_since) / US, self.preempted_at.get(job.num, [])
            held = RunningJob(
                job.num,
                start.placement,
                project=job.project,
                priority=job.priority,
                started_at=self.now,
                attained_slot_s=job.attained_slot_s,
                delayed_s=delayed_s,
                save_s=None if job.num in self.scripts else SAVE_S,
                protected_until=protected_until(self.now, delayed_s, times, cluster.config),
            )
            cluster.start(job.num, start.placement, held)
            self.ends_at[job.num] = self.now + int(lasts_s.get(job.num, 1e9) * US)
        self.check_slots()
        return decided

    def check_slots(self) -> None:
        """No project ever holds more than its limits, also while victims save."""
        tree, slots, jobs = self.cluster.projects, dict(self.cluster.used), dict[str, int]()
        for held in self.cluster.held.values():
            jobs[held.project] = jobs.get(held.project, 0) + 1
        for name, num in rolled_up(tree, slots).items():
            most = tree[name].max_slots if name in tree else None
            assert most is None or num <= most
        for name, num in rolled_up(tree, jobs).items():
            most = tree[name].max_running if name in tree else None
            assert most is None or num <= most


def random_job(rng: random.Random, num: int, now: int, names: tuple[str, ...]) -> QueuedJob:
    shape = GangShape(rng.choice([1, 1, 1, 2]), rng.choice([1, 1, 2, 4]), 1)
    return QueuedJob(num, shape, rng.choice([10, 50, 50, 90]), now, project=rng.choice(names))


@given(st.integers(0, 2**32), st.booleans())
@settings(max_examples=4, deadline=None)
def test_claims_at_a_limit_take_slots_of_their_own_project_only(seed: int, roomy: bool) -> None:
    """On a cluster with room for all, whoever leaves does so for a limit: within that project."""
    rng = random.Random(seed)
    live = Live(ClusterIndex(traces.grid_nodes(20 if roomy else 6, 4, 5, 2), TREE))
    lasts_s: dict[int, float] = {}
    for num in range(1, 26):
        names = ("lab", "vision", "text", "other")
        live.submit(random_job(rng, num, live.now, names))
        lasts_s[num] = rng.choice([300.0, 3000.0, 30_000.0])
        decided = live.step(lasts_s)
        for one in decided.preemptions if roomy else ():
            mine = lineage(live.cluster.projects, live.jobs[one.beneficiary].project)
            theirs = lineage(live.cluster.projects, live.jobs[one.job].project)
            assert {p.name for p in mine} & {p.name for p in theirs}
        live.go_on(rng.choice([30.0, 60.0, 900.0]))


@given(
    st.integers(1, 4),
    st.lists(st.integers(1, 3), min_size=1, max_size=12),
    st.booleans(),
    st.integers(0, 3),
)
@settings(max_examples=12, deadline=None)
def test_at_its_limit_the_highest_priority_starts_after_one_grace(
    width: int, sizes: list[int], nested: bool, idle: int
) -> None:
    """Whatever sizes hold the quota: lower priorities of the project leave, and the job starts."""
    most = max(sum(sizes), width)
    tree = (Project("lab", max_slots=most), Project("part", parent="lab"))
    cluster = ClusterIndex(traces.grid_nodes(len(sizes) + 4, 4, 4, 4), (*tree, Project("other")))
    live = Live(cluster)
    for num, size in enumerate(sizes, start=1):
        name = "part" if nested and num % 2 else "lab"
        live.submit(QueuedJob(num, GangShape(1, size, 1), 30, num, project=name))
    for num in range(idle):
        live.submit(QueuedJob(50 + num, GangShape(1, 4, 1), 10, 0, project="other"))
    live.step({})
    live.go_on(60.0)
    urgent = QueuedJob(99, GangShape(1, width, 1), 90, live.now, project="lab")
    assert not never_allowed(cluster.projects, urgent)
    live.submit(urgent)
    live.step({})
    live.go_on(SAVE_S)
    live.step({})
    assert 99 in cluster.held
    assert all(50 + num in cluster.held for num in range(idle))


def wait_of_a_gang(seed: int, config: PlannerConfig, largest: int, hours: int = 4) -> float | None:
    """The wait of one gang of a whole node in a stream of smaller jobs of its priority, seconds."""
    rng = random.Random(seed)
    live = Live(ClusterIndex(traces.grid_nodes(4, 4, 2, 2), config=config))
    lasts_s, num, sent_at = {1: 1e9}, 1, 1200 * US
    for _ in range(hours * 60):
        slots = sum(live.cluster.used.values())
        slots += sum(job.num_slots for job in live.cluster.waiting.values() if job.num != 1)
        while slots < 17:
            num += 1
            shape = GangShape(1, rng.randint(1, largest), 1)
            lasts_s[num] = rng.choice([300.0, 1800.0, 7200.0, 1e6])
            live.submit(QueuedJob(num, shape, 50, live.now))
            slots += shape.num_slots
        if live.now == sent_at:
            live.submit(QueuedJob(1, GangShape(1, 4, 1), 50, live.now))
        live.step(lasts_s)
        if 1 in live.cluster.held:
            return (live.now - sent_at) / US
        live.go_on(60.0)
    return None


@given(st.integers(0, 2**32), st.sampled_from([1, 2, 3]))
@settings(max_examples=3, deadline=None)
def test_a_gang_among_smaller_equals_waits_no_longer_than_the_rule_says(
    seed: int, largest: int
) -> None:
    """More work than slots at all times: the gang is overdue, and the youngest of a node has its run."""
    config = PlannerConfig()
    bound_s = config.overdue_after_s + config.min_run_s + SAVE_S + 3 * 60.0
    found = wait_of_a_gang(seed, config, largest)
    assert found is not None and found <= bound_s


def most_in_an_hour(seed: int, config: PlannerConfig) -> int:
    """The most preemptions of one job in an hour under a storm of short jobs of higher priorities."""
    rng = random.Random(seed)
    live = Live(ClusterIndex(traces.grid_nodes(2, 4, 2, 1), config=config))
    lasts_s: dict[int, float] = {}
    for num in (1, 2):
        live.submit(QueuedJob(num, GangShape(1, rng.randint(2, 4), 1), 10, num))
    for num in range(10, 130):
        live.submit(QueuedJob(num, GangShape(2, 4, 1), rng.randint(20, 90), live.now))
        lasts_s[num] = 20.0
        for _ in range(rng.choice([3, 4, 5])):
            live.step(lasts_s)
            live.go_on(SAVE_S)
    found = live.preempted_at.values()
    return max(
        sum(at <= other <= at + 3600 * US for other in times) for times in found for at in times
    )


@given(st.integers(0, 2**32))
@settings(max_examples=3, deadline=None)
def test_no_job_is_preempted_more_than_eight_times_in_any_hour(seed: int) -> None:
    assert most_in_an_hour(seed, PlannerConfig()) == 8


def test_without_the_limit_the_storm_preempts_one_job_more_often() -> None:
    with pytest.raises(InvariantBroken, match="times in an hour"):
        most_in_an_hour(0, PlannerConfig(preemptions_per_hour=1000))


LONGEST_S = 5400.0


def lasting_s(rng: random.Random) -> float:
    """A run time: most are shorter than those of the gang, a few are much longer."""
    return min(rng.expovariate(1 / 600.0), LONGEST_S)


def wait_among_scripts(seed: int, config: PlannerConfig, part: float, num_nodes: int) -> float:
    """The wait of a gang of whole nodes among smaller jobs, `part` of which can never leave, seconds.

    It is at most that of the hours that are simulated.
    """
    rng = random.Random(seed)
    history, gang = History(), GangShape(rng.choice([1, 2]), 4, 1)
    for _ in range(200):
        size = rng.randint(1, 3)
        history.observe(KindKey("", "", size_class(size)), size * lasting_s(rng))
        history.observe(KindKey("", "gang", size_class(gang.num_slots)), gang.num_slots * 1200.0)
    nodes = traces.grid_nodes(num_nodes, 4, num_nodes, 1)
    live = Live(ClusterIndex(nodes, history=history, config=config))
    lasts_s, num, sent_at = {1: 1e9}, 1, 1200 * US
    while live.now < 6 * 3600 * US:
        slots = sum(live.cluster.used.values())
        slots += sum(job.num_slots for job in live.cluster.waiting.values() if job.num != 1)
        while slots <= 4 * num_nodes:
            num += 1
            lasts_s[num] = lasting_s(rng)
            live.scripts |= {num} if rng.random() < part else set()
            live.submit(QueuedJob(num, GangShape(1, rng.randint(1, 3), 1), 50, live.now))
            slots += live.jobs[num].num_slots
        if live.now == sent_at:
            live.submit(QueuedJob(1, gang, 50, live.now, kind="gang"))
        live.step(lasts_s)
        if 1 in live.cluster.held:
            break
        live.go_on(60.0)
    return (live.now - sent_at) / US


@given(st.integers(0, 2**32), st.sampled_from([0.3, 1.0]), st.sampled_from([4, 7, 12]))
@settings(max_examples=6, deadline=None)
def test_among_jobs_that_never_leave_a_gang_waits_for_one_run_of_them_once_it_is_overdue(
    seed: int, part: float, num_nodes: int
) -> None:
    """More work than slots at all times, and all or a part of it are scripts that cannot resume."""
    config = PlannerConfig()
    leaves_s = max(LONGEST_S, config.min_run_s + SAVE_S)
    found = wait_among_scripts(seed, config, part, num_nodes)
    assert found <= config.overdue_after_s + leaves_s + 3 * 60.0


def test_without_the_rule_a_gang_among_jobs_that_never_leave_waits_longer() -> None:
    config = PlannerConfig(num_overdue=0)
    assert wait_among_scripts(0, config, 1.0, 7) > 2 * 3600.0
