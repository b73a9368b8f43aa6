"""The planner: a pure function from a planning input to a plan.

A pass runs the stages below in order. Equal inputs give equal plans, and the order of the events before a
pass does not matter.
"""

from __future__ import annotations

from phalanx.core.scheduling.index.cluster_index import ClusterIndex, next_patience_end
from phalanx.core.scheduling.model.outcome import Plan
from phalanx.core.scheduling.model.planning_input import PlanningInput
from phalanx.core.scheduling.stages import (
    backfill,
    elastic,
    entitlement,
    queue,
    reasons,
    reservations,
    serving,
)
from phalanx.core.scheduling.stages.scheduling_pass import Pass

#: The stages that serve one queued job, in the order of the queue, until one of them decides.
JOB_STAGES: tuple[queue.JobStage, ...] = (
    serving.quota,  # limits of the project and of those above it
    serving.place,  # the narrowest domain with free slots for the whole gang
    serving.shrink,  # elastic jobs give nodes back
    serving.preempt,  # the cheapest victims in one domain, else moves, else a large job
    reservations.reserve,  # the nodes that will be free first are kept
)


def _serve_queue(state: Pass) -> None:
    queue.serve(state, JOB_STAGES)


#: The stages of a pass.
STAGES = (
    entitlement.entitle,  # the entitlement of each project
    elastic.size,  # how many nodes each elastic job should have
    elastic.fit,  # jobs that are larger than they may be become smaller
    reservations.honour,  # reservations of earlier passes: owners start in them, or they stay closed
    _serve_queue,  # order, and the stages of each job
    backfill.backfill,  # short jobs use kept slots
    elastic.grow,  # elastic jobs take what no queued job can use
    reasons.explain,  # a reason for every job that still waits
)


def plan(snapshot: PlanningInput, now: int) -> Plan:
    """Plan from a snapshot; `now` in microseconds UTC."""
    return plan_pass(ClusterIndex.of(snapshot), now)


def plan_pass(cluster: ClusterIndex, now: int) -> Plan:
    """Plan on an index that is kept from pass to pass.

    The index is unchanged, except that the back-offs and waits for a preferred level that are over end.
    """
    cluster.advance(now)
    mark = cluster.index.mark()
    state = Pass(cluster, now)
    try:
        for stage in STAGES:
            stage(state)
    finally:
        cluster.index.rollback(mark)
    return state.decisions.plan(_wake_at(state))


def _wake_at(state: Pass) -> int | None:
    """Return when a wait alone would change the outcome."""
    patience_at = next_patience_end(state.cluster)
    times = [*state.cluster.deferred.values(), *([] if patience_at is None else [patience_at])]
    times += [one.expires_at for one in state.decisions.reservations if one.victims]
    return min((at for at in times if at > state.now), default=None)
