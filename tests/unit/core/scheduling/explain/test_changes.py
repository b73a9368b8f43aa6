"""What would start a waiting job now: one change of each kind, the least that helps, and nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from phalanx.core.gang.placement import GangShape, Node
from phalanx.core.reasons import ReasonCode
from phalanx.core.scheduling import (
    PlannerConfig,
    PlanningInput,
    Project,
    QueuedJob,
    Reservation,
    RunningJob,
    why,
    why_victim,
)
from phalanx.core.scheduling.explain.why import Change, ChangeKind, counterfactuals, position
from support.clusters import nodes, queued, running

pytestmark = pytest.mark.unit

US = 1_000_000
NOW = 3600 * US
GB = 1 << 30
FULL = (0, 1, 2, 3)


def fixed(num: int, node: int, slots: tuple[int, ...] = FULL, **more: object) -> RunningJob:
    """A job that leaves for none and has no known end."""
    return running(num, {node: slots}, **{"preemptible": False, **more})


def offers(
    job: QueuedJob,
    some: tuple[Node, ...],
    *held: RunningJob,
    projects: tuple[Project, ...] = (),
    others: tuple[QueuedJob, ...] = (),
    config: PlannerConfig | None = None,
) -> dict[ChangeKind, str]:
    """What would help, by kind, without the words that are always the same."""
    config = PlannerConfig(guard_after_s=1e9, num_overdue=0) if config is None else config
    snapshot = PlanningInput(some, held, (job, *others), projects, config=config)
    found = counterfactuals(snapshot, job, NOW)
    assert all(change.text.startswith("starts now ") for change in found)
    texts = {change.kind: change.text.removeprefix("starts now ") for change in found}
    assert len(texts) == len(found)
    return texts


class TestSize:
    @pytest.mark.parametrize(
        ("free", "job", "text"),
        [
            ((4, 4, 4), queued(1, 8, 4), "with 12 slots on 3 nodes"),
            ((4, 0, 0), queued(1, 8, 4), "with 4 slots on 1 node"),
            ((2, 2, 0), queued(1, 8, 4), "with 2 slots on 1 node"),
            ((1, 0, 0), queued(1, 1, 4), "with 1 slot on 1 node"),
            ((0, 0, 0), queued(1, 1, 4), None),
            ((4, 4, 0), queued(1, 8, 4, min_nodes=4), "with 8 slots on 2 nodes"),
        ],
    )
    def test_the_largest_smaller_gang(
        self, free: tuple[int, ...], job: QueuedJob, text: str | None
    ) -> None:
        held = [fixed(8 + i, i, FULL[num:]) for i, num in enumerate(free) if num < 4]
        assert offers(job, nodes(3, rack=3), *held).get(ChangeKind.SIZE) == text

    def test_of_a_gang_with_roles_the_first_one_shrinks(self) -> None:
        job = queued(1, 3, 4, roles=(GangShape(1, 4, 4),))
        found = offers(job, nodes(3, rack=3))
        assert found == {ChangeKind.SIZE: "with 8 slots on 2 nodes for its first role"}


class TestDemands:
    @pytest.mark.parametrize(
        ("facts", "kind", "text"),
        [
            ({"pools": ("p",)}, ChangeKind.POOL, "in pool q"),
            (
                {"pools": ("p",), "slot_type": "A"},
                ChangeKind.POOL,
                "in pool q with any slot type",
            ),
            ({"slot_type": "A"}, ChangeKind.RESOURCES, "with any slot type instead of A"),
        ],
    )
    def test_another_pool_or_another_kind_of_slot(
        self, facts: dict[str, object], kind: ChangeKind, text: str
    ) -> None:
        first, second = nodes(2)
        some = (replace(first, slot_type="A"), replace(second, pool="q", slot_type="B"))
        # On the other node of the same pool nothing else is free.
        found = offers(queued(1, 1, 4, **facts), some, fixed(8, 0))
        assert found[kind] == text

    @pytest.mark.parametrize(
        ("facts", "kind", "text"),
        [
            ({"required": "rack"}, ChangeKind.TOPOLOGY, "without `required: rack`"),
            ({"cpus_per_node": 8}, ChangeKind.RESOURCES, "with fewer than 8 CPUs a node"),
            (
                {"memory_per_node_bytes": 3 * GB},
                ChangeKind.RESOURCES,
                "with less than 3 GB of memory a node",
            ),
        ],
    )
    def test_a_looser_demand(self, facts: dict[str, object], kind: ChangeKind, text: str) -> None:
        # Two nodes of two racks are free, with one CPU and one gigabyte used on each.
        held = [fixed(8 + i, i, FULL) for i in (0, 2)]
        held += [fixed(10 + i, i, (0,), cpus_per_node=1, memory_per_node_bytes=GB) for i in (1, 3)]
        found = offers(queued(1, 2, 3, **facts), nodes(4, memory_bytes=3 * GB), *held)
        assert found[kind] == text

    def test_nothing_is_offered_to_a_job_that_starts(self) -> None:
        assert offers(queued(1, 1, 4), nodes(1)) == {}
        back_off = queued(1, 1, 4, not_before=NOW + 9)
        # Apart from its back-off nothing holds it.
        assert offers(back_off, nodes(1)) == {}


class TestPriority:
    @pytest.mark.parametrize(
        ("mine", "theirs", "offered"),
        [(50, 55, 60), (50, 60, 70), (59, 60, 70), (50, 90, 100), (50, 100, None), (95, 99, 100)],
    )
    def test_the_least_ten_that_outranks_what_runs(
        self, mine: int, theirs: int, offered: int | None
    ) -> None:
        text = None if offered is None else f"at priority {offered}"
        found = offers(queued(1, 1, 4, mine), nodes(1), running(8, {0: FULL}, priority=theirs))
        assert found.get(ChangeKind.PRIORITY) == text

    def test_the_victims_are_named(self) -> None:
        held = running(8, {0: FULL}, priority=60)
        job = queued(1, 1, 4)
        config = PlannerConfig(num_overdue=0)
        asked = PlanningInput(nodes(1), (held,), (job,), config=config)
        found = counterfactuals(asked, job, NOW)
        wanted = Change("starts now at priority 70", True, ChangeKind.PRIORITY, (8,))
        assert wanted in found


class TestLimits:
    def test_limits_are_raised_by_what_is_needed_and_no_more(self) -> None:
        tree = (
            Project("lab", max_slots=7, max_running=1),
            Project("part", parent="lab", max_slots=20),
        )
        held = fixed(8, 0, project="lab")
        found = offers(queued(1, 1, 4, project="part"), nodes(2), held, projects=tree)
        assert found[ChangeKind.QUOTA] == (
            "if project lab might hold 8 slots and project lab might run 2 jobs"
        )

    def test_a_limit_that_does_not_bind_alone_is_not_offered(self) -> None:
        tree = (Project("lab", max_slots=4),)
        held = (fixed(8, 0, project="lab"), fixed(9, 1))
        assert ChangeKind.QUOTA not in offers(
            queued(1, 1, 4, project="lab"), nodes(2), *held, projects=tree
        )

    @pytest.mark.parametrize(
        ("busy_s", "facts", "text"),
        [
            (36_000.0, {}, "8 h"),
            (7200.0, {}, "1 h"),
            (1800.0, {}, "15 min"),
            (600.0, {}, None),
            (7200.0, {"max_duration_s": 3 * 3600.0}, "1 h"),
            (1800.0, {"max_duration_s": 3500.0}, "15 min"),
        ],
    )
    def test_a_declared_limit_lets_it_use_slots_that_are_kept(
        self, busy_s: float, facts: dict[str, float], text: str | None
    ) -> None:
        # Job 2 waits for both nodes, of which one is free.
        first = queued(2, 2, 4, 60)
        found = offers(
            queued(1, 1, 4, **facts), nodes(2), fixed(8, 0, remaining_s=busy_s), others=(first,)
        )
        wanted = None if text is None else f"with `max_duration` of at most {text}"
        assert found.get(ChangeKind.LIMIT) == wanted


class TestNodes:
    @pytest.mark.parametrize(
        ("num", "names"), [(1, "n0"), (4, "n0, n1, n2, n3"), (6, "n0, n1, n2, n3 and 2 more")]
    )
    def test_closed_nodes_would_help_if_they_took_jobs_again(self, num: int, names: str) -> None:
        some = tuple(replace(one, closed="lost") for one in nodes(num))
        found = offers(queued(1, num, 4), some)
        assert found == {ChangeKind.NODES: f"if {names} accepted jobs"}

    def test_closed_nodes_that_would_not_be_enough_are_not_offered(self) -> None:
        shut = replace(nodes(1)[0], closed="lost")
        assert ChangeKind.NODES not in offers(queued(1, 3, 4), (shut, *nodes(2)[1:]))


class TestPosition:
    def test_jobs_are_counted_in_the_order_in_which_they_are_considered(self) -> None:
        waiting = (
            queued(1, 1, 4),
            queued(2, 1, 4, 60),
            queued(3, 1, 4, max_duration_s=60.0),
            queued(4, 1, 4, 60),
            queued(5, 1, 4, 99, not_before=NOW + 1),
        )
        snapshot = PlanningInput(nodes(1), (), waiting, config=PlannerConfig(num_overdue=0))
        found = {num: position(snapshot, num, NOW) for num in range(1, 6)}
        # A job that backs off comes after all others.
        assert found == {2: 1, 4: 2, 3: 3, 1: 4, 5: 5}
        assert position(snapshot, 99, NOW) == 5

    @pytest.mark.parametrize(("most", "order"), [(1, [1, 3, 2]), (2, [1, 2, 3])])
    def test_only_so_many_overdue_gangs_go_before_more_urgent_jobs(
        self, most: int, order: list[int]
    ) -> None:
        old = {"remaining_s": 7000.0}
        waiting = (
            replace(queued(1, 2, 4, kind="a", **old), queued_at=NOW - 9001 * US),
            replace(queued(2, 2, 4, kind="b", **old), queued_at=NOW - 9000 * US),
            replace(queued(3, 1, 1, remaining_s=1.0), queued_at=NOW),
        )
        snapshot = PlanningInput(nodes(2), (), waiting, config=PlannerConfig(num_overdue=most))
        assert sorted(order, key=lambda num: position(snapshot, num, NOW)) == order
        assert [position(snapshot, num, NOW) for num in order] == [1, 2, 3]

    def test_an_answer_says_where_it_stands_and_of_how_many(self) -> None:
        snapshot = PlanningInput(nodes(1), (fixed(8, 0),), (queued(1, 1, 4), queued(2, 1, 4, 60)))
        found = why(snapshot, 1, NOW, 1)
        assert found is not None
        assert (found.position, found.num_waiting) == (2, 2)
        assert found.reason.code is ReasonCode.WAITING_FOR_SLOTS
        assert why(snapshot, 8, NOW) is None
        free = why(replace(snapshot, held=()), 2, NOW)
        assert free is not None
        assert (free.reason.code, free.reason.message) == (
            ReasonCode.PLACED,
            "starts at the next pass",
        )


class TestVictims:
    def test_a_victim_of_an_earlier_pass_belongs_to_its_reservation(self) -> None:
        held = (running(8, {0: FULL}, priority=10), running(9, {1: FULL}, priority=10))
        reservation = Reservation(2, ("n1",), NOW, NOW + 9, (9,))
        snapshot = PlanningInput(
            nodes(2), held, (queued(1, 1, 4, 90), queued(2, 1, 4)), (), (reservation,)
        )
        earlier, now = why_victim(snapshot, 9, NOW), why_victim(snapshot, 8, NOW)
        assert earlier is not None and now is not None
        assert (earlier.beneficiary, now.beneficiary) == (2, 1)
        assert "makes room for j-2 (4 slots, priority 50)" in earlier.text
        assert "the job saves first (30 s), 0.10 slot-hours in all" in now.text

    def test_a_beneficiary_that_is_gone_is_named_without_its_size(self) -> None:
        reservation = Reservation(2, ("n0",), NOW, NOW + 9, (8,))
        held = running(8, {0: FULL}, save_s=None)
        found = why_victim(PlanningInput(nodes(1), (held,), (), (), (reservation,)), 8, NOW)
        assert found is not None
        assert found.text.startswith("makes room for j-2: this choice of victims")
        assert "since the last checkpoint, 4.00 slot-hours, is lost" in found.text
        assert (found.lost_slot_s, found.price_slot_s) == (4 * 3600.0, 4 * 3660.0)

    def test_a_job_that_does_not_run_is_no_victim(self) -> None:
        assert why_victim(PlanningInput(nodes(1), (), (queued(1, 1, 4),)), 1, NOW) is None
