"""Small clusters for tests: nodes in racks, jobs that wait, and jobs that hold slots."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from phalanx.core.gang.placement import GangShape, Node, NodeShare, Placement
from phalanx.core.scheduling import ClusterIndex, Plan, PlanningInput, QueuedJob, RunningJob
from phalanx.core.scheduling.search.decisions import Decisions
from phalanx.core.scheduling.stages import entitlement
from phalanx.core.scheduling.stages.queue import QueueHead
from phalanx.core.scheduling.stages.scheduling_pass import Pass

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


def pass_on(cluster: PlanningInput, now: int) -> Pass:
    """A pass on a cluster, with the shares of its projects set; the test calls the other stages."""
    index = ClusterIndex.of(cluster)
    index.advance(now)
    state = Pass(index, now)
    entitlement.entitle(state)
    return state


def head_of(state: Pass, num: int) -> QueueHead:
    """A queued job as the queue hands it to the stages of a job."""
    eq_class = state.cluster.class_of[num]
    position = [one for _, one in eq_class.jobs].index(num)
    return QueueHead(eq_class, position, eq_class.jobs[position][0], num)


def starts_of(decided: Plan | Decisions) -> dict[int, list[str]]:
    """The nodes of each start, by job."""
    return {one.job: [share.node for share in one.placement.shares] for one in decided.starts}


def kept_by(state: Pass) -> dict[int, dict[str, int]]:
    """The slots that each reservation keeps from other jobs, by owner and node."""
    names = state.index.nodes
    return {
        kept.reservation.job: {names[one.node].id: one.mask.bit_count() for one in kept.allocations}
        for kept in state.kept
    }
