"""Gangs of several shapes, and gangs with several shares on one splittable node."""

from __future__ import annotations

from dataclasses import replace

import pytest

from phalanx.core.gang.placement import GangShape, NodeShare, Placement, RoleShape
from phalanx.core.scheduling import (
    ClusterIndex,
    Plan,
    PlannerConfig,
    PlanningInput,
    QueuedJob,
    RunningJob,
    plan,
)
from phalanx.core.scheduling.explain.why import why
from support.clusters import nodes, running

pytestmark = pytest.mark.unit

US = 1_000_000
HOUR = 3600 * US
FULL = (0, 1, 2, 3)


def held(num: int, where: dict[int, tuple[int, ...]], **more: object) -> RunningJob:
    return running(num, where, **{"priority": 10, **more})


def mixed(num: int = 1, **more: object) -> QueuedJob:
    """One whole node for the learner, two shares of two slots for its actors."""
    facts: dict[str, object] = {"roles": (GangShape(2, 2, 2),), **more}
    return QueuedJob(num, GangShape(1, 4, 4), 50, num, **facts)  # type: ignore[arg-type]


def shares_of(decided: Plan, num: int) -> list[tuple[str, int]]:
    start = next(s for s in decided.starts if s.job == num)
    return [(share.node, len(share.slots)) for share in start.placement.shares]


def evicted(decided: Plan) -> set[int]:
    return {preemption.job for preemption in decided.preemptions}


class TestPlacement:
    def test_all_parts_lie_in_the_narrowest_domain_that_holds_them_together(self) -> None:
        busy = (held(9, {0: (0, 1)}), held(8, {2: (0,)}))
        # The first rack has room for the learner, not for all: the third takes the whole gang.
        cluster = PlanningInput(nodes(6, rack=2), busy, (mixed(roles=(GangShape(1, 3, 3),)),))
        racks = {int(name[1:]) // 2 for name, _ in shares_of(plan(cluster, 1), 1)}
        assert len(racks) == 1
        assert [slots for _, slots in shares_of(plan(cluster, 1), 1)] == [4, 3]

    def test_a_required_rack_holds_every_role(self) -> None:
        request = mixed(required="rack", roles=(GangShape(2, 3, 3),))
        assert plan(PlanningInput(nodes(4, rack=2), (), (request,)), 1).starts == ()
        assert len(shares_of(plan(PlanningInput(nodes(3, rack=3), (), (request,)), 1), 1)) == 3
        assert (
            len(plan(PlanningInput(nodes(4), (), (replace(request, required=None),)), 1).starts)
            == 1
        )

    def test_a_role_wider_than_the_main_shape_finds_its_nodes(self) -> None:
        request = QueuedJob(1, GangShape(2, 2, 2), 50, 0, roles=(GangShape(1, 4, 4),))
        assert shares_of(plan(PlanningInput(nodes(3, rack=3), (), (request,)), 1), 1) == [
            ("n1", 2),
            ("n2", 2),
            ("n0", 4),
        ]


class TestPreemption:
    def test_a_gang_of_roles_evicts_what_it_needs_and_no_more(self) -> None:
        busy = tuple(held(10 + i, {i: FULL}) for i in range(4))
        cluster = PlanningInput(nodes(4, rack=4), busy, (mixed(),))
        decided = plan(cluster, HOUR)
        (reservation,) = decided.reservations
        assert evicted(decided) == set(reservation.victims)
        # A whole node, and one more that both actors' shares fit on only one at a time.
        assert len(reservation.nodes) == 3
        assert len(evicted(decided)) == 3
        freed = tuple(h for h in busy if h.job not in reservation.victims)
        after = PlanningInput(nodes(4, rack=4), freed, (mixed(),), reservations=(reservation,))
        assert [name for name, _ in shares_of(plan(after, HOUR + US), 1)] == list(reservation.nodes)

    def test_its_reservation_is_closed_to_others_until_all_victims_have_left(self) -> None:
        busy = tuple(held(10 + i, {i: FULL}) for i in range(3))
        decided = plan(PlanningInput(nodes(3, rack=3), busy, (mixed(),)), HOUR)
        (reservation,) = decided.reservations
        left = tuple(replace(h, stopping=True) for h in busy[1:])
        small = QueuedJob(2, GangShape(1, 1, 1), 10, 5)
        during = PlanningInput(
            nodes(3, rack=3), left, (mixed(), small), reservations=(reservation,)
        )
        again = plan(during, HOUR + US)
        assert again.starts == ()
        without = plan(
            replace(during, reservations=(), config=PlannerConfig(num_reservations=0)), HOUR + US
        )
        assert [start.job for start in without.starts] == [2]

    def test_all_parts_of_a_victim_leave(self) -> None:
        gang = held(9, {0: FULL, 1: (0, 1), 2: (0, 1)})
        request = QueuedJob(1, GangShape(3, 4, 4), 50, 0)
        decided = plan(PlanningInput(nodes(3, rack=3), (gang,), (request,)), HOUR)
        assert evicted(decided) == {9}
        assert (
            plan(PlanningInput(nodes(3, rack=3), (replace(gang, priority=90),), (request,)), HOUR)
            .reservations[0]
            .victims
            == ()
        )

    def test_nobody_leaves_for_roles_that_would_not_fit_together(self) -> None:
        busy = tuple(held(10 + i, {i: FULL}) for i in range(2))
        request = mixed(roles=(GangShape(2, 3, 3),))
        assert plan(PlanningInput(nodes(2), busy, (request,)), HOUR).preemptions == ()

    def test_a_blocked_gang_of_roles_keeps_the_nodes_that_are_free_first(self) -> None:
        busy = (
            held(7, {0: FULL}, priority=90, max_duration_s=7200.0),
            held(8, {1: FULL}, priority=90, max_duration_s=36_000.0),
            held(9, {2: FULL}, priority=90, max_duration_s=7300.0),
        )
        request = mixed(roles=(GangShape(1, 2, 2),))
        decided = plan(PlanningInput(nodes(3, rack=3), busy, (request,)), HOUR)
        (reservation,) = decided.reservations
        assert set(reservation.nodes) == {"n0", "n2"}
        assert reservation.ready_at == 7300 * US


class TestOneSplittableNode:
    """The built-in `local` pool: one machine that plays several nodes of a gang."""

    NODE = nodes(1, num_cpus=4, domains=(), splittable=True)

    def test_two_jobs_leave_for_a_gang_of_two_nodes(self) -> None:
        busy = (held(8, {0: (0, 1)}), held(9, {0: (2, 3)}))
        request = QueuedJob(1, GangShape(2, 2, 2), 50, 0)
        decided = plan(PlanningInput(self.NODE, busy, (request,)), HOUR)
        assert evicted(decided) == {8, 9}
        assert decided.reservations[0].nodes == ("n0", "n0")
        apart = (replace(self.NODE[0], splittable=False),)
        assert plan(PlanningInput(apart, busy, (request,)), HOUR).preemptions == ()

    def test_only_as_many_leave_as_the_gang_needs(self) -> None:
        busy = (held(8, {0: (0,)}), held(9, {0: (1,)}), held(7, {0: (2,)}))
        request = QueuedJob(1, GangShape(3, 1, 1), 50, 0)
        decided = plan(PlanningInput(self.NODE, busy, (request,)), HOUR)
        assert len(evicted(decided)) == 2

    def test_a_gang_of_several_nodes_leaves_it_as_one(self) -> None:
        share = NodeShare("n0", "h", (0, 1)), NodeShare("n0", "h", (2, 3))
        gang = RunningJob(9, Placement("p", share), priority=10, started_at=0)
        decided = plan(
            PlanningInput(self.NODE, (gang,), (QueuedJob(1, GangShape(1, 3, 3), 50, 0),)), HOUR
        )
        assert evicted(decided) == {9}


class TestRolesOfTheirOwn:
    """Roles that say what their nodes need: servers without slots, small nodes for small parts."""

    def test_a_role_without_slots_takes_cpus_where_they_are(self) -> None:
        server = RoleShape(1, 0, 1, "server", cpus_per_node=6)
        request = QueuedJob(1, GangShape(2, 4, 4), 50, 0, cpus_per_node=4, roles=(server,))
        # Four of eight CPUs are left beside each part of the first role: not enough for the server.
        assert plan(PlanningInput(nodes(2), (), (request,)), 1).starts == ()
        assert [
            width for _, width in shares_of(plan(PlanningInput(nodes(3), (), (request,)), 1), 1)
        ] == [
            4,
            4,
            0,
        ]

    def test_what_a_role_holds_of_cpus_is_not_given_twice(self) -> None:
        server = RoleShape(1, 0, 1, "server", cpus_per_node=6)
        gang = held(9, {0: FULL, 1: ()}, roles=(server,), cpus_per_node=1)
        request = QueuedJob(1, GangShape(1, 4, 4), 50, 0, cpus_per_node=4)
        alone = (replace(gang, priority=90),)
        assert plan(PlanningInput(nodes(2), alone, (request,)), HOUR).starts == ()
        assert (
            len(
                plan(PlanningInput(nodes(2), alone, (replace(request, cpus_per_node=2),)), 1).starts
            )
            == 1
        )
        cluster = ClusterIndex.of(PlanningInput(nodes(2), alone, ()))
        before = ClusterIndex.of(PlanningInput(nodes(2), (), ())).state()
        cluster.release(9)
        assert cluster.state()[0] == before[0]

    def test_parts_lie_on_the_smallest_nodes_that_will_do(self) -> None:
        kinds = (*nodes(2, rack=4), *(replace(n, id=f"s{n.id}", num_slots=1) for n in nodes(2, 4)))
        request = QueuedJob(1, GangShape(1, 4, 4), 50, 0, roles=(RoleShape(2, 1, 1, "actor"),))
        assert shares_of(plan(PlanningInput(kinds, (), (request,)), 1), 1) == [
            ("n0", 4),
            ("sn0", 1),
            ("sn1", 1),
        ]

    def test_room_is_made_on_nodes_of_several_kinds(self) -> None:
        small = tuple(replace(n, id=f"s{n.id}", num_slots=1) for n in nodes(2, 4))
        kinds = (*nodes(1, rack=4), *small)
        busy = (
            held(8, {0: FULL}),
            RunningJob(
                9, Placement("p", (NodeShare("sn0", "h", (0,)),)), priority=10, started_at=0
            ),
        )
        request = QueuedJob(1, GangShape(1, 4, 4), 50, 0, roles=(RoleShape(2, 1, 1, "actor"),))
        decided = plan(PlanningInput(kinds, busy, (request,)), HOUR)
        assert evicted(decided) == {8, 9}
        assert decided.reservations[0].nodes == ("n0", "sn1", "sn0")
        dear = (replace(busy[0], priority=90), busy[1])
        assert plan(PlanningInput(kinds, dear, (request,)), HOUR).preemptions == ()

    def test_a_role_keeps_to_its_own_slot_type(self) -> None:
        gpu = nodes(1, slot_type="H100")
        cpu = tuple(replace(n, id=f"c{n.id}", slot_type="cpu") for n in nodes(2))
        request = QueuedJob(
            1,
            GangShape(1, 2, 2),
            50,
            0,
            slot_type="H100",
            roles=(RoleShape(1, 2, 1, "a", slot_type="cpu"),),
        )
        assert [
            name for name, _ in shares_of(plan(PlanningInput((*gpu, *cpu), (), (request,)), 1), 1)
        ] == [
            "n0",
            "cn0",
        ]
        assert plan(PlanningInput(gpu, (), (request,)), 1).starts == ()

    def test_why_names_the_role_that_finds_no_room(self) -> None:
        request = QueuedJob(1, GangShape(1, 2, 2), 50, 0, roles=(RoleShape(1, 0, 1, "server", 9),))
        found = why(PlanningInput(nodes(2), (), (request,)), 1, 1)
        assert found is not None
        assert [one.text for one in found.constraints] == [
            "server needs 1 nodes with 0 free slots and 9 CPUs each; 0 have that, though 8 slots are "
            "free in all"
        ]
        assert found.reason.message.startswith("needs 1 × 2 + 1 × 0 with 9 CPUs (server) slots")
