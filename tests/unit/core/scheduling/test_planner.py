"""A whole pass: what it leaves behind, when it is worth another one, and how its stages follow."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from phalanx.core.scheduling import (
    ClusterIndex,
    PlannerConfig,
    PlanningInput,
    Project,
    QueuedJob,
    Reservation,
    plan,
    plan_pass,
    planner,
)
from phalanx.core.scheduling.stages.scheduling_pass import Pass
from support.clusters import nodes, queued, running, starts_of

pytestmark = pytest.mark.unit

US = 1_000_000
HOUR = 3600 * US
FULL = (0, 1, 2, 3)
KEPT = Reservation(1, ("n0",), HOUR, HOUR + 90 * US, (8,))


def busy() -> PlanningInput:
    """A cluster on which a pass starts, preempts, resizes, reserves and explains."""
    return PlanningInput(
        nodes(6, rack=6),
        (
            running(20, {0: FULL}, priority=10, project="b"),
            running(21, {1: FULL, 2: FULL}, min_nodes=1, max_nodes=2, project="b"),
            running(22, {3: FULL}, priority=90, max_duration_s=7200.0, project="a"),
        ),
        (
            queued(1, 1, 4, 90, project="a"),
            queued(2, 2, 4, 80, project="a"),
            queued(3, 2, 4, 70, project="b"),
            queued(4, 1, 4, 60, project="b", not_before=HOUR + US),
        ),
        (Project("a", 8), Project("b", max_slots=20)),
    )


class TestPass:
    def test_the_index_is_as_it_was(self) -> None:
        cluster, fresh = ClusterIndex.of(busy()), ClusterIndex.of(busy())
        decided = plan_pass(cluster, HOUR)
        assert decided.starts
        assert decided.resizes or decided.preemptions
        assert cluster.state() == fresh.state()
        assert plan_pass(cluster, HOUR) == decided == plan(busy(), HOUR)

    def test_the_index_is_as_it_was_after_an_error_too(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(state: Pass) -> None:
            assert state.decisions.starts
            raise RuntimeError("a stage fails")

        cluster, fresh = ClusterIndex.of(busy()), ClusterIndex.of(busy())
        monkeypatch.setattr(planner, "STAGES", (*planner.STAGES[:-1], fail))
        with pytest.raises(RuntimeError, match="a stage fails"):
            plan_pass(cluster, HOUR)
        assert cluster.state() == fresh.state()

    @pytest.mark.parametrize("seed", range(5))
    def test_the_order_of_the_events_before_it_does_not_matter(self, seed: int) -> None:
        rng, snapshot = random.Random(seed), busy()
        held, waiting = list(snapshot.held), list(snapshot.waiting)
        rng.shuffle(held)
        rng.shuffle(waiting)
        mixed = replace(snapshot, held=tuple(held), waiting=tuple(waiting))
        assert plan(mixed, HOUR) == plan(snapshot, HOUR)


class TestWakeAt:
    @pytest.mark.parametrize(
        ("waiting", "kept", "wake_at"),
        [
            pytest.param((), (), None, id="nothing waits"),
            pytest.param((queued(2, 1, 4),), (), None, id="only for room"),
            pytest.param((queued(2, 1, 1, not_before=HOUR + 5),), (), HOUR + 5, id="back-off"),
            pytest.param((queued(2, 1, 1, not_before=HOUR),), (), None, id="back-off is over"),
            pytest.param(
                (queued(2, 1, 1, not_before=HOUR + 9), queued(3, 1, 1, not_before=HOUR + 7)),
                (),
                HOUR + 7,
                id="the earlier of two",
            ),
            pytest.param((queued(1, 1, 4),), (KEPT,), HOUR + 90 * US, id="a promise ends"),
            pytest.param(
                (queued(1, 1, 4), queued(2, 1, 1, not_before=HOUR + 100 * US)),
                (KEPT,),
                HOUR + 90 * US,
                id="a promise before a back-off",
            ),
            pytest.param(
                (queued(1, 1, 4),), (replace(KEPT, victims=()),), None, id="no victims, no promise"
            ),
        ],
    )
    def test_a_pass_says_when_waiting_alone_changes_the_outcome(
        self,
        waiting: tuple[QueuedJob, ...],
        kept: tuple[Reservation, ...],
        wake_at: int | None,
    ) -> None:
        safe = running(8, {0: FULL}, priority=90, preemptible=False)
        snapshot = PlanningInput(nodes(1), (safe,), waiting, reservations=kept)
        assert plan(snapshot, HOUR).wake_at == wake_at


class TestTime:
    @pytest.mark.parametrize(("now", "starts"), [(HOUR - 1, False), (HOUR, True)])
    def test_a_back_off_ends_at_its_time(self, now: int, starts: bool) -> None:
        job = queued(1, 1, 4, not_before=HOUR)
        assert bool(plan(PlanningInput(nodes(1), (), (job,)), now).starts) is starts

    @pytest.mark.parametrize(("now", "starts"), [(HOUR - 1, False), (HOUR, True)])
    def test_a_preferred_level_is_required_until_patience_ends(
        self, now: int, starts: bool
    ) -> None:
        """Two whole nodes are free, one in each rack."""
        held = (running(7, {0: (0,)}), running(8, {2: (0,)}))
        job = queued(1, 2, 4, required="rack", required_until=HOUR)
        config = PlannerConfig(preemption_budget=0)
        decided = plan(PlanningInput(nodes(4), held, (job,), config=config), now)
        assert starts_of(decided) == ({1: ["n1", "n3"]} if starts else {})
        always = replace(job, required_until=None)
        assert not plan(PlanningInput(nodes(4), held, (always,), config=config), now).starts

    def test_patience_does_not_delay_a_gang_that_fits_inside_one_domain(self) -> None:
        job = queued(1, 2, 4, required="rack", required_until=HOUR)
        held = (running(7, {0: (0,)}),)
        assert starts_of(plan(PlanningInput(nodes(4), held, (job,)), 1)) == {1: ["n2", "n3"]}


class TestStagesInTurn:
    def test_an_owner_starts_before_the_highest_priority_of_the_queue(self) -> None:
        waiting = (queued(1, 1, 4, 10), queued(2, 1, 4, 99))
        snapshot = PlanningInput(nodes(1), (), waiting, reservations=(KEPT,))
        assert starts_of(plan(snapshot, HOUR)) == {1: ["n0"]}
        assert starts_of(plan(replace(snapshot, reservations=()), HOUR)) == {2: ["n0"]}

    def test_elastic_jobs_take_what_the_queue_has_left(self) -> None:
        grower = running(8, {0: (0,)}, min_nodes=1, max_nodes=3)
        snapshot = PlanningInput(nodes(3, 1, rack=3), (grower,), (queued(1, 1, 1, 10),))
        decided = plan(snapshot, HOUR)
        assert starts_of(decided) == {1: ["n1"]}
        (resize,) = decided.resizes
        assert [share.node for share in resize.placement.shares] == ["n0", "n2"]

    @pytest.mark.parametrize(("num_reservations", "resized"), [(1, []), (0, [8])])
    def test_elastic_jobs_leave_what_is_kept_for_a_blocked_gang(
        self, num_reservations: int, resized: list[int]
    ) -> None:
        grower = running(8, {0: (0,)}, min_nodes=1, max_nodes=3)
        config = PlannerConfig(num_reservations=num_reservations)
        gang = queued(1, 3, 1, 10)
        snapshot = PlanningInput(nodes(3, 1, rack=3), (grower,), (gang,), config=config)
        assert [one.job for one in plan(snapshot, HOUR).resizes] == resized

    def test_short_jobs_fill_kept_slots_before_elastic_jobs_could_grow(self) -> None:
        held = (
            running(8, {0: (0,)}, min_nodes=1, max_nodes=2, priority=99),
            running(9, {2: (0,)}, priority=99, max_duration_s=7200.0),
        )
        waiting = (queued(1, 2, 1, 50), queued(2, 1, 1, 40, max_duration_s=60.0))
        decided = plan(PlanningInput(nodes(3, 1, rack=3), held, waiting), HOUR)
        assert starts_of(decided) == {2: ["n1"]}
        assert decided.resizes == ()
        assert [(one.job, one.nodes) for one in decided.reservations] == [(1, ("n1", "n2"))]

    def test_a_gang_shrinks_elastic_jobs_before_it_preempts(self) -> None:
        held = (
            running(8, {0: FULL, 1: FULL}, min_nodes=1, max_nodes=2),
            running(9, {2: FULL}, priority=10),
        )
        snapshot = PlanningInput(nodes(3), held, (queued(1, 1, 4),))
        decided = plan(snapshot, HOUR)
        assert [one.job for one in decided.resizes] == [8]
        assert decided.preemptions == ()
        rigid = replace(snapshot, held=(replace(held[0], min_nodes=2), held[1]))
        assert [one.job for one in plan(rigid, HOUR).preemptions] == [9]

    def test_a_reservation_of_a_blocked_gang_lasts_for_one_pass(self) -> None:
        held = (running(8, {0: FULL}, priority=90, max_duration_s=7200.0),)
        first = plan(PlanningInput(nodes(2), held, (queued(1, 2, 4),)), HOUR)
        assert [one.nodes for one in first.reservations] == [("n1", "n0")]
        small = queued(2, 1, 4, 99)
        waiting = (queued(1, 2, 4), small)
        again = PlanningInput(nodes(2), held, waiting, reservations=first.reservations)
        assert starts_of(plan(again, HOUR)) == {2: ["n1"]}
