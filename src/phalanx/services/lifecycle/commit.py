"""Apply events to jobs: load, decide, append to the log, save, and queue commands in the outbox.

Everything happens in the caller's transaction, which may hold the events of many jobs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from phalanx.core.jobs.events import JobEvent, StopRequested, Submitted
from phalanx.core.jobs.machine import create, decide, wake_at
from phalanx.core.jobs.model import HOLDING, Job, JobCommand, JobState
from phalanx.errors import Bug, InvalidTransition, InvariantBroken, StoreError
from phalanx.kit.text import job_label
from phalanx.kit.units import to_rfc3339
from phalanx.services.caches.study_cache import TOLD_TO_STUDIES, TRIAL_JOBS
from phalanx.services.ledger.counting import count_changes, count_submitted
from phalanx.services.ledger.settle import settle
from phalanx.services.workflow import arrays, dependencies
from phalanx.store import events as log
from phalanx.store import jobs, outbox
from phalanx.store.database import Tx
from phalanx.store.jobs import JobFacts, StoredJob
from phalanx.store.tenancy import audit

_LOG = logging.getLogger(__name__)
QUEUE = "queue"
TIMERS = "timers"
LEAVING = "leaving"
_DEPENDENCIES = "dependencies"


def job_topic(num: int) -> str:
    """The notification topic of changes to one job."""
    return f"job:{num}"


@dataclass(frozen=True, slots=True)
class Note:
    """An event that does not change the job's state. `kind` is one of `store.events.NOTES`."""

    kind: str
    attempt: int
    generation: int
    data: dict[str, Any] = field(default_factory=dict)


def commit_new(tx: Tx, submitted: Submitted, facts: JobFacts, now: int, actor: str) -> Job:
    """Store one submitted job."""
    return commit_new_many(tx, [(submitted, facts)], now, actor)[0]


def commit_new_many(
    tx: Tx, fresh: Sequence[tuple[Submitted, JobFacts]], now: int, actor: str
) -> list[Job]:
    """Store many submitted jobs in a few statements; returns them as they are stored then.

    Raises SpecInvalid for a dependency on a job that does not exist.
    """
    made = [(create(submitted, now), submitted, facts) for submitted, facts in fresh]
    jobs.insert(tx, [(job, facts, wake_at(job)) for job, _, facts in made])
    log.append(tx, [_entry(job, submitted, 1, now, actor) for job, submitted, _ in made])
    count_submitted(tx, len(made))
    for job, _, facts in made:
        audit.describe(tx, f"job {job_label(job.num)}", None, _audited(job, facts))
        tx.touched.rows[job.num] = StoredJob(job, facts, 1, 1, None)
        _touch(tx, job, wake_at(job))
    tx.touched.topics.add(QUEUE)
    arrays.register(tx, [(job, facts) for job, _, facts in made])
    _tell(tx, dependencies.register(tx, [job for job, _, _ in made]), now)
    stored = (tx.touched.rows[job.num] for job, _, _ in made)
    return [one.job for one in stored if isinstance(one, StoredJob)]


def commit_events(
    tx: Tx,
    num: int,
    fresh: Sequence[JobEvent | Note],
    now: int,
    actor: str,
    known: StoredJob | None = None,
    facts: JobFacts | None = None,
) -> StoredJob:
    """Apply events to one job in order; events that change nothing are not stored.

    `known` is the job if the caller has read it; `facts` are its facts after the events, where they
    differ. Raises NotFound, StaleRow when the row changed since
    it was read, and InvalidTransition, with the job's events, for a transition that only a bug can cause.
    """
    stored = jobs.load(tx, num) if known is None else known
    changed = _applied(tx, stored, fresh, now, actor)
    if changed is None:
        return stored
    if facts is not None:
        changed = replace(changed, facts=facts)
    _write(tx, [changed], now)
    return changed.stored()


def _audited(job: Job, facts: JobFacts) -> dict[str, Any]:
    """What the audit log shows of a job: what requests change of it."""
    return {
        "state": job.state.value,
        "goal": None if job.goal is None else job.goal.value,
        "project": facts.project,
        "owner": facts.owner,
        "name": facts.name,
        "priority": facts.priority,
        "labels": facts.labels,
        "pools": facts.pools,
        "description": facts.spec.get("description"),
        "max_duration_s": job.policy.max_duration_s,
        "budget": facts.spec.get("budget"),
        **_requested(job),
    }


def _requested(job: Job) -> dict[str, Any]:
    """The newest requests to the ranks of the live attempt, by number."""
    attempt = job.attempt
    if attempt is None:
        return {}
    profile = None if attempt.profile is None else attempt.profile.request
    return {
        "stacks": attempt.stacks,
        "saves": attempt.saves,
        "profile": profile,
        "tunnels": attempt.tunnels,
    }


def _raise(num: int, error: Exception) -> None:
    raise error


def commit_many(
    tx: Tx,
    batch: Sequence[tuple[int, Sequence[JobEvent | Note]]],
    now: int,
    actor: str,
    known: Mapping[int, StoredJob] | None = None,
    on_bug: Callable[[int, Exception], None] = _raise,
) -> None:
    """`commit_events` for many jobs at once, each named at most once: a few statements in all.

    `known` are jobs that the caller has already read; a stale one raises StaleRow when it is saved.
    Jobs that do not exist are skipped. `on_bug` receives the job number and the error when events
    run into a bug of the state machine; when it returns, that job is unchanged and the others
    continue. By default it raises, with nothing stored. Raises StaleRow.
    """
    events = dict(batch)
    if len(events) != len(batch):
        raise InvariantBroken("a job appears twice in one batch")
    here = {} if known is None else {num: known[num] for num in events if num in known}
    here |= {
        one.job.num: one for one in jobs.load_many(tx, [num for num in events if num not in here])
    }
    changed = []
    for num in [num for num in events if num in here]:
        try:
            one = _applied(tx, here[num], events[num], now, actor)
        except StoreError:
            raise
        except Exception as error:
            on_bug(num, error)
            continue
        if one is not None:
            changed.append(one)
    _write(tx, changed, now)


@dataclass(frozen=True, slots=True)
class _Changed:
    """A changed job and the events that changed it, not yet written."""

    before: StoredJob
    job: Job
    entries: list[log.NewEvent]
    commands: list[JobCommand]
    wake: int | None
    facts: JobFacts | None = None  # None: those of `before`

    def stored(self) -> StoredJob:
        """The job as it will be stored."""
        before, facts = self.before, self.facts or self.before.facts
        last_seq = before.last_seq + len(self.entries)
        return StoredJob(self.job, facts, before.version + 1, last_seq, None)


def _applied(
    tx: Tx, stored: StoredJob, fresh: Sequence[JobEvent | Note], now: int, actor: str
) -> _Changed | None:
    """The job after these events; None when they change nothing."""
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
            raise InvalidTransition(error.message, event_lines(tx, job.num)) from error
        if decision.ignored is not None:
            continue
        job = decision.job
        commands.extend(decision.commands)
        entries.append(_entry(job, one, seq, now, actor))
    return _Changed(stored, job, entries, commands, wake_at(job)) if entries else None


def _write(tx: Tx, changed: Sequence[_Changed], now: int) -> None:
    """Save the jobs, then those that waited for their starts and ends."""
    _save(tx, changed, now)
    _tell(tx, _followers(tx, changed), now)


def _tell(tx: Tx, batch: dependencies.Batch, now: int) -> None:
    """Tell jobs what happened to those they wait for, and so on: a chain may be as long as it likes."""
    while batch:
        events = dict(batch)
        found = [
            _applied(tx, stored, events[stored.job.num], now, _DEPENDENCIES)
            for stored in jobs.load_many(tx, sorted(events))
        ]
        changed = [one for one in found if one is not None]
        _save(tx, changed, now)
        batch = _followers(tx, changed)


def _followers(tx: Tx, changed: Sequence[_Changed]) -> dependencies.Batch:
    """Events for the jobs that waited for these."""
    told: dict[int, list[JobEvent]] = {}
    pairs = [(one.before.job, one.job) for one in changed]
    with_facts = [(one.before.job, one.job, one.before.facts) for one in changed]
    for num, events in (*dependencies.settle(tx, pairs), *arrays.pass_turns(tx, with_facts)):
        told.setdefault(num, []).extend(events)
    return list(told.items())


def _save(tx: Tx, changed: Sequence[_Changed], now: int) -> None:
    """Save the jobs, append the events, queue the commands and collect the topics to notify."""
    if not changed:
        return
    if audit.is_on():
        for one in changed:
            before = _audited(one.before.job, one.before.facts)
            after = _audited(one.job, one.facts or one.before.facts)
            if after != before:
                audit.describe(tx, f"job {job_label(one.job.num)}", before, after)
    jobs.save_many(tx, [(one.before, one.job, one.wake, len(one.entries)) for one in changed])
    log.append(tx, [entry for one in changed for entry in one.entries])
    outbox.add(tx, [(one.job.num, c) for one in changed for c in one.commands], now)
    settle(tx, [(one.before, one.job) for one in changed], now)
    for one in changed:
        count_changes(tx, one.before, one.job, one.entries, now)
        _touch(tx, one.job, one.wake)
        tx.touched.rows[one.job.num] = one.stored()
        if one.facts is not None:
            jobs.put_facts(tx, one.job.num, one.facts)
            tx.touched.topics.add(QUEUE)
        if one.job.state is one.before.job.state:
            continue
        if one.before.facts.study is not None and one.job.state in TOLD_TO_STUDIES:
            tx.touched.topics.add(TRIAL_JOBS)
        # A job that takes slots frees none: another plan would come to the same result.
        if one.job.state not in HOLDING:
            tx.touched.topics.add(QUEUE)


def _entry(job: Job, one: JobEvent | Note, seq: int, now: int, actor: str) -> log.NewEvent:
    attempt, generation = getattr(one, "attempt", None), getattr(one, "generation", None)
    if isinstance(one, StopRequested) and job.attempt is not None:
        attempt, generation = job.attempt.num, job.attempt.generation
    return log.NewEvent(
        job=job.num,
        seq=seq,
        at=now,
        kind=one.kind if isinstance(one, Note) else log.kind_of(type(one)),
        attempt=attempt,
        generation=generation,
        actor=actor,
        reason={
            "state": job.state.value,
            "code": job.reason.code.value,
            "message": job.reason.message,
            "restarts": job.restarts,
        },
        data=one.data if isinstance(one, Note) else log.data_of(one),
    )


def _touch(tx: Tx, job: Job, wake: int | None) -> None:
    """Notify only the loops that have work: an empty step costs as much as a full one."""
    tx.touched.jobs.add(job.num)
    if wake is not None:
        tx.touched.topics.add(TIMERS)
    if job.state is JobState.STOPPING or (job.attempt is not None and job.attempt.finished):
        tx.touched.topics.add(LEAVING)


def isolate_bugs(nums: Sequence[int], work: Callable[[Sequence[int]], None]) -> None:
    """Run `work` on all jobs at once; when that raises a Bug, run it on each job separately.

    Raises the first Bug at the end, so that one broken job does not hold up the others.
    """
    if not nums:
        return
    try:
        work(nums)
        return
    except Bug as error:
        if len(nums) == 1:
            raise
        _LOG.error("%s; the other jobs are processed one by one", error.message)
    found: list[Bug] = []
    for num in nums:
        try:
            work([num])
        except Bug as error:
            found.append(error)
    if found:
        raise found[0]


def event_lines(tx: Tx, num: int, last: int = 50) -> list[str]:
    """A job's newest events as lines of text, for error messages."""
    lines = [
        f"{to_rfc3339(one.at)} {one.seq:>4} {one.kind} "
        f"[{one.attempt or '-'}/{'-' if one.generation is None else one.generation}] "
        f"{one.actor} → {one.state} ({one.reason_code})"
        for one in log.of_job(tx, num, limit=100_000)
    ]
    return lines[-last:]
