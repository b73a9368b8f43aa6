"""Nodes, gangs and where a gang is put."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Node:
    """One machine of a pool as the planner sees it.

    `splittable` nodes may host several node ranks of one gang: a laptop pretends to be several nodes.
    `labels` are what jobs select nodes by.
    `domains` are (level, name) pairs from the widest to the narrowest, such as
    `(("block", "b1"), ("rack", "r7"))`. `taints` keep away jobs that do not tolerate them. `closed`
    says why nothing may start here (drained, quarantined, lost); empty means open.
    `leaves_at` is when the node's own cluster takes it away, where that has been announced: what runs
    there has to save and leave before. `hazard_per_hour` is the expected number of reclaims of a spot
    node in an hour. Nodes of one `host` are parts of one machine: its CPUs and memory are theirs together.
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
    labels: tuple[tuple[str, str], ...] = ()
    leaves_at: int | None = None
    host: str = ""


@dataclass(frozen=True, slots=True)
class Demand:
    """What a job wants of its nodes beyond the shape of its gang, and of the planner.

    `required` and `preferred` name levels of the pools' topology; what is preferred is insisted on
    for `patience_s` seconds of waiting. Without `preferred` that is the narrowest level of the pools,
    with "none" nothing; without `patience_s` it goes by how long the job is expected to run. `selector`
    are labels that every node must have, `tolerates` taints that it may have. `preemptible` False: no
    other job may push it aside.
    """

    memory_per_node_bytes: int = 0
    slot_type: str = ""
    device_memory_bytes: int = 0
    required: str | None = None
    preferred: str | None = None
    patience_s: float | None = None
    selector: tuple[tuple[str, str], ...] = ()
    tolerates: tuple[str, ...] = ()
    preemptible: bool = True


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
class RoleShape(GangShape):
    """One more part of a gang, placed and started with the rest; its ranks are a world of their own.

    CPUs and memory are those of each node; `slot_type` empty: any. What is not `required` does not
    end the job: not by failing, and not by running on when everything required is done.
    """

    name: str = ""
    cpus_per_node: int = 0
    memory_per_node_bytes: int = 0
    slot_type: str = ""
    required: bool = True


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


def omp_num_threads(ranks_per_node: int, cpus_per_node: int) -> int | None:
    """Threads a rank may use: an equal share of the node's CPUs; None leaves a lone rank alone.

    A lone rank keeps the library's default, as under torchrun.
    """
    if ranks_per_node == 1:
        return None
    return max(1, cpus_per_node // ranks_per_node)
