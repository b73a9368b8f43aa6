"""The reason of each job that waits: which one binds, and the numbers in it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from phalanx.core.gang.placement import GangShape, Node, RoleShape
from phalanx.core.reasons import Reason, ReasonCode
from phalanx.core.scheduling import PlanningInput, QueuedJob, Reservation, RunningJob, plan
from phalanx.core.scheduling.stages import reasons
from phalanx.core.scheduling.stages.scheduling_pass import Pass
from support.clusters import head_of, nodes, pass_on, queued, running

pytestmark = pytest.mark.unit

US = 1_000_000
NOW = 10_000 * US
FULL = (0, 1, 2, 3)
KEPT = Reservation(9, ("n0",), None, NOW)


def begin(
    *waiting: QueuedJob, held: tuple[RunningJob, ...] = (), where: tuple[Node, ...] = nodes(2)
) -> Pass:
    return pass_on(PlanningInput(where, held, waiting), NOW)


def explained(state: Pass) -> dict[int, Reason]:
    """The reasons after all classes that have not started were blocked."""
    for eq_class in state.cluster.classes.values():
        state.decisions.blocked.append((eq_class, 0))
    reasons.explain(state)
    assert state.decisions.pending is not None
    return dict(state.decisions.pending)


class TestBlocked:
    @pytest.mark.parametrize(
        ("job", "busy", "code", "text"),
        [
            pytest.param(
                queued(1, 2, 4),
                {0: (0, 1)},
                ReasonCode.WAITING_FOR_SLOTS,
                "needs 2 × 4 slots; pool p: 6 of 8 free, 1 nodes entirely",
                id="too few slots",
            ),
            pytest.param(
                queued(1, 1, 4),
                {0: (0, 1), 1: (0, 1)},
                ReasonCode.WAITING_FOR_TOPOLOGY,
                "needs 1 × 4 slots; pool p: 4 of 8 free, 0 nodes entirely; "
                "the free slots are scattered over too many nodes",
                id="exactly as many, but scattered",
            ),
            pytest.param(
                queued(1, 1, 4),
                {0: (0, 1), 1: (0, 1, 2)},
                ReasonCode.WAITING_FOR_SLOTS,
                "needs 1 × 4 slots; pool p: 3 of 8 free, 0 nodes entirely",
                id="scattered and too few",
            ),
            pytest.param(
                queued(1, 1, 4, pools=("q", "p")),
                {0: FULL, 1: FULL},
                ReasonCode.WAITING_FOR_SLOTS,
                "needs 1 × 4 slots; pool q: no suitable nodes; "
                "pool p: 0 of 8 free, 0 nodes entirely",
                id="two pools",
            ),
        ],
    )
    def test_the_numbers_of_its_pools_are_named(
        self, job: QueuedJob, busy: dict[int, tuple[int, ...]], code: ReasonCode, text: str
    ) -> None:
        state = begin(job, held=(running(7, busy),))
        assert explained(state) == {1: Reason(code, text)}

    @pytest.mark.parametrize(
        ("facts", "text"),
        [
            ({"pools": ("x",)}, "needs 1 × 4 slots; no such pool: x"),
            ({"pools": ("x", "y")}, "needs 1 × 4 slots; no such pool: x, y"),
            (
                {"shape": GangShape(1, 64, 1)},
                "needs 1 × 64 slots; no node of pool p has that many slots of that kind",
            ),
            (
                {"slot_type": "H100", "pools": ("x", "p")},
                "needs 1 × 4 slots; no node of pool p has that many slots of that kind",
            ),
        ],
    )
    def test_a_gang_without_suitable_nodes_is_unplaceable(
        self, facts: dict[str, object], text: str
    ) -> None:
        state = begin(replace(queued(1, 1, 4), **facts))  # type: ignore[arg-type]
        assert explained(state) == {1: Reason(ReasonCode.UNPLACEABLE, text)}

    def test_without_any_node_no_pool_is_named(self) -> None:
        found = explained(begin(queued(1, 1, 4), where=()))
        assert found[1].message == "needs 1 × 4 slots; there are no nodes"


class TestKeptSlots:
    def reserved(self, *waiting: QueuedJob, busy: tuple[int, ...] = ()) -> Pass:
        """Job 9 keeps what is free of node n0; no other node is free."""
        held = (running(7, {0: busy, 1: FULL}),)
        state = begin(queued(9, 1, 4, 60), *waiting, held=held)
        state.reserve(KEPT, state.cluster.waiting[9])
        return state

    def test_a_job_waits_behind_the_owner_of_the_slots_that_it_could_use(self) -> None:
        text = "the free slots are reserved for j-9; needs 1 × 4 slots"
        found = explained(self.reserved(queued(1, 1, 4)))
        assert found[1] == Reason(ReasonCode.WAITING_BEHIND, text)

    def test_the_owner_counts_the_slots_that_are_kept_for_it_as_free(self) -> None:
        text = "needs 1 × 4 slots; pool p: 4 of 8 free, 0 nodes entirely"
        found = explained(self.reserved())
        assert found[9] == Reason(ReasonCode.WAITING_FOR_SLOTS, text)

    def test_a_job_that_needs_more_than_is_kept_waits_for_slots(self) -> None:
        found = explained(self.reserved(queued(1, 1, 4), busy=(0,)))
        text = "needs 1 × 4 slots; pool p: 0 of 8 free, 0 nodes entirely"
        assert found[1] == Reason(ReasonCode.WAITING_FOR_SLOTS, text)

    def test_scattered_slots_are_no_matter_of_topology_while_some_are_kept(self) -> None:
        held = (running(7, dict.fromkeys(range(3), (0, 1))),)
        state = begin(queued(9, 1, 4), held=held, where=nodes(3))
        state.reserve(KEPT, state.cluster.waiting[9])
        text = "needs 1 × 4 slots; pool p: 6 of 12 free, 0 nodes entirely"
        assert explained(state) == {9: Reason(ReasonCode.WAITING_FOR_SLOTS, text)}

    def test_slots_kept_in_another_pool_are_not_in_its_way(self) -> None:
        other = replace(nodes(2)[1], pool="q")
        job = queued(1, 1, 2, pools=("q",))
        held = (running(7, {1: (0, 1, 2)}),)
        state = begin(queued(9, 1, 4, 60), job, held=held, where=(*nodes(1), other))
        state.reserve(KEPT, state.cluster.waiting[9])
        text = "needs 1 × 2 slots; pool q: 1 of 4 free, 0 nodes entirely"
        assert explained(state)[1] == Reason(ReasonCode.WAITING_FOR_SLOTS, text)


class TestOverdueGangs:
    """Slots that are kept for a gang that is overdue, also where none of them is free yet."""

    def blocked_by(self, gang: QueuedJob, job: QueuedJob, busy: tuple[int, ...]) -> dict[int, str]:
        held = (running(7, {0: busy, 1: FULL}),)
        state = begin(gang, job, held=held)
        state.reserve(KEPT, state.cluster.waiting[9])
        state.kept[-1].firm = True
        return {num: reason.message for num, reason in explained(state).items()}

    def test_free_slots_are_reserved_for_the_overdue_gang(self) -> None:
        found = self.blocked_by(queued(9, 1, 4), queued(1, 1, 2), (0, 1))
        text = "the free slots are reserved for the overdue gang j-9; needs 1 × 2 slots"
        assert found[1] == text

    def test_slots_that_are_not_free_yet_are_kept_for_it(self) -> None:
        found = self.blocked_by(queued(9, 1, 4), queued(1, 1, 2), FULL)
        kept = "slots that become free on n0 are kept for the overdue gang j-9"
        room = "pool p: 0 of 8 free, 0 nodes entirely"
        assert found == {
            1: f"needs 1 × 2 slots; {room}; {kept}",
            9: f"needs 1 × 4 slots; {room}; {kept}",
        }

    def test_jobs_of_other_pools_do_not_wait_for_it(self) -> None:
        where = (*nodes(1), replace(nodes(2)[1], pool="q"))
        state = begin(
            queued(9, 1, 4, pools=("p",)),
            queued(1, 1, 2, pools=("q",)),
            held=(running(7, {0: FULL, 1: FULL}),),
            where=where,
        )
        state.reserve(KEPT, state.cluster.waiting[9])
        state.kept[-1].firm = True
        found = explained(state)
        assert found[1].message == "needs 1 × 2 slots; pool q: 0 of 4 free, 0 nodes entirely"


class TestComing:
    @pytest.mark.parametrize(
        ("where", "victims", "text"),
        [
            (("n0",), (7,), "starts on n0 once j-7 have saved and exited"),
            (("n0", "n0"), (7, 8), "starts on n0 once j-7, j-8 have saved and exited"),
            (
                ("n0", "n1", "n2"),
                (1, 2, 3, 4),
                "starts on n0, n1, n2 once j-1, j-2, j-3, j-4 have saved and exited",
            ),
            (
                ("n0", "n1", "n2", "n3"),
                (1, 2, 3, 4, 5),
                "starts on n0, n1, n2 and 1 more once j-1, j-2, j-3, j-4 and 1 more have saved and exited",
            ),
        ],
    )
    def test_a_few_nodes_and_victims_are_named(
        self, where: tuple[str, ...], victims: tuple[int, ...], text: str
    ) -> None:
        state = begin(queued(9, 1, 4))
        state.decisions.reservations.append(replace(KEPT, nodes=where, victims=victims))
        assert reasons.coming(state, 9) == Reason(ReasonCode.WAITING_FOR_VICTIMS, text)

    def test_a_promise_without_a_reservation_is_one_of_an_elastic_job(self) -> None:
        state = begin(queued(9, 1, 4))
        state.decisions.reservations.append(KEPT)
        text = "waits for an elastic job to release nodes"
        assert reasons.coming(state, 1) == Reason(ReasonCode.WAITING_FOR_VICTIMS, text)

    @pytest.mark.parametrize(
        ("victims", "code"),
        [((7,), ReasonCode.WAITING_FOR_VICTIMS), ((), ReasonCode.WAITING_FOR_SLOTS)],
    )
    def test_the_reason_of_an_owner_goes_before_that_of_its_class(
        self, victims: tuple[int, ...], code: ReasonCode
    ) -> None:
        state = begin(queued(8, 1, 4), queued(9, 1, 4), held=(running(7, {0: FULL, 1: FULL}),))
        state.decisions.reservations.append(replace(KEPT, victims=victims))
        found = explained(state)
        assert found[9].code is code
        assert found[8].code is ReasonCode.WAITING_FOR_SLOTS


class TestAll:
    @pytest.mark.parametrize(("left_us", "text"), [(90 * US, "90"), (1_400_000, "1"), (1, "0")])
    def test_a_back_off_is_given_in_seconds(self, left_us: int, text: str) -> None:
        job = queued(1, 1, 1, not_before=NOW + left_us)
        message = f"waits {text} s before its next attempt"
        assert explained(begin(job)) == {1: Reason(ReasonCode.WAITING_FOR_SLOTS, message)}

    def test_every_job_that_waits_has_a_reason_in_order_of_number(self) -> None:
        waiting = (queued(3, 1, 4), queued(1, 9, 4), queued(2, 1, 1, not_before=NOW + US))
        decided = plan(PlanningInput(nodes(1), (), (*waiting, queued(4, 1, 4))), NOW)
        assert [one.job for one in decided.starts] == [3]
        assert [num for num, _ in decided.pending_reasons] == [1, 2, 4]

    @pytest.mark.parametrize(
        ("facts", "text"),
        [
            ({}, "needs 2 × 4 slots"),
            ({"cpus_per_node": 3}, "needs 2 × 4 slots, 3 CPUs a node"),
            ({"required": "rack"}, "needs 2 × 4 slots in one rack"),
            (
                {"cpus_per_node": 3, "required": "rack"},
                "needs 2 × 4 slots, 3 CPUs a node in one rack",
            ),
            ({"roles": (GangShape(1, 2, 2),)}, "needs 2 × 4 + 1 × 2 slots"),
            ({"roles": (RoleShape(1, 0, 1, "db"),)}, "needs 2 × 4 + 1 × 0 (db) slots"),
            (
                {"roles": (RoleShape(1, 0, 1, "db", cpus_per_node=6),)},
                "needs 2 × 4 + 1 × 0 with 6 CPUs (db) slots",
            ),
        ],
    )
    def test_the_need_of_a_gang_in_words(self, facts: dict[str, object], text: str) -> None:
        assert reasons.need(replace(queued(1, 2, 4), **facts)) == text  # type: ignore[arg-type]

    def test_the_last_stage_leaves_out_what_has_started(self) -> None:
        state = begin(queued(1, 1, 4), queued(2, 1, 4))
        assert state.try_start(head_of(state, 1).eq_class, 1)
        assert list(explained(state)) == [2]
