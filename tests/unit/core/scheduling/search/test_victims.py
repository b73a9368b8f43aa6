"""The cheapest victims for a gang: one domain, the least cost, none in vain, and the same every time."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.core.gang.placement import GangShape, Node, RoleShape
from phalanx.core.scheduling import (
    ClusterIndex,
    PlannerConfig,
    PlanningInput,
    Project,
    QueuedJob,
    RunningJob,
)
from phalanx.core.scheduling.model.entitlement import EntitlementTier
from phalanx.core.scheduling.search import large_jobs, moves
from phalanx.core.scheduling.search.candidate_set import PendingGang
from phalanx.core.scheduling.search.victim_search import VictimSearch
from phalanx.core.scheduling.search.victims import VictimPlan, find_victims
from phalanx.core.scheduling.stages.scheduling_pass import Pass
from support.clusters import nodes, queued, running

pytestmark = pytest.mark.unit

US = 1_000_000
NOW = 3 * 3600 * US
FULL = (0, 1, 2, 3)


def search_of(
    some: tuple[Node, ...],
    held: tuple[RunningJob, ...],
    *waiting: QueuedJob,
    config: PlannerConfig | None = None,
    projects: tuple[Project, ...] = (),
) -> VictimSearch:
    config = PlannerConfig() if config is None else config
    snapshot = PlanningInput(some, held, waiting, projects, config=config)
    return Pass(ClusterIndex.of(snapshot), NOW).victims


def found(search: VictimSearch, num: int = 1) -> VictimPlan | None:
    """The victims for a job; the index is as it was."""
    before = search.index.state()
    eq_class = search.cluster.class_of[num]
    plan = find_victims(search, eq_class, eq_class.jobs[0][0], num)
    assert search.index.state() == before
    return plan


def chosen(search: VictimSearch, num: int = 1) -> tuple[list[int], list[int]] | None:
    """Nodes and victims."""
    plan = found(search, num)
    return None if plan is None else (plan.nodes, plan.victims)


def holds(num: int, node: int, price: float, slots: tuple[int, ...] = FULL) -> RunningJob:
    """A job of lower priority that costs so much, on slots of one node."""
    return running(num, {node: slots}, priority=10, save_s=0.0, restart_s=price / len(slots))


def full_nodes(*prices: float) -> tuple[RunningJob, ...]:
    """Job 10 on node 0, 11 on node 1, … at these prices; 0: the node is free."""
    return tuple(holds(10 + node, node, price) for node, price in enumerate(prices) if price)


class TestDomains:
    @pytest.mark.parametrize(
        ("prices", "count", "required", "result"),
        [
            ((8, 4, 12, 16), 1, None, ([1], [11])),
            ((8, 4, 12, 16), 2, None, ([1, 0], [11, 10])),
            ((16, 4, 8, 8), 2, None, ([2, 3], [12, 13])),
            # The cheapest two nodes lie in two racks: a rack is taken all the same.
            ((4, 40, 4, 44), 2, None, ([0, 1], [10, 11])),
            # A free node of a rack costs nothing.
            ((0, 40, 12, 16), 2, None, ([2, 3], [12, 13])),
            ((0, 24, 12, 16), 2, None, ([0, 1], [11])),
            # Three nodes are no rack.
            ((16, 4, 8, 8), 3, None, ([1, 2, 3], [11, 12, 13])),
            ((16, 4, 8, 8), 3, "rack", None),
            ((16, 4, 8, 8), 5, None, None),
            # Of equal racks, that of the cheapest jobs to be looked at, or with a free node.
            ((8, 8, 8, 8), 2, None, ([0, 1], [10, 11])),
            ((0, 8, 4, 4), 2, None, ([0, 1], [11])),
            ((4, 4, 0, 8), 2, None, ([2, 3], [13])),
        ],
    )
    def test_the_cheapest_domain_of_the_narrowest_level(
        self,
        prices: tuple[float, ...],
        count: int,
        required: str | None,
        result: tuple[list[int], list[int]] | None,
    ) -> None:
        job = queued(1, count, 4, required=required)
        assert chosen(search_of(nodes(4), full_nodes(*prices), job)) == result

    def test_a_plan_says_what_each_victim_costs(self) -> None:
        plan = found(search_of(nodes(4), full_nodes(16, 4, 8, 12), queued(1, 2, 4)))
        # Equal sums: the first of equal racks, its cheaper node first.
        assert plan == VictimPlan(20.0, [1, 0], [11, 10], [4.0, 16.0])

    @settings(max_examples=60)
    @given(st.lists(st.integers(0, 9), min_size=8, max_size=8), st.integers(1, 4))
    def test_no_other_choice_in_a_domain_of_that_level_is_cheaper(
        self, prices: list[int], count: int
    ) -> None:
        if prices.count(0) >= count:
            prices = [price or 1 for price in prices]
        some = nodes(8, rack=2)
        plan = found(search_of(some, full_nodes(*map(float, prices)), queued(1, count, 4)))
        assert plan is not None
        width = 2 if count <= 2 else 8
        domains = [prices[at : at + width] for at in range(0, 8, width)]
        assert plan.cost == min(sum(sorted(domain)[:count]) for domain in domains)
        assert plan.cost == sum(prices[node] for node in plan.nodes) == sum(plan.prices)
        assert {node // width for node in plan.nodes} == {plan.nodes[0] // width}

    def test_of_equal_racks_a_node_with_no_room_for_a_share_decides_nothing(self) -> None:
        """Job 10 comes first, but its slot alone makes no room on its node: the rack of 11 is first."""
        one_slot = replace(holds(10, 0, 1.0, (0,)), remaining_s=1e6)
        others = (running(9, {0: (1, 2, 3)}, priority=90), running(8, {3: FULL}, priority=90))
        for nodes_of_two, expected in (((2, 1), 2), ((1, 2), 1)):
            two = [
                replace(holds(num, node, 8.0), remaining_s=1000.0)
                for num, node in zip((11, 12), nodes_of_two, strict=True)
            ]
            search = search_of(nodes(4), (one_slot, *others, *two), queued(1, 1, 4))
            assert chosen(search) == ([expected], [11])

    @pytest.mark.parametrize("splittable", [False, True])
    def test_a_node_that_an_overdue_gang_waits_for_is_no_place(self, splittable: bool) -> None:
        some = nodes(2, splittable=splittable)
        search = search_of(some, full_nodes(1, 9), queued(1, 1, 4))
        search.closed.add(0)
        assert chosen(search) == ([1], [11])


class TestOneNode:
    @pytest.mark.parametrize(
        ("need", "victims"),
        [
            (1, [10]),
            (2, [11]),
            (3, [10, 11]),
            (4, [10, 11, 12]),
        ],
    )
    def test_cheap_slots_first_and_nothing_in_vain(self, need: int, victims: list[int]) -> None:
        # Per slot job 10 costs 4, job 11 costs 5, and job 12 costs 9.
        held = (holds(10, 0, 4.0, (0,)), holds(11, 0, 10.0, (1, 2)), holds(12, 0, 9.0, (3,)))
        assert chosen(search_of(nodes(1), held, queued(1, 1, need))) == ([0], victims)

    def test_a_node_costs_what_makes_room_not_all_that_could_leave(self) -> None:
        held = (holds(10, 0, 3.0, (0, 1)), holds(11, 0, 100.0, (2, 3)), holds(12, 1, 50.0))
        assert chosen(search_of(nodes(2), held, queued(1, 1, 2))) == ([0], [10])

    def test_the_most_expensive_superfluous_victim_is_dropped(self) -> None:
        held = (holds(10, 0, 1.0, (0,)), holds(11, 0, 30.0, (1, 2, 3)))
        # Job 10 is cheaper per slot, and of no use once job 11 must leave for three slots.
        assert chosen(search_of(nodes(1), held, queued(1, 1, 3))) == ([0], [11])

    def test_a_victim_on_two_nodes_is_paid_once(self) -> None:
        wide = running(10, {0: FULL, 1: FULL}, priority=10, save_s=0.0, restart_s=1.0)
        held = (wide, holds(11, 2, 5.0), holds(12, 3, 6.0))
        assert found(search_of(nodes(4), held, queued(1, 2, 4))) == VictimPlan(
            11.0, [2, 3], [11, 12], [5.0, 6.0]
        )
        # Its price counts on each of its nodes while domains are compared, and once in the sum.
        dear = (*held[:2], replace(held[2], restart_s=9.0))
        assert found(search_of(nodes(4), dear, queued(1, 2, 4))) == VictimPlan(
            8.0, [0, 1], [10], [8.0]
        )

    def test_cpus_must_become_free_too(self) -> None:
        held = tuple(
            replace(holds(num, 0, price, (slot,)), cpus_per_node=cpus)
            for num, price, slot, cpus in ((10, 1.0, 0, 1), (11, 2.0, 1, 4), (12, 3.0, 2, 3))
        )
        job = queued(1, 1, 1, cpus_per_node=4)
        assert chosen(search_of(nodes(1), held, job)) == ([0], [10, 11])
        assert chosen(search_of(nodes(1), held, replace(job, cpus_per_node=8))) == (
            [0],
            [10, 11, 12],
        )
        assert found(search_of(nodes(1), held, replace(job, cpus_per_node=9))) is None

    def test_free_slots_without_cpus_are_paid_for(self) -> None:
        """Node 0 has three free slots and one CPU, node 1 is full and costs more."""
        busy = replace(holds(10, 0, 2.0, (0,)), cpus_per_node=7)
        held = (busy, holds(11, 1, 9.0))
        job = queued(1, 1, 2, cpus_per_node=4)
        assert chosen(search_of(nodes(2), held, job)) == ([0], [10])
        enough = (replace(busy, cpus_per_node=4), held[1])
        assert chosen(search_of(nodes(2), enough, job)) == ([0], [])

    def test_where_cpus_count_the_cheapest_for_its_slots_leaves_first(self) -> None:
        wide = replace(holds(10, 0, 6.0, (0, 1, 2)), cpus_per_node=4)
        thin = replace(holds(11, 0, 3.0, (3,)), cpus_per_node=4)
        job = queued(1, 1, 1, cpus_per_node=4)
        assert chosen(search_of(nodes(1), (wide, thin), job)) == ([0], [10])
        assert chosen(search_of(nodes(1), (replace(wide, restart_s=4.0), thin), job)) == ([0], [11])

    def test_memory_must_become_free_too(self) -> None:
        held = tuple(
            replace(holds(num, 0, price, (slot,)), memory_per_node_bytes=size)
            for num, price, slot, size in ((10, 1.0, 0, 40), (11, 2.0, 1, 30))
        )
        job = queued(1, 1, 1, memory_per_node_bytes=30)
        assert chosen(search_of(nodes(1), held, job)) == ([0], [])
        assert chosen(search_of(nodes(1), held, replace(job, memory_per_node_bytes=70))) == (
            [0],
            [10],
        )
        assert chosen(search_of(nodes(1), held, replace(job, memory_per_node_bytes=71))) == (
            [0],
            [10, 11],
        )

    def test_a_closed_node_is_no_place(self) -> None:
        first, second = nodes(2)
        shut = (replace(first, closed="drained"), second)
        assert chosen(search_of(shut, full_nodes(1, 9), queued(1, 1, 4))) == ([1], [11])

    def test_all_shares_on_one_splittable_node(self) -> None:
        held = (
            holds(10, 0, 1.0, (0, 1)),
            holds(11, 0, 9.0, (2, 3)),
            holds(12, 1, 4.0, (0, 1)),
            holds(13, 1, 4.0, (2, 3)),
        )
        some = nodes(2, splittable=True)
        together = queued(1, 2, 2, required="node")
        assert chosen(search_of(some, held, together)) == ([1, 1], [12, 13])
        # In one rack, the cheapest shares of both nodes will do.
        assert chosen(search_of(some, held, queued(1, 2, 2))) == ([0, 1], [10, 12])

    def test_several_kinds_of_nodes_compete_by_price(self) -> None:
        some = (*nodes(1), replace(nodes(2)[1], slot_type="L4"))
        assert chosen(search_of(some, full_nodes(8, 4), queued(1, 1, 4))) == ([1], [11])
        assert chosen(search_of(some, full_nodes(4, 4), queued(1, 1, 4))) == ([0], [10])


class TestRoles:
    JOB = queued(1, 1, 4, roles=(GangShape(1, 2, 2),))

    def test_all_parts_lie_in_the_cheapest_rack(self) -> None:
        held = (*full_nodes(8, 8, 2), holds(13, 3, 5.0, (0, 1)), holds(14, 3, 3.0, (2, 3)))
        plan = found(search_of(nodes(4), held, self.JOB))
        assert plan == VictimPlan(5.0, [2, 3], [12, 14], [2.0, 3.0])

    def test_a_role_asks_for_its_own_cpus(self) -> None:
        held = (
            replace(holds(10, 0, 1.0, (0, 1)), cpus_per_node=2),
            replace(holds(11, 0, 9.0, (2, 3)), cpus_per_node=6),
        )
        head = RoleShape(1, 1, 1, "head", 5)
        job = queued(1, 1, 2, roles=(head,))
        assert chosen(search_of(nodes(1), held, job)) == ([0, 0], [10, 11])
        modest = replace(job, roles=(replace(head, cpus_per_node=0),), shape=GangShape(1, 1, 1))
        assert chosen(search_of(nodes(1), held, modest)) == ([0, 0], [10])

    def test_a_gang_without_room_for_a_part_has_no_victims(self) -> None:
        job = replace(self.JOB, roles=(GangShape(4, 4, 4),))
        assert found(search_of(nodes(4), full_nodes(1, 1, 1, 1), job)) is None


class TestMemo:
    def test_a_request_without_victims_is_not_searched_for_again(self) -> None:
        held = tuple(replace(one, priority=90) for one in full_nodes(1, 1))
        search = search_of(nodes(2), held, queued(1, 1, 4), queued(2, 1, 4, kind="k"))
        assert found(search) is None
        assert search.fruitless == {("", 50, search.cluster.class_of[1].request_num)}
        steps = search.decisions.num_steps
        assert found(search, 2) is None
        assert search.decisions.num_steps == steps
        # Another priority is another matter.
        other = search_of(nodes(2), held, queued(1, 1, 4), queued(2, 1, 4, 95))
        assert found(other) is None
        assert chosen(other, 2) == ([0], [10])

    def test_a_victim_of_one_gang_is_none_of_another(self) -> None:
        search = search_of(nodes(2), full_nodes(1, 2), queued(1, 1, 4), queued(2, 1, 4))
        assert chosen(search) == ([0], [10])
        search.leave(10)
        assert chosen(search) == ([1], [11])
        search.leave(11)
        assert found(search) is None


class TestMoves:
    """Two nodes of four slots, a short job on each: six slots are free, and no node is."""

    def search(self, need: int = 4, **facts: object) -> VictimSearch:
        first = running(8, {0: (0,)}, remaining_s=600.0, **facts)
        second = running(9, {1: (0, 1)}, remaining_s=600.0)
        job = queued(1, 1, need, queued_at=NOW, remaining_s=1e6)
        return search_of(nodes(2), (first, second), job)

    @pytest.mark.parametrize(
        ("need", "config", "help_"),
        [
            (4, {}, True),
            (1, {}, False),
            (2, {}, True),
            (5, {}, True),
            (6, {}, False),
            (4, {"hysteresis": float("inf")}, False),
        ],
    )
    def test_moves_help_where_enough_slots_are_free_and_scattered(
        self, need: int, config: dict[str, float], help_: bool
    ) -> None:
        search = self.search(need)
        search.config = replace(search.config, **config)
        eq_class = search.cluster.class_of[1]
        if need <= 4:
            assert eq_class.groups
        else:
            eq_class.groups = search.index.groups
        assert moves.may_help(search, eq_class, search.cluster.waiting[1]) is help_

    @pytest.mark.parametrize(
        ("facts", "movable"),
        [
            ({}, [8, 9]),
            ({"priority": 50}, [8, 9]),
            ({"priority": 51}, [9]),
            ({"save_s": None}, [9]),
            ({"protected_until": NOW}, [8, 9]),
            ({"protected_until": NOW + 1}, [9]),
            ({"started_at": NOW - 3600 * US}, [8, 9]),
            ({"started_at": NOW - 3599 * US}, [9]),
        ],
    )
    def test_small_jobs_that_save_may_move(
        self, facts: dict[str, object], movable: list[int]
    ) -> None:
        search = self.search(**facts)
        job = search.cluster.waiting[1]
        found_ = moves.candidates(search, job)
        assert sorted(found_) == movable
        assert found_[9] == 2 * 90.0
        # At most half of the gang.
        assert sorted(moves.candidates(search, replace(job, shape=GangShape(1, 3, 3)))) == [
            num for num in movable if num == 8
        ]
        for slots, small in ((2, [8]), (1, [])):
            narrow = replace(job, shape=GangShape(1, slots, slots))
            assert [n for n in moves.candidates(search, narrow) if n in movable] == [
                num for num in small if num in movable
            ]
        search.decisions.leaving.add(9)
        assert 9 not in moves.candidates(search, job)

    @pytest.mark.parametrize(
        ("cost", "nodes_", "victims", "pays"),
        [
            (4 * 900.0, [0], [8], True),
            (4 * 900.0 + 1, [0], [8], False),
            (1.0, [1], [9], True),
            (1.0, [0, 1], [8], False),  # no node is left to go to
        ],
    )
    def test_a_move_pays_if_all_fit_elsewhere_and_the_gain_is_larger(
        self, cost: float, nodes_: list[int], victims: list[int], pays: bool
    ) -> None:
        search = self.search()
        before = search.index.state()
        job = search.cluster.waiting[1]
        assert moves.pays(search, job, cost, nodes_, victims) is pays
        assert search.index.state() == before

    def test_two_that_move_do_not_take_the_same_slots(self) -> None:
        held = (
            running(8, {0: (0, 1)}),
            running(9, {0: (2, 3)}),
            running(10, {1: (0,)}),
        )
        search = search_of(nodes(2), held, queued(1, 1, 4))
        job = search.cluster.waiting[1]
        assert moves.pays(search, job, 0.0, [0], [8])
        assert not moves.pays(search, job, 0.0, [0], [8, 9])

    def test_its_cpus_must_be_free_elsewhere(self) -> None:
        held = (running(8, {0: (0,)}, cpus_per_node=5), running(9, {1: (0,)}, cpus_per_node=4))
        search = search_of(nodes(2), held, queued(1, 1, 4))
        job = search.cluster.waiting[1]
        assert not moves.pays(search, job, 0.0, [0], [8])
        assert moves.pays(search, job, 0.0, [1], [9]) is False
        alone = search_of(nodes(2), held[:1], queued(1, 1, 4))
        assert moves.pays(alone, job, 0.0, [0], [8])


class TestLargeJobs:
    CONFIG = PlannerConfig(
        hysteresis=1.5, min_run_s=1200.0, large_job_slots=4, large_job_fraction=0.25
    )

    def search(self, *waiting: QueuedJob, **facts: object) -> VictimSearch:
        """Job 8 holds eight slots of 32, job 9 twelve; stopping the first puts off 8 × 1290 slot-s."""
        held = (
            running(8, {0: FULL, 1: FULL}, remaining_s=1e6, **facts),
            running(9, {2: FULL, 3: FULL, 4: FULL}, remaining_s=1e6),
        )
        return search_of(nodes(8), held, *waiting, config=self.CONFIG)

    def test_a_job_is_large_beyond_a_part_of_its_kind_of_nodes(self) -> None:
        search = self.search()
        assert large_jobs.large_job_limit(search, 0) == 8.0
        large = {
            num: large_jobs.is_large(search, held) for num, held in search.cluster.held.items()
        }
        assert large == {8: False, 9: True}
        search.config = replace(self.CONFIG, large_job_fraction=0.2)
        assert large_jobs.is_large(search, search.cluster.held[8])
        search.config = replace(self.CONFIG, large_job_fraction=0.2, large_job_slots=8)
        assert not large_jobs.is_large(search, search.cluster.held[8])

    def gang(self, search: VictimSearch, num: int = 1, urgency: float = 1.0) -> PendingGang:
        return PendingGang(search.cluster.waiting[num], EntitlementTier.SHARED, urgency, False)

    def waiting(self, wait_s: float, **facts: object) -> QueuedJob:
        """Four slots that have waited so long."""
        return queued(1, 1, 4, queued_at=NOW - int(wait_s * US), **facts)

    @pytest.mark.parametrize(
        ("wait_s", "found_"), [(2579.0, {}), (2580.0, {8: 720.0}), (3870.0, {8: 720.0, 9: 1080.0})]
    )
    def test_the_waits_of_small_jobs_must_pay_for_the_delay(
        self, wait_s: float, found_: dict[int, float]
    ) -> None:
        search = self.search(self.waiting(wait_s))
        listed = [(1e-7, 8), (2e-7, 9)]
        assert large_jobs.candidates(search, self.gang(search), listed) == found_

    def test_other_jobs_of_its_priority_wait_with_it(self) -> None:
        others = (
            queued(2, 1, 2, queued_at=NOW - 2580 * US),
            queued(3, 1, 2, queued_at=NOW - 2580 * US, kind="k"),
            queued(4, 1, 4, 60, queued_at=0),
            queued(5, 5, 4, queued_at=0),  # large itself
        )
        search = self.search(self.waiting(0.0), *others)
        listed = [(1e-7, 8)]
        assert large_jobs.candidates(search, self.gang(search), listed) == {8: 720.0}
        # What has started in this pass waits no more.
        again = self.search(self.waiting(0.0), *others)
        again.decisions.started.add(3)
        assert large_jobs.candidates(again, self.gang(again), listed) == {}
        # Those that go on waiting may be enough.
        more = self.search(self.waiting(2579.0), *others[:2])
        more.decisions.started.add(3)
        assert large_jobs.candidates(more, self.gang(more), listed) == {8: 720.0}
        # A large gang makes no room for itself in this way.
        assert large_jobs.candidates(search, self.gang(search, 5), listed) == {}

    def test_only_less_urgent_ones_leave_and_one_at_a_time(self) -> None:
        search = self.search(self.waiting(9000.0))
        listed = [(0.5, 8), (0.7, 9)]
        assert list(large_jobs.candidates(search, self.gang(search), listed)) == [8]
        assert large_jobs.candidates(search, self.gang(search, urgency=0.75), listed) == {}
        search.decisions.leaving.add(9)
        assert large_jobs.candidates(search, self.gang(search), listed) == {}
        stopping = self.search(self.waiting(9000.0))
        stopping.cluster.update(replace(stopping.cluster.held[9], stopping=True))
        assert large_jobs.candidates(stopping, self.gang(stopping), [(0.5, 8)]) == {}
        # A small one that leaves does not count.
        small = self.search(self.waiting(9000.0))
        small.decisions.leaving.add(8)
        assert list(large_jobs.candidates(small, self.gang(small), [(0.5, 9)])) == [9]
        assert large_jobs.candidates(small, self.gang(small), []) == {}
