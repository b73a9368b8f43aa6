"""A long plan must not delay explanations or the dispatcher."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from phalanx.core.gang.placement import GangShape
from phalanx.core.jobs import events as e
from phalanx.core.jobs.model import JobPolicy, StopGoal
from phalanx.core.scheduling import ClusterIndex, Plan
from phalanx.services.caches import planner_host
from phalanx.services.caches.row_cache import PlanningPolicy
from phalanx.services.caches.scheduler_cache import SchedulerCache
from phalanx.services.lifecycle.commit import commit_events, commit_new
from phalanx.store import open_store
from phalanx.store.database import Store
from phalanx.store.jobs import Finished, JobFacts

pytestmark = pytest.mark.unit

NOW = 1_000_000
FACTS = JobFacts("p", "n", "me", {}, "none", "submit", 50, (), 0, {}, None, None, None)
PATIENCE_S = 20.0


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = open_store(tmp_path / "a.sqlite")
    for num in (1, 2):
        submitted = e.Submitted(num, JobPolicy(GangShape(1, 1, 1)))
        opened.transact(lambda tx, one=submitted: commit_new(tx, one, FACTS, NOW, "user"))
    yield opened
    opened.close()


class LongPlan:
    """A pass that does not end before it is told to."""

    def __init__(self) -> None:
        self.begun, self.may_end = threading.Event(), threading.Event()

    def __call__(self, cluster: ClusterIndex, now: int) -> Plan:
        self.begun.set()
        assert self.may_end.wait(PATIENCE_S)
        return Plan((), ())


def in_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_a_long_plan_delays_neither_explanations_nor_the_dispatcher(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, policy, plan = SchedulerCache(), PlanningPolicy(), LongPlan()
    monkeypatch.setattr(planner_host, "plan_pass", plan)
    view = store.view(lambda tx: cache.view(tx, (), policy, NOW))
    planning = in_thread(lambda: cache.plan(view, NOW))
    assert plan.begun.wait(PATIENCE_S)
    cancelled = e.StopRequested(StopGoal.CANCEL)  # so that there is an end to learn from
    store.transact(lambda tx: commit_events(tx, 1, [cancelled], NOW, "user"))
    explaining = in_thread(lambda: store.view(lambda tx: cache.view(tx, (), policy, NOW)))
    dispatching = in_thread(lambda: store.view(lambda tx: cache.rows.some(tx, [2])))
    for thread in (explaining, dispatching):
        thread.join(PATIENCE_S / 4)
    answered = not explaining.is_alive() and not dispatching.is_alive()
    plan.may_end.set()
    for thread in (planning, explaining, dispatching):
        thread.join(PATIENCE_S)
    assert answered


def test_what_ends_during_a_plan_is_learned_before_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    host, plan = planner_host.PlannerHost(), LongPlan()
    monkeypatch.setattr(planner_host, "plan_pass", plan)
    monkeypatch.setattr(planner_host, "sync", lambda cluster, snapshot: cluster)
    planning = in_thread(lambda: host.plan(None, NOW))  # type: ignore[arg-type]
    assert plan.begun.wait(PATIENCE_S)
    host.note_finished([finished(1)])
    assert host.history.num_observed == 0
    plan.may_end.set()
    planning.join(PATIENCE_S)
    host.plan(None, NOW)  # type: ignore[arg-type]
    assert host.history.num_observed == 1


def test_what_ends_between_plans_is_learned_at_once() -> None:
    host = planner_host.PlannerHost()
    host.note_finished([finished(1), finished(2, state="cancelled")])
    assert host.history.num_observed == 1


def finished(num: int, state: str = "succeeded") -> Finished:
    return Finished(
        num=num,
        state=state,
        project="p",
        owner="me",
        name="n",
        num_slots=2,
        submitted_at=0,
        started_at=NOW,
        ended_at=9 * NOW,
        attained_slot_s=16.0,
    )
