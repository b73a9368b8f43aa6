"""Handlers for jobs that wait for others. Events: DependencyStarted, DependencyEnded, TurnCame."""

from __future__ import annotations

from dataclasses import replace

from phalanx.core.jobs import events as e
from phalanx.core.jobs.dependencies import Dependency, DependencyKind, waiting_text
from phalanx.core.jobs.model import Decision, Job, JobState
from phalanx.core.reasons import Reason, ReasonCode


def enter_queue(job: Job, reason: Reason, now: int) -> Job:
    """Put a job into the queue; one that still waits for others stays outside of it."""
    if not job.waits_for and not job.waits_turn:
        return replace(job, state=JobState.QUEUED, reason=reason, queued_at=now)
    why = Reason(ReasonCode.WAITING_FOR_TURN, "waits for another element of its array to end")
    if job.waits_for:
        why = Reason(ReasonCode.WAITING_FOR_DEPENDENCIES, waiting_text(job.waits_for))
    return replace(job, state=JobState.WAITING, reason=why)


def dependency_started(job: Job, event: e.DependencyStarted, now: int) -> Decision:
    """Take the start of another job as what `after` waits for."""
    return _without(job, Dependency(event.job, DependencyKind.AFTER), now=now)


def dependency_ended(job: Job, event: e.DependencyEnded, now: int) -> Decision:
    """Take the end of another job; the job is cancelled where a condition can never be met now."""
    own = tuple(one for one in job.waits_for if one.job == event.job)
    succeeded = event.state is JobState.SUCCEEDED
    for one in own:
        if not one.is_met(succeeded=succeeded):
            said = f"j-{one.job} ended as {event.state}, and the job waited for {one} ({one.kind})"
            reason = Reason(ReasonCode.DEPENDENCY_FAILED, said)
            ended = replace(job, state=JobState.CANCELLED, reason=reason, ended_at=now)
            return Decision(ended)
    return _without(job, *own, now=now)


def turn_came(job: Job, event: e.TurnCame, now: int) -> Decision:
    """Let an element of an array take the place of one that has ended."""
    if not job.waits_turn:
        return Decision(job, ignored="the job has had its turn")
    job = replace(job, waits_turn=False)
    if job.state is not JobState.WAITING:
        return Decision(job)
    return Decision(enter_queue(job, Reason(ReasonCode.TURN_CAME), now))


def _without(job: Job, *met: Dependency, now: int) -> Decision:
    left = tuple(one for one in job.waits_for if one not in met)
    if left == job.waits_for:
        return Decision(job, ignored="the job does not wait for that")
    job = replace(job, waits_for=left)
    if job.state is not JobState.WAITING:
        return Decision(job)
    return Decision(enter_queue(job, Reason(ReasonCode.DEPENDENCIES_MET), now))
