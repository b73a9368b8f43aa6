"""One autoscaling step: each scalable pool receives the running gangs and the next queued one.

Gangs further back may fit without new nodes or be cancelled, and unused nodes cost money.
"""

from __future__ import annotations

from phalanx.core.gang.placement import GangShape
from phalanx.core.jobs.model import JobPolicy
from phalanx.core.reasons import ReasonCode
from phalanx.executors.protocol import ScalableExecutor
from phalanx.services.platform import Platform
from phalanx.store import jobs
from phalanx.store.jobs import StoredJob

_FIRST_IN_LINE = (ReasonCode.WAITING_FOR_SLOTS, ReasonCode.WAITING_FOR_TOPOLOGY)


def scaling_step(platform: Platform) -> None:
    """Set the demand of each scalable pool. Raises ExecutorUnavailable."""
    executor = platform.executor
    if not isinstance(executor, ScalableExecutor) or not executor.pools:
        return
    waiting, holding = platform.store.view(jobs.waiting_and_holding)
    for pool in executor.pools:
        upcoming = _next(waiting, pool)
        if upcoming is None:
            executor.want(pool, ())
        else:
            sizes = [node.num_slots for node in executor.inventory() if node.pool == pool]
            next_shapes = _asked(upcoming.job.policy, max(sizes, default=0))
            executor.want(pool, [*_running(holding, pool), *next_shapes])


def _next(waiting: list[StoredJob], pool: str) -> StoredJob | None:
    first = [
        stored
        for stored in waiting
        if stored.pending_reason is not None
        and stored.pending_reason.code in _FIRST_IN_LINE
        and (not stored.facts.pools or pool in stored.facts.pools)
    ]
    return min(
        first,
        key=lambda one: (-one.facts.priority, one.job.submitted_at, one.job.num),
        default=None,
    )


def _running(holding: list[StoredJob], pool: str) -> list[GangShape]:
    return [
        shape
        for stored in holding
        if stored.job.attempt is not None and stored.job.attempt.placement.pool == pool
        for shape in _held(stored)
    ]


def _held(stored: StoredJob) -> list[GangShape]:
    """The parts of a running gang that hold slots."""
    return [
        GangShape(part.num_nodes, part.slots_per_node, part.ranks_per_node)
        for part in stored.job.parts_now()
        if part.slots_per_node
    ]


def _asked(policy: JobPolicy, most_slots: int) -> list[GangShape]:
    """The parts of a waiting gang that want slots.

    One that may be split has the fewest nodes that a node with `most_slots`, the pool's largest, allows.
    """
    shapes = (policy.shape, *policy.splits)
    first = next((one for one in shapes if one.slots_per_node <= most_slots), policy.shape)
    return [shape for shape in (first, *policy.roles) if shape.slots_per_node]
