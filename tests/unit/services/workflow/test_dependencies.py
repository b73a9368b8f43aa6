"""Dependencies in the store: settled in the transaction of the start or end that settles them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import func, select

from phalanx.core.contract.access import Scope
from phalanx.core.gang.placement import GangShape, NodeShare, Placement
from phalanx.core.jobs import events as e
from phalanx.core.jobs.dependencies import Dependency, DependencyKind
from phalanx.core.jobs.machine import rebuild
from phalanx.core.jobs.model import JobPolicy, JobState, NodeOutcome, StopGoal
from phalanx.core.tenancy.principals import Caller, Principal
from phalanx.core.tenancy.roles import UserRole
from phalanx.errors import SpecInvalid
from phalanx.schemas.spec.workflow import DependsOn
from phalanx.services.lifecycle.commit import commit_events, commit_new, commit_new_many
from phalanx.services.workflow.dependencies import resolve
from phalanx.store import Store, Tx, events, jobs, open_store
from phalanx.store.tables import job_dependencies
from phalanx.testing.stores import facts

pytestmark = pytest.mark.unit

K, S = DependencyKind, JobState
NOW = 1_000_000
ENDS = (S.SUCCEEDED, S.FAILED, S.CANCELLED)


@pytest.fixture(scope="module")
def one_store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return open_store(tmp_path_factory.mktemp("dependencies") / "a.sqlite")


def add(store: Store, num: int, *waits_for: tuple[int, K]) -> JobState:
    wanted = tuple(Dependency(*one) for one in waits_for)
    submitted = e.Submitted(num, JobPolicy(GangShape(1, 1, 1)), wanted)
    return store.transact(lambda tx: commit_new(tx, submitted, facts(), NOW, "user")).state


def start(tx: Tx, num: int) -> None:
    placed = e.AttemptPlaced(1, Placement("p", (NodeShare("n", "h", (0,)),)))
    commit_events(tx, num, [placed, e.NodeReady(1, 0, 1), e.RanksStarted(1, 0, 0)], NOW, "x")


def end(tx: Tx, num: int, how: JobState) -> None:
    """End a queued job; one that succeeds runs first."""
    if how is S.SUCCEEDED:
        start(tx, num)
        ended = e.RanksEnded(1, 0, 0, NodeOutcome.SUCCEEDED, 1)
        commit_events(tx, num, [ended, e.NodeReleased(1, 0)], NOW, "x")
        return
    goal = StopGoal.CANCEL if how is S.CANCELLED else StopGoal.FAIL
    commit_events(tx, num, [e.StopRequested(goal)], NOW, "x")


def state(store: Store, num: int) -> JobState:
    return store.view(lambda tx: jobs.load(tx, num)).job.state


def num_rows(store: Store) -> int:
    query = select(func.count()).select_from(job_dependencies)
    return int(store.view(lambda tx: tx.conn.execute(query).scalar_one()))


def test_a_failure_ends_the_whole_chain_behind_it(tmp_path: Path) -> None:
    store = open_store(tmp_path / "a.sqlite")
    last = 400  # deeper than Python's limit on recursion, with three frames for each
    terms = JobPolicy(GangShape(1, 1, 1))
    chain = [e.Submitted(1, terms)]
    for num in range(2, last + 1):
        chain.append(e.Submitted(num, terms, (Dependency(num - 1, K.AFTEROK),)))
    fresh = [(one, facts()) for one in chain]
    store.transact(lambda tx: commit_new_many(tx, fresh, NOW, "user"))
    store.transact(lambda tx: end(tx, 1, S.FAILED))
    assert {state(store, num) for num in (2, 200, last)} == {S.CANCELLED}
    assert num_rows(store) == 0


def test_what_has_happened_before_the_submit_counts(tmp_path: Path) -> None:
    store = open_store(tmp_path / "a.sqlite")
    for num in (1, 2, 3):
        add(store, num)
    store.transact(lambda tx: end(tx, 1, S.SUCCEEDED))
    store.transact(lambda tx: end(tx, 2, S.FAILED))
    store.transact(lambda tx: start(tx, 3))
    assert add(store, 4, (1, K.AFTEROK), (2, K.AFTERNOTOK), (3, K.AFTER)) is S.QUEUED
    assert add(store, 5, (2, K.AFTEROK)) is S.CANCELLED
    assert add(store, 6, (3, K.AFTERANY), (1, K.AFTERANY)) is S.WAITING
    assert num_rows(store) == 1


def test_a_crash_before_the_commit_leaves_both_jobs_as_they_were(tmp_path: Path) -> None:
    store = open_store(tmp_path / "a.sqlite")
    add(store, 1)
    add(store, 2, (1, K.AFTERANY))

    def dies(tx: Tx) -> None:
        end(tx, 1, S.FAILED)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.transact(dies)
    assert (state(store, 1), state(store, 2), num_rows(store)) == (S.QUEUED, S.WAITING, 1)
    store.transact(lambda tx: end(tx, 1, S.FAILED))
    assert state(store, 2) is S.QUEUED


def test_a_job_depends_on_jobs_that_its_user_may_read_and_on_known_names(tmp_path: Path) -> None:
    store = open_store(tmp_path / "a.sqlite")
    for num in (3, 4):
        add(store, num)
    wanted = DependsOn(afterok=["j-3", "j-4", "prepare", "other"])

    def refused(by: Caller | None) -> list[str | None]:
        with pytest.raises(SpecInvalid) as caught:
            store.transact(lambda tx: resolve(tx, wanted, 4, {"prepare": [5]}, by))
        return [one.value for one in caught.value.problems]

    assert refused(None) == ["j-4", "other"]
    eve = Principal("user:eve", {"other": UserRole.ADMIN})
    stranger = Caller("t", (Scope.ADMIN,), eve)
    assert refused(stranger) == ["j-3", "j-4", "other"]


def test_a_dependency_on_a_job_that_is_not_there_is_refused(tmp_path: Path) -> None:
    store = open_store(tmp_path / "a.sqlite")
    with pytest.raises(SpecInvalid):
        add(store, 2, (1, K.AFTEROK))
    assert store.view(lambda tx: jobs.find(tx, 2)) is None


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_any_order_of_ends_leads_where_the_definition_says(
    one_store: Store, data: st.DataObject
) -> None:
    """Jobs form a random graph and end in a random order; the model below knows no order."""
    count = data.draw(st.integers(2, 7))
    graph: dict[int, list[tuple[int, K]]] = {}
    for num in range(1, count + 1):
        pairs = st.tuples(st.integers(1, num - 1), st.sampled_from(list(K)))
        graph[num] = data.draw(st.lists(pairs, max_size=3, unique=True)) if num > 1 else []
    ends = {num: data.draw(st.sampled_from(ENDS)) for num in graph}
    final: dict[int, JobState] = {}
    for num, waits_for in graph.items():
        met = [Dependency(*one).is_met(succeeded=final[one[0]] is S.SUCCEEDED) for one in waits_for]
        final[num] = ends[num] if all(met) else S.CANCELLED

    def life(tx: Tx) -> None:
        base = jobs.new_num(tx, count) - 1

        def state_of(num: int) -> JobState:
            return jobs.load(tx, base + num).job.state

        for num, waits_for in graph.items():
            wanted = tuple(Dependency(base + other, kind) for other, kind in waits_for)
            submitted = e.Submitted(base + num, JobPolicy(GangShape(1, 1, 1)), wanted)
            commit_new(tx, submitted, facts(), NOW, "user")
        while ready := [num for num in graph if state_of(num) is S.QUEUED]:
            num = data.draw(st.sampled_from(ready))
            end(tx, base + num, ends[num])
        assert {num: state_of(num) for num in graph} == final
        assert tx.conn.execute(select(func.count()).select_from(job_dependencies)).scalar() == 0
        for num in graph:
            assert rebuild(events.machine_log(tx, base + num)) == jobs.load(tx, base + num).job

    one_store.transact(life)
