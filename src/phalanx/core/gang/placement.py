"""Nodes, the shapes of gangs, and placements of gangs on nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

DEFAULT_DEVICE_MEMORY_BYTES = 16 * 10**9
"""Memory that an accelerator is taken to have where it is neither declared nor found."""


@dataclass(frozen=True, slots=True)
class Node:
    """One machine of a pool, as the planner uses it.

    Nodes with the same `host` are parts of one machine and share its CPUs and memory. `domains` are
    (level, name) pairs from the widest to the narrowest: `(("block", "b1"), ("rack", "r7"))`.
    """

    id: str  # name, unique in the pool set
    pool: str  # name of its pool
    address: str  # where its ranks are reached by others
    num_slots: int  # slots in all, used or not
    num_cpus: int  # logical CPUs
    memory_bytes: int  # host memory
    splittable: bool = False  # may hold several node ranks of one gang
    domains: tuple[tuple[str, str], ...] = ()  # topology domains
    slot_type: str = ""  # model of its devices; empty: unknown
    device_memory_bytes: int = 0  # memory of each device; 0: unknown
    interconnect: str = ""  # kind of network; empty: unknown
    bandwidth_gbps: float = 0.0  # of the network; 0: unknown
    price_per_slot_hour: float = 0.0  # in the pool's currency; 0: unknown
    hazard_per_hour: float = 0.0  # expected spot reclaims in an hour
    taints: tuple[str, ...] = ()  # jobs that do not tolerate them stay away
    closed: str = ""  # why nothing may start here (drained, quarantined, lost); empty: open
    labels: tuple[tuple[str, str], ...] = ()  # (name, value) pairs for selectors
    leaves_at: int | None = None  # announced removal of the node, microseconds UTC
    host: str = ""  # machine that it is a part of; empty: it is a whole one
    devices: tuple[str, ...] = ()  # identity of the device behind each slot; empty: CPU slots
    device_kind: str = ""  # cuda or rocm; empty: no devices of the machine are known
    closed_slots: tuple[tuple[int, str], ...] = ()  # (slot, reason) of slots that are not offered
    future: bool = False  # not there: the cluster's autoscaler could add it
    num_unhealthy: int = 0  # devices that its cluster does not offer, beside `num_slots`

    @property
    def planned_device_memory_bytes(self) -> int:
        """Memory of each device that jobs may ask for; 16 GB where it is unknown, 0 for CPU slots."""
        unknown = DEFAULT_DEVICE_MEMORY_BYTES if self.slot_type or self.devices else 0
        return self.device_memory_bytes or unknown


@dataclass(frozen=True, slots=True)
class Demand:
    """The requirements of a job beyond the shape of its gang.

    `required` and `preferred` name levels of the pools' topology. Until the job has waited for
    `patience_s`, the preferred level is required too.
    """

    memory_per_node_bytes: int = 0  # host memory on each node; 0: any
    slot_type: str = ""  # model of the devices; empty: any
    device_memory_bytes: int = 0  # least memory of each device
    required: str | None = None  # all nodes must share a domain of this level
    domains: int = 1  # equal parts of the gang, each in a domain of the required level of its own
    preferred: str | None = None  # None: the narrowest level; "none": no level
    patience_s: float | None = None  # None: derived from the expected run time
    selector: tuple[tuple[str, str], ...] = ()  # labels that every node must have
    tolerates: tuple[str, ...] = ()  # taints that nodes may have
    preemptible: bool = True  # whether other jobs may preempt it
    intensive: bool = False  # its ranks communicate much: fast links go before price
    residency: tuple[str, ...] | None = None  # values of the label `residency`; None: any


@dataclass(frozen=True, slots=True)
class GangShape:
    """The size of a gang: its nodes, and the slots and processes on each node."""

    nodes: int
    slots_per_node: int
    ranks_per_node: int

    @property
    def num_slots(self) -> int:
        """Slots of the whole gang."""
        return self.nodes * self.slots_per_node

    def splits(self, slots_per_rank: int) -> tuple[GangShape, ...]:
        """The same slots spread evenly over more nodes, the fewest first; for a gang of one node.

        A gang with one rank for all slots of its node, which starts processes itself, keeps that.
        """
        slots = self.slots_per_node
        pieces = slots // slots_per_rank
        each = self.ranks_per_node // pieces  # 0 where a rank stands for all slots of its node
        return tuple(
            GangShape(nodes, slots // nodes, pieces // nodes if each else 1)
            for nodes in range(2, pieces + 1)
            if pieces % nodes == 0
        )

    @property
    def world_size(self) -> int:
        """Ranks of the whole gang."""
        return self.nodes * self.ranks_per_node


@dataclass(frozen=True, slots=True)
class RoleShape(GangShape):
    """The size of a further role of a gang; its ranks form a world of their own.

    With `shares_world` they are in the world of the first role, numbered after the ranks before them.
    CPUs and memory are those of each node; `slot_type` empty: any. The failure of a role that is
    not `required` does not fail the job; the role is stopped when all required ones are done.
    """

    name: str = ""
    cpus_per_node: int = 0
    memory_per_node_bytes: int = 0
    slot_type: str = ""
    required: bool = True
    shares_world: bool = False


@dataclass(frozen=True, slots=True)
class NodeShare:
    """What one node rank of a gang holds: `slots` are the node's slot numbers.

    `devices` are those behind the slots, fixed when the gang is placed; empty where slots are CPUs or the
    executor's cluster chooses the devices.
    """

    node: str
    address: str
    slots: tuple[int, ...]
    devices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SlotOffer:
    """Slots of one kind that a placement holds, as their nodes offered them when the gang was placed."""

    num_slots: int
    slot_type: str = ""  # model of their devices; empty: unknown
    spot: bool = False  # the provider may reclaim their nodes
    price: str = ""  # US dollars for a slot and an hour, a decimal number; empty: unknown


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a gang runs; the position in `shares` is the node rank."""

    pool: str
    shares: tuple[NodeShare, ...]


def with_chosen_devices(placement: Placement, devices: Mapping[str, tuple[str, ...]]) -> Placement:
    """Return a placement with the devices behind its slots, by node; nodes without devices have none."""
    if not any(share.node in devices for share in placement.shares):
        return placement
    shares = tuple(
        replace(share, devices=tuple(devices[share.node][slot] for slot in share.slots))
        if share.node in devices
        else share
        for share in placement.shares
    )
    return replace(placement, shares=shares)


def omp_num_threads(ranks_per_node: int, cpus_per_node: int) -> int | None:
    """Threads a rank may use: an equal share of the node's CPUs; None leaves a lone rank alone.

    A lone rank keeps the library's default, as under torchrun.
    """
    if ranks_per_node == 1:
        return None
    return max(1, cpus_per_node // ranks_per_node)
