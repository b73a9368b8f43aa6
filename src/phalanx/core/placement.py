"""Nodes, gangs and where a gang is put."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Node:
    """One machine of a pool as the planner sees it.

    `splittable` nodes may host several node ranks of one gang: a laptop pretends to be several nodes.
    `domains` are (level, name) pairs from the widest to the narrowest, such as
    `(("block", "b1"), ("rack", "r7"))`. `taints` keep away jobs that do not tolerate them. `closed`
    says why nothing may start here (drained, quarantined, lost); empty means open.
    `hazard_per_hour` is the expected number of reclaims of a spot node in an hour.
    """

    id: str
    pool: str
    address: str
    num_slots: int
    num_cpus: int
    memory_bytes: int
    splittable: bool = False
    domains: tuple[tuple[str, str], ...] = ()
    slot_type: str = ""
    device_memory_bytes: int = 0
    interconnect: str = ""
    bandwidth_gbps: float = 0.0
    price_per_slot_hour: float = 0.0
    hazard_per_hour: float = 0.0
    taints: tuple[str, ...] = ()
    closed: str = ""


@dataclass(frozen=True, slots=True)
class GangShape:
    """What has to start together: `nodes` × `slots_per_node`, with `ranks_per_node` processes each."""

    nodes: int
    slots_per_node: int
    ranks_per_node: int

    @property
    def num_slots(self) -> int:
        """Slots of the whole gang."""
        return self.nodes * self.slots_per_node

    @property
    def world_size(self) -> int:
        """Ranks of the whole gang."""
        return self.nodes * self.ranks_per_node


@dataclass(frozen=True, slots=True)
class NodeShare:
    """What one node rank of a gang holds: `slots` are the node's slot numbers."""

    node: str
    address: str
    slots: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a gang runs; the position in `shares` is the node rank."""

    pool: str
    shares: tuple[NodeShare, ...]
