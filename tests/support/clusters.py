"""Small clusters for tests: nodes in racks, jobs that wait, and jobs that hold slots."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from phalanx.core.gang.placement import GangShape, Node, NodeShare, Placement
from phalanx.core.scheduling import QueuedJob, RunningJob

POOL = "p"
ADDRESS = "h"


def nodes(num: int, size: int = 4, *, rack: int = 2, **more: Any) -> tuple[Node, ...]:
    """Nodes n0, n1, … of `size` slots and 8 CPUs, `rack` of them in each rack r0, r1, …."""
    common = {"pool": POOL, "address": ADDRESS, "num_cpus": 8, "memory_bytes": 100, **more}
    racks = [{"domains": (("rack", f"r{i // rack}"),)} for i in range(num)]
    return tuple(
        Node(id=f"n{i}", num_slots=size, **{**domains, **common}) for i, domains in enumerate(racks)
    )


def queued(num: int, count: int, per_node: int, priority: int = 50, **more: Any) -> QueuedJob:
    """A waiting job of `count` nodes with a rank on each of `per_node` slots, queued at `num` µs."""
    return QueuedJob(num, GangShape(count, per_node, per_node), priority, num, **more)


def placed(where: Mapping[int, tuple[int, ...]]) -> Placement:
    """A placement on slots of nodes, by the number of the node."""
    shares = tuple(NodeShare(f"n{i}", ADDRESS, slots) for i, slots in where.items())
    return Placement(POOL, shares)


def running(num: int, where: Mapping[int, tuple[int, ...]], **more: Any) -> RunningJob:
    """A job that has held these slots since time 0, of priority 50."""
    return RunningJob(num, placed(where), **{"priority": 50, "started_at": 0, **more})
