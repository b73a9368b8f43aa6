"""Handlers for the start of an attempt: AttemptPlaced, NodeReady, RanksStarted."""

from __future__ import annotations

from dataclasses import replace

from phalanx.core.gang.placement import Placement
from phalanx.core.jobs import events as e
from phalanx.core.jobs.handlers.generation import after_ends
from phalanx.core.jobs.handlers.steps import US, live
from phalanx.core.jobs.model import (
    Attempt,
    Decision,
    Job,
    JobState,
    LaunchAttempt,
    NodePhase,
    NodeStatus,
)
from phalanx.core.reasons import Reason, ReasonCode
from phalanx.errors import InvariantBroken


def attempt_placed(job: Job, event: e.AttemptPlaced, now: int) -> Decision:
    """Take the placement and have its supervisors launched."""
    if job.state is JobState.WAITING:
        return Decision(job, ignored="the job waits for other jobs")
    if event.attempt != job.attempts + 1:
        return Decision(job, ignored=f"attempt {event.attempt} is not the next one")
    _check_shape(job, event.placement)
    nodes = tuple(NodeStatus() for _ in event.placement.shares)
    where = ", ".join(dict.fromkeys(share.node for share in event.placement.shares))
    waited_s = (now - (job.submitted_at if job.queued_at is None else job.queued_at)) / US
    job = replace(
        job,
        state=JobState.STARTING,
        waited_s=job.waited_s + max(waited_s, 0.0),
        reason=Reason(ReasonCode.PLACED, f"on {where}"),
        attempts=event.attempt,
        attempt=Attempt(event.attempt, event.placement, nodes, placed_at=now, offers=event.offers),
        goal=None,
        not_before=None,
    )
    return Decision(job, (LaunchAttempt(event.attempt),))


def _check_shape(job: Job, placement: Placement) -> None:
    """Raise InvariantBroken for a placement that does not hold the whole gang."""
    policy = job.policy
    sizes = [len(share.slots) for share in placement.shares]
    parts = policy.parts(len(sizes))
    least = policy.shape.nodes if policy.min_nodes is None else policy.min_nodes
    wanted = [part.slots_per_node for part in parts for _ in part.nodes]
    most = max(shape.nodes for shape in (policy.shape, *policy.splits))
    if sizes != wanted or not least <= parts[0].num_nodes <= most:
        raise InvariantBroken(f"job {job.num}: placement {sizes} does not hold the gang {policy}")


def node_ready(job: Job, event: e.NodeReady, now: int) -> Decision:
    """Record a supervisor's check-in; the last one lets the ranks start."""
    attempt = live(job)
    if attempt.nodes[event.node_rank].phase is not NodePhase.LAUNCHING:
        return Decision(job, ignored="the node has checked in before")
    # A replacement takes the place of ranks that have ended.
    phase = NodePhase.ENDED if attempt.ranks_may_start else NodePhase.READY
    attempt = attempt.with_node(
        event.node_rank, phase=phase, port=event.port, addresses=event.addresses
    )
    if phase is NodePhase.ENDED:
        return Decision(after_ends(replace(job, attempt=attempt), now))
    if attempt.all_in(NodePhase.READY) and job.state is not JobState.STOPPING:
        attempt = replace(attempt, ranks_may_start=True)
    return Decision(replace(job, attempt=attempt))


def ranks_started(job: Job, event: e.RanksStarted, now: int) -> Decision:
    """Record that one node's ranks run; the last node makes the job running."""
    attempt = live(job)
    if attempt.nodes[event.node_rank].phase is not NodePhase.READY:
        return Decision(job, ignored="the start of that node's ranks is recorded already")
    attempt = attempt.with_node(event.node_rank, phase=NodePhase.UP)
    job = replace(job, attempt=attempt)
    up = attempt.all_in(NodePhase.UP, NodePhase.ENDED)
    if not up or attempt.failures or job.state is JobState.STOPPING:
        return Decision(job)
    started_at = now if job.started_at is None else job.started_at
    reason = Reason(ReasonCode.RANKS_UP, f"generation {attempt.generation}")
    return Decision(replace(job, state=JobState.RUNNING, reason=reason, started_at=started_at))
