"""Links inside and between nodes, and what a placement costs by them."""

import pytest

from phalanx.core.gang.links import between_gbps, cost_of, inside_gbps
from phalanx.core.gang.placement import GangShape, Node, NodeShare, Placement

pytestmark = pytest.mark.unit


def node(name, gbps=0.0, interconnect=""):
    return Node(name, "p", "h", 8, 8, 0, bandwidth_gbps=gbps, interconnect=interconnect)


def placed(*shares):
    return Placement("p", tuple(NodeShare(n, "h", tuple(range(slots))) for n, slots in shares))


def test_a_declared_bandwidth_goes_before_the_name_of_the_link():
    assert between_gbps(node("a", 400.0, "ethernet")) == 400.0
    assert between_gbps(node("a", 0.0, "Ethernet")) == 10.0
    assert inside_gbps(node("a", 0.0, "nvlink")) > inside_gbps(node("a", 0.0, "pcie")) > 0.0
    assert (between_gbps(node("a")), inside_gbps(node("a"))) == (0.0, 0.0)


def test_one_node_costs_nothing():
    one = cost_of(placed(("a", 4), ("a", 4)), {"a": node("a")})
    assert (one.cost, one.pairs, one.gbps) == (0.0, 0, 0.0)


def test_each_pair_across_nodes_costs_one_over_the_smaller_bandwidth():
    nodes = {"a": node("a", 100.0), "b": node("b", 25.0), "c": node("c", 100.0)}
    cost = cost_of(placed(("a", 2), ("b", 3), ("c", 4)), nodes)
    assert cost.cost == pytest.approx(2 * 3 / 25 + 2 * 4 / 100 + 3 * 4 / 25)
    assert (cost.pairs, cost.gbps) == (2 * 3 + 2 * 4 + 3 * 4, 25.0)


def test_ranks_are_split_evenly():
    assert GangShape(1, 12, 6).splits(2) == (
        GangShape(2, 6, 3),
        GangShape(3, 4, 2),
        GangShape(6, 2, 1),
    )
    assert GangShape(1, 1, 1).splits(1) == ()


def test_slots_of_a_launcher_on_each_node_are_split_evenly():
    """Such as `mpirun`, which is one rank of the platform for all slots of its node."""
    assert GangShape(1, 12, 1).splits(4) == (GangShape(3, 4, 1),)
    assert GangShape(1, 4, 1).splits(4) == ()
