"""Backfill: what may use the slots that are kept for another job, and for how long."""

from __future__ import annotations

import pytest

from phalanx.core.scheduling import (
    PlannerConfig,
    PlanningInput,
    Project,
    QueuedJob,
    Reservation,
)
from phalanx.core.scheduling.model.durations import History, KindKey
from phalanx.core.scheduling.stages import reservations
from phalanx.core.scheduling.stages.backfill import backfill
from phalanx.core.scheduling.stages.scheduling_pass import Pass
from support.clusters import head_of, kept_by, nodes, pass_on, queued, running, starts_of

pytestmark = pytest.mark.unit

US = 1_000_000
HOUR = 3600 * US
FULL = (0, 1, 2, 3)
# Node n1 is free at two o'clock: the gang keeps n0 for an hour.
HELD = running(8, {1: FULL}, max_duration_s=7200.0)
GANG = queued(1, 2, 4, 90)


def blocked(
    *waiting: QueuedJob,
    projects: tuple[Project, ...] = (),
    history: History | None = None,
) -> Pass:
    """The gang has its reservation, and the other jobs, each of a class, are blocked behind it."""
    state = pass_on(
        PlanningInput(
            nodes(2),
            (HELD,),
            (GANG, *waiting),
            projects,
            history=history or History(),
            config=PlannerConfig(num_reservations=1),
        ),
        HOUR,
    )
    classes = dict.fromkeys(state.cluster.class_of[job.num] for job in (GANG, *waiting))
    for eq_class in classes:
        reservations.reserve(state, head_of(state, eq_class.jobs[0][1]))
    assert kept_by(state) == {1: {"n0": 4}}
    return state


class TestWindow:
    @pytest.mark.parametrize(
        ("facts", "starts"),
        [
            ({"max_duration_s": 3600.0}, True),
            ({"max_duration_s": 3600.5}, False),
            ({"remaining_s": 3600.0}, True),
            ({"remaining_s": 3601.0}, False),
            ({"remaining_s": 9000.0, "max_duration_s": 600.0}, True),
            ({}, False),
        ],
        ids=["limit", "longer limit", "progress", "slower", "limit before progress", "unknown"],
    )
    def test_a_job_that_ends_in_time_uses_the_kept_slots(
        self, facts: dict[str, float], starts: bool
    ) -> None:
        state = blocked(queued(2, 1, 2, **facts))
        backfill(state)
        assert starts_of(state.decisions) == ({2: ["n0"]} if starts else {})
        assert kept_by(state) == {1: {"n0": 2 if starts else 4}}
        assert [one.reservation.job for one in state.kept] == [1]

    @pytest.mark.parametrize(("service_s", "starts"), [(3000.0, True), (30_000.0, False)])
    def test_what_is_learned_of_its_kind_counts(self, service_s: float, starts: bool) -> None:
        history = History()
        for _ in range(500):
            history.observe(KindKey("", "known", 1), service_s)
        state = blocked(queued(2, 1, 2, kind="known"), history=history)
        backfill(state)
        assert bool(state.decisions.starts) is starts

    @pytest.mark.parametrize(
        ("ready_at", "victims", "starts"),
        [
            (2 * HOUR, (), True),
            (2 * HOUR, (8,), False),
            (None, (), False),
            (HOUR, (), False),
            (HOUR + US, (), True),
        ],
        ids=["known time", "victims leave", "unknown time", "now", "in a second"],
    )
    def test_only_a_reservation_of_a_known_later_time_is_open(
        self, ready_at: int | None, victims: tuple[int, ...], starts: bool
    ) -> None:
        short = queued(2, 1, 2, remaining_s=1.0)
        state = pass_on(PlanningInput(nodes(1), (), (GANG, short)), HOUR)
        state.reserve(Reservation(1, ("n0",), ready_at, HOUR, victims), GANG)
        state.decisions.blocked.append((head_of(state, 2).eq_class, 0))
        backfill(state)
        assert bool(state.decisions.starts) is starts

    def test_each_reservation_has_its_own_window(self) -> None:
        middle = queued(2, 1, 1, remaining_s=7200.0)
        state = pass_on(PlanningInput(nodes(2), (), (GANG, queued(3, 2, 4, 80), middle)), HOUR)
        state.reserve(Reservation(1, ("n0",), 2 * HOUR, HOUR), GANG)
        state.reserve(Reservation(3, ("n1",), 9 * HOUR, HOUR), GANG)
        state.decisions.blocked.append((head_of(state, 2).eq_class, 0))
        backfill(state)
        assert starts_of(state.decisions) == {2: ["n1"]}
        assert kept_by(state) == {1: {"n0": 4}, 3: {"n1": 3}}

    def test_a_job_starts_once_although_two_reservations_have_room_for_it(self) -> None:
        short = queued(2, 1, 1, remaining_s=60.0)
        state = pass_on(PlanningInput(nodes(2), (), (GANG, queued(3, 2, 4, 80), short)), HOUR)
        state.reserve(Reservation(1, ("n0",), 2 * HOUR, HOUR), GANG)
        state.reserve(Reservation(3, ("n1",), 2 * HOUR, HOUR), GANG)
        state.decisions.blocked.append((head_of(state, 2).eq_class, 0))
        backfill(state)
        assert [one.job for one in state.decisions.starts] == [2]
        assert kept_by(state) == {1: {"n0": 3}, 3: {"n1": 4}}


class TestJobs:
    def test_as_many_start_as_there_is_room_for(self) -> None:
        state = blocked(*(queued(num, 1, 2, remaining_s=60.0) for num in (2, 3, 4)))
        backfill(state)
        assert starts_of(state.decisions) == {2: ["n0"], 3: ["n0"]}
        assert kept_by(state) == {1: {}}

    def test_classes_come_in_the_order_in_which_they_were_blocked(self) -> None:
        wide, narrow = queued(2, 1, 4, remaining_s=60.0), queued(3, 1, 1, remaining_s=60.0)
        for jobs, first in (((wide, narrow), 2), ((narrow, wide), 3)):
            state = blocked(*jobs)
            backfill(state)
            assert list(starts_of(state.decisions)) == [first]

    def test_a_class_is_taken_up_at_the_job_that_was_blocked(self) -> None:
        state = blocked(*(queued(num, 1, 2, remaining_s=60.0) for num in (2, 3)))
        (owner, _), (eq_class, _) = state.decisions.blocked
        state.decisions.blocked = [(owner, 0), (eq_class, 1)]
        backfill(state)
        assert list(starts_of(state.decisions)) == [3]

    @pytest.mark.parametrize(("most", "started"), [(1, []), (2, [2]), (3, [2]), (4, [2, 3])])
    def test_limits_hold_for_kept_slots_too(self, most: int, started: list[int]) -> None:
        jobs = (queued(num, 1, 2, remaining_s=60.0, project="a") for num in (2, 3))
        state = blocked(*jobs, projects=(Project("a", max_slots=most),))
        backfill(state)
        assert list(starts_of(state.decisions)) == started

    def test_without_blocked_jobs_the_slots_stay_kept(self) -> None:
        state = blocked(queued(2, 1, 2, remaining_s=60.0))
        state.decisions.blocked.clear()
        backfill(state)
        assert (state.decisions.starts, kept_by(state)) == ([], {1: {"n0": 4}})

    def test_a_request_that_found_no_room_is_looked_at_again(self) -> None:
        state = blocked(queued(2, 1, 2, remaining_s=60.0))
        assert not state.try_start(head_of(state, 2).eq_class, 2)
        assert state.no_room
        backfill(state)
        assert list(starts_of(state.decisions)) == [2]
        assert state.no_room == set()
