"""The timer events of a job that are due, and the time of the next one."""

from __future__ import annotations

from phalanx.core.jobs import events as e
from phalanx.core.jobs.model import Job, JobState

_US = 1_000_000
STOP_SLACK_S = 15.0
"""How long after the grace period supervisors may take to report before the executor kills them."""
_SLACK = round(STOP_SLACK_S * _US)
_ACTIVE = (JobState.STARTING, JobState.RUNNING, JobState.RECOVERING)


def _alarms(job: Job) -> list[tuple[int, e.JobEvent]]:
    alarms: list[tuple[int, e.JobEvent]] = []
    if job.not_before is not None and job.state in _ACTIVE:
        alarms.append((job.not_before, e.BackoffElapsed()))
    limit = job.policy.max_duration_s
    if limit is not None and job.started_at is not None and job.state in _ACTIVE:
        alarms.append((job.started_at + round(limit * _US), e.DurationExceeded()))
    live = job.attempt if job.state in _ACTIVE else None
    if live is not None and live.stall_until is not None and not live.failures:
        alarms.append((live.stall_until, e.StacksOverdue(live.num, live.generation)))
    if job.state is JobState.STOPPING and job.attempt is not None:
        deadline_at = job.stop_deadline_at or 0
        alarms.append((deadline_at + _SLACK, e.StopOverdue(job.attempt.num)))
    return alarms


def due(job: Job, now: int) -> tuple[e.JobEvent, ...]:
    """The timer events that are due at `now`, earliest first."""
    ripe = sorted((a for a in _alarms(job) if a[0] <= now), key=lambda alarm: alarm[0])
    return tuple(event for _, event in ripe)


def wake_at(job: Job) -> int | None:
    """The time of the next timer event, microseconds UTC; None if there is none."""
    return min((at for at, _ in _alarms(job)), default=None)
