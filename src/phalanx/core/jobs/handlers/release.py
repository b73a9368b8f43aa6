"""Handlers for the end of a supervisor: LaunchFailed, NodeReleased, NodeLost."""

from __future__ import annotations

from dataclasses import replace

from phalanx.core.gang.failures import Failure
from phalanx.core.jobs import events as e
from phalanx.core.jobs.handlers.generation import advance, charge, judge
from phalanx.core.jobs.handlers.steps import US, live, record_failure, stop
from phalanx.core.jobs.model import (
    Attempt,
    Decision,
    Job,
    JobState,
    LaunchAttempt,
    NodeOutcome,
    NodePhase,
    NodeStatus,
    StopGoal,
)
from phalanx.core.reasons import OUTSIDE_CAUSES, Cause, Reason, ReasonCode

NodeGone = e.NodeReleased | e.NodeLost | e.LaunchFailed


def node_gone(job: Job, event: NodeGone, now: int) -> Decision:
    """Record that one node is released; the last node frees the slots."""
    if live(job).nodes[event.node_rank].phase is NodePhase.RELEASED:
        return Decision(job, ignored="the node is released already")
    if isinstance(event, e.NodeLost) and _may_be_replaced(job, event, now):
        return _replaced(job, event, now)
    attempt = live(job).with_node(event.node_rank, phase=NodePhase.RELEASED)
    job = replace(job, attempt=attempt)
    if not attempt.finished and job.state is not JobState.STOPPING:
        job = _lose_attempt(job, event, now)
    if live(job).all_in(NodePhase.RELEASED):
        job = _free_slots(job, now)
    return Decision(job)


def _may_be_replaced(job: Job, event: e.NodeLost, now: int) -> bool:
    """Whether the other nodes may stay: their ranks have begun, and the job may restart after this loss."""
    attempt = live(job)
    if event.replacement is None or attempt.finished or job.state is JobState.STOPPING:
        return False
    others = [one for rank, one in enumerate(attempt.nodes) if rank != event.node_rank]
    stay = [one for one in others if one.phase not in (NodePhase.LAUNCHING, NodePhase.RELEASED)]
    begun = attempt.nodes[event.node_rank].phase is not NodePhase.LAUNCHING
    if not (attempt.ranks_may_start and begun and stay):
        return False
    return judge(advance(job, event.step), _failure_of(event, now), now).wait_s is not None


def _replaced(job: Job, event: e.NodeLost, now: int) -> Decision:
    """Start another supervisor for the node rank; the ranks of the other nodes end, their supervisors stay.

    The generation is over, and the restart is charged, when all of them have ended and it has checked in.
    """
    attempt, rank = live(job), event.node_rank
    assert event.replacement is not None
    shares = list(attempt.placement.shares)
    shares[rank] = event.replacement
    status = NodeStatus(
        outcome=NodeOutcome.FAILED,
        step=event.step,
        incarnation=attempt.nodes[rank].incarnation + 1,
    )
    attempt = replace(
        attempt,
        placement=replace(attempt.placement, shares=tuple(shares)),
        nodes=(*attempt.nodes[:rank], status, *attempt.nodes[rank + 1 :]),
        tunnels=tuple(one for one in attempt.tunnels if one[0] != rank),
    )
    job = record_failure(replace(job, attempt=attempt), _failure_of(event, now))
    return Decision(job, (LaunchAttempt(attempt.num),))


def _lose_attempt(job: Job, event: NodeGone, now: int) -> Job:
    """Release the placement and requeue the job after the loss of a node in use."""
    attempt = live(job)
    failure = _failure_of(event, now)
    if attempt.ranks_may_start and isinstance(event, e.LaunchFailed) and attempt.failure:
        # The loss that it was to replace is the cause, and is charged.
        said = f"{attempt.failure.message}; the replacement was not started: {event.message}"
        failure = replace(attempt.failure, message=said)
    # A start that an outage outside of the job prevented says nothing about its progress.
    if failure.cause not in OUTSIDE_CAUSES:
        job = advance(job, _last_step(attempt, event))
    verdict = judge(job, failure, now)
    attempt = replace(attempt, failures=(*attempt.failures, failure))
    job = replace(job, last_failure=failure, attempt=attempt)
    if verdict.wait_s is None:
        return stop(job, StopGoal.FAIL, verdict.reason, deadline_at=now)
    job = stop(charge(job, failure, now), StopGoal.REQUEUE, verdict.reason, deadline_at=now)
    return replace(job, not_before=now + round(verdict.wait_s * US) if verdict.wait_s > 0 else None)


def _last_step(attempt: Attempt, event: NodeGone) -> int | None:
    """The last step of the generation, as far as it is known."""
    steps = [one.step for one in attempt.nodes]
    steps.append(event.step if isinstance(event, e.NodeLost) else None)
    return max((step for step in steps if step is not None), default=None)


def _failure_of(event: NodeGone, now: int) -> Failure:
    if isinstance(event, e.LaunchFailed):
        return Failure(event.cause, None, event.node_rank, now, event.message)
    message, cause = f"the supervisor of node {event.node_rank} ended", Cause.NODE_LOST
    if isinstance(event, e.NodeLost):
        message, cause = event.message, event.cause
    return Failure(cause, None, event.node_rank, now, message)


def _free_slots(job: Job, now: int) -> Job:
    """Free the slots of an attempt that is released on all nodes, and set the next state."""
    attempt, goal = live(job), job.goal
    held_s = 0.0 if attempt.placed_at is None else (now - attempt.placed_at) / US
    attained = job.attained_slot_s + attempt.num_slots * held_s
    job = replace(job, attempt=None, goal=None, stop_deadline_at=now, attained_slot_s=attained)
    if attempt.finished:
        unsaved = next((node.unsaved for node in attempt.nodes if node.unsaved), "")
        done = Reason(ReasonCode.COMPLETED, "every rank finished")
        if unsaved:
            said = f"every rank finished, but the last checkpoint is missing: {unsaved}"
            done = Reason(ReasonCode.FINAL_CHECKPOINT_NOT_SAVED, said)
        return replace(job, state=JobState.SUCCEEDED, reason=done, ended_at=now)
    if goal is StopGoal.REQUEUE:
        return replace(job, state=JobState.QUEUED, queued_at=now)
    if goal is StopGoal.PAUSE:
        return replace(job, state=JobState.PAUSED, not_before=None)
    state = JobState.CANCELLED if goal is StopGoal.CANCEL else JobState.FAILED
    return replace(job, state=state, not_before=None, ended_at=now)
