"""What binds a queued job, in words and numbers: each constraint as it is shown to its owner."""

from __future__ import annotations

from dataclasses import replace

import pytest

from phalanx.core.gang.placement import Node, RoleShape
from phalanx.core.scheduling import (
    ClusterIndex,
    Plan,
    PlannerConfig,
    PlanningInput,
    Project,
    QueuedJob,
    Reservation,
    RunningJob,
    plan_pass,
)
from phalanx.core.scheduling.explain.constraints import Binding, Constraint, constraints
from support.clusters import nodes, queued, running

pytestmark = pytest.mark.unit

US = 1_000_000
NOW = 3600 * US
GB = 1 << 30
FULL = (0, 1, 2, 3)


def bound(
    job: QueuedJob,
    some: tuple[Node, ...] = (),
    held: tuple[RunningJob, ...] = (),
    others: tuple[QueuedJob, ...] = (),
    projects: tuple[Project, ...] = (),
    decided: Plan | None = None,
) -> list[Constraint]:
    """The constraints on a job after the plan of its cluster, or after another one."""
    snapshot = PlanningInput(
        some or nodes(2), held, (job, *others), projects, config=PlannerConfig(guard_after_s=1e9)
    )
    cluster = ClusterIndex.of(snapshot)
    plan = plan_pass(cluster, NOW) if decided is None else decided
    before = cluster.state()
    found = constraints(cluster, plan, job, NOW)
    assert cluster.state() == before
    return list(found)


def kept_busy(num: int, node: int, slots: tuple[int, ...] = FULL, **more: object) -> RunningJob:
    """A job that leaves for none."""
    return running(num, {node: slots}, **{"preemptible": False, **more})


class TestQuota:
    def test_slots_of_a_project_above_are_counted_with_those_that_start_now(self) -> None:
        tree = (Project("lab", max_slots=6), Project("part", parent="lab"))
        job = queued(2, 1, 4, project="part")
        first = queued(1, 1, 4, 60, project="lab")
        assert bound(job, others=(first,), projects=tree) == [
            Constraint(
                Binding.QUOTA,
                "project lab, which part is part of, holds 4 of at most 6 slots; "
                "4 more are 2 too many",
                4,
                2,
                "slots",
                ("lab",),
            )
        ]

    def test_running_jobs_that_fill_a_limit_are_named(self) -> None:
        tree = (Project("lab", max_running=5), Project("part", parent="lab"))
        held = [kept_busy(num, 0, (), project="part") for num in (12, 9, 11)]
        held += [kept_busy(num, 0, (), project="lab") for num in (10, 8)]
        (found,) = bound(queued(1, 1, 1, project="part"), held=tuple(held), projects=tree)
        assert (found.need, found.have, found.unit, found.names) == (1, 0, "jobs", ("lab",))
        assert found.text == (
            "project lab, which part is part of, runs 5 jobs of at most 5: j-8, j-9, j-10, j-11"
        )


class TestNodes:
    @pytest.mark.parametrize(
        ("asked", "text", "need", "have"),
        [
            ({"slot_type": "H100"}, "no node is of slot type H100", 1, 4),
            ({"device_memory_bytes": 80 * 10**9}, "no node has devices with 80.0 GB", 1, 4),
            ({"selector": (("a", "b"), ("c", "d"))}, "no node has the labels a=b, c=d", 1, 4),
            ({"required": "row"}, "no node has a row in its topology", 1, 4),
            (
                {"pools": ("p", "x"), "slot_type": "L4"},
                "no node of pool p is of slot type L4",
                1,
                4,
            ),
            ({"pools": ("x", "y")}, "there is no pool x, y; known: p", 0, 0),
        ],
    )
    def test_the_first_demand_that_no_node_meets(
        self, asked: dict[str, object], text: str, need: int, have: int
    ) -> None:
        job = queued(1, 1, 1, **asked)
        assert bound(job) == [
            Constraint(Binding.NO_SUCH_NODES, text, need, have, "slots", job.pools)
        ]

    def test_demands_must_be_met_by_the_same_nodes(self) -> None:
        first, second = nodes(2)
        some = (replace(first, slot_type="H100"), replace(second, num_slots=8))
        (found,) = bound(queued(1, 1, 8, slot_type="H100"), some)
        assert (found.text, found.need, found.have) == ("no node has 8 slots", 8, 4)
        tainted = tuple(replace(one, taints=("spot",)) for one in nodes(2))
        (found,) = bound(queued(1, 1, 4), tainted)
        assert found.text == "no node is free of taints that the job does not tolerate"

    def test_an_empty_cluster_says_so(self) -> None:
        cluster, job = ClusterIndex(()), queued(1, 1, 1)
        cluster.submit(job)
        (found,) = constraints(cluster, Plan((), ()), job, NOW)
        assert found == Constraint(Binding.NO_SUCH_NODES, "there are no nodes")
        elsewhere = replace(job, pools=("x",))
        (found,) = constraints(cluster, Plan((), ()), elsewhere, NOW)
        assert found.text == "there is no pool x; known: none"

    def test_closed_nodes_of_a_suitable_kind_are_named_with_their_causes(self) -> None:
        some = [replace(one, closed="drained") for one in nodes(5)]
        some[1] = replace(some[1], closed="lost")
        some.append(replace(nodes(6)[5], closed="lost", taints=("spot",)))
        some.append(nodes(7)[6])
        job = queued(1, 2, 4)
        closed, slots = bound(job, tuple(some))
        assert closed.text == (
            "5 suitable nodes with 20 slots are closed (drained, lost): n0, n1, n2, n3 and 1 more"
        )
        assert (closed.need, closed.have) == (8, 20)
        assert closed.names == ("n0", "n1", "n2", "n3", "n4")
        assert slots.binding is Binding.SLOTS


class TestRoom:
    def test_the_projects_that_hold_most_are_named(self) -> None:
        held = (
            kept_busy(8, 0, (0, 1, 2), project="b"),
            kept_busy(9, 0, (3,), project="a"),
            kept_busy(10, 1, (0,), project="d"),
            kept_busy(11, 1, (1, 2)),
        )
        assert bound(queued(1, 1, 4), held=held) == [
            Constraint(
                Binding.SLOTS,
                "needs 4 slots; 1 of 8 are free (held: b 3, no project 2, a 1)",
                4,
                1,
                "slots",
                ("p",),
            )
        ]

    def test_holders_on_other_kinds_of_nodes_do_not_count(self) -> None:
        first, second = nodes(2)
        some = (first, replace(second, slot_type="L4"))
        held = (kept_busy(8, 0, (0,), project="x"), kept_busy(9, 1, project="y"))
        (found,) = bound(queued(1, 1, 4, slot_type="L4"), some, held)
        assert found.text == "needs 4 slots; 0 of 4 are free (held: y 4)"

    @pytest.mark.parametrize(
        ("count", "required", "text", "need", "have", "names"),
        [
            (
                1,
                None,
                "needs 1 nodes with 4 free slots each; 0 have that, though 6 slots are free in all",
                1,
                0,
                (),
            ),
            (
                1,
                "rack",
                "needs 1 nodes with 4 free slots each in one rack; "
                "the best, none, has 0, though 6 slots are free in all",
                1,
                0,
                ("none",),
            ),
        ],
    )
    def test_scattered_slots(
        self,
        count: int,
        required: str | None,
        text: str,
        need: int,
        have: int,
        names: tuple[str, ...],
    ) -> None:
        held = (kept_busy(8, 0, (0,)), kept_busy(9, 1, (0,)))
        (found,) = bound(queued(1, count, 4, required=required), held=held)
        assert found == Constraint(Binding.TOPOLOGY, text, need, have, "nodes", names)

    def test_the_best_domain_is_the_one_with_most_wide_nodes(self) -> None:
        held = (kept_busy(8, 0), kept_busy(9, 3, (0,)), kept_busy(10, 5, (0,)))
        some = nodes(6, rack=3)
        (found,) = bound(queued(1, 3, 4, required="rack"), some, held)
        # Both racks have two: the later name.
        assert (found.have, found.names) == (2, ("r0",))
        wider = nodes(8, rack=4)
        (found,) = bound(queued(1, 4, 4, required="rack"), wider, held)
        assert (found.have, found.names) == (3, ("r1",))

    def test_cpus_and_memory_that_are_short_are_told_apart(self) -> None:
        some = nodes(2, memory_bytes=4 * GB)
        held = (kept_busy(8, 0, (0,), cpus_per_node=6), kept_busy(9, 1, (0,), cpus_per_node=7))
        cpus = bound(queued(1, 1, 2, cpus_per_node=3), some, held)
        assert cpus == [
            Constraint(
                Binding.CPUS,
                "needs 3 cpus a node; 0 of 2 nodes with enough free slots have that (most: 2)",
                3,
                2,
                "CPUs",
            )
        ]
        memory = bound(queued(1, 1, 2, memory_per_node_bytes=5 * GB), some, held)
        assert [(one.binding, one.need, one.have, one.unit) for one in memory] == [
            (Binding.MEMORY, 5 * GB, 4 * GB, "bytes")
        ]
        assert "needs 5.0 GB memory a node" in memory[0].text
        assert "(most: 4.0 GB)" in memory[0].text

    def test_the_first_role_without_room_is_named(self) -> None:
        head = RoleShape(1, 0, 1, "head", 9, 2 * GB)
        (found,) = bound(queued(1, 1, 4, roles=(head,)))
        assert found.text == (
            "head needs 1 nodes with 0 free slots and 9 CPUs and 2.0 GB each; 0 have that, "
            "though 8 slots are free in all"
        )
        assert (found.need, found.have, found.names) == (1, 0, ("head",))
        (found,) = bound(queued(1, 3, 2, roles=(replace(head, cpus_per_node=1),)))
        assert found.text.startswith("the first role needs 3 nodes with 2 free slots each; 2 have")

    def test_roles_that_find_room_only_one_by_one(self) -> None:
        role = RoleShape(1, 4, 4, "second")
        held = (kept_busy(8, 0, (0,)),)
        (found,) = bound(
            queued(1, 1, 3, roles=(replace(role, nodes=1),), required="node"), held=held
        )
        assert found.text == (
            "each role fits alone, but not all at once in one node; 7 slots are free"
        )

    def test_slots_that_are_kept_for_others_name_their_owners(self) -> None:
        job, owner = queued(2, 1, 2), queued(1, 1, 4)
        reservations = (Reservation(1, ("n0",), None, NOW), Reservation(99, ("n1",), None, NOW))
        plan = Plan((), (), reservations=reservations)
        # Reservations of jobs that are no longer queued keep nothing.
        assert bound(job, others=(owner,), decided=plan) == [
            Constraint(
                Binding.KEPT,
                "4 free slots are reserved for j-1",
                2,
                4,
                "slots",
                ("j-1",),
            )
        ]

    def test_a_job_that_waits_for_victims_names_them(self) -> None:
        reservation = Reservation(1, ("n0", "n1"), NOW, NOW + 9, (8, 9, 10, 11, 12))
        plan = Plan((), (), reservations=(reservation,))
        assert bound(queued(1, 2, 4), decided=plan) == [
            Constraint(
                Binding.LEAVING,
                "waits for j-8, j-9, j-10, j-11 and 1 more to save and release 2 nodes",
                2,
                0,
                "nodes",
                ("j-8", "j-9", "j-10", "j-11", "j-12"),
            )
        ]

    def test_a_back_off_comes_before_everything_else(self) -> None:
        job = queued(1, 1, 5, not_before=NOW + 90 * US)
        found = bound(job)
        assert [one.binding for one in found] == [Binding.BACK_OFF, Binding.NO_SUCH_NODES]
        assert found[0] == Constraint(
            Binding.BACK_OFF, "waits 90 s before its next attempt", 90.0, 0.0, "s"
        )
        assert bound(replace(job, not_before=NOW))[0].binding is Binding.NO_SUCH_NODES
