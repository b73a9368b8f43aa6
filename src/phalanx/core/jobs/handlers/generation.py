"""What a generation reports until its end, the start of the next one, and whether the job restarts.

Events: CheckpointCommitted, CheckpointQuarantined, RankFailed, RanksEnded, BackoffElapsed. `judge` decides
whether the job restarts, and after which back-off; the budgets are values of the job's policy.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace

from phalanx.core.gang.failures import Failure, is_final, is_killed_from_outside
from phalanx.core.gang.roles import world_of
from phalanx.core.jobs import events as e
from phalanx.core.jobs.budgets import RestartsUsed
from phalanx.core.jobs.handlers.steps import US, continue_above, live, record_failure, stop
from phalanx.core.jobs.model import (
    Decision,
    Job,
    JobState,
    NodeOutcome,
    NodePhase,
    NodeStatus,
    StopGoal,
    TrainingProgress,
)
from phalanx.core.reasons import OUTSIDE_CAUSES, Cause, Reason, ReasonCode, reason_of

_RANKS_EXIST = (NodePhase.UP, NodePhase.READY)
_LOSE_WORK = frozenset({Cause.RANK_CRASH, Cause.NODE_LOST, Cause.STALLED, Cause.OOM})
_FAILURES_KEPT = 8


@dataclass(frozen=True, slots=True)
class RecoveryVerdict:
    """Whether a job restarts after a failure: after `wait_s` seconds, or not at all with None."""

    reason: Reason
    wait_s: float | None = None


def committed(job: Job, event: e.CheckpointCommitted, now: int) -> Decision:
    """Record the checkpoint that the next generation resumes from."""
    progress = replace(job.progress, checkpoint_step=event.step, checkpoint_path=event.path)
    return Decision(replace(job, progress=progress))


def quarantined(job: Job, event: e.CheckpointQuarantined, now: int) -> Decision:
    """Resume from the checkpoint before one that failed verification."""
    if job.progress.checkpoint_path != event.path:
        return Decision(job)
    left = replace(job.progress, checkpoint_path=event.left_path, checkpoint_step=event.left_step)
    return Decision(replace(job, progress=left))


def rank_failed(job: Job, event: e.RankFailed, now: int) -> Decision:
    """Record the first failing rank of a node; `desired` then ends the other nodes' ranks."""
    attempt = live(job)
    if attempt.nodes[event.node_rank].phase not in _RANKS_EXIST:
        return Decision(job, ignored="the end of that node's ranks is recorded already")
    if event.failure in attempt.failures:
        return Decision(job, ignored="that failure is recorded already")
    if not job.needs_node(event.node_rank):
        return Decision(job, ignored="the job continues without that role")
    return Decision(record_failure(job, event.failure))


def ranks_ended(job: Job, event: e.RanksEnded, now: int) -> Decision:
    """Record that the ranks of one node have ended; after the last node, finish or restart."""
    if live(job).nodes[event.node_rank].phase not in _RANKS_EXIST:
        return Decision(job, ignored="the end of that node's ranks is recorded already")
    attempt = live(job).with_node(
        event.node_rank,
        phase=NodePhase.ENDED,
        port=event.port,
        outcome=event.outcome,
        step=event.step,
        unsaved=event.unsaved,
    )
    job = replace(job, attempt=attempt)
    failure = _failure_of(job, event, now)
    if failure is not None and failure not in attempt.failures:
        job = record_failure(job, failure)
    if event.target is not None and _is_at_target(job):
        return Decision(_at_target(job, event.target, now))
    return Decision(after_ends(job, now))


def after_ends(job: Job, now: int) -> Job:
    """End the generation if the ranks of all nodes, or all ranks that the job needs, have ended."""
    attempt = live(job)
    if not attempt.finished and (attempt.all_in(NodePhase.ENDED) or job.is_done):
        return _generation_over(job, now)
    return job


def _is_at_target(job: Job) -> bool:
    """Whether all ranks of the first world have left because the trial has reached its target."""
    attempt, parts = live(job), job.parts_now()
    left = (attempt.nodes[rank] for part in world_of(parts, parts[0]) for rank in part.nodes)
    there = all(
        node.phase is NodePhase.ENDED and node.outcome is NodeOutcome.AT_TARGET for node in left
    )
    return there and not attempt.failures and job.state is not JobState.STOPPING


def _at_target(job: Job, target: int, now: int) -> Job:
    """Pause a trial at its target; where that was raised meanwhile, continue on the same slots."""
    attempt = live(job)
    step = max((node.step for node in attempt.nodes if node.step is not None), default=None)
    job = advance(job, step)
    if job.until is not None and job.until > target and attempt.all_in(NodePhase.ENDED):
        return _next_generation(job)
    reason = Reason(ReasonCode.TARGET_REACHED, f"the trial has completed {target} units")
    deadline_at = now + round(job.policy.grace_s * US)
    job = stop(job, StopGoal.PAUSE, reason, deadline_at=deadline_at)
    return continue_above(job, target)


def _failure_of(job: Job, event: e.RanksEnded, now: int) -> Failure | None:
    """The failure of the job that follows from the end of a node's ranks; None if expected."""
    if not job.needs_node(event.node_rank):
        return None
    stopped = event.outcome is NodeOutcome.STOPPED and job.state is not JobState.STOPPING
    if event.failure is None and stopped:
        message = f"node {event.node_rank} received a stop signal from another program"
        return Failure(Cause.PREEMPTED, None, event.node_rank, now, message)
    return event.failure


def _generation_over(job: Job, now: int) -> Job:
    """Finish, stop or start the next generation after every required rank has ended."""
    attempt = live(job)
    step = max((node.step for node in attempt.nodes if node.step is not None), default=None)
    if job.is_done:
        leave_by = None if attempt.all_in(NodePhase.ENDED) else now + round(job.policy.grace_s * US)
        attempt = replace(attempt, finished=True, leave_by=leave_by)
        job = advance(replace(job, attempt=attempt), step)
        return replace(job, state=JobState.RUNNING) if job.state is JobState.RECOVERING else job
    if job.state is JobState.STOPPING:
        return advance(job, step)
    # A supervisor that lost its own report of the failure must not stop the job for ever.
    message = "the ranks ended without a report of the cause"
    failure = attempt.failure or Failure(Cause.RANK_CRASH, None, 0, now, message)
    job = replace(advance(job, step), last_failure=failure)
    verdict = judge(job, failure, now)
    if verdict.wait_s is None:
        return stop(job, StopGoal.FAIL, verdict.reason, deadline_at=now)
    job = replace(charge(job, failure, now), reason=verdict.reason)
    if verdict.wait_s > 0:
        return replace(job, not_before=now + round(verdict.wait_s * US))
    return _next_generation(job)


def _next_generation(job: Job) -> Job:
    attempt = live(job)
    attempt = replace(
        attempt,
        generation=attempt.generation + 1,
        nodes=tuple(
            NodeStatus(
                NodePhase.READY,
                node.port,
                addresses=node.addresses,
                incarnation=node.incarnation,
            )
            for node in attempt.nodes
        ),
        ranks_may_start=True,
        failures=(),
        stacks=0,
        stall=None,
        stall_until=None,
        stacks_of=(),
        profile=None,
        saves=0,
    )
    return replace(job, attempt=attempt, not_before=None)


def backoff_elapsed(job: Job, event: e.BackoffElapsed, now: int) -> Decision:
    """Begin the next generation once its wait is over."""
    if job.not_before is None or now < job.not_before:
        return Decision(job, ignored="no wait has ended")
    return Decision(_next_generation(job))


def advance(job: Job, step: int | None) -> Job:
    """Account for one ended generation: progress resets all restart budgets.

    Progress is a step beyond all earlier ones. A generation that only repeats earlier steps, or
    completes or reports none, counts as `no_progress`.
    """
    progress = job.progress
    known = progress.high_water_step
    if step is not None and (known is None or step > known):
        fresh = replace(progress, high_water_step=step, no_progress=0)
        return replace(job, progress=fresh, spending=RestartsUsed())
    return replace(job, progress=replace(progress, no_progress=progress.no_progress + 1))


def judge(job: Job, failure: Failure, now: int) -> RecoveryVerdict:
    """Whether `job`, already advanced by the ended generation, may run again."""
    policy, message = job.policy.recovery, failure.message
    if final := policy.fails(failure):
        return RecoveryVerdict(Reason(ReasonCode.EXIT_CODE, f"{message}; {final}"))
    cause = failure.cause
    if is_final(failure):
        return RecoveryVerdict(reason_of(cause, message))
    if policy.retries(failure):
        cause = Cause.RANK_CRASH
    budget = policy.budget(cause)
    used = job.spending.within(cause, budget, now)
    most = budget.most(killed=is_killed_from_outside(failure))
    if most is not None and used >= most:
        if most == 0:
            return RecoveryVerdict(reason_of(cause, message))
        spent = f"{message}; {used} restarts without progress used up the {cause} budget"
        return RecoveryVerdict(Reason(ReasonCode.BUDGET_SPENT, spent))
    no_progress = job.progress.no_progress
    # An unlimited budget ends after too many generations without progress.
    if (
        budget.count is None
        and cause not in (Cause.PREEMPTED, Cause.NODE_DRAINED)
        and cause not in OUTSIDE_CAUSES
        and no_progress > policy.max_no_progress
    ):
        loop = f"{message}; {no_progress} consecutive generations completed no new step"
        return RecoveryVerdict(Reason(ReasonCode.CRASH_LOOP, loop))
    # No back-off before the first restart: most faults are transient, and the slots would idle.
    wait_s = 0.0
    if cause in OUTSIDE_CAUSES:
        # An outage lasts: each start that it prevents waits longer than the one before it.
        wait_s = min(budget.max_wait_s, budget.first_wait_s * 2.0 ** min(used, 20))
    elif no_progress > 1 and budget.first_wait_s > 0:
        wait_s = min(budget.max_wait_s, budget.first_wait_s * 2.0 ** (no_progress - 2))
    return RecoveryVerdict(reason_of(cause, message), wait_s * _spread(job))


def _spread(job: Job) -> float:
    """A factor of a wait between 0.8 and 1.2: jobs that one outage ended do not start all at once."""
    return 0.8 + 0.4 * (zlib.crc32(f"{job.num}:{job.restarts}".encode()) / 0xFFFFFFFF)


def charge(job: Job, failure: Failure, now: int) -> Job:
    """Charge one restart for `failure` to its budget."""
    retried = job.policy.recovery.retries(failure)
    cause = Cause.RANK_CRASH if retried else failure.cause
    return replace(
        job,
        progress=_with_failure(job.progress, failure, now),
        spending=job.spending.spend(cause, now),
        restarts=job.restarts + 1,
        last_failure=failure,
    )


def _with_failure(progress: TrainingProgress, failure: Failure, now: int) -> TrainingProgress:
    """Remember the time of a failure that lost work: the next generations save more often."""
    if failure.cause not in _LOSE_WORK:
        return progress
    return replace(progress, failed_at=(*progress.failed_at, now)[-_FAILURES_KEPT:])
