"""The throttle of an array: turns pass from elements that end to those that wait, in order."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import func, select

from phalanx.core.gang.placement import GangShape
from phalanx.core.jobs import events as e
from phalanx.core.jobs.machine import rebuild
from phalanx.core.jobs.model import TERMINAL, JobPolicy, JobState, StopGoal
from phalanx.services.lifecycle.commit import commit_events, commit_many, commit_new_many
from phalanx.store import Store, Tx, events, jobs, open_store
from phalanx.store.tables import array_turns
from phalanx.testing.stores import facts

pytestmark = pytest.mark.unit

S = JobState
NOW = 1_000_000


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return open_store(tmp_path_factory.mktemp("arrays") / "a.sqlite")


def add(tx: Tx, count: int, parallel: int) -> list[int]:
    first = jobs.new_num(tx, count)
    policy = JobPolicy(GangShape(1, 1, 1))
    fresh = [
        (
            e.Submitted(first + at, policy, waits_turn=at >= parallel),
            facts(array=first, array_index=at),
        )
        for at in range(count)
    ]
    return [job.num for job in commit_new_many(tx, fresh, NOW, "user")]


def states(tx: Tx, nums: list[int]) -> list[JobState]:
    return [jobs.load(tx, num).job.state for num in nums]


def stop(tx: Tx, num: int, goal: StopGoal) -> None:
    commit_events(tx, num, [e.StopRequested(goal)], NOW, "x")


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_no_more_than_the_throttle_are_under_way_and_all_have_their_turn(
    store: Store, data: st.DataObject
) -> None:
    count, parallel = data.draw(st.integers(1, 7)), data.draw(st.integers(1, 4))

    def life(tx: Tx) -> None:
        nums = add(tx, count, parallel)
        while live := [num for num in nums if not jobs.load(tx, num).job.is_terminal]:
            found = states(tx, nums)
            under_way = sum(one not in (S.WAITING, *TERMINAL) for one in found)
            assert under_way == min(parallel, len(live))
            num = data.draw(st.sampled_from(live))
            goal = data.draw(st.sampled_from([StopGoal.CANCEL, StopGoal.FAIL]))
            stop(tx, num, goal)
        assert tx.conn.execute(select(func.count()).select_from(array_turns)).scalar() == 0
        for num in nums:
            assert rebuild(events.machine_log(tx, num)) == jobs.load(tx, num).job

    store.transact(life)


def test_a_whole_array_that_is_cancelled_at_once_starts_nothing(store: Store) -> None:
    def life(tx: Tx) -> None:
        nums = add(tx, 6, 2)
        cancel = [e.StopRequested(StopGoal.CANCEL)]
        commit_many(tx, [(num, cancel) for num in nums], NOW, "x")
        assert set(states(tx, nums)) == {S.CANCELLED}
        for num in nums:
            assert all(one.kind != "turn_came" for one in events.of_job(tx, num, limit=9))

    store.transact(life)


def test_a_paused_element_keeps_its_turn(store: Store) -> None:
    def life(tx: Tx) -> None:
        first, second, third = add(tx, 3, 1)
        stop(tx, first, StopGoal.PAUSE)
        stop(tx, second, StopGoal.PAUSE)
        assert states(tx, [first, second, third]) == [S.PAUSED, S.PAUSED, S.WAITING]
        commit_events(tx, second, [e.Resumed()], NOW, "x")
        assert states(tx, [second]) == [S.WAITING]
        stop(tx, first, StopGoal.CANCEL)
        assert states(tx, [second, third]) == [S.QUEUED, S.WAITING]

    store.transact(life)
