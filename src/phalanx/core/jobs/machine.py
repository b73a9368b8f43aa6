"""The job machine: one event in, the new job and what the edge must do out; nothing else happens.

Every (state, event) pair stands in `TRANSITIONS`: handled, ignored with a reason (late and repeated
messages of a distributed system), or refused as a bug.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from phalanx.core.gang.failures import Failure
from phalanx.core.jobs import events as e
from phalanx.core.jobs import gangs, stalling
from phalanx.core.jobs.commands import JobCommand, KillAttempt, LaunchAttempt
from phalanx.core.jobs.model import (
    HOLDING,
    TERMINAL,
    Attempt,
    Job,
    JobState,
    NodeOutcome,
    NodePhase,
    NodeStatus,
    StopGoal,
)
from phalanx.core.jobs.verdicts import GiveUp, advance, charge, judge
from phalanx.core.reasons import Cause, Reason, ReasonCode
from phalanx.errors import InvalidTransition, InvariantBroken

_US = 1_000_000
# How long after the grace period supervisors may take to report before the executor kills them.
STOP_SLACK_S = 15.0
_GOALS = tuple(StopGoal)


@dataclass(frozen=True, slots=True)
class Decision:
    """The new job, the commands, and why nothing changed where nothing did."""

    job: Job
    commands: tuple[JobCommand, ...] = ()
    ignored: str | None = None


Handler = Callable[[Job, Any, int], Decision]


def _ignore(why: str) -> Handler:
    def ignore(job: Job, event: Any, now: int) -> Decision:
        return Decision(job, ignored=why)

    return ignore


def _refuse(job: Job, event: Any, now: int) -> Decision:
    raise InvalidTransition(f"job {job.num}: {type(event).__name__} while {job.state}")


def _live(job: Job) -> Attempt:
    if job.attempt is None:
        raise InvariantBroken(f"job {job.num} is {job.state} without an attempt")
    return job.attempt


# -- leaving the queue ---------------------------------------------------------------------------


def _placed(job: Job, event: e.AttemptPlaced, now: int) -> Decision:
    if event.attempt != job.attempts + 1:
        return Decision(job, ignored=f"attempt {event.attempt} is not the next one")
    gangs.check_shape(job, event.placement)
    nodes = tuple(NodeStatus() for _ in event.placement.shares)
    where = ", ".join(dict.fromkeys(share.node for share in event.placement.shares))
    waited_s = (now - (job.submitted_at if job.queued_at is None else job.queued_at)) / 1_000_000
    job = replace(
        job,
        state=JobState.STARTING,
        waited_s=job.waited_s + max(waited_s, 0.0),
        reason=Reason(ReasonCode.PLACED, f"on {where}"),
        attempts=event.attempt,
        attempt=Attempt(event.attempt, event.placement, nodes, placed_at=now),
        goal=None,
        not_before=None,
    )
    return Decision(job, (LaunchAttempt(event.attempt),))


# -- the gang comes up ---------------------------------------------------------------------------


def _ready(job: Job, event: e.NodeReady, now: int) -> Decision:
    attempt = _live(job)
    if attempt.nodes[event.node_rank].phase is not NodePhase.LAUNCHING:
        return Decision(job, ignored="the node has checked in before")
    attempt = attempt.with_node(event.node_rank, phase=NodePhase.READY, port=event.port)
    if attempt.all_in(NodePhase.READY) and job.state is not JobState.STOPPING:
        attempt = replace(attempt, ranks_may_start=True)
    return Decision(replace(job, attempt=attempt))


def _started(job: Job, event: e.RanksStarted, now: int) -> Decision:
    attempt = _live(job)
    if attempt.nodes[event.node_rank].phase is not NodePhase.READY:
        return Decision(job, ignored="the ranks of that node were known to run")
    attempt = attempt.with_node(event.node_rank, phase=NodePhase.UP)
    job = replace(job, attempt=attempt)
    up = attempt.all_in(NodePhase.UP, NodePhase.ENDED)
    if up and not attempt.failures and job.state is not JobState.STOPPING:
        job = _running(job, now)
    return Decision(job)


def _running(job: Job, now: int) -> Job:
    started_at = now if job.started_at is None else job.started_at
    reason = Reason(ReasonCode.RANKS_UP, f"generation {_live(job).generation}")
    return replace(job, state=JobState.RUNNING, reason=reason, started_at=started_at)


# -- a generation ends ---------------------------------------------------------------------------


def _failed(job: Job, event: e.RankFailed, now: int) -> Decision:
    attempt = _live(job)
    if attempt.nodes[event.node_rank].phase not in (NodePhase.UP, NodePhase.READY):
        return Decision(job, ignored="the ranks of that node were known to be gone")
    if event.failure in attempt.failures:
        return Decision(job, ignored="that failure is known")
    if gangs.is_spared(job, attempt, event.node_rank):
        return Decision(job, ignored="the job goes on without that role")
    job = _note_failure(job, event.failure)
    if job.state is JobState.RUNNING:
        job = replace(job, state=JobState.RECOVERING)
    return Decision(job)


def _note_failure(job: Job, failure: Failure) -> Job:
    attempt = _live(job)
    attempt = replace(attempt, failures=(*attempt.failures, failure))
    known = attempt.failure or failure
    if job.state is JobState.STOPPING:
        return replace(job, attempt=attempt)
    return replace(
        job, attempt=attempt, reason=Reason(ReasonCode(known.cause.value), known.message)
    )


def _ended(job: Job, event: e.RanksEnded, now: int) -> Decision:
    attempt = _live(job)
    if attempt.nodes[event.node_rank].phase not in (NodePhase.UP, NodePhase.READY):
        return Decision(job, ignored="the ranks of that node were known to be gone")
    attempt = attempt.with_node(
        event.node_rank,
        phase=NodePhase.ENDED,
        port=event.port,
        outcome=event.outcome,
        step=event.step,
    )
    job = replace(job, attempt=attempt)
    spared = gangs.is_spared(job, attempt, event.node_rank)
    failure = None if spared else event.failure
    asked = spared or job.state is JobState.STOPPING
    if failure is None and event.outcome is NodeOutcome.STOPPED and not asked:
        said = f"node {event.node_rank} was asked to stop from outside"
        failure = Failure(Cause.PREEMPTED, None, event.node_rank, now, said)
    if failure is not None and failure not in attempt.failures:
        job = _note_failure(job, failure)
        if job.state is JobState.RUNNING:
            job = replace(job, state=JobState.RECOVERING)
    attempt = _live(job)
    if attempt.finished:
        return Decision(job)
    if attempt.all_in(NodePhase.ENDED) or gangs.is_done(job, attempt):
        return _settle(job, now)
    return Decision(job)


def _settle(job: Job, now: int) -> Decision:
    """Every rank of the generation that counts is gone: what now?"""
    attempt = _live(job)
    step = max((node.step for node in attempt.nodes if node.step is not None), default=None)
    if gangs.is_done(job, attempt):
        leave_by = (
            None if attempt.all_in(NodePhase.ENDED) else now + round(job.policy.grace_s * _US)
        )
        attempt = replace(attempt, finished=True, leave_by=leave_by)
        job = advance(replace(job, attempt=attempt), step)
        if job.state is JobState.RECOVERING:
            job = replace(job, state=JobState.RUNNING)
        return Decision(job)
    if job.state is JobState.STOPPING:
        return Decision(advance(job, step))
    # A supervisor that lost its own report of the failure must not stop the job for ever.
    said = "the ranks ended without saying why"
    failure = attempt.failure or Failure(Cause.RANK_CRASH, None, 0, now, said)
    job = advance(job, step)
    verdict = judge(job, failure, now)
    job = replace(job, last_failure=failure)
    if isinstance(verdict, GiveUp):
        return Decision(_stop(job, StopGoal.FAIL, verdict.reason, deadline_at=now))
    job = replace(charge(job, failure, now), reason=verdict.reason)
    if verdict.wait_s > 0:
        return Decision(replace(job, not_before=now + round(verdict.wait_s * _US)))
    return Decision(_open_next(job))


def _open_next(job: Job) -> Job:
    attempt = _live(job)
    nodes = tuple(NodeStatus(NodePhase.READY, node.port) for node in attempt.nodes)
    attempt = replace(
        attempt, generation=attempt.generation + 1, nodes=nodes, failures=(), ranks_may_start=True,
        stacks=0, stall=None, stall_until=None, stacks_of=(), profile=None,
    )  # fmt: skip
    return replace(job, attempt=attempt, not_before=None)


def _backoff_elapsed(job: Job, event: e.BackoffElapsed, now: int) -> Decision:
    if job.not_before is None or now < job.not_before:
        return Decision(job, ignored="no wait is over")
    return Decision(_open_next(job))


# -- a generation hangs --------------------------------------------------------------------------


def _stalled(job: Job, event: e.RanksStalled, now: int) -> Decision:
    return _after_stacks(job, stalling.stalled(job, _live(job), event, now))


def _captured(job: Job, event: e.StacksCaptured, now: int) -> Decision:
    return _after_stacks(job, stalling.captured(_live(job), event))


def _after_stacks(job: Job, attempt: Attempt | str) -> Decision:
    """End a generation that hangs as soon as every node's stacks are there."""
    if isinstance(attempt, str):
        return Decision(job, ignored=attempt)
    job = replace(job, attempt=attempt)
    failure = stalling.verdict(attempt)
    return Decision(job if failure is None else _give_up_waiting(job, failure))


def _stacks_overdue(job: Job, event: e.StacksOverdue, now: int) -> Decision:
    attempt = _live(job)
    if attempt.stall is None or attempt.failures or now < (attempt.stall_until or 0):
        return Decision(job, ignored="nothing waits for stacks")
    return Decision(_give_up_waiting(job, attempt.stall))


def _give_up_waiting(job: Job, failure: Failure) -> Job:
    job = _note_failure(job, failure)
    return replace(job, state=JobState.RECOVERING) if job.state is JobState.RUNNING else job


def _asked(job: Job, event: e.StacksRequested | e.ProfileRequested, now: int) -> Decision:
    attempt = stalling.ask(_live(job), event)
    if isinstance(attempt, str):
        return Decision(job, ignored=attempt)
    return Decision(replace(job, attempt=attempt))


# -- nodes go away -------------------------------------------------------------------------------


def _gone(job: Job, event: e.NodeReleased | e.NodeLost | e.LaunchFailed, now: int) -> Decision:
    attempt = _live(job)
    if attempt.nodes[event.node_rank].phase is NodePhase.RELEASED:
        return Decision(job, ignored="the node was known to be gone")
    job = replace(job, attempt=attempt.with_node(event.node_rank, phase=NodePhase.RELEASED))
    if not _live(job).finished and job.state is not JobState.STOPPING:
        job = _lose_attempt(job, event, now)
    if _live(job).all_in(NodePhase.RELEASED):
        job = _release(job, now)
    return Decision(job)


def _lose_attempt(job: Job, event: e.NodeReleased | e.NodeLost | e.LaunchFailed, now: int) -> Job:
    """A node is gone that was still needed: give the whole placement back and queue again."""
    attempt = _live(job)
    if isinstance(event, e.LaunchFailed):
        cause, message = Cause.START_FAILED, event.message
    elif isinstance(event, e.NodeLost):
        cause, message = Cause.NODE_LOST, event.message
    else:
        cause, message = Cause.NODE_LOST, f"the supervisor of node {event.node_rank} left"
    failure = Failure(cause, None, event.node_rank, now, message)
    job = advance(job, event.step if isinstance(event, e.NodeLost) else None)
    verdict = judge(job, failure, now)
    job = replace(
        job, last_failure=failure, attempt=replace(attempt, failures=(*attempt.failures, failure))
    )
    if isinstance(verdict, GiveUp):
        return _stop(job, StopGoal.FAIL, verdict.reason, deadline_at=now)
    job = charge(job, failure, now)
    wait_until = now + round(verdict.wait_s * _US) if verdict.wait_s > 0 else None
    job = _stop(job, StopGoal.REQUEUE, verdict.reason, deadline_at=now)
    return replace(job, not_before=wait_until)


def _release(job: Job, now: int) -> Job:
    """Nothing of the attempt is left: the slots are free and the job takes its next state."""
    attempt, goal = _live(job), job.goal
    held_s = 0.0 if attempt.placed_at is None else (now - attempt.placed_at) / _US
    attained = job.attained_slot_s + attempt.num_slots * held_s
    job = replace(job, attempt=None, goal=None, stop_deadline_at=now, attained_slot_s=attained)
    if attempt.finished:
        done = Reason(ReasonCode.COMPLETED, "every rank finished")
        return replace(job, state=JobState.SUCCEEDED, reason=done, ended_at=now)
    if goal is StopGoal.REQUEUE:
        return replace(job, state=JobState.QUEUED, queued_at=now)
    if goal is StopGoal.PAUSE:
        return replace(job, state=JobState.PAUSED, not_before=None)
    if goal is StopGoal.CANCEL:
        return replace(job, state=JobState.CANCELLED, not_before=None, ended_at=now)
    return replace(job, state=JobState.FAILED, not_before=None, ended_at=now)


# -- stops ---------------------------------------------------------------------------------------


def _stop(job: Job, goal: StopGoal, reason: Reason, *, deadline_at: int) -> Job:
    return replace(
        job,
        state=JobState.STOPPING,
        goal=goal,
        reason=reason,
        stop_deadline_at=deadline_at,
        not_before=None,
    )


def _stop_active(job: Job, event: e.StopRequested, now: int) -> Decision:
    grace_s = job.policy.grace_s if event.grace_s is None else event.grace_s
    deadline_at = now + round(grace_s * _US)
    return Decision(_stop(job, event.goal, event.reason, deadline_at=deadline_at))


def _stop_again(job: Job, event: e.StopRequested, now: int) -> Decision:
    goal = job.goal or StopGoal.REQUEUE
    if _GOALS.index(event.goal) < _GOALS.index(goal):
        return Decision(job, ignored=f"the job is already stopping to {goal}")
    grace_s = job.policy.grace_s if event.grace_s is None else event.grace_s
    deadline_at = now + round(grace_s * _US)
    if job.stop_deadline_at is not None:
        deadline_at = min(deadline_at, job.stop_deadline_at)
    if goal is event.goal and deadline_at == job.stop_deadline_at:
        return Decision(job, ignored=f"the job is already stopping to {goal}")
    if goal is StopGoal.FAIL:
        return Decision(job, ignored="the job is failing already")
    stopped = replace(job, goal=event.goal, reason=event.reason, stop_deadline_at=deadline_at)
    return Decision(stopped)


def _stop_idle(job: Job, event: e.StopRequested, now: int) -> Decision:
    """A job that holds nothing takes its new state at once."""
    if event.goal is StopGoal.REQUEUE:
        return Decision(job, ignored="the job holds no slots")
    if event.goal is StopGoal.PAUSE:
        if job.state is JobState.PAUSED:
            return Decision(job, ignored="the job is paused")
        return Decision(replace(job, state=JobState.PAUSED, reason=event.reason, not_before=None))
    state = JobState.CANCELLED if event.goal is StopGoal.CANCEL else JobState.FAILED
    return Decision(replace(job, state=state, reason=event.reason, not_before=None, ended_at=now))


def _resumed(job: Job, event: e.Resumed, now: int) -> Decision:
    back = Reason(ReasonCode.RESUME_REQUESTED)
    return Decision(replace(job, state=JobState.QUEUED, reason=back, queued_at=now))


def _too_long(job: Job, event: e.DurationExceeded, now: int) -> Decision:
    limit = job.policy.max_duration_s
    reason = Reason(ReasonCode.MAX_DURATION, f"max_duration is {limit:g} s" if limit else "")
    deadline_at = now + round(job.policy.grace_s * _US)
    return Decision(_stop(job, StopGoal.FAIL, reason, deadline_at=deadline_at))


def _overdue(job: Job, event: e.StopOverdue, now: int) -> Decision:
    # Moving the deadline on makes the timer fire again, should the executor fail to kill.
    job = replace(job, stop_deadline_at=now)
    return Decision(job, (KillAttempt(event.attempt),))


# -- checkpoints ---------------------------------------------------------------------------------


def _checkpointed(job: Job, event: e.CheckpointCommitted, now: int) -> Decision:
    progress = replace(job.progress, checkpoint_step=event.step, checkpoint_path=event.path)
    return Decision(replace(job, progress=progress))


def _quarantined(job: Job, event: e.CheckpointQuarantined, now: int) -> Decision:
    if job.progress.checkpoint_path != event.path:
        return Decision(job)
    return Decision(replace(job, progress=replace(job.progress, checkpoint_path=None)))


# -- the table -----------------------------------------------------------------------------------


def _table() -> dict[tuple[JobState, type], Handler]:
    late = _ignore("the attempt is over")
    over = _ignore("the job is over")
    table: dict[tuple[JobState, type], Handler] = {}
    for state in JobState:
        for kind in e.EVENT_TYPES:
            table[state, kind] = _refuse
    ours = (
        e.NodeReady, e.LaunchFailed, e.RanksStarted, e.RankFailed, e.RanksEnded, e.NodeReleased,
        e.NodeLost, e.CheckpointCommitted, e.CheckpointQuarantined, e.StopOverdue,
        e.RanksStalled, e.StacksRequested, e.StacksCaptured, e.StacksOverdue, e.ProfileRequested,
    )  # fmt: skip
    for kind in ours:
        for state in set(JobState) - HOLDING:
            table[state, kind] = late
    for state in TERMINAL:
        for timer in (e.BackoffElapsed, e.DurationExceeded, e.AttemptPlaced):
            table[state, timer] = over
    for state in HOLDING:
        table[state, e.NodeReady] = _ready
        table[state, e.LaunchFailed] = _gone
        table[state, e.RanksStarted] = _started
        table[state, e.RankFailed] = _failed
        table[state, e.RanksEnded] = _ended
        table[state, e.NodeReleased] = _gone
        table[state, e.NodeLost] = _gone
        table[state, e.CheckpointCommitted] = _checkpointed
        table[state, e.CheckpointQuarantined] = _quarantined
        table[state, e.StopRequested] = _stop_active
        table[state, e.BackoffElapsed] = _backoff_elapsed
        table[state, e.DurationExceeded] = _too_long
        table[state, e.StopOverdue] = _ignore("the job is not stopping")
        table[state, e.AttemptPlaced] = _ignore("the job holds a placement")
        table[state, e.RanksStalled] = _stalled
        table[state, e.StacksRequested] = table[state, e.ProfileRequested] = _asked
        table[state, e.StacksCaptured] = _captured
        table[state, e.StacksOverdue] = _stacks_overdue
    table[JobState.STOPPING, e.StopRequested] = _stop_again
    table[JobState.STOPPING, e.BackoffElapsed] = _ignore("the job is stopping")
    table[JobState.STOPPING, e.DurationExceeded] = _ignore("the job is stopping")
    table[JobState.STOPPING, e.StopOverdue] = _overdue
    table[JobState.STOPPING, e.StacksOverdue] = _ignore("the job is stopping")
    table[JobState.QUEUED, e.AttemptPlaced] = _placed
    table[JobState.PAUSED, e.AttemptPlaced] = _ignore("the job is paused")
    table[JobState.PAUSED, e.Resumed] = _resumed
    for state in (JobState.QUEUED, JobState.PAUSED):
        table[state, e.StopRequested] = _stop_idle
        table[state, e.BackoffElapsed] = _ignore("the job waits for slots")
        table[state, e.DurationExceeded] = _ignore("the job does not run")
    return table


TRANSITIONS: Mapping[tuple[JobState, type], Handler] = _table()


def decide(job: Job, event: e.JobEvent, now: int) -> Decision:
    """Apply one event to one job.

    Messages of another attempt or generation are ignored, whatever the state: that is the fence.
    Raises InvalidTransition for a pair that only a bug can produce.
    """
    stale = _stale(job, event)
    if stale is not None:
        return Decision(job, ignored=stale)
    return TRANSITIONS[job.state, type(event)](job, event, now)


def _stale(job: Job, event: e.JobEvent) -> str | None:
    if isinstance(event, e.AttemptPlaced) or job.attempt is None:
        return None
    attempt = getattr(event, "attempt", None)
    if attempt is not None and attempt != job.attempt.num:
        return f"attempt {attempt} is over, {job.attempt.num} is live"
    generation = getattr(event, "generation", None)
    checkpoint = isinstance(event, e.CheckpointCommitted | e.CheckpointQuarantined)
    if generation is not None and generation != job.attempt.generation and not checkpoint:
        return f"generation {generation} is over, {job.attempt.generation} is live"
    return None


def create(event: e.Submitted, now: int) -> Job:
    """The job that a submission makes."""
    return Job(num=event.num, policy=event.policy, submitted_at=now, queued_at=now)


def rebuild(log: Iterable[tuple[e.JobEvent, int]]) -> Job:
    """The job that a stored log of (event, at) leads to. Raises InvariantBroken for an empty log."""
    job: Job | None = None
    for event, at in log:
        if isinstance(event, e.Submitted):
            job = create(event, at)
        elif job is None:
            raise InvariantBroken("a log does not begin with its submission")
        else:
            job = decide(job, event, at).job
    if job is None:
        raise InvariantBroken("an empty log")
    return job
