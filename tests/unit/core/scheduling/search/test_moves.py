"""Defragmentation: small jobs move aside where a gang gains more than their pauses cost."""

from __future__ import annotations

import math
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
from support.clusters import nodes, running

pytestmark = pytest.mark.unit

US = 1_000_000
NOW = 2 * 3600 * US


def held(num: int, node: int, slots: tuple[int, ...], **more: object) -> RunningJob:
    return running(num, {node: slots}, **{"remaining_s": 600.0, **more})


def scattered(*, first: dict[str, object] | None = None, num_held: int = 1) -> PlanningInput:
    """Two nodes of four; a short job of one slot on each: six are free, and no node is whole."""
    more = {} if first is None else first
    busy = (held(1, 0, tuple(range(num_held)), **more), held(2, 1, (0,), **more))
    long = QueuedJob(
        9, GangShape(1, 4, 4), 50, NOW, remaining_s=1e6, project=str(more.get("project", ""))
    )
    return PlanningInput(nodes(2), busy, (long,))


def moved(snapshot: PlanningInput) -> list[int]:
    return [preemption.job for preemption in plan(snapshot, NOW).preemptions]


def test_a_small_job_moves_aside_for_a_gang_that_finds_no_whole_node() -> None:
    decided = plan(scattered(), NOW)
    assert len(decided.preemptions) == 1
    (reservation,) = decided.reservations
    assert reservation.job == 9
    assert reservation.victims == (decided.preemptions[0].job,)


def test_nobody_moves_where_peers_are_never_put_aside_or_moves_are_off() -> None:
    snapshot = scattered()
    assert moved(replace(snapshot, config=PlannerConfig(hysteresis=math.inf))) == []
    assert moved(replace(snapshot, config=PlannerConfig(move_gain_s=0.0))) == []


def test_nobody_moves_who_finds_no_room_elsewhere() -> None:
    snapshot = scattered(num_held=2)
    full = replace(snapshot, held=(*snapshot.held, held(3, 1, (1, 2)), held(4, 0, (2,))))
    assert moved(full) == []


@pytest.mark.parametrize(
    "facts",
    [
        {"priority": 60},
        {"save_s": None},
        {"preemptible": False},
        {"protected_until": NOW + 1},
        {"started_at": NOW - 3000 * US},
        {"stopping": True},
    ],
)
def test_who_may_not_be_moved_stays(facts: dict[str, object]) -> None:
    assert moved(scattered(first=facts)) == []


def test_another_project_is_not_moved_where_there_are_quotas() -> None:
    own = replace(scattered(first={"project": "a"}), projects=(Project("a"), Project("b")))
    assert len(moved(own)) == 1
    other = replace(own, waiting=(replace(own.waiting[0], project="b"),))
    assert moved(other) == []
