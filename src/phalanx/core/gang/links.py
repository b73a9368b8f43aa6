"""Links inside and between nodes: what a pool file says about them, and what a placement costs by them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from phalanx.core.gang.placement import Node, Placement

#: Usual bandwidth of a link between two devices of one node, Gbit/s, by the name of the interconnect.
_INSIDE = {"nvswitch": 3600.0, "nvlink": 2400.0, "xgmi": 1000.0, "pcie": 250.0}
#: The same between two nodes.
_BETWEEN = {"infiniband": 200.0, "efa": 200.0, "roce": 100.0, "ethernet": 10.0}
#: Assumed between nodes of which nothing is known, Gbit/s.
UNKNOWN_GBPS = 10.0


@dataclass(frozen=True, slots=True)
class LinkCost:
    """The communication cost of a placement: its pairs of slots across nodes over their bandwidth.

    `cost` is 0 on one node. `gbps` is the smallest bandwidth between two of its nodes; 0: one node.
    """

    cost: float
    pairs: int
    gbps: float


def inside_gbps(node: Node) -> float:
    """Return the bandwidth between slots of a node by its interconnect; 0: unknown."""
    return _INSIDE.get(node.interconnect.lower(), 0.0)


def between_gbps(node: Node) -> float:
    """Return a node's bandwidth to others: as declared, else that of its interconnect; 0: unknown."""
    return node.bandwidth_gbps or _BETWEEN.get(node.interconnect.lower(), 0.0)


def cost_of(placement: Placement, nodes: Mapping[str, Node]) -> LinkCost:
    """Return what a placement costs: for each pair of slots on two nodes, 1 over the smaller bandwidth."""
    slots: dict[str, int] = {}
    for share in placement.shares:
        slots[share.node] = slots.get(share.node, 0) + len(share.slots)
    speeds = {
        name: (between_gbps(nodes[name]) if name in nodes else 0.0) or UNKNOWN_GBPS
        for name in slots
    }
    # From the fastest node on, each one is the slower end of its links to those before it.
    cost, pairs, before = 0.0, 0, 0
    for name in sorted(slots, key=lambda one: -speeds[one]):
        cost += before * slots[name] / speeds[name]
        pairs += before * slots[name]
        before += slots[name]
    return LinkCost(cost, pairs, min(speeds.values()) if len(speeds) > 1 else 0.0)
