"""One draining step: preempt, with a save, the jobs on nodes that their cluster will remove."""

from __future__ import annotations

from phalanx.core.gang.placement import Node
from phalanx.core.jobs.events import StopRequested
from phalanx.core.jobs.model import HOLDING, Job, JobState, StopGoal
from phalanx.core.reasons import Reason, ReasonCode
from phalanx.services.lifecycle.commit import commit_events
from phalanx.services.platform import Platform
from phalanx.store import jobs
from phalanx.store.database import Tx

_US = 1_000_000
# Time reserved for supervisors to report and exit after the ranks have ended.
_MARGIN_S = 2.0


def draining_step(platform: Platform, now: int) -> tuple[int, ...]:
    """Preempt jobs on draining nodes and return their numbers. Raises ExecutorUnavailable."""
    if not platform.store.view(jobs.count_live):
        return ()
    nodes = platform.inventory()
    leaving = {node.id: node for node in nodes if node.leaves_at is not None}
    if not leaving:
        return ()
    return platform.store.transact(lambda tx: _preempt(tx, leaving, now))


def _preempt(tx: Tx, leaving: dict[str, Node], now: int) -> tuple[int, ...]:
    preempted = []
    for stored in jobs.in_states(tx, HOLDING):
        job = stored.job
        node = _first_leaving(job, leaving)
        if node is None or job.state is JobState.STOPPING:
            continue
        commit_events(tx, job.num, [_request(job, node, now)], now, f"executor:{node.pool}")
        preempted.append(job.num)
    return tuple(preempted)


def _first_leaving(job: Job, leaving: dict[str, Node]) -> Node | None:
    if job.attempt is None:
        return None
    on = [leaving[one.node] for one in job.attempt.placement.shares if one.node in leaving]
    return min(on, key=lambda node: node.leaves_at or 0, default=None)


def _request(job: Job, node: Node, now: int) -> StopRequested:
    left_s = ((node.leaves_at or now) - now) / _US
    grace_s = max(0.0, min(job.policy.grace_s, left_s - _MARGIN_S))
    said = f"node {node.id} is being removed by the cluster"
    return StopRequested(StopGoal.REQUEUE, Reason(ReasonCode.PREEMPTED, said), grace_s)
