"""Reservations: kept from pass to pass for their owners, and made for gangs that find no room."""

from __future__ import annotations

from dataclasses import replace

import pytest

from phalanx.core.gang.placement import GangShape, Node
from phalanx.core.scheduling import (
    PlannerConfig,
    PlanningInput,
    Project,
    QueuedJob,
    Reservation,
    RunningJob,
)
from phalanx.core.scheduling.stages import reservations, serving
from phalanx.core.scheduling.stages.queue import Verdict
from phalanx.core.scheduling.stages.scheduling_pass import Pass
from support.clusters import head_of, kept_by, nodes, pass_on, queued, running, starts_of

pytestmark = pytest.mark.unit

US = 1_000_000
HOUR = 3600 * US
NOW = 10 * HOUR
FULL = (0, 1, 2, 3)
OWNER = queued(1, 2, 4)
KEPT = Reservation(1, ("n2", "n3"), NOW, NOW + 60 * US, (8,))


def honoured(
    *held: RunningJob,
    waiting: tuple[QueuedJob, ...] = (OWNER,),
    kept: tuple[Reservation, ...] = (KEPT,),
    where: tuple[Node, ...] = nodes(4),
    projects: tuple[Project, ...] = (),
) -> Pass:
    state = pass_on(PlanningInput(where, held, waiting, projects, kept), NOW)
    reservations.honour(state)
    return state


class TestHonour:
    @pytest.mark.parametrize("expires_at", [NOW + 1, NOW + HOUR])
    def test_the_owner_starts_inside_although_another_place_comes_first(
        self, expires_at: int
    ) -> None:
        without = pass_on(PlanningInput(nodes(4), (), (OWNER,)), NOW)
        assert serving.place(without, head_of(without, 1)) is Verdict.SERVED
        assert starts_of(without.decisions) == {1: ["n0", "n1"]}
        state = honoured(kept=(replace(KEPT, expires_at=expires_at),))
        assert starts_of(state.decisions) == {1: ["n2", "n3"]}
        assert (state.decisions.reservations, state.kept) == ([], [])

    @pytest.mark.parametrize(
        "facts",
        [
            pytest.param({"kept": (replace(KEPT, expires_at=NOW),)}, id="expired"),
            pytest.param({"kept": (replace(KEPT, nodes=("n2", "n9")),)}, id="a node is gone"),
            pytest.param({"where": (*nodes(3), *nodes(4, closed="drained")[3:])}, id="closed"),
            pytest.param({"waiting": ()}, id="its owner waits no more"),
            pytest.param({"waiting": (replace(OWNER, not_before=NOW + 1),)}, id="back-off"),
        ],
    )
    def test_a_reservation_without_a_use_is_dropped(self, facts: dict[str, object]) -> None:
        state = honoured(**facts)  # type: ignore[arg-type]
        assert state.decisions.starts == []
        assert (state.decisions.reservations, state.kept) == ([], [])

    def test_what_is_free_of_it_stays_closed_until_all_of_it_is(self) -> None:
        busy = (running(7, {0: (0,)}), running(6, {1: (0,)}), running(8, {3: (0, 1)}))
        state = honoured(*busy)
        assert state.decisions.starts == []
        assert state.decisions.reservations == [KEPT]
        assert kept_by(state) == {1: {"n2": 4, "n3": 2}}
        assert state.ledger.used == {"": 4 + 8}

    def test_the_owner_starts_elsewhere_as_soon_as_there_is_room(self) -> None:
        state = honoured(running(8, {3: FULL}))
        assert starts_of(state.decisions) == {1: ["n0", "n1"]}
        assert (state.decisions.reservations, state.kept) == ([], [])
        assert state.ledger.used == {"": 4 + 8}

    def test_elsewhere_is_outside_of_all_other_reservations(self) -> None:
        first = Reservation(1, ("n0", "n1"), NOW, NOW + US, (8,))
        second = Reservation(2, ("n2", "n3"), NOW, NOW + US, (9,))
        busy = (running(8, {1: FULL}), running(9, {3: FULL}))
        both = (OWNER, queued(2, 2, 4))
        state = honoured(*busy, waiting=both, kept=(first, second))
        assert state.decisions.starts == []
        assert state.decisions.reservations == [first, second]
        assert kept_by(state) == {1: {"n0": 4}, 2: {"n2": 4}}
        # The same two free nodes are enough for the first owner without the second reservation.
        alone = honoured(*busy, waiting=both, kept=(first,))
        assert starts_of(alone.decisions) == {1: ["n0", "n2"]}

    @pytest.mark.parametrize(("busy", "size"), [({}, 4), ({0: FULL, 1: FULL}, 2)])
    def test_an_elastic_owner_is_not_bound_to_the_size_of_its_reservation(
        self, busy: dict[int, tuple[int, ...]], size: int
    ) -> None:
        held = (running(7, busy),) if busy else ()
        state = honoured(*held, waiting=(queued(1, 4, 4, min_nodes=2),))
        assert len(starts_of(state.decisions)[1]) == size

    @pytest.mark.parametrize(
        ("held", "asked"),
        [
            ({"cpus_per_node": 8}, {"cpus_per_node": 1}),
            ({"memory_per_node_bytes": 100}, {"memory_per_node_bytes": 1}),
        ],
        ids=["CPUs", "memory"],
    )
    def test_the_owner_waits_for_more_than_slots(
        self, held: dict[str, int], asked: dict[str, int]
    ) -> None:
        server = running(7, {2: ()}, **held)
        full = running(6, {0: FULL, 1: FULL})
        state = honoured(server, full, waiting=(replace(OWNER, **asked),))
        assert state.decisions.starts == []
        assert kept_by(state) == {1: {"n2": 4, "n3": 4}}
        enough = replace(server, cpus_per_node=7, memory_per_node_bytes=99)
        state = honoured(enough, full, waiting=(replace(OWNER, **asked),))
        assert starts_of(state.decisions) == {1: ["n2", "n3"]}

    def test_roles_take_the_last_nodes_of_the_reservation(self) -> None:
        gang = queued(1, 1, 4, roles=(GangShape(1, 2, 2),))
        state = honoured(running(8, {3: (0, 1)}), waiting=(gang,))
        assert starts_of(state.decisions) == {1: ["n2", "n3"]}
        # The wide part has no room on the last node.
        other = honoured(
            running(8, {3: (0, 1)}, priority=90),
            running(7, {0: FULL, 1: FULL}),
            waiting=(gang,),
            kept=(replace(KEPT, nodes=("n3", "n2")),),
        )
        assert starts_of(other.decisions) == {1: ["n2", "n3"]}
        assert other.decisions.reservations == []

    def test_an_open_reservation_counts_for_the_limit_of_the_project(self) -> None:
        busy = (running(7, {0: (0,), 1: (0,)}), running(8, {3: FULL}))
        pair = (replace(OWNER, project="a"), queued(2, 1, 1, project="a"))
        for most, verdict in ((8, Verdict.BLOCKED), (9, Verdict.OPEN)):
            state = honoured(*busy, waiting=pair, projects=(Project("a", max_slots=most),))
            assert serving.quota(state, head_of(state, 2)) is verdict


def reserving(
    *waiting: QueuedJob,
    held: tuple[RunningJob, ...],
    num_nodes: int = 4,
    config: PlannerConfig | None = None,
) -> Pass:
    """A pass in which each of these jobs was blocked, in their order."""
    snapshot = PlanningInput(nodes(num_nodes), held, waiting, config=config or PlannerConfig())
    state = pass_on(snapshot, NOW)
    for job in waiting:
        assert reservations.reserve(state, head_of(state, job.num)) is Verdict.BLOCKED
    assert [position for _, position in state.decisions.blocked] == [0] * len(waiting)
    return state


def until(num: int, node: int, hours: float | None) -> RunningJob:
    """A whole node, free after so many hours of the clock; None: at an unknown time."""
    limit = None if hours is None else hours * 3600.0
    return running(num, {node: FULL}, max_duration_s=limit)


class TestReserve:
    @pytest.mark.parametrize(
        ("waited_us", "config", "due"),
        [
            (100 * US, PlannerConfig(reserve_after_s=100.0), True),
            (100 * US - 1, PlannerConfig(reserve_after_s=100.0), False),
            (50 * US + 1, PlannerConfig(reserve_after_s=1e9, guard_after_s=50.0), True),
            (50 * US, PlannerConfig(reserve_after_s=1e9, guard_after_s=50.0), False),
        ],
        ids=["waited long enough", "a moment less", "guarded", "not yet guarded"],
    )
    def test_a_gang_gets_a_reservation_after_a_wait(
        self, waited_us: int, config: PlannerConfig, due: bool
    ) -> None:
        gang = queued(1, 1, 4, queued_at=NOW - waited_us)
        state = reserving(gang, held=(until(7, 0, 12),), num_nodes=1, config=config)
        assert [one.job for one in state.decisions.reservations] == [1] * due
        assert state.num_reserved == due

    def test_the_first_of_the_queue_get_the_reservations(self) -> None:
        held = (until(7, 0, 12), until(8, 1, 13))
        jobs = (queued(1, 1, 4), queued(2, 1, 4, kind="b"))
        state = reserving(*jobs, held=held, config=PlannerConfig(num_reservations=1), num_nodes=2)
        assert [one.job for one in state.decisions.reservations] == [1]

    def test_a_gang_that_never_fits_takes_no_place_among_them(self) -> None:
        jobs = (queued(1, 3, 4), queued(2, 1, 4))
        config = PlannerConfig(num_reservations=1)
        held = (until(7, 0, 12), until(8, 1, 13))
        state = reserving(*jobs, held=held, num_nodes=2, config=config)
        assert [one.job for one in state.decisions.reservations] == [2]

    def test_it_ends_with_the_pass_and_uses_nothing_of_the_project(self) -> None:
        state = reserving(queued(1, 1, 4), held=(until(7, 0, 12),), num_nodes=1)
        assert state.decisions.reservations == [Reservation(1, ("n0",), 12 * HOUR, NOW)]
        assert state.ledger.used == {"": 4}

    def test_an_unknown_end_is_not_guessed(self) -> None:
        state = reserving(queued(1, 1, 4), held=(until(7, 0, None),), num_nodes=1)
        assert state.decisions.reservations == [Reservation(1, ("n0",), None, NOW)]

    def test_a_narrow_domain_goes_before_an_earlier_time(self) -> None:
        held = (until(6, 0, 12), until(7, 1, 13), until(8, 2, 11), until(9, 3, 15))
        state = reserving(queued(1, 2, 4), held=held)
        assert state.decisions.reservations == [Reservation(1, ("n0", "n1"), 13 * HOUR, NOW)]

    def test_a_known_time_goes_before_a_narrow_domain(self) -> None:
        held = (until(6, 0, 12), until(7, 1, None), until(8, 2, 11), until(9, 3, None))
        state = reserving(queued(1, 2, 4), held=held)
        assert state.decisions.reservations == [Reservation(1, ("n2", "n0"), 12 * HOUR, NOW)]

    def test_one_reservation_at_most_spans_several_domains(self) -> None:
        held = tuple(until(10 + node, node, 11 + node) for node in range(4))
        jobs = (queued(1, 3, 4), queued(2, 4, 4), queued(3, 2, 4))
        state = reserving(*jobs, held=held)
        assert [one.job for one in state.decisions.reservations] == [1, 3]
        assert (state.num_reserved, state.wide_kept) == (2, True)
        narrow = reserving(*jobs[2:], *jobs[:2], held=held)
        assert [one.job for one in narrow.decisions.reservations] == [3, 1]

    def test_free_slots_of_it_are_closed_to_the_jobs_behind(self) -> None:
        small = queued(2, 1, 1)
        state = reserving(queued(1, 2, 4), small, held=(until(7, 1, 12),), num_nodes=2)
        assert kept_by(state)[1] == {"n0": 4}
        assert serving.place(state, head_of(state, 2)) is Verdict.OPEN
        open_ = reserving(
            queued(1, 2, 4),
            small,
            held=(until(7, 1, 12),),
            num_nodes=2,
            config=PlannerConfig(num_reservations=0),
        )
        assert serving.place(open_, head_of(open_, 2)) is Verdict.SERVED
