"""Elastic jobs: who gets which slot, who gives, and what a restart must be worth."""

from __future__ import annotations

from dataclasses import replace

import pytest

from phalanx.core.gang.placement import GangShape, Node
from phalanx.core.scheduling import Plan, PlanningInput, Project, QueuedJob, RunningJob, plan
from phalanx.core.scheduling.model.scaling import speed
from support import clusters

pytestmark = pytest.mark.unit

US = 1_000_000
HOUR = 3600 * US
STEEP = (1.0, 2.0, 3.0, 4.0)
FLAT = (1.0, 1.1, 1.15, 1.18)


def nodes(num: int = 4, size: int = 1) -> tuple[Node, ...]:
    return clusters.nodes(num, size, rack=num, splittable=size > 1)


def held(
    num: int, where: tuple[int, ...], speeds: tuple[float, ...] = (), most: int = 4
) -> RunningJob:
    slots = dict.fromkeys(where, (0,))
    return clusters.running(num, slots, min_nodes=1, max_nodes=most, speeds=speeds)


def elastic(num: int, speeds: tuple[float, ...] = (), **more: object) -> QueuedJob:
    return clusters.queued(num, 4, 1, **{"min_nodes": 1, "speeds": speeds, **more})


def widths(decided: Plan) -> dict[int, int]:
    found = {one.job: len(one.placement.shares) for one in decided.starts}
    return found | {one.job: len(one.placement.shares) for one in decided.resizes}


def test_two_equal_jobs_share_an_empty_cluster_from_the_start() -> None:
    decided = plan(PlanningInput(nodes(), (), (elastic(1), elastic(2))), HOUR)
    assert widths(decided) == {1: 2, 2: 2}


def test_slots_go_to_whoever_speeds_up_more() -> None:
    decided = plan(PlanningInput(nodes(), (), (elastic(1, FLAT), elastic(2, STEEP))), HOUR)
    assert widths(decided) == {1: 1, 2: 3}


def test_a_newcomer_gets_its_part_from_the_widest() -> None:
    running = (held(8, (0, 1, 2, 3)),)
    decided = plan(PlanningInput(nodes(), running, (elastic(1),)), HOUR)
    assert widths(decided) == {8: 2}
    assert [reservation.job for reservation in decided.reservations] == [1]
    assert decided.preemptions == ()


def test_a_rigid_newcomer_takes_them_down_to_their_least() -> None:
    rigid = QueuedJob(1, GangShape(3, 1, 1), 50, 1)
    decided = plan(PlanningInput(nodes(), (held(8, (0, 1, 2, 3)),), (rigid,)), HOUR)
    assert widths(decided) == {8: 1}


def test_growth_must_be_worth_a_restart() -> None:
    assert widths(plan(PlanningInput(nodes(2), (held(8, (0,), FLAT),), ()), HOUR)) == {}
    assert widths(plan(PlanningInput(nodes(2), (held(8, (0,), STEEP),), ()), HOUR)) == {8: 2}


def test_a_job_above_its_range_shrinks_into_it_and_gives_nothing_more_to_others() -> None:
    """It restarts with a size that it may have, also where a queued job wants one of its nodes."""
    large = replace(held(8, (0, 1, 2, 3), most=2), resized_at=HOUR - US)
    for queue in ((), (QueuedJob(1, GangShape(1, 1, 1), 50, 1),)):
        assert widths(plan(PlanningInput(nodes(), (large,), queue), HOUR)) == {8: 2}
    assert widths(plan(PlanningInput(nodes(), (replace(large, stopping=True),), ()), HOUR)) == {}


def test_a_job_below_its_range_grows_only_into_it() -> None:
    small = replace(held(8, (0,), FLAT), min_nodes=3, resized_at=HOUR - US)
    assert widths(plan(PlanningInput(nodes(3), (small,), ()), HOUR)) == {8: 3}
    assert widths(plan(PlanningInput(nodes(2), (small,), ()), HOUR)) == {}


def test_growth_keeps_within_the_projects_limit() -> None:
    running = (replace(held(8, (0,)), project="a"),)
    within = PlanningInput(nodes(), running, (), (Project("a", max_slots=2),))
    assert widths(plan(within, HOUR)) == {8: 2}
    at_most = PlanningInput(nodes(), running, (), (Project("a", max_slots=1),))
    assert widths(plan(at_most, HOUR)) == {}


def test_a_node_that_may_be_split_takes_several_shares() -> None:
    decided = plan(PlanningInput(nodes(1, 4), (held(8, (0,)),), ()), HOUR)
    assert widths(decided) == {8: 4}
    slots = [slot for share in decided.resizes[0].placement.shares for slot in share.slots]
    assert sorted(slots) == [0, 1, 2, 3]


def test_speeds_are_taken_as_measured_or_supposed() -> None:
    assert speed(STEEP, 3) == 3.0
    assert speed(STEEP, 9) == 4.0
    assert 1.0 < speed((), 2) < 2.0
