"""Free slots keep the CPUs and the memory without which nobody could use them."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from phalanx.core.gang.placement import GangShape, Node, NodeShare, Placement
from phalanx.core.scheduling import ClusterIndex, PlanningInput, QueuedJob, RunningJob, plan
from phalanx.core.scheduling.index.fragmentation import DemandProfile, TypicalDemand
from phalanx.core.scheduling.index.slots import Allocation, SlotIndex
from phalanx.core.scheduling.index.topology import place, request_of, suitable
from phalanx.schemas.pools.pool_file import HostDefaults, read_pools

pytestmark = pytest.mark.unit


def node(name: str, slots: int, cpus: int, **more: object) -> Node:
    return Node(name, "p", "h", slots, cpus, 1000, **more)  # type: ignore[arg-type]


def wants(num: int, slots: int, cpus: int, **more: object) -> QueuedJob:
    return QueuedJob(num, GangShape(1, slots, 1), 50, num, cpus_per_node=cpus, **more)  # type: ignore[arg-type]


def runs(num: int, where: str, slots: tuple[int, ...], cpus: int) -> RunningJob:
    return RunningJob(num, Placement("p", (NodeShare(where, "h", slots),)), cpus_per_node=cpus)


class TestStranded:
    def test_slots_without_cpus_and_narrow_rests_are_stranded(self) -> None:
        typical = TypicalDemand((2.0,), 0.0, (0.5, 0.5))
        assert typical.stranded((4,), 8, 0) == 0
        assert typical.stranded((4,), 2, 0) == 3
        assert typical.stranded((1, 4), 10, 0) == 0.5

    def test_memory_counts_as_cpus_do(self) -> None:
        typical = TypicalDemand((0.0,), 10.0, ())
        assert typical.stranded((4,), 0, 40) == 0
        assert typical.stranded((4,), 99, 10) == 3

    def test_an_appetite_forgets_what_is_gone(self) -> None:
        demand_profile = DemandProfile()
        demand_profile.add([GangShape(2, 4, 4)], 16, 64)
        assert demand_profile.typical() == TypicalDemand((4.0,) * 9, 16.0, (1.0,) * 4)
        demand_profile.add([GangShape(2, 4, 4)], 16, 64, -1)
        assert demand_profile == DemandProfile()

    def test_nobody_who_wants_cpus_leaves_placement_as_it_is(self) -> None:
        demand_profile = DemandProfile()
        demand_profile.add([GangShape(1, 8, 8)], 0, 0)
        assert demand_profile.typical() is None


class TestPlacement:
    def where(self, greedy: int) -> str:
        """Where a job of one slot goes: n0 has few CPUs beside its slots, n1 has plenty."""
        nodes = (node("n0", 4, 8), node("n1", 4, 32))
        running = (runs(1, "n0", (0,), 0), runs(2, "n1", (0,), 0))
        waiting = [wants(9, 1, greedy)]
        # What everybody else wants, for nodes that are not there: two CPUs for a slot.
        waiting += [wants(n, 4, 8, slot_type="other") for n in range(20, 30)]
        decided = plan(PlanningInput(nodes, running, tuple(waiting)), 100)
        return decided.starts[0].placement.shares[0].node

    def test_a_job_of_many_cpus_goes_where_they_are_not_missed(self) -> None:
        assert self.where(greedy=6) == "n1"

    def test_a_modest_one_goes_where_the_least_is_left_over(self) -> None:
        assert self.where(greedy=1) == "n0"


class TestHost:
    NODES = (node("a", 4, 8, host="m"), node("b", 4, 8, host="m"), node("c", 4, 8))

    def test_parts_of_one_machine_share_its_cpus(self) -> None:
        index = SlotIndex(self.NODES)
        mark = index.mark()
        index.take(Allocation(0, 1, 6, 100))
        assert (index.cpus, index.memory) == ([2, 2, 8], [900, 900, 1000])
        index.give(Allocation(0, 1, 6, 100))
        assert index.cpus == [8, 8, 8]
        index.take(Allocation(1, 1, 6, 100))
        index.rollback(mark)
        assert index.state() == SlotIndex(self.NODES).state()

    @pytest.mark.parametrize(("host", "fits"), [("m", False), ("", True)])
    def test_a_gang_cannot_have_the_same_cpus_twice(self, host: str, fits: bool) -> None:
        index = SlotIndex([replace(one, host=host) for one in self.NODES[:2]])
        request = request_of(QueuedJob(1, GangShape(2, 4, 4), 50, 0, cpus_per_node=6))
        assert (place(index, request, suitable(index, request), request.shape) is not None) is fits


def test_a_pool_file_names_the_host() -> None:
    entry = {"name": "half", "count": 2, "slots": 4, "cpus": 8, "host": "m"}
    read = read_pools({"schema": 1, "pools": [{"name": "p", "nodes": [entry]}]}, ["local"])
    assert [one.host for one in read.pools[0].to_core(HostDefaults())] == ["m", "m"]


def test_a_world_after_many_changes_is_one_built_anew() -> None:
    rng = random.Random(3)
    cluster = ClusterIndex([node(f"n{i}", 4, 16, host=f"m{i // 2}") for i in range(6)])
    for num in range(1, 60):
        cluster.submit(wants(num, rng.choice([1, 2, 4]), rng.choice([0, 2, 5])))
        job = cluster.waiting[num]
        request = request_of(job)
        allocations = place(cluster.index, request, cluster.groups_for(request), job.shape)
        if allocations is not None:
            held = RunningJob(
                num, cluster.index.placement(allocations), cpus_per_node=job.cpus_per_node
            )
            cluster.hold(held)
        if rng.random() < 0.5 and cluster.held:
            cluster.release(rng.choice(sorted(cluster.held)))
        if rng.random() < 0.2 and cluster.waiting:
            cluster.withdraw(rng.choice(sorted(cluster.waiting)))
        assert cluster.state() == ClusterIndex.of(cluster.snapshot()).state()
    assert cluster.held
    assert cluster.waiting
