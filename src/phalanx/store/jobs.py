"""Read and write job rows: a snapshot of each job, and columns to search by."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Integer,
    Select,
    String,
    Text,
    and_,
    bindparam,
    cast,
    func,
    not_,
    or_,
    select,
    true,
)

from phalanx.core.codec import decode, encode
from phalanx.core.gang.placement import Demand
from phalanx.core.jobs.model import HOLDING, TERMINAL, Job, JobPolicy, JobState
from phalanx.core.reasons import Reason, ReasonCode
from phalanx.errors import NotFound, StaleRow
from phalanx.kit.text import job_label
from phalanx.kit.units import to_rfc3339
from phalanx.store.database import Tx, columns_of, read, take_numbers
from phalanx.store.engines.many_rows import JsonText, run_many, to_json
from phalanx.store.experiments import terms
from phalanx.store.index import listing
from phalanx.store.schema.retention import deleted_jobs, job_marks
from phalanx.store.tables import job_labels, jobs, log_volumes

_BATCH = 500
# Serialized policies by `id` of the encoded policy, which is kept so that its id stays unique.
_POLICIES: dict[int, tuple[object, str]] = {}
_POLICIES_KEPT = 4096
# Around the policy in what `_snapshot` writes; the number of the job follows it.
_POLICY, _BEHIND_POLICY = '{"policy":', ',"num":'
_ANY_POLICY = {"shape": {"nodes": 1, "slots_per_node": 1, "ranks_per_node": 1}}
HOLDING_STATES = tuple(sorted(state.value for state in HOLDING))
_INSERT = jobs.insert()
_INSERT_LABELS = job_labels.insert()
_SAVE = (
    jobs.update()
    .where(jobs.c.num == bindparam("_num"), jobs.c.version == bindparam("_version"))
    .values(pool=func.coalesce(bindparam("_pool", type_=String), jobs.c.pool))
)
# SQLite, with its one writer, leaves the lock out.
_FIND = select(jobs).where(jobs.c.num == bindparam("_num"))
_FIND_LOCKED = _FIND.with_for_update()
_PLACE = select(jobs.c.project, jobs.c.owner).where(jobs.c.num == bindparam("_num"))
_IDENTITY = select(jobs.c.project, jobs.c.contract["uid"].as_string()).where(
    jobs.c.num == bindparam("_num")
)
_DELETED = select(deleted_jobs).where(deleted_jobs.c.job == bindparam("_num"))
_VERSION = select(jobs.c.version).where(jobs.c.num == bindparam("_num"))
_VERSION_LOCKED = _VERSION.with_for_update()
_VERSIONS_OF = (
    select(jobs.c.num, jobs.c.version)
    .where(jobs.c.num.in_(bindparam("_nums", expanding=True)))
    .order_by(jobs.c.num)
)
_VERSIONS_OF_LOCKED = _VERSIONS_OF.with_for_update()
_SOME = select(jobs).where(jobs.c.num.in_(bindparam("_nums", expanding=True))).order_by(jobs.c.num)
_SHOWN_JSON = ("labels", "pools", "spec")
# As text: what of it is needed is read here.
_SHOWN = select(
    *(jobs.c[name] for name in ("num", "version", "last_seq", "project", "name", "owner", "kind")),
    *(jobs.c[name] for name in ("framework", "priority", "cpus_per_node", "slot_type", "study")),
    *(jobs.c[name] for name in ("trial", "array", "array_index", "pending_code")),
    jobs.c.pending_message,
    *(cast(jobs.c[name], Text).label(name) for name in (*_SHOWN_JSON, "snapshot")),
).where(jobs.c.num.in_(bindparam("_nums", expanding=True)))
_SHOWN_NAMES = tuple(_SHOWN.selected_columns.keys())
# Rows as they are in the database, about 5 KB each.
_SHOWN_KEPT = 2000
_VERSIONS = (
    select(jobs.c.num, jobs.c.version)
    .where(jobs.c.state.in_(bindparam("_states", expanding=True)))
    .order_by(jobs.c.num)
)
_VERSIONS_AMONG = _VERSIONS.where(jobs.c.num.in_(bindparam("_nums", expanding=True)))
_SLOT_SECONDS = select(jobs.c.num, jobs.c.attained_slot_s).where(
    jobs.c.study == bindparam("_study"), jobs.c.trial == bindparam("_trial")
)
_WAITS = (
    jobs.update()
    .where(jobs.c.num == bindparam("_num"), jobs.c.state == JobState.QUEUED.value)
    .values(pending_code=bindparam("_code"), pending_message=bindparam("_message"))
)


@dataclass(frozen=True, slots=True)
class JobFacts:
    """The facts of a job beside the core's `JobPolicy`. `CHANGEABLE` ones change after the submission."""

    project: str  # name of the project
    name: str  # display name
    owner: str  # submitting user
    labels: Mapping[str, str]  # user labels
    framework: str  # name of the framework adapter
    kind: str  # `run` (caller's environment) or `submit`
    priority: int  # higher is scheduled first
    pools: tuple[str, ...]  # in order of preference; empty: any
    cpus_per_node: int  # CPUs requested on each node
    spec: Mapping[str, Any]  # resolved: every default written out
    code_digest: str | None  # SHA-256 of the code archive; None: no code
    caller_cwd: str | None  # the caller's working directory
    caller_env: Mapping[str, str] | None  # of `run` jobs, without likely secrets
    demand: Demand = Demand()  # requirements other than the shape
    contract: Mapping[str, Any] | None = None  # `core.contract.job.JobContract`; None: old job
    study: int | None = None  # number of the study that it runs a trial of; None: none
    trial: int | None = None  # number of the trial in its study
    array: int | None = None  # number of the first job of its array; None: no array
    array_index: int | None = None  # index in the array


_FACTS = tuple(one.name for one in fields(JobFacts))
_PLAIN_FACTS = (
    *("project", "name", "owner", "framework", "kind", "priority", "cpus_per_node"),
    *("study", "trial", "array", "array_index"),
)
CHANGEABLE = ("name", "labels", "priority", "pools", "spec")
_SET_FACTS = jobs.update().where(jobs.c.num == bindparam("_num"))


@dataclass(frozen=True, slots=True)
class StoredJob:
    """A job and its facts at one version of its row."""

    job: Job
    facts: JobFacts
    version: int
    last_seq: int
    pending_reason: Reason | None


def new_num(tx: Tx, count: int = 1) -> int:
    """Allocate `count` job numbers and return the first."""
    return take_numbers(tx, "job", count)


def insert(tx: Tx, fresh: Sequence[tuple[Job, JobFacts, int | None]]) -> None:
    """Insert jobs, each with the due time of its next timer; their first events have number 1."""
    if fresh:
        rows = [_fresh_row(*one) for one in fresh]
        run_many(tx.conn, _INSERT, rows)
        listing.insert(tx, [(job, row) for (job, _, _), row in zip(fresh, rows, strict=True)])
        _put_labels(tx, [(job.num, facts.labels) for job, facts, _ in fresh])
        terms.put(tx, [(job.num, facts.spec, facts.contract) for job, facts, _ in fresh])


def _put_labels(tx: Tx, fresh: Iterable[tuple[int, Mapping[str, str]]]) -> None:
    rows = [
        {"job": num, "name": name, "value": value}
        for num, labels in fresh
        for name, value in labels.items()
    ]
    if rows:
        run_many(tx.conn, _INSERT_LABELS, rows)


def _fresh_row(job: Job, facts: JobFacts, wake_at: int | None) -> dict[str, Any]:
    return {
        "num": job.num,
        "version": 1,
        "last_seq": 1,
        **columns_of(facts),
        "demand": encode(facts.demand),
        "slot_type": facts.demand.slot_type,
        "num_slots": job.policy.num_slots,
        "submitted_at": job.submitted_at,
        **_changing(job, wake_at),
    }


def save_many(tx: Tx, changed: Sequence[tuple[StoredJob, Job, int | None, int]]) -> None:
    """Save jobs, each (before, after, wake_at, num_events), in a few statements.

    Raises StaleRow if one of the rows changed since it was read.
    """
    quiet = {"pending_code": None, "pending_message": None}
    groups: dict[bool, list[dict[str, Any]]] = {}
    for stored, job, wake_at, num_events in changed:
        row = {"_num": job.num, "_version": stored.version, **_changing(job, wake_at)}
        row |= {"version": stored.version + 1, "last_seq": stored.last_seq + num_events}
        row["_pool"] = None if job.attempt is None else job.attempt.placement.pool
        queued = job.state is JobState.QUEUED
        groups.setdefault(queued, []).append(row if queued else row | quiet)
    for rows in groups.values():
        if run_many(tx.conn, _SAVE, rows) != len(rows):
            names = ", ".join(job_label(row["_num"]) for row in rows[:3])
            raise StaleRow(f"{names}{', …' if rows[3:] else ''} changed since it was read")
    listing.save(tx, [(stored.job, job) for stored, job, _, _ in changed])


def put_facts(tx: Tx, num: int, facts: JobFacts) -> None:
    """Store the changeable facts of a job, in the transaction that saves its event."""
    tx.conn.execute(_SET_FACTS, {"_num": num} | {one: getattr(facts, one) for one in CHANGEABLE})
    listing.rename(tx, num, facts.name, facts.priority)
    tx.conn.execute(job_labels.delete().where(job_labels.c.job == num))
    _put_labels(tx, [(num, facts.labels)])
    terms.replace(tx, num, facts.spec)


def put_size(tx: Tx, job: Job) -> None:
    """Store the size of the gang of a job at full size, after its number of nodes was changed."""
    tx.conn.execute(_SET_FACTS, {"_num": job.num, "num_slots": job.policy.num_slots})
    listing.set_size(tx, job)


def _changing(job: Job, wake_at: int | None) -> dict[str, Any]:
    return {
        "state": job.state.value,
        "reason_code": job.reason.code.value,
        "reason_message": job.reason.message,
        "snapshot": _snapshot(job),
        "attempts": job.attempts,
        "restarts": job.restarts,
        "started_at": job.started_at,
        "ended_at": job.ended_at,
        "attained_slot_s": job.attained_slot_s,
        "wake_at": wake_at,
    }


def _snapshot(job: Job) -> JsonText:
    """Serialize a job. Its policy, most of the text, never changes and is serialized once."""
    plain = encode(job)
    policy = plain.pop("policy")
    known = _POLICIES.get(id(policy))
    if known is None:
        if len(_POLICIES) >= _POLICIES_KEPT:
            _POLICIES.clear()
        known = _POLICIES[id(policy)] = (policy, to_json(policy))
    return JsonText(f'{{"policy":{known[1]},{to_json(plain)[1:]}')


def find(tx: Tx, num: int, *, lock: bool = True) -> StoredJob | None:
    """Read one job, or None. A write transaction of PostgreSQL locks the row, unless `lock` is False."""
    query = _FIND_LOCKED if lock and not tx.read_only else _FIND
    row = tx.conn.execute(query, {"_num": num}).mappings().first()
    return None if row is None else _stored(row)


def version(tx: Tx, num: int, *, lock: bool = True) -> int | None:
    """The version of one job, or None. A write transaction of PostgreSQL locks the row as `find` does."""
    query = _VERSION_LOCKED if lock and not tx.read_only else _VERSION
    found = tx.conn.execute(query, {"_num": num}).scalar()
    return None if found is None else int(found)


def versions_of(tx: Tx, nums: Sequence[int], *, lock: bool = True) -> dict[int, int]:
    """`version` of many jobs at once; those that do not exist are left out."""
    query = _VERSIONS_OF_LOCKED if lock and not tx.read_only else _VERSIONS_OF
    found: dict[int, int] = {}
    for start in range(0, len(nums), _BATCH):
        some = {"_nums": nums[start : start + _BATCH]}
        found |= {num: version for num, version in tx.conn.execute(query, some)}
    return found


def load(tx: Tx, num: int, *, lock: bool = True) -> StoredJob:
    """Read one job as `find` does. Raises NotFound."""
    stored = find(tx, num, lock=lock)
    if stored is None:
        raise _not_found(tx, num)
    return stored


def _not_found(tx: Tx, num: int) -> NotFound:
    """The error for a job that does not exist, or not any more."""
    row = tx.conn.execute(_DELETED, {"_num": num}).one_or_none()
    if row is None:
        return NotFound(f"there is no job {job_label(num)}", "`phalanx ps` lists the jobs")
    said = f"{job_label(num)} ({row.name}) was deleted by {row.deleted_by} at {to_rfc3339(row.deleted_at)}"
    if row.abandoned_by is not None and row.error is not None:
        said += (
            f"; {row.abandoned_by} gave up its copies in the object store, which were left there"
        )
    return NotFound(said)


def place_of(tx: Tx, num: int) -> tuple[str, str] | None:
    """The project and the owner of a job, also of a deleted one; None for one that never existed."""
    row = tx.conn.execute(_PLACE, {"_num": num}).one_or_none()
    if row is None:
        row = tx.conn.execute(_DELETED, {"_num": num}).one_or_none()
    return None if row is None else (row.project, row.owner)


def identity_of(tx: Tx, num: int) -> tuple[str, str] | None:
    """The project of a job and its `uid`, which is empty for old jobs; None: there is no such job."""
    row = tx.conn.execute(_IDENTITY, {"_num": num}).one_or_none()
    return None if row is None else (row[0], row[1] or "")


def in_states(tx: Tx, states: Iterable[JobState]) -> list[StoredJob]:
    """Read all jobs in one of `states`, by number."""
    query = (
        select(jobs).where(jobs.c.state.in_([state.value for state in states])).order_by(jobs.c.num)
    )
    return [_stored(row) for row in tx.conn.execute(query).mappings()]


def newest_of_project(tx: Tx, project: str, limit: int) -> list[StoredJob]:
    """The newest jobs of a project, the newest first."""
    query = select(jobs).where(jobs.c.project == project).order_by(jobs.c.num.desc()).limit(limit)
    return [_stored(row) for row in tx.conn.execute(query).mappings()]


def waking(tx: Tx, now: int, limit: int = 500) -> list[int]:
    """Numbers of jobs with a timer due by `now`, the earliest first."""
    query = select(jobs.c.num).where(jobs.c.wake_at <= now).order_by(jobs.c.wake_at).limit(limit)
    return list(tx.conn.execute(query).scalars())


def next_wake_at(tx: Tx) -> int | None:
    """The due time of the earliest timer; None without timers."""
    value = tx.conn.execute(select(func.min(jobs.c.wake_at))).scalar()
    return None if value is None else int(value)


def count_live(tx: Tx) -> int:
    """Count the jobs that are neither terminal nor paused."""
    quiet = [state.value for state in (*TERMINAL, JobState.PAUSED)]
    return int(tx.conn.execute(select(func.count()).where(jobs.c.state.not_in(quiet))).scalar_one())


def count_by_state(tx: Tx) -> dict[str, int]:
    """Count the jobs in each state that has any."""
    query = select(jobs.c.state, func.count()).group_by(jobs.c.state)
    return {state: int(count) for state, count in tx.conn.execute(query)}


def versions(
    tx: Tx, states: Iterable[JobState], among: Sequence[int] | None = None
) -> dict[int, int]:
    """The versions of all jobs in one of `states`, by number, to detect changes.

    `among` limits the result to these jobs.
    """
    wanted = [state.value for state in states]
    if among is None:
        return {num: version for num, version in tx.conn.execute(_VERSIONS, {"_states": wanted})}
    found: dict[int, int] = {}
    for start in range(0, len(among), _BATCH):
        few = {"_states": wanted, "_nums": among[start : start + _BATCH]}
        found |= {num: version for num, version in tx.conn.execute(_VERSIONS_AMONG, few)}
    return found


def among_projects(tx: Tx, nums: Sequence[int], projects: Sequence[str]) -> set[int]:
    """Those of these jobs that are of one of the projects."""
    found: set[int] = set()
    for start in range(0, len(nums), _BATCH):
        some = nums[start : start + _BATCH]
        query = select(jobs.c.num).where(jobs.c.num.in_(some), jobs.c.project.in_(projects))
        found |= set(tx.conn.execute(query).scalars())
    return found


def among(tx: Tx, nums: Sequence[int], projects: Sequence[str] | None) -> list[int]:
    """Those of these numbers that are jobs, optionally of some projects only."""
    found: list[int] = []
    for start in range(0, len(nums), _BATCH):
        query = select(jobs.c.num).where(jobs.c.num.in_(nums[start : start + _BATCH]))
        if projects is not None:
            query = query.where(jobs.c.project.in_(list(projects)))
        found += tx.conn.execute(query.order_by(jobs.c.num)).scalars()
    return found


def ended_among(tx: Tx, nums: Sequence[int]) -> dict[int, bool]:
    """Whether each of these jobs has ended; jobs that do not exist are left out."""
    found: dict[int, bool] = {}
    for start in range(0, len(nums), _BATCH):
        query = select(jobs.c.num, jobs.c.ended_at).where(
            jobs.c.num.in_(nums[start : start + _BATCH])
        )
        found |= {num: ended_at is not None for num, ended_at in tx.conn.execute(query)}
    return found


def load_many(tx: Tx, nums: Sequence[int]) -> list[StoredJob]:
    """Read the jobs of `nums` that exist, sorted by number within each batch of the query."""
    found: list[StoredJob] = []
    for start in range(0, len(nums), _BATCH):
        some = {"_nums": nums[start : start + _BATCH]}
        found += [_stored(row) for row in tx.conn.execute(_SOME, some).mappings()]
    return found


def load_brief(tx: Tx, nums: Sequence[int]) -> list[StoredJob]:
    """The jobs of `nums` that exist, for listings.

    Their facts have no contract, no environment of the caller and of the demand only the slot type: to
    read those takes longer than all the rest.
    """
    found: list[StoredJob] = []
    for start in range(0, len(nums), _BATCH):
        some = {"_nums": nums[start : start + _BATCH]}
        found += [_shown(tuple(row)) for row in tx.conn.execute(_SHOWN, some)]
    return found


@dataclass(frozen=True, slots=True)
class BriefJob:
    """What an answer to a submission says of a job."""

    num: int  # job number
    name: str  # display name
    state: str  # of the job
    array: int | None  # number of the first job of its array; None: no array
    array_index: int | None  # index in the array


_BRIEFS = (
    select(*(jobs.c[field.name] for field in fields(BriefJob)))
    .where(jobs.c.num.in_(bindparam("_nums", expanding=True)))
    .order_by(jobs.c.num)
)


def briefs(tx: Tx, nums: Sequence[int]) -> list[BriefJob]:
    """The jobs of `nums` in short, sorted by number within each batch of the query."""
    found: list[BriefJob] = []
    for start in range(0, len(nums), _BATCH):
        found += read(tx, BriefJob, _BRIEFS, {"_nums": nums[start : start + _BATCH]})
    return found


def set_pending_reasons(tx: Tx, reasons: Sequence[tuple[int, Reason]]) -> None:
    """Set the pending reasons of many jobs in one statement."""
    if not reasons:
        return
    rows = [
        {"_num": num, "_code": reason.code.value, "_message": reason.message}
        for num, reason in reasons
    ]
    run_many(tx.conn, _WAITS, rows)
    listing.set_pending(tx, [(num, reason.code.value) for num, reason in reasons])


@dataclass(frozen=True, slots=True)
class Finished:
    """The facts of an ended job for the duration history and for retention."""

    num: int  # job number
    project: str  # name of the project
    name: str  # display name
    owner: str  # submitting user
    state: str  # terminal state
    num_slots: int  # slots requested
    attained_slot_s: float  # service received, slot-seconds
    submitted_at: int  # µs UTC
    started_at: int | None  # first start, µs UTC; None: never
    ended_at: int  # µs UTC


_FINISHED_AFTER = (
    select(*(jobs.c[field.name] for field in fields(Finished)))
    .where(
        or_(
            jobs.c.ended_at > bindparam("_at"),
            and_(jobs.c.ended_at == bindparam("_at"), jobs.c.num > bindparam("_num")),
        )
    )
    .order_by(jobs.c.ended_at, jobs.c.num)
    .limit(bindparam("_limit", type_=Integer))
)


def finished_after(tx: Tx, at: int, num: int, *, limit: int) -> list[Finished]:
    """Read jobs that ended after (at, num), ordered by end time."""
    return read(tx, Finished, _FINISHED_AFTER, {"_at": at, "_num": num, "_limit": limit})


@dataclass(frozen=True, slots=True)
class FolderUser:
    """A job with a checkpoint folder below its caller's working directory."""

    num: int  # job number
    state: str  # of the job
    cwd: str  # the caller's working directory
    directory: str  # relative to it


def folder_users(tx: Tx, *, recent: int = 5000) -> list[FolderUser]:
    """Jobs with a checkpoint folder in a caller's directory, newest first.

    All that have not ended, and those among the `recent` newest jobs.
    """
    directory = jobs.c.spec[("checkpoint", "directory")].as_string()
    newest = select(func.coalesce(func.max(jobs.c.num), 0)).scalar_subquery()
    alive = jobs.c.state.not_in([state.value for state in TERMINAL])
    query = (
        select(
            jobs.c.num, jobs.c.state, jobs.c.caller_cwd.label("cwd"), directory.label("directory")
        )
        .where(or_(alive, jobs.c.num > newest - recent))
        .where(jobs.c.caller_cwd.is_not(None), directory.is_not(None))
        .order_by(jobs.c.num.desc())
    )
    return read(tx, FolderUser, query)


@dataclass(frozen=True, slots=True)
class JobsOf:
    """Jobs of some projects, or with `projects` None of all but `others`.

    `failed`: only those that failed, or only the others.
    """

    projects: tuple[str, ...] | None = None
    others: tuple[str, ...] = ()
    failed: bool | None = None

    def term(self) -> ColumnElement[bool]:
        """The condition on the row of a job."""
        has_failed = jobs.c.state == JobState.FAILED.value
        state = true() if self.failed is None else has_failed if self.failed else not_(has_failed)
        if self.projects is not None:
            return and_(jobs.c.project.in_(self.projects), state)
        return and_(jobs.c.project.not_in(self.others), state) if self.others else state


EVERY_JOB = JobsOf()
_PINNED = select(job_marks.c.job).where(job_marks.c.kind == "pinned")


def ended_before(
    tx: Tx, before: int, among: JobsOf, *, seen: tuple[int, int], limit: int
) -> list[Finished]:
    """The next jobs that ended before a time, ordered by end time, behind (end, number); no pinned ones."""
    columns = [jobs.c[field.name] for field in fields(Finished)]
    behind = or_(jobs.c.ended_at > seen[0], and_(jobs.c.ended_at == seen[0], jobs.c.num > seen[1]))
    query = select(*columns).where(
        jobs.c.ended_at < before, behind, among.term(), jobs.c.num.not_in(_PINNED)
    )
    return read(tx, Finished, query.order_by(jobs.c.ended_at, jobs.c.num).limit(limit))


def unpinned(among: JobsOf) -> Select[Any]:
    """A query for the numbers of jobs without a pin."""
    return select(jobs.c.num).where(among.term(), jobs.c.num.not_in(_PINNED))


def ended_with_output(
    tx: Tx, among: JobsOf, *, failed_before: int | None, limit: int
) -> list[tuple[int, int, int]]:
    """(end, number, bytes of output) of ended jobs with stored output and no pin, in the order of ends.

    Jobs that failed at `failed_before` or later are left out; None: none are.
    """
    volume = log_volumes.c
    query = select(jobs.c.ended_at, jobs.c.num, volume.stored_bytes).where(
        volume.job == jobs.c.num,
        volume.stored_bytes > 0,
        jobs.c.ended_at.is_not(None),
        jobs.c.num.not_in(_PINNED),
        among.term(),
    )
    if failed_before is not None:
        is_held = and_(jobs.c.state == JobState.FAILED.value, jobs.c.ended_at >= failed_before)
        query = query.where(not_(is_held))
    query = query.order_by(jobs.c.ended_at, jobs.c.num).limit(limit)
    return [(int(end), int(num), int(size)) for end, num, size in tx.conn.execute(query)]


def pinned(tx: Tx) -> frozenset[int]:
    """The numbers of all pinned jobs."""
    return frozenset(tx.conn.execute(_PINNED).scalars())


def code_of_pinned(tx: Tx) -> set[str]:
    """Digests of the code of pinned jobs."""
    query = select(jobs.c.code_digest).where(
        jobs.c.num.in_(_PINNED), jobs.c.code_digest.is_not(None)
    )
    return set(tx.conn.execute(query.distinct()).scalars())


def code_in_use(tx: Tx, *, since: int, among: JobsOf = EVERY_JOB) -> set[str]:
    """Digests of the code of jobs that have not ended, or ended at or after `since`."""
    alive = or_(jobs.c.ended_at.is_(None), jobs.c.ended_at >= since)
    known = jobs.c.code_digest.is_not(None)
    query = select(jobs.c.code_digest).where(alive, known, among.term()).distinct()
    return set(tx.conn.execute(query).scalars())


def slot_seconds(tx: Tx, study: int, trial: int) -> dict[int, float]:
    """The slot-seconds of every job that a trial has had, by number, without those of live attempts."""
    where = {"_study": study, "_trial": trial}
    return {num: float(spent) for num, spent in tx.conn.execute(_SLOT_SECONDS, where)}


def last_finished(tx: Tx, *, limit: int) -> list[Finished]:
    """Read the jobs that ended last, ordered by end time."""
    columns = [jobs.c[field.name] for field in fields(Finished)]
    query = (
        select(*columns)
        .where(jobs.c.ended_at.is_not(None))
        .order_by(jobs.c.ended_at.desc(), jobs.c.num.desc())
        .limit(limit)
    )
    return read(tx, Finished, query)[::-1]


def waiting_and_holding(tx: Tx) -> tuple[list[StoredJob], list[StoredJob]]:
    """Read the input of the planner: queued jobs, and jobs that hold slots."""
    both: Sequence[StoredJob] = in_states(tx, (JobState.QUEUED, *HOLDING))
    waiting = [one for one in both if one.job.state is JobState.QUEUED]
    return waiting, [one for one in both if one.job.state is not JobState.QUEUED]


def _stored(row: Mapping[Any, Any]) -> StoredJob:
    plain = {name: row[name] for name in _FACTS}
    plain["pools"] = tuple(row["pools"])
    plain["demand"] = Demand() if row["demand"] is None else decode(Demand, row["demand"])
    return _with_facts(row, decode(Job, row["snapshot"]), JobFacts(**plain))


@functools.lru_cache(maxsize=_SHOWN_KEPT)
def _shown(values: tuple[Any, ...]) -> StoredJob:
    """From a row of `_SHOWN`. Pages that are read again and again have mostly the rows of before."""
    row = dict(zip(_SHOWN_NAMES, values, strict=True))
    plain = {name: row[name] for name in _PLAIN_FACTS}
    plain |= {name: json.loads(row[name]) for name in _SHOWN_JSON}
    plain["pools"] = tuple(plain["pools"])
    plain |= {"code_digest": None, "caller_cwd": None, "caller_env": None}
    facts = JobFacts(**plain, demand=Demand(slot_type=row["slot_type"]))
    return _with_facts(row, _job_of(row["snapshot"]), facts)


def _with_facts(row: Mapping[Any, Any], job: Job, facts: JobFacts) -> StoredJob:
    pending_reason = None
    if row["pending_code"] is not None:
        pending_reason = Reason(ReasonCode(row["pending_code"]), row["pending_message"] or "")
    return StoredJob(job, facts, row["version"], row["last_seq"], pending_reason)


def _job_of(text: str) -> Job:
    """Read what `_snapshot` wrote. To read its policy is most of the work, and many jobs have the same."""
    policy, found, rest = text.partition(_BEHIND_POLICY)
    if not found or not policy.startswith(_POLICY):
        return decode(Job, json.loads(text))
    plain = json.loads("{" + found[1:] + rest)
    known = _policy_of(policy[len(_POLICY) :])
    return replace(decode(Job, {"policy": _ANY_POLICY, **plain}), policy=known)


@functools.lru_cache(maxsize=_POLICIES_KEPT)
def _policy_of(text: str) -> JobPolicy:
    return decode(JobPolicy, json.loads(text))
