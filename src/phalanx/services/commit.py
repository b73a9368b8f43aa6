"""Events into a job: load, decide, append, save, and queue what the edge must do.

Everything happens in the caller's transaction, so that one of them may carry many jobs' events.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from phalanx.core.jobs import Job, create, decide
from phalanx.core.jobs.commands import JobCommand
from phalanx.core.jobs.events import JobEvent, Submitted
from phalanx.core.jobs.model import HOLDING, JobState
from phalanx.core.jobs.timers import wake_at
from phalanx.errors import InvalidTransition
from phalanx.kit.units import to_rfc3339
from phalanx.store import events as log
from phalanx.store import jobs, outbox
from phalanx.store.database import Tx
from phalanx.store.jobs import JobFacts, StoredJob

QUEUE = "queue"
TIMERS = "timers"
LEAVING = "leaving"


def job_topic(num: int) -> str:
    """Who waits for a change of one job waits for this."""
    return f"job:{num}"


@dataclass(frozen=True, slots=True)
class Note:
    """A line of the story that the job machine does not see. `kind` is one of `store.events.NOTES`."""

    kind: str
    attempt: int
    generation: int
    data: dict[str, Any] = field(default_factory=dict)


def commit_new(tx: Tx, submitted: Submitted, facts: JobFacts, now: int, actor: str) -> Job:
    """Store a submission."""
    job = create(submitted, now)
    jobs.insert(tx, job, facts, wake_at(job))
    log.append(tx, [_entry(job, submitted, 1, now, actor)])
    _touch(tx, job)
    tx.touched.topics.add(QUEUE)
    return job


def commit_events(
    tx: Tx, num: int, fresh: Sequence[JobEvent | Note], now: int, actor: str
) -> StoredJob:
    """Apply events to one job in order; those that change nothing for the job are not stored.

    Raises NotFound, StaleRow when the row changed since it was read, and InvalidTransition, with the
    job's story, for what only a bug can produce.
    """
    stored = jobs.load(tx, num)
    job, entries = stored.job, list[log.NewEvent]()
    commands: list[JobCommand] = []
    for one in fresh:
        seq = stored.last_seq + len(entries) + 1
        if isinstance(one, Note):
            entries.append(_entry(job, one, seq, now, actor))
            continue
        try:
            decision = decide(job, one, now)
        except InvalidTransition as error:
            raise InvalidTransition(error.message, story(tx, num)) from error
        if decision.ignored is not None:
            continue
        job = decision.job
        commands.extend(decision.commands)
        entries.append(_entry(job, one, seq, now, actor))
    if not entries:
        return stored
    jobs.save(tx, stored, job, wake_at(job), len(entries))
    log.append(tx, entries)
    outbox.add(tx, num, commands, now)
    _touch(tx, job)
    if stored.job.state is not job.state and not {stored.job.state, job.state} <= HOLDING:
        tx.touched.topics.add(QUEUE)
    return StoredJob(job, stored.facts, stored.version + 1, stored.last_seq + len(entries), None)


def _entry(job: Job, one: JobEvent | Note, seq: int, now: int, actor: str) -> log.NewEvent:
    return log.NewEvent(
        job=job.num,
        seq=seq,
        at=now,
        kind=one.kind if isinstance(one, Note) else log.kind_of(type(one)),
        attempt=getattr(one, "attempt", None),
        generation=getattr(one, "generation", None),
        actor=actor,
        reason={
            "state": job.state.value,
            "code": job.reason.code.value,
            "message": job.reason.message,
        },
        data=one.data if isinstance(one, Note) else log.data_of(one),
    )


def _touch(tx: Tx, job: Job) -> None:
    tx.touched.jobs.add(job.num)
    tx.touched.topics |= {job_topic(job.num), TIMERS}
    if job.state in (JobState.STOPPING, JobState.RUNNING):
        tx.touched.topics.add(LEAVING)


def story(tx: Tx, num: int, last: int = 50) -> list[str]:
    """A job's events as lines for people: what to print when something is wrong with it."""
    lines = [
        f"{to_rfc3339(one.at)} {one.seq:>4} {one.kind} "
        f"[{one.attempt or '-'}/{'-' if one.generation is None else one.generation}] "
        f"{one.actor} → {one.state} ({one.reason_code})"
        for one in log.of_job(tx, num, limit=100_000)
    ]
    return lines[-last:]
