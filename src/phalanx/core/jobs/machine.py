"""The job state machine: a pure function from a job and an event to a new job and commands.

`ROWS` is the transition table, with a cell for every event and state: a handler, `Ignore` for a
late or repeated message (normal in a distributed system), or `Refuse` for a pair that only a bug
can produce. Columns are groups of states that treat every event alike; handlers that differ within
a column read `job.state`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from phalanx.core.jobs import events as e
from phalanx.core.jobs.handlers.dependencies import (
    dependency_ended,
    dependency_started,
    enter_queue,
    turn_came,
)
from phalanx.core.jobs.handlers.generation import (
    backoff_elapsed,
    committed,
    quarantined,
    rank_failed,
    ranks_ended,
)
from phalanx.core.jobs.handlers.release import node_gone
from phalanx.core.jobs.handlers.stall import (
    profile_requested,
    ranks_stalled,
    save_requested,
    stacks_captured,
    stacks_overdue,
    stacks_requested,
    tunnel_requested,
)
from phalanx.core.jobs.handlers.start import attempt_placed, node_ready, ranks_started
from phalanx.core.jobs.handlers.steps import US
from phalanx.core.jobs.handlers.stop import (
    duration_exceeded,
    raised,
    resumed,
    settings_changed,
    stop_active,
    stop_idle,
    stop_overdue,
    stop_stopping,
)
from phalanx.core.jobs.model import Decision, Job, JobState
from phalanx.errors import InvalidTransition, InvariantBroken

STOP_SLACK_S = 15.0
"""How long after the grace period supervisors may take to report before the executor kills them."""

Cell = Callable[[Job, Any, int], Decision]


@dataclass(frozen=True, slots=True)
class Ignore:
    """A cell that changes nothing."""

    why: str

    def __call__(self, job: Job, event: object, now: int) -> Decision:
        """The same job, with the reason why the event has no effect."""
        return Decision(job, ignored=self.why)


@dataclass(frozen=True, slots=True)
class Refuse:
    """A cell that raises InvalidTransition."""

    def __call__(self, job: Job, event: object, now: int) -> Decision:
        """Raise InvalidTransition."""
        raise InvalidTransition(f"job {job.num}: {type(event).__name__} while {job.state}")


REFUSE = Refuse()
JOB_OVER = Ignore("the job is over")
LATE = Ignore("the attempt is over")
PAUSED = Ignore("the job is paused")
PLACED = Ignore("the job holds a placement")
QUEUED = Ignore("the job waits for slots")
IDLE = Ignore("the job does not run")
STOPS = Ignore("the job is stopping")
ACTIVE = Ignore("the job is not stopping")
STARTED = Ignore("the job waits for no other")

COLUMNS: tuple[tuple[JobState, ...], ...] = (
    (JobState.WAITING, JobState.QUEUED),
    (JobState.STARTING, JobState.RUNNING, JobState.RECOVERING),
    (JobState.STOPPING,),
    (JobState.PAUSED,),
    (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED),
)
# fmt: off
ROWS: tuple[tuple[type[e.JobEvent], Cell, Cell, Cell, Cell, Cell], ...] = (
    # event                   queued          active             stopping           paused     over
    (e.Submitted,             REFUSE,         REFUSE,            REFUSE,            REFUSE,    REFUSE),
    (e.AttemptPlaced,         attempt_placed, PLACED,            PLACED,            PAUSED,    JOB_OVER),
    (e.NodeReady,             LATE,           node_ready,        node_ready,        LATE,      LATE),
    (e.LaunchFailed,          LATE,           node_gone,         node_gone,         LATE,      LATE),
    (e.RanksStarted,          LATE,           ranks_started,     ranks_started,     LATE,      LATE),
    (e.RankFailed,            LATE,           rank_failed,       rank_failed,       LATE,      LATE),
    (e.RanksEnded,            LATE,           ranks_ended,       ranks_ended,       LATE,      LATE),
    (e.NodeReleased,          LATE,           node_gone,         node_gone,         LATE,      LATE),
    (e.NodeLost,              LATE,           node_gone,         node_gone,         LATE,      LATE),
    (e.CheckpointCommitted,   LATE,           committed,         committed,         LATE,      LATE),
    (e.CheckpointQuarantined, LATE,           quarantined,       quarantined,       LATE,      LATE),
    (e.StopRequested,         stop_idle,      stop_active,       stop_stopping,     stop_idle, REFUSE),
    (e.Resumed,               REFUSE,         REFUSE,            REFUSE,            resumed,   REFUSE),
    (e.BackoffElapsed,        QUEUED,         backoff_elapsed,   STOPS,             QUEUED,    JOB_OVER),
    (e.DurationExceeded,      IDLE,           duration_exceeded, STOPS,             IDLE,      JOB_OVER),
    (e.StopOverdue,           LATE,           ACTIVE,            stop_overdue,      LATE,      LATE),
    (e.RanksStalled,          LATE,           ranks_stalled,     ranks_stalled,     LATE,      LATE),
    (e.StacksRequested,       LATE,           stacks_requested,  stacks_requested,  LATE,      LATE),
    (e.ProfileRequested,      LATE,           profile_requested, profile_requested, LATE,      LATE),
    (e.SaveRequested,         LATE,           save_requested,    save_requested,    LATE,      LATE),
    (e.TunnelRequested,       LATE,           tunnel_requested,  STOPS,             LATE,      LATE),
    (e.StacksCaptured,        LATE,           stacks_captured,   stacks_captured,   LATE,      LATE),
    (e.StacksOverdue,         LATE,           stacks_overdue,    STOPS,             LATE,      LATE),
    (e.TargetRaised,          raised,         raised,            raised,            raised,    JOB_OVER),
    (e.SettingsChanged,       *(settings_changed,) * 5),
    (e.DependencyStarted, dependency_started, STARTED,           STARTED, dependency_started,  JOB_OVER),
    (e.DependencyEnded,   dependency_ended,   STARTED,           STARTED, dependency_ended,    JOB_OVER),
    (e.TurnCame,              turn_came,      STARTED,           STARTED,           turn_came, JOB_OVER),
)
# fmt: on
TRANSITIONS: dict[tuple[JobState, type], Cell] = {
    (state, event): cell
    for event, *cells in ROWS
    for column, cell in zip(COLUMNS, cells, strict=True)
    for state in column
}


def decide(job: Job, event: e.JobEvent, now: int) -> Decision:
    """Apply one event to one job.

    Messages of another attempt or generation are ignored in every state (fencing). Raises
    InvalidTransition for a pair that only a bug can produce.
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
    """The job that a submit creates."""
    job = Job(
        num=event.num,
        policy=event.policy,
        submitted_at=now,
        waits_for=event.waits_for,
        waits_turn=event.waits_turn,
    )
    return enter_queue(job, job.reason, now)


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


def _alarms(job: Job) -> list[tuple[int, e.JobEvent]]:
    """Every timer of a job: when it is due, and its event."""
    attempt = job.attempt
    if attempt is None:
        return []
    if job.state is JobState.STOPPING:
        deadline_at = job.stop_deadline_at or 0
        return [(deadline_at + round(STOP_SLACK_S * US), e.StopOverdue(attempt.num))]
    alarms: list[tuple[int, e.JobEvent]] = []
    if job.not_before is not None:
        alarms.append((job.not_before, e.BackoffElapsed()))
    limit = job.policy.max_duration_s
    if limit is not None and job.started_at is not None:
        alarms.append((job.started_at + round(limit * US), e.DurationExceeded()))
    if attempt.stall_until is not None and not attempt.failures:
        alarms.append((attempt.stall_until, e.StacksOverdue(attempt.num, attempt.generation)))
    return alarms


def due(job: Job, now: int) -> tuple[e.JobEvent, ...]:
    """The timer events that are due at `now`, earliest first."""
    ripe = sorted((a for a in _alarms(job) if a[0] <= now), key=lambda alarm: alarm[0])
    return tuple(event for _, event in ripe)


def wake_at(job: Job) -> int | None:
    """The time of the next timer event, microseconds UTC; None if there is none."""
    return min((at for at, _ in _alarms(job)), default=None)
