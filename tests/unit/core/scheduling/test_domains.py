"""Gangs of equal parts, each in a domain of the required level of its own, such as TPU slices."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.gang.placement import Node
from phalanx.core.scaling.demand import demand_for
from phalanx.core.scheduling import ClusterIndex, PlanningInput, QueuedJob, RunningJob, plan, why
from phalanx.core.scheduling.index.empty_cluster import EmptyCluster
from phalanx.core.scheduling.index.slots import Allocation, SlotIndex, pick
from phalanx.core.scheduling.index.topology import place, request_of, suitable
from phalanx.core.scheduling.search.victims import find_victims
from phalanx.core.scheduling.stages.scheduling_pass import Pass
from support.clusters import nodes, queued, running, starts_of

pytestmark = pytest.mark.unit

US = 1_000_000
NOW = 3 * 3600 * US
FULL = (0, 1, 2, 3)


def apart(num: int, count: int, domains: int, per_node: int = 4, **more: object) -> QueuedJob:
    """A gang of `count` nodes in so many racks."""
    return queued(num, count, per_node, required="rack", domains=domains, **more)


def labelled(num: int, rack: int = 2) -> tuple[Node, ...]:
    """Nodes with a label that has another value on each, as those of Kubernetes have."""
    return tuple(
        replace(one, labels=(("hostname", one.id), ("zone", "z"))) for one in nodes(num, rack=rack)
    )


def laid(index: SlotIndex, job: QueuedJob) -> list[int] | None:
    request, before = request_of(job), index.state()
    found = place(index, request, suitable(index, request), job.shape)
    assert index.state() == before
    return None if found is None else [one.node for one in found]


def racks(found: list[int], domains: int, rack: int) -> list[set[int]]:
    """The racks of each part of a gang."""
    each = len(found) // domains
    return [{node // rack for node in found[at : at + each]} for at in range(0, len(found), each)]


def test_parts_take_the_tightest_domains_one_after_the_other() -> None:
    index = SlotIndex(nodes(12, rack=4))
    for node in (0, 5, 6):
        index.take(Allocation(node, pick(index.free[node], 4)))
    # Racks with 3, 2 and 4 free nodes: the parts of two go to the narrow ones.
    assert laid(index, apart(1, 4, 2)) == [4, 7, 1, 2]
    assert laid(index, apart(1, 6, 2)) == [1, 2, 3, 8, 9, 10]
    assert laid(index, apart(1, 8, 2)) is None
    assert laid(index, apart(1, 9, 3)) is None


@given(
    st.integers(1, 4),
    st.integers(1, 4),
    st.integers(2, 3),
    st.lists(st.integers(0, 4), min_size=12, max_size=12),
    st.integers(1, 4),
)
def test_every_part_is_whole_in_a_rack_of_its_own_wherever_there_are_as_many(
    each: int, per_node: int, domains: int, taken: list[int], rack: int
) -> None:
    index = SlotIndex(nodes(12, rack=rack))
    for node, num in enumerate(taken):
        index.take(Allocation(node, pick(index.free[node], num)))
    wide = [0] * 12
    for node, num in enumerate(taken):
        wide[node // rack] += 4 - num >= per_node
    found = laid(index, apart(1, each * domains, domains, per_node))
    assert (found is not None) is (sum(num >= each for num in wide) >= domains)
    if found is not None:
        parts = racks(found, domains, rack)
        assert [len(one) for one in parts] == [1] * domains
        assert len(set.union(*parts)) == domains
        assert len(set(found)) == len(found) == each * domains


@given(
    st.integers(1, 3),
    st.integers(2, 3),
    st.lists(st.sampled_from([0, 10, 20, 30, 90]), min_size=9, max_size=9),
)
def test_victims_are_those_of_the_cheapest_domains(
    each: int, domains: int, prices: list[int]
) -> None:
    """A price of 0 is a free node, 90 a job that is not preempted."""
    held = tuple(
        running(
            10 + node,
            {node: FULL},
            priority=90 if price == 90 else 10,
            save_s=0.0,
            restart_s=price / 4,
        )
        for node, price in enumerate(prices)
        if price
    )
    job = apart(1, each * domains, domains)
    snapshot = PlanningInput(nodes(9, rack=3), held, (job,))
    search = Pass(ClusterIndex.of(snapshot), NOW).victims
    before, eq_class = search.index.state(), search.cluster.class_of[1]
    found = find_victims(search, eq_class, eq_class.jobs[0][0], 1)
    assert search.index.state() == before
    costs = []
    for at in range(0, 9, 3):
        free = sorted(price for price in prices[at : at + 3] if price != 90)
        if len(free) >= each:
            costs.append(sum(free[:each]))
    if len(costs) < domains:
        assert found is None
        return
    assert found is not None
    assert found.cost == sum(sorted(costs)[:domains])
    assert sorted(found.victims) == sorted(10 + node for node in found.nodes if prices[node])
    assert [len(one) for one in racks(found.nodes, domains, 3)] == [1] * domains


def test_a_blocked_gang_waits_for_the_first_domains_that_open() -> None:
    ends_s = {2: 500.0, 3: 900.0, 4: 100.0, 5: 200.0}
    held = tuple(
        running(10 + node, {node: FULL}, remaining_s=end_s) for node, end_s in ends_s.items()
    )
    job = apart(1, 4, 2)
    search = Pass(ClusterIndex.of(PlanningInput(nodes(6), held, (job,))), 0).openings
    found = search.soonest(search.cluster.class_of[1], job)
    assert found == (200 * US, [0, 1, 4, 5])


def test_a_pass_starts_a_gang_in_domains_of_its_own_and_says_what_it_waits_for() -> None:
    decided = plan(PlanningInput(nodes(6), (), (apart(1, 4, 2),)), 1)
    assert starts_of(decided) == {1: ["n0", "n1", "n2", "n3"]}
    held: tuple[RunningJob, ...] = tuple(
        running(10 + node, {node: FULL}, priority=90) for node in (3, 4)
    )
    # One of the racks of three nodes is free, and a gang of three nodes would be no two equal parts.
    snapshot = PlanningInput(nodes(6, rack=3), held, (apart(1, 4, 2),))
    reason = dict(plan(snapshot, 1).pending_reasons)[1]
    assert "needs 4 × 4 slots in 2 rack" in reason.message
    # With a domain less it would start.
    told = why(snapshot, 1, 1, num_scenarios=1)
    assert told is not None
    assert "starts now with 8 slots on 2 nodes" in [one.text for one in told.changes]
    assert [one.text for one in told.constraints] == [
        "needs 2 domains of the level rack with 2 nodes with 4 free slots each; 1 of them are there, "
        "though 16 slots are free in all"
    ]


@pytest.mark.parametrize(("domains", "level"), [(1, "rack"), (2, "")])
def test_new_nodes_are_asked_for_in_one_domain_where_the_gang_is_in_one(
    domains: int, level: str
) -> None:
    """A request to a cluster's autoscaler can name one domain for all of its nodes, or none."""
    snapshot = PlanningInput(nodes(6), (), (apart(1, 2, domains),))
    found = demand_for(snapshot, {}, 1, joining=frozenset(f"n{i}" for i in range(6)))
    assert [one.together for one in found.of("p").gangs] == [level]


def test_labels_that_differ_from_node_to_node_divide_no_domain() -> None:
    """A job may select by a label that names each node, and others must find their slices all the same."""
    some = labelled(6)
    empty = EmptyCluster(some)
    for job in (apart(1, 6, 3), queued(1, 2, 4, required="rack")):
        assert empty.can_hold(job)
        assert empty.can_hold(replace(job, selector=(("zone", "z"),)))
        assert not empty.can_hold(replace(job, selector=(("zone", "y"),)))
    assert not empty.can_hold(apart(1, 8, 4))
    assert not empty.can_hold(queued(1, 2, 4, required="rack", selector=(("hostname", "n0"),)))
    # The kinds of an index are divided where another job selects by such a label.
    assert laid(SlotIndex(some), apart(1, 4, 2)) == [0, 1, 2, 3]
