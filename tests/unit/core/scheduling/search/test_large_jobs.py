"""A few heroes hold everything and small jobs wait: when one of them has to make room."""

from __future__ import annotations

from dataclasses import replace

import pytest

from phalanx.core.gang.placement import GangShape
from phalanx.core.scheduling import (
    PlannerConfig,
    PlanningInput,
    Project,
    QueuedJob,
    RunningJob,
    plan,
)
from phalanx.core.scheduling.model.durations import History, KindKey, size_class
from support.clusters import nodes, running

pytestmark = pytest.mark.unit

US = 1_000_000
HOUR = 3600 * US
FULL = (0, 1, 2, 3)
# Two nodes are a hero, one is not.
TERMS = PlannerConfig(large_job_slots=4, large_job_fraction=0.1, min_run_s=300.0)
NODES = nodes(6, rack=6)


def large_job(num: int, *where: int, **more: object) -> RunningJob:
    facts = {"attained_slot_s": 1e7, "save_s": 30.0, "restart_s": 60.0, **more}
    return running(num, dict.fromkeys(where, FULL), **facts)


def small(num: int, at: int, slots: int = 1, **more: object) -> QueuedJob:
    return QueuedJob(num, GangShape(1, slots, slots), 50, at, **more)  # type: ignore[arg-type]


def evicted(cluster: PlanningInput, now: int) -> list[int]:
    return [one.job for one in plan(cluster, now).preemptions]


FULL_HOUSE = (large_job(1, 0, 1, 2, 3), large_job(2, 4, 5))
# Stopping job 2 puts its eight slots off for 390 s.
DUE_S = 8 * 390.0


def test_one_hero_leaves_once_the_small_jobs_have_waited_for_as_long() -> None:
    since = 10 * HOUR
    waiting = tuple(small(10 + n, since) for n in range(10))
    asked = PlanningInput(NODES, FULL_HOUSE, waiting, config=TERMS)
    assert evicted(asked, since + int((DUE_S / 10 - 1) * US)) == []
    # The cheaper of the two, and only one: what it leaves is enough for everybody.
    assert evicted(asked, since + int((DUE_S / 10 + 1) * US)) == [2]


def test_the_usual_wait_of_its_size_counts_for_the_hero() -> None:
    since, history = 10 * HOUR, History()
    history.requeue_s[size_class(8)] = 3600.0
    history.requeue_s[size_class(16)] = 3600.0
    waiting = tuple(small(10 + n, since) for n in range(10))
    asked = PlanningInput(NODES, FULL_HOUSE, waiting, config=TERMS, history=history)
    assert evicted(asked, since + int((DUE_S / 10 + 1) * US)) == []
    assert evicted(asked, since + int((8 * 3990.0 / 10 + 1) * US)) == [2]


def test_while_one_leaves_no_other_does() -> None:
    since = 10 * HOUR
    waiting = tuple(small(10 + n, since) for n in range(10))
    leaving = (FULL_HOUSE[0], replace(FULL_HOUSE[1], stopping=True))
    assert evicted(PlanningInput(NODES, leaving, waiting, config=TERMS), since + HOUR) == []


def test_waits_are_not_paid_by_other_priorities_or_projects() -> None:
    since, now = 10 * HOUR, 11 * HOUR
    mine = small(10, since + HOUR - US)
    others = tuple(replace(small(20 + n, since), priority=40) for n in range(50))
    assert evicted(PlanningInput(NODES, FULL_HOUSE, (mine, *others), config=TERMS), now) == []
    projects = (Project("a"), Project("b"))
    theirs = tuple(small(10 + n, since, project="b") for n in range(50))
    held = tuple(replace(one, project="a") for one in FULL_HOUSE)
    assert evicted(PlanningInput(NODES, held, theirs, projects, config=TERMS), now) == []


def test_heroes_make_no_room_for_heroes() -> None:
    gang = QueuedJob(10, GangShape(2, 4, 4), 50, 10 * HOUR)
    assert evicted(PlanningInput(NODES, FULL_HOUSE, (gang,), config=TERMS), 40 * HOUR) == []


def test_heroes_make_no_room_for_less_urgent_jobs() -> None:
    since, now = 10 * HOUR, 40 * HOUR
    worn = tuple(small(10 + n, since, attained_slot_s=1e9) for n in range(10))
    assert evicted(PlanningInput(NODES, FULL_HOUSE, worn, config=TERMS), now) == []


def test_where_peers_are_never_put_aside_heroes_are_not_either() -> None:
    config = replace(TERMS, hysteresis=float("inf"))
    waiting = tuple(small(10 + n, 0) for n in range(100))
    assert evicted(PlanningInput(NODES, FULL_HOUSE, waiting, config=config), 40 * HOUR) == []


def test_a_hero_that_made_room_returns_before_heroes_that_have_not_run() -> None:
    nodes, since, now = NODES[:2], 10 * HOUR, 30 * HOUR
    left = QueuedJob(1, GangShape(2, 4, 4), 50, 0, queued_at=now - 60 * US, attained_slot_s=1e7)
    # It came later than the other one left, and has waited for long.
    other = QueuedJob(2, GangShape(2, 4, 4), 50, since)
    asked = PlanningInput(nodes, (), (left, other), config=replace(TERMS, num_overdue=0))
    assert [start.job for start in plan(asked, now).starts] == [1]
    # Among small jobs service counts against who has had it.
    small_ones = replace(asked, config=replace(TERMS, large_job_slots=8))
    assert [start.job for start in plan(small_ones, now).starts] == [2]


def test_a_hero_that_made_room_returns_after_the_small_jobs_it_made_room_for() -> None:
    now = 30 * HOUR
    left = QueuedJob(1, GangShape(2, 4, 4), 50, 0, queued_at=now - 60 * US, attained_slot_s=1e7)
    history = History()
    for _ in range(50):
        history.observe(KindKey("", "", size_class(4)), 600.0)
        history.observe(KindKey("", "", size_class(8)), 1e7)
    asked = PlanningInput(NODES[:2], (), (left, small(10, now, 4)), config=TERMS, history=history)
    assert [start.job for start in plan(asked, now).starts] == [10]


def test_a_queue_without_any_node_waits() -> None:
    decided = plan(PlanningInput((), (), (small(1, 0),), config=TERMS), HOUR)
    assert (decided.starts, [num for num, _ in decided.pending_reasons]) == ((), [1])
