"""The operations on slots that all stages share: start, hold back, release, reserve."""

from __future__ import annotations

from dataclasses import replace

import pytest

from phalanx.core.gang.placement import GangShape
from phalanx.core.scheduling import PlanningInput, QueuedJob, Reservation, RunningJob
from phalanx.core.scheduling.stages.scheduling_pass import Pass
from support.clusters import head_of, kept_by, nodes, pass_on, queued, running, starts_of

pytestmark = pytest.mark.unit

NOW = 10_000 * 1_000_000
FULL = (0, 1, 2, 3)


def begin(num_nodes: int, *waiting: QueuedJob, held: tuple[RunningJob, ...] = ()) -> Pass:
    return pass_on(PlanningInput(nodes(num_nodes), held, waiting), NOW)


def try_start(state: Pass, num: int) -> bool:
    return state.try_start(head_of(state, num).eq_class, num)


class TestTryStart:
    def test_a_request_that_found_no_room_is_not_placed_again_for_another_class(self) -> None:
        state = begin(1, queued(1, 1, 4), queued(2, 1, 4, kind="b"), held=(running(7, {0: (0,)}),))
        assert head_of(state, 1).eq_class is not head_of(state, 2).eq_class
        assert not try_start(state, 1)
        assert not try_start(state, 2)
        assert state.decisions.num_steps == 1

    def test_another_request_is_placed_although_one_found_no_room(self) -> None:
        state = begin(1, queued(1, 1, 4), queued(2, 1, 3), held=(running(7, {0: (0,)}),))
        assert not try_start(state, 1)
        assert try_start(state, 2)
        assert starts_of(state.decisions) == {2: ["n0"]}

    def test_an_elastic_job_is_tried_at_smaller_sizes_although_its_full_size_found_no_room(
        self,
    ) -> None:
        state = begin(3, queued(1, 4, 4), queued(2, 4, 4, min_nodes=2))
        assert not try_start(state, 1)
        assert try_start(state, 2)
        assert starts_of(state.decisions) == {2: ["n0", "n1", "n2"]}

    def test_released_slots_are_looked_at_again(self) -> None:
        state = begin(1, queued(1, 1, 4), queued(9, 1, 4))
        kept = state.hold_back(Reservation(9, ("n0",), None, NOW), 4)
        assert not try_start(state, 1)
        state.release(kept)
        assert (kept.allocations, kept.num_slots) == ([], 0)
        assert try_start(state, 1)

    @pytest.mark.parametrize(
        ("num_nodes", "decided", "least", "size"),
        [
            pytest.param(4, None, 2, 4, id="full size"),
            pytest.param(3, None, 2, 3, id="largest that fits"),
            pytest.param(2, None, 2, 2, id="exactly the least"),
            pytest.param(1, None, 2, 0, id="less than the least"),
            pytest.param(4, 3, 2, 3, id="no more than decided"),
            pytest.param(4, 1, 2, 2, id="decided below the least"),
            pytest.param(5, 9, 2, 4, id="decided above the full size"),
        ],
    )
    def test_an_elastic_job_starts_between_its_least_and_its_decided_size(
        self, num_nodes: int, decided: int | None, least: int, size: int
    ) -> None:
        state = begin(num_nodes, queued(1, 4, 4, min_nodes=least))
        state.sizes = {} if decided is None else {1: decided}
        assert try_start(state, 1) is (size > 0)
        assert len(starts_of(state.decisions).get(1, ())) == size
        assert state.ledger.used.get("", 0) == 4 * size

    def test_an_elastic_job_without_a_least_size_needs_one_node(self) -> None:
        state = begin(1, queued(1, 2, 4, min_nodes=0), held=(running(7, {0: FULL}),))
        assert not try_start(state, 1)
        assert state.decisions.starts == []

    def test_each_size_that_is_tried_is_a_step(self) -> None:
        state = begin(2, queued(1, 4, 4, min_nodes=1))
        assert try_start(state, 1)
        assert state.decisions.num_steps == 3

    def test_a_rigid_job_is_not_started_smaller_whatever_sizes_say(self) -> None:
        state = begin(3, queued(1, 3, 4))
        state.sizes = {1: 2}
        assert try_start(state, 1)
        assert len(starts_of(state.decisions)[1]) == 3


class TestHoldBack:
    @pytest.mark.parametrize(
        ("names", "widths", "busy", "kept"),
        [
            pytest.param(("n0", "n1"), (3,), {}, {"n0": 3, "n1": 3}, id="one width for all"),
            pytest.param(("n0", "n1"), (4, 1), {}, {"n0": 4, "n1": 1}, id="a width for each"),
            pytest.param(("n0", "n0"), (2,), {}, {"n0": 4}, id="two shares on one node"),
            pytest.param(("n0", "n0"), (1, 2), {}, {"n0": 3}, id="two widths on one node"),
            pytest.param(("n0", "n1"), (4,), {0: (0, 1, 2)}, {"n0": 1, "n1": 4}, id="partly free"),
            pytest.param(("n0",), (2,), {0: (0, 1)}, {"n0": 2}, id="exactly what is free"),
            pytest.param(("n0",), (4,), {0: FULL}, {}, id="nothing free"),
            pytest.param(("gone", "n1"), (2,), {}, {"n1": 2}, id="a node is gone"),
            pytest.param(("gone", "n1"), (4, 2), {}, {"n1": 2}, id="widths of a node that is gone"),
        ],
    )
    def test_free_slots_of_the_reservation_are_closed_to_all_others(
        self,
        names: tuple[str, ...],
        widths: tuple[int, ...],
        busy: dict[int, tuple[int, ...]],
        kept: dict[str, int],
    ) -> None:
        state = begin(2, queued(1, 1, 1), held=(running(7, busy),) if busy else ())
        free = sum(state.index.num_free)
        found = state.hold_back(Reservation(1, names, None, NOW), *widths)
        assert kept_by(state) == {1: kept}
        assert found.num_slots == sum(kept.values())
        assert sum(state.index.num_free) == free - found.num_slots

    def test_a_reservation_keeps_the_width_of_each_role(self) -> None:
        owner = queued(1, 1, 4, roles=(GangShape(2, 1, 1),))
        state = begin(3, owner)
        decided = Reservation(1, ("n0", "n1", "n2"), None, NOW)
        state.reserve(decided, owner)
        assert state.decisions.reservations == [decided]
        assert kept_by(state) == {1: {"n0": 4, "n1": 1, "n2": 1}}

    def test_a_reservation_is_no_use_of_the_project(self) -> None:
        state = begin(1, queued(1, 1, 4))
        state.reserve(Reservation(1, ("n0",), None, NOW), state.cluster.waiting[1])
        assert state.ledger.used == {}


def test_a_start_takes_the_slots_of_each_role_and_counts_one_job() -> None:
    owner = replace(queued(1, 1, 3), roles=(GangShape(1, 1, 1),), project="a")
    state = begin(1, owner)
    assert try_start(state, 1)
    assert starts_of(state.decisions) == {1: ["n0", "n0"]}
    assert state.decisions.started == {1}
    assert (state.ledger.used, state.ledger.num_jobs) == ({"a": 4}, {"a": 1})
    assert state.index.num_free == [0]
