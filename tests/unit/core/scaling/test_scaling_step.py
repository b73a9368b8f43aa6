"""What a pool asks for and gives back, turn by turn, against a small autoscaler."""

from __future__ import annotations

from dataclasses import replace

import pytest

from phalanx.core.cost.prices import NANO
from phalanx.core.scaling.limits import DAY_US
from phalanx.core.scaling.model import FLOOR, DecisionKind
from phalanx.core.scheduling import Project
from support.scaled_pool import US, ScaledPool, policy

pytestmark = pytest.mark.unit


def turns(pool: ScaledPool, number: int) -> None:
    for _ in range(number):
        pool.turn()


def test_nodes_that_are_not_ready_yet_are_waited_for() -> None:
    pool = ScaledPool(boots_s=60)
    pool.turn()
    pool.submit(1, nodes=8)
    turns(pool, 8)
    assert len(pool.nodes) == 8
    assert [len(gang.nodes) for gang in pool.steps[-1].demand.gangs] == [8]
    turns(pool, 14)
    assert set(pool.running) == {1}
    assert pool.decisions() == ["asked", "met"]


def test_a_gang_gets_all_of_its_nodes_and_starts() -> None:
    pool = ScaledPool()
    pool.submit(1, nodes=3)
    step = pool.turn()
    (gang,) = step.demand.gangs
    assert (gang.job, len(gang.nodes), gang.num_new) == (1, 3, 3)
    turns(pool, 8)
    assert set(pool.running) == {1}
    assert pool.steps[-1].demand.gangs == ()
    assert pool.decisions() == ["asked", "met"]


def test_present_nodes_are_part_of_the_gang_that_is_asked_for() -> None:
    pool = ScaledPool()
    pool.add_nodes(1)
    pool.submit(1, nodes=3)
    (gang,) = pool.turn().demand.gangs
    assert (len(gang.nodes), gang.num_new) == (3, 2)


def test_nothing_is_asked_for_beyond_the_bound() -> None:
    pool = ScaledPool(policy(max_nodes=4))
    pool.submit(1, nodes=3)
    pool.submit(2, nodes=2)
    pool.submit(3, nodes=1)
    step = pool.turn()
    assert [gang.job for gang in step.demand.gangs] == [1, 3]


def test_nothing_is_bought_for_a_job_that_a_quota_keeps_waiting() -> None:
    pool = ScaledPool(projects=(Project("lab", max_slots=4), Project("free")))
    pool.submit(1, nodes=1, project="lab")
    pool.submit(2, nodes=1, project="lab")
    pool.submit(3, nodes=1, project="free")
    assert sorted(gang.job for gang in pool.turn().demand.gangs) == [1, 3]


def test_a_budget_of_an_hour_bounds_the_nodes_and_the_reason_is_told_once() -> None:
    pool = ScaledPool(policy(hourly_nano=9 * NANO))
    pool.submit(1, nodes=1)
    pool.submit(2, nodes=3)
    step = pool.turn()
    assert [gang.job for gang in step.demand.gangs] == [1]
    told = [one for one in step.decisions if one.kind is DecisionKind.LIMITED]
    assert [one.jobs for one in told] == [(2,)]
    assert "9.00 USD an hour" in told[0].text
    turns(pool, 4)
    assert pool.decisions().count("limited") == 1


def test_a_budget_needs_a_price() -> None:
    pool = ScaledPool(policy(daily_nano=9 * NANO), price_nano=0)
    pool.submit(1, nodes=1)
    step = pool.turn()
    assert step.demand.gangs == ()
    assert "no price" in step.decisions[0].text


def test_a_spent_day_ends_growth_until_midnight() -> None:
    pool = ScaledPool(policy(daily_nano=9 * NANO))
    pool.state = replace(pool.state, counted_at=pool.now, spent_nano=6 * NANO)
    pool.submit(1, nodes=1)
    assert pool.turn().demand.gangs == ()
    pool.now = DAY_US
    assert [gang.job for gang in pool.turn().demand.gangs] == [1]


def test_a_request_that_gets_no_nodes_fails_and_waits_longer_each_time() -> None:
    pool = ScaledPool(gives=0.0)
    pool.submit(1, nodes=2)
    turns(pool, 720)  # an hour
    failed = [one for one in pool.steps if "failed" in [d.kind.value for d in one.decisions]]
    # 2 minutes until it fails, then 2, 4, 8, 16 minutes of back-off.
    assert len(failed) == 5
    assert [one.failed[0].job for one in failed] == [1] * 5
    assert all(gang.job == 1 for one in pool.steps for gang in one.demand.gangs)


def test_half_a_gang_of_nodes_starts_nothing_and_is_given_back() -> None:
    pool = ScaledPool(gives=0.5)
    pool.submit(1, nodes=4)
    turns(pool, 20)
    assert len(pool.nodes) == 2
    assert pool.running == {}
    assert [len(gang.nodes) for gang in pool.steps[-1].demand.gangs] == [4]
    turns(pool, 10)
    assert "failed" in pool.decisions()
    assert pool.steps[-1].demand.gangs == ()
    turns(pool, 20)
    assert pool.nodes == []


def test_other_gangs_go_on_while_one_has_failed() -> None:
    pool = ScaledPool(delay_s=100)
    pool.submit(1, nodes=6)
    pool.turn()
    pool.given[1, pool.now] = 0  # it gets none
    turns(pool, 10)
    pool.submit(2, nodes=1)
    turns(pool, 16)
    assert "failed" in pool.decisions()
    assert [gang.job for gang in pool.steps[-1].demand.gangs] == [2]
    turns(pool, 12)
    assert set(pool.running) == {2}


def test_a_smaller_gang_is_asked_for_while_a_large_one_waits_after_a_failure() -> None:
    pool = ScaledPool()
    pool.submit(1, nodes=8)
    pool.turn()
    pool.given[1, pool.now] = 0
    turns(pool, 25)
    assert [one.job for one in pool.state.failed] == [1]
    pool.submit(2, nodes=1)
    assert [gang.job for gang in pool.turn().demand.gangs] == [2]


def test_a_cancelled_gang_is_withdrawn_at_once() -> None:
    pool = ScaledPool()
    pool.submit(1, nodes=2)
    pool.turn()
    pool.cancel(1)
    assert pool.turn().demand.gangs == ()
    assert pool.decisions() == ["asked", "withdrawn"]


def test_new_requests_wait_for_the_cool_down() -> None:
    pool = ScaledPool(policy(cool_down_up_us=60 * US), delay_s=300)
    pool.submit(1, nodes=1)
    pool.turn()
    pool.submit(2, nodes=1)
    assert [gang.job for gang in pool.turn(20).demand.gangs] == [1]
    assert [gang.job for gang in pool.turn(40).demand.gangs] == [1, 2]


def test_the_least_number_of_nodes_is_asked_for_and_kept() -> None:
    pool = ScaledPool(policy(min_nodes=2))
    (gang,) = pool.turn().demand.gangs
    assert (gang.job, gang.num_new) == (FLOOR, 2)
    turns(pool, 60)
    assert len(pool.nodes) == 2
    assert sorted(pool.steps[-1].demand.keep) == [node.id for node in pool.nodes]
    assert "released" not in pool.decisions()


def test_nodes_without_jobs_are_kept_for_a_while_and_then_released() -> None:
    pool = ScaledPool(removes_idle=False)
    pool.add_nodes(3)
    pool.submit(1, nodes=1, lasts_s=10_000)
    pool.turn()
    assert len(pool.steps[-1].demand.keep) == 2
    turns(pool, 13)
    assert len(pool.state.released) == 2
    assert pool.steps[-1].demand.keep == ()
    assert pool.decisions() == ["released"]
    pool.submit(2, nodes=1)
    pool.turn()
    assert len(pool.state.released) == 1


def test_a_pool_above_a_new_limit_drains_what_loses_nothing() -> None:
    pool = ScaledPool(removes_idle=False)
    pool.add_nodes(4)
    for num in (1, 2, 3):
        pool.submit(num, nodes=1, lasts_s=10_000)
    pool.turn()
    on = {job.placement.shares[0].node: num for num, job in pool.running.items()}
    (idle,) = {node.id for node in pool.nodes} - on.keys()
    pool.running[1] = replace(pool.running[1], save_s=None)
    pool.running[2] = replace(pool.running[2], preemptible=False)
    pool.policy = replace(pool.policy, max_nodes=1)
    step = pool.turn()
    assert pool.state.released == (idle,)
    assert [on[name] for name in step.drain] == [3]
    turns(pool, 5)
    assert "kept" in pool.decisions()
    assert set(pool.running) == {1, 2}
    pool.policy = replace(pool.policy, max_nodes=8)
    turns(pool, 2)
    assert pool.state.leaving == ()
    assert set(pool.running) == {1, 2, 3}


def test_the_least_number_is_never_undercut_by_a_limit_of_money() -> None:
    pool = ScaledPool(policy(min_nodes=2), removes_idle=False)
    pool.add_nodes(4)
    pool.turn()
    pool.policy = replace(pool.policy, hourly_nano=4 * NANO)
    turns(pool, 40)
    assert len(pool.state.released) == 2
