"""The comparison of a pool that grows with a fixed one, on a small day."""

from __future__ import annotations

from collections import Counter

import pytest
from bench.scheduler import autoscaling
from bench.scheduler.autoscaling import Autoscaler, Figures, Row, Times, choose, day, new_nodes, run

from phalanx.core.scaling.model import NodeWish, PoolDemand, WantedGang

pytestmark = pytest.mark.unit
SECOND = 1_000_000


def test_a_growing_pool_ends_the_same_jobs_with_fewer_node_hours() -> None:
    jobs = day(1, 2, 0.2)
    fixed = run(jobs, 2, None, Times())
    scaled = run(jobs, 2, autoscaling.settings(2)["default"], Times())
    assert len(fixed.waits_s) == len(scaled.waits_s) == len(jobs)
    assert fixed.node_h >= 2 * 20
    assert scaled.node_h < 0.8 * fixed.node_h
    assert scaled.node_h * 8 >= scaled.held_h
    assert scaled.decisions["asked"] and scaled.decisions["released"]
    assert run(jobs, 2, autoscaling.settings(2)["default"], Times()) == scaled


def test_days_depend_on_their_seed_and_tuning_and_judging_share_none() -> None:
    assert day(3, 2, 0.2) == day(3, 2, 0.2) != day(4, 2, 0.2)
    assert not set(autoscaling.TUNING_SEEDS) & set(autoscaling.JUDGING_SEEDS)
    assert autoscaling.CHOSEN in autoscaling.settings(16)


def test_nodes_are_started_for_what_does_not_fit_and_each_share_has_its_own() -> None:
    small, whole = NodeWish(2), NodeWish(8)
    assert new_nodes([[small], [small]], [4]) == 0
    assert new_nodes([[small], [small], [small]], [4]) == 1
    assert new_nodes([[small, small]], [8]) == 1
    assert new_nodes([[whole] * 3], [8]) == 2
    one = Autoscaler(10 * SECOND, 5 * SECOND)
    demand = PoolDemand((WantedGang(1, (whole, whole), 2),))
    one.follow(demand, [], 0)
    one.follow(demand, [], SECOND)  # they start already
    assert one.arrived(9 * SECOND) == 0
    assert one.arrived(10 * SECOND) == 2


def test_a_node_goes_after_its_time_and_a_kept_one_stays() -> None:
    one = Autoscaler(0, 5 * SECOND)
    assert one.gone({"a", "b"}, ["b"], 0) == []
    assert one.gone({"b"}, ["b"], 3 * SECOND) == []  # a has a job again
    assert one.gone({"a", "b"}, ["b"], 4 * SECOND) == []
    assert one.gone({"a", "b"}, ["b"], 9 * SECOND) == ["a"]


def test_the_choice_is_the_cheapest_that_does_not_wait_too_long() -> None:
    def row(name: str, node_h: float, wait_s: float) -> Row:
        return Row.of(name, [Figures(node_h, (wait_s,), 1.0, Counter())])

    rows = {one.name: one for one in (row("fixed", 9, 10), row("a", 5, 90), row("b", 6, 40))}
    assert choose(rows, 100) == "a"
    assert choose(rows, 50) == "b"
    assert choose(rows, 5) is None
