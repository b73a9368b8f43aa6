"""Racks in order of their room give what a look at every node gives."""

from __future__ import annotations

import random

import pytest

from phalanx.core.gang.placement import GangShape, Node
from phalanx.core.scheduling import QueuedJob
from phalanx.core.scheduling.index.slots import Allocation, NodeGroup, SlotIndex, pick
from phalanx.core.scheduling.index.topology import NodeRequest, place, request_of, spread, suitable

pytestmark = pytest.mark.unit


def rooms_of(
    index: SlotIndex, request: NodeRequest, group: NodeGroup, per_node: int
) -> dict[int, list[int]]:
    """Nodes with room by leaf, least room first: the definition, node by node."""
    rooms: dict[int, list[int]] = {}
    for count in range(per_node, group.size + 1):
        for node in group.by_free[count]:
            if index.cpus[node] >= request.cpus and index.memory[node] >= request.memory_bytes:
                rooms.setdefault(index.leaf_of[node], []).append(node)
    return rooms


def scattered(rng: random.Random) -> SlotIndex:
    """Thirty nodes of eight slots in racks of two blocks, some closed, all partly taken."""
    index = SlotIndex(
        Node(
            f"n{i}",
            "main",
            "h",
            8,
            16,
            64,
            closed="drained" if rng.random() < 0.1 else "",
            domains=(("block", f"b{i // 15}"), ("rack", f"r{i // 5}")),
        )
        for i in range(30)
    )
    for node in range(30):
        wanted = rng.randrange(8)
        if wanted and not index.nodes[node].closed:
            index.take(Allocation(node, pick(index.free[node], wanted), rng.randrange(8)))
    index.settle()
    return index


@pytest.mark.parametrize("seed", range(40))
def test_a_gang_lies_where_a_look_at_every_node_would_lay_it(seed: int) -> None:
    rng = random.Random(seed)
    index = scattered(rng)
    for _ in range(12):
        shape = GangShape(rng.randrange(2, 7), rng.randrange(1, 8), 1)
        required, cpus = rng.choice([None, "rack", "block", "node"]), rng.choice([0, 0, 6])
        request = request_of(QueuedJob(1, shape, 50, 0, required=required, cpus_per_node=cpus))
        groups = suitable(index, request)
        mark = index.mark()
        allocations = place(index, request, groups, shape)
        rooms = rooms_of(index, request, groups[0], shape.slots_per_node)
        wanted = spread(groups[0], rooms, shape.nodes, required)
        assert (None if allocations is None else [one.node for one in allocations]) == wanted
        for allocation in allocations or ():
            index.take(allocation)
        if rng.random() < 0.4:
            index.rollback(mark)
