"""One day, replayed through the simulator and through the services: both decide the same.

The simulator is the clock, the executor and the supervisors of both sides. Its job events go into a real
store; the events of the scheduler (starts and requests to stop) do not: at every pass the services plan
from that store and apply their own plan. The first pass that differs ends the replay.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from phalanx.core.gang.placement import Demand
from phalanx.core.jobs import events as e
from phalanx.core.jobs.model import Job
from phalanx.core.scheduling import ClusterIndex, Plan, PlannerConfig, plan_pass
from phalanx.schemas.home import HomeLayout
from phalanx.schemas.pools.project_file import ProjectSpec, UserQuotaSpec, quotas_to_core
from phalanx.services.caches.row_cache import PlanningPolicy, SchedulerView
from phalanx.services.lifecycle.commit import commit_events, commit_new
from phalanx.services.planning.scheduling import scheduling_step
from phalanx.services.platform import Platform
from phalanx.services.resources.projects import apply_projects
from phalanx.sim.cluster import engine
from phalanx.sim.cluster.lifecycles import JobLifecycles
from phalanx.sim.costs import Costs
from phalanx.sim.jobs import US, TraceJob, gang_of
from phalanx.sim.model import Oracle, SimulationSetup
from phalanx.sim.workload import generated, traces
from phalanx.store import lineage, open_store
from phalanx.store.database import Tx
from phalanx.store.jobs import JobFacts
from phalanx.testing.executors import FakeExecutor

pytestmark = pytest.mark.integration

NODES = traces.grid_nodes(12, 8, 4)
HALF_LIFE_S = 4 * 3600.0
#: No job counts as large: the simulator learns waits at starts, the services when jobs have ended.
CONFIG = PlannerConfig(large_job_slots=1000)
PROJECTS = {
    "schema": 1,
    "projects": [
        {"name": "lab", "guaranteed_slots": 40, "max_slots": 88},
        {"name": "team-0", "parent": "lab", "guaranteed_slots": 24},
        {"name": "team-1", "parent": "lab", "max_slots": 32, "weight": 2.0},
        {"name": "team-2", "max_running": 4},
        {"name": "team-3", "guaranteed_slots": 16, "lend_slots": 8},
    ],
}


USERS = ("ada", "bob", "eve")
WITH_USERS = {
    **PROJECTS,
    "users": {"default": {"max_slots": 40}, "eve": {"max_running": 2}},
    "projects": [
        {**one, "users": {"default": {"max_slots": 32}}} if one["name"] == "lab" else one
        for one in PROJECTS["projects"]  # type: ignore[attr-defined]
    ],
}


def day() -> list[TraceJob]:
    """A busy day: 200 jobs and more of four projects, gangs, priorities, preferred and required racks.

    Jobs are submitted on the grid of the passes: both sides then estimate patience from the same history.
    """
    rng = random.Random(11)
    jobs = []
    for job in generated.training(230, 120.0, seed=11):
        if job.num_slots > 32:
            continue  # more than team-1 may hold
        nodes = rng.choices([0, 2, 3, 4], [0.7, 0.15, 0.1, 0.05])[0]
        level, patience_s = rng.choice(
            [(None, None), (None, None), ("rack", 900.0), ("none", None)]
        )
        user = USERS[job.num % len(USERS)]
        jobs.append(
            replace(
                job,
                submit_s=60.0 * (job.submit_s * 86_400.0 / 500_000.0 // 60.0),
                duration_s=min(job.duration_s / 4, 20_000.0) + 17.0,
                shape=gang_of(8 * nodes, 8) if nodes else job.shape,
                kind=f"{user}/{job.kind}",
                user=user,
                priority=rng.choice([30, 50, 50, 50, 70]),
                sensitivity=0.0,
                checkpoint_s=0.0,
                preferred=level,
                patience_s=patience_s,
                required="rack" if level == "none" and nodes == 2 else None,
            )
        )
    return jobs


class Disagreement(AssertionError):
    """The two sides decided differently at one pass."""


@dataclass
class Services:
    """The services on a store of their own, which hears of the simulated jobs."""

    platform: Platform
    change: dict[str, object] = field(default_factory=dict)  # fields of `Demand` that differ here
    waiting: list[tuple[int, e.JobEvent | tuple[TraceJob, Job], int]] = field(default_factory=list)
    planned: Plan = field(default_factory=lambda: Plan((), ()))

    def step(self, now: int) -> Plan:
        """Store what has happened, run one scheduling step, and return its plan."""
        self.platform.store.transact(self._catch_up)
        self.waiting.clear()
        self.planned = Plan((), ())
        done = scheduling_step(self.platform, now)
        assert not done.refused
        assert done.started == tuple(start.job for start in self.planned.starts)
        assert done.evicted == tuple(one.job for one in _in_order(self.planned))
        return self.planned

    def _catch_up(self, tx: Tx) -> None:
        for num, told, at in self.waiting:
            if isinstance(told, tuple):
                self._submit(tx, *told, at)
            else:
                commit_events(tx, num, [told], at, "supervisor")

    def _submit(self, tx: Tx, traced: TraceJob, job: Job, at: int) -> None:
        demand = Demand(
            required=traced.required, preferred=traced.preferred, patience_s=traced.patience_s
        )
        owner, _, name = traced.kind.partition("/")
        facts = JobFacts(
            traced.project,
            name,
            owner,
            {},
            "none",
            "submit",
            traced.priority,
            (),
            0,
            {},
            code_digest=None,
            caller_cwd=None,
            caller_env=None,
            demand=replace(demand, **self.change),  # type: ignore[arg-type]
        )
        commit_new(tx, e.Submitted(job.num, job.policy), facts, at, "user")
        # Its script saves on request, as every job of the simulator does.
        lineage.add_restore(
            tx, (job.num, 1, 0), {"step": 0, "epoch": 0, "position": 0, "exact": True, "at": at}
        )


def _in_order(plan: Plan) -> list[object]:
    """The preemptions of a plan in the order in which the services apply them."""
    evictions = {one.job: one for one in plan.preemptions}
    return [evictions[num] for one in plan.reservations for num in one.victims if num in evictions]


class BothSides:
    """A policy that plans in the simulator and lets the services plan the same pass."""

    name = engine.PLANNER

    def __init__(self, services: Services) -> None:
        self.services = services
        self.decided = {"starts": 0, "evictions": 0, "reservations": 0}

    def plan(self, cluster: ClusterIndex, now: int, oracle: Oracle) -> Plan:
        """Plan on both sides. Raises Disagreement at a difference."""
        mine = plan_pass(cluster, now)
        theirs = self.services.step(now)
        if decisions(mine) != decisions(theirs):
            raise Disagreement(f"{now}: {decisions(mine)} and {decisions(theirs)}")
        for made, kind in zip(decisions(mine), self.decided, strict=True):
            self.decided[kind] += len(made)
        return mine


def decisions(plan: Plan) -> tuple[Sequence[object], ...]:
    """Starts, evictions and reservations of a plan."""
    starts = [(one.job, one.placement) for one in plan.starts]
    evicted = [(one.job, one.beneficiary, round(one.price_slot_s, 3)) for one in plan.preemptions]
    kept = [(one.job, one.nodes, one.victims) for one in plan.reservations]
    return starts, evicted, kept


@contextmanager
def services_on(path: Path, policy: PlanningPolicy, projects: object) -> Iterator[Services]:
    """The services on a new store, with the projects applied."""
    store = open_store(path / "phalanx.sqlite")
    platform = Platform(
        store,
        FakeExecutor(tuple(NODES)),
        HomeLayout(path),
        "http://127.0.0.1:1",
        b"key",
        policy=policy,
    )
    services = Services(platform)
    plan = platform.scheduler_cache.plan

    def noted(view: SchedulerView, now: int) -> Plan:
        services.planned = plan(view, now)
        return services.planned

    platform.scheduler_cache.plan = noted  # type: ignore[method-assign]
    apply_projects(platform, projects, 0, "user")  # type: ignore[arg-type]
    try:
        yield services
    finally:
        store.close()


def replay(
    services: Services,
    monkeypatch: pytest.MonkeyPatch,
    num_jobs: int | None = None,
    file: dict[str, object] = PROJECTS,
) -> BothSides:
    """Replay the day, or its first jobs, through both sides."""

    class Told(JobLifecycles):
        """Lifecycles whose events the services hear, apart from those of the scheduler."""

        def submitted(self, job: TraceJob, at_s: float) -> None:
            super().submitted(job, at_s)
            services.waiting.append((job.num, (job, self.jobs[job.num]), int(at_s * US)))

        def tell(self, num: int, event: e.JobEvent, at_s: float) -> Job:
            if not isinstance(event, e.AttemptPlaced | e.StopRequested):
                services.waiting.append((num, event, int(at_s * US)))
            return super().tell(num, event, at_s)

    monkeypatch.setattr(engine, "JobLifecycles", Told)
    specs = [ProjectSpec(**one) for one in file["projects"]]  # type: ignore[attr-defined]
    users = {name: UserQuotaSpec(**one) for name, one in file.get("users", {}).items()}  # type: ignore[attr-defined]
    setup = SimulationSetup(
        NODES,
        [one.to_core() for one in specs],
        CONFIG,
        Costs(slowdown=False),
        half_life_s=HALF_LIFE_S,
        users=quotas_to_core(users),
    )
    both = BothSides(services)
    result = engine.simulate(day()[:num_jobs], setup, both)
    assert all(run.end_s is not None for run in result.runs.values())
    return both


def changed(name: str, **change: object) -> dict[str, object]:
    """The project file with one project changed."""
    projects = [{**one, **change} if one["name"] == name else one for one in PROJECTS["projects"]]
    return {**PROJECTS, "projects": projects}


@pytest.mark.parametrize(
    ("num_jobs", "least"), [(60, 5), pytest.param(None, 20, marks=pytest.mark.extras)]
)
def test_a_day_is_decided_the_same_in_the_simulator_and_in_the_services(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_jobs: int | None, least: int
) -> None:
    policy = PlanningPolicy(CONFIG, HALF_LIFE_S)
    with services_on(tmp_path, policy, PROJECTS) as services:
        both = replay(services, monkeypatch, num_jobs)
    assert both.decided["starts"] >= (num_jobs or 200)
    assert min(both.decided.values()) > least, both.decided


@pytest.mark.parametrize(
    ("change", "policy", "projects"),
    [
        pytest.param({"preferred": "none"}, {}, PROJECTS, marks=pytest.mark.extras),
        pytest.param({"patience_s": 60.0}, {}, PROJECTS, marks=pytest.mark.extras),
        ({}, {}, changed("team-1", max_slots=40)),
        ({}, {}, changed("team-2", max_running=5)),
        pytest.param({}, {"half_life_s": 60.0}, PROJECTS, marks=pytest.mark.extras),
        ({}, {"config": replace(CONFIG, num_reservations=0)}, PROJECTS),
    ],
    ids=["preference", "patience", "quota", "running", "decay", "reservations"],
)
def test_one_setting_that_differs_on_one_side_is_seen(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: dict[str, object],
    policy: dict[str, object],
    projects: object,
) -> None:
    settings = {"config": CONFIG, "half_life_s": HALF_LIFE_S, **policy}
    with services_on(tmp_path, PlanningPolicy(**settings), projects) as services:  # type: ignore[arg-type]
        services.change.update(change)
        with pytest.raises(Disagreement):
            replay(services, monkeypatch)


def test_quotas_of_users_are_decided_the_same_and_a_difference_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = PlanningPolicy(CONFIG, HALF_LIFE_S)
    with services_on(tmp_path / "same", policy, WITH_USERS) as services:
        both = replay(services, monkeypatch, 60, WITH_USERS)
    assert both.decided["starts"] >= 60
    other = {**WITH_USERS, "users": {"default": {"max_slots": 40}, "eve": {"max_running": 3}}}
    with services_on(tmp_path / "other", policy, other) as services, pytest.raises(Disagreement):
        replay(services, monkeypatch, None, WITH_USERS)
