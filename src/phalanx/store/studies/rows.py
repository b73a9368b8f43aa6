"""Rows of studies and trials: what is listed and searched without reading any event."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from sqlalchemy import Integer, and_, bindparam, func, or_, select

from phalanx.errors import NotFound, StaleRow
from phalanx.kit.text import study_label
from phalanx.store.database import Tx, columns_of, read, take_numbers
from phalanx.store.index import listing
from phalanx.store.tables import studies, trials

LIVE = ("running", "paused", "stopping")
"""Values of the states in which a study has not ended."""
_BATCH = 500


@dataclass(frozen=True, slots=True)
class StudyHeader:
    """The facts of a study that never change after submission."""

    num: int  # number of the study, shown as `s-<num>`
    project: str  # name of the project
    name: str  # display name
    owner: str  # submitting user
    labels: Mapping[str, str]  # user labels
    spec: Mapping[str, Any]  # resolved; values of secret variables withheld
    submission: Mapping[str, Any]  # what the jobs of its trials are submitted with
    code_digest: str | None  # SHA-256 of the trials' code archive; None: no code
    submitted_at: int  # µs UTC


@dataclass(frozen=True, slots=True)
class StudyProgress:
    """The facts of a study that its events change; all of them follow from the events."""

    state: str  # core.search.model.StudyState
    reason_code: str  # core.search.model.SearchCode
    reason_message: str  # of the state, for users
    counts: Mapping[str, int]  # number of trials by status
    best_trial: int | None  # None: no finite value yet
    slot_s: float  # slot-seconds of all its trials
    usd: float  # cost of all its trials, where pools have prices
    started_at: int | None  # when the first trial started, µs UTC
    ended_at: int | None  # µs UTC
    wake_at: int | None  # when the next timer is due, µs UTC
    max_trials: int  # the limit as it is now
    parallel: int  # number of trials at the same time, as it is now


@dataclass(frozen=True, slots=True)
class StoredStudy:
    """One row of a study; `version` and `last_seq` count its commits and its events."""

    header: StudyHeader
    progress: StudyProgress
    version: int
    last_seq: int


@dataclass(frozen=True, slots=True)
class TrialRow:
    """One trial of a study."""

    study: int  # number of the study
    trial: int  # number in the study, from 0
    job: int | None  # the newest job; None: none yet, or an outside evaluator
    status: str  # core.search.model.TrialStatus
    reason: str  # of the status, for users
    params: Mapping[str, Any]  # active parameters and constants
    origin: Mapping[str, Any]  # core.search.model.Origin
    rung: int | None  # the highest one reached; None: no rungs
    until: int | None  # the unit where it pauses; None: it runs to its end
    unit: int | None  # the last one reported
    value: float | None  # of the objective; None: no finite one
    checkpoint: str | None  # of `value`, or the last one
    slot_s: float  # slot-seconds used
    usd: float  # cost, where pools have prices
    submitted_at: int  # when its params were chosen, µs UTC
    started_at: int | None  # first start, µs UTC
    ended_at: int | None  # µs UTC


@dataclass(frozen=True, slots=True)
class StudyFilter:
    """A filter of studies; an empty field matches every study."""

    states: tuple[str, ...] = ()
    project: str | None = None
    owner: str | None = None
    name: str | None = None
    projects: tuple[str, ...] | None = None  # those that the caller may see; None: all


_HEADER = tuple(one.name for one in fields(StudyHeader))
_PROGRESS = tuple(one.name for one in fields(StudyProgress))
_SAVE = studies.update().where(
    studies.c.num == bindparam("_num"), studies.c.version == bindparam("_version")
)
# SQLite, with its one writer, leaves the lock out.
_SOME = (
    select(studies)
    .where(studies.c.num.in_(bindparam("_nums", expanding=True)))
    .order_by(studies.c.num)
)
_SOME_LOCKED = _SOME.with_for_update()
_WAKING = (
    select(studies.c.num)
    .where(studies.c.wake_at <= bindparam("_now"))
    .order_by(studies.c.wake_at)
    .limit(bindparam("_limit", type_=Integer))
)
_NEXT_WAKE_AT = select(func.min(studies.c.wake_at))
_INSERT_TRIALS = trials.insert()
_TIMES = ("started_at", "ended_at")
_UPDATE_TRIALS = (
    trials.update()
    .where(trials.c.study == bindparam("_study"), trials.c.trial == bindparam("_trial"))
    .values({name: func.coalesce(trials.c[name], bindparam(f"_{name}")) for name in _TIMES})
)


def new_num(tx: Tx) -> int:
    """Allocate the number of a study."""
    return take_numbers(tx, "study")


def insert(tx: Tx, header: StudyHeader, progress: StudyProgress) -> StoredStudy:
    """Insert a study; its first event has number 1."""
    row = {**columns_of(header), **columns_of(progress), "version": 1, "last_seq": 1}
    tx.conn.execute(studies.insert(), row)
    return StoredStudy(header, progress, 1, 1)


def save(tx: Tx, before: StoredStudy, progress: StudyProgress, num_events: int) -> StoredStudy:
    """Save a study after some more events. Raises StaleRow if its row changed since it was read."""
    version, last_seq = before.version + 1, before.last_seq + num_events
    where = {"_num": before.header.num, "_version": before.version}
    values = {**columns_of(progress), "version": version, "last_seq": last_seq}
    if tx.conn.execute(_SAVE, {**where, **values}).rowcount != 1:
        raise StaleRow(f"{study_label(before.header.num)} changed since it was read")
    return StoredStudy(before.header, progress, version, last_seq)


def load(tx: Tx, num: int) -> StoredStudy:
    """Read one study. Raises NotFound. A write transaction of PostgreSQL locks the row."""
    found = load_many(tx, [num])
    if not found:
        raise NotFound(
            f"there is no study {study_label(num)}", "`phalanx sweep ls` lists the studies"
        )
    return found[num]


def place_of(tx: Tx, num: int) -> tuple[str, str] | None:
    """The project and the owner of a study; None for one that does not exist."""
    query = select(studies.c.project, studies.c.owner).where(studies.c.num == num)
    row = tx.conn.execute(query).one_or_none()
    return None if row is None else (row.project, row.owner)


def load_many(tx: Tx, nums: Sequence[int]) -> dict[int, StoredStudy]:
    """Read those of these studies that exist, by number; a write transaction locks their rows."""
    found: dict[int, StoredStudy] = {}
    wanted = sorted(set(nums))
    for start in range(0, len(wanted), _BATCH):
        query = _SOME if tx.read_only else _SOME_LOCKED
        rows = tx.conn.execute(query, {"_nums": wanted[start : start + _BATCH]}).mappings()
        found |= {row["num"]: _stored(row) for row in rows}
    return found


def page(tx: Tx, wanted: StudyFilter, *, before: int | None, limit: int) -> list[StoredStudy]:
    """One page of studies, newest first; `before` is the last number of the previous page."""
    here = studies.c
    query = select(studies).order_by(here.num.desc()).limit(limit)
    if wanted.states:
        query = query.where(here.state.in_(wanted.states))
    for column, value in (
        (here.project, wanted.project),
        (here.owner, wanted.owner),
        (here.name, wanted.name),
    ):
        if value is not None:
            query = query.where(column == value)
    if wanted.projects is not None:
        query = query.where(here.project.in_(wanted.projects))
    if before is not None:
        query = query.where(here.num < before)
    return [_stored(row) for row in tx.conn.execute(query).mappings()]


def live(tx: Tx) -> list[int]:
    """Numbers of the studies that have not ended."""
    query = select(studies.c.num).where(studies.c.state.in_(LIVE)).order_by(studies.c.num)
    return list(tx.conn.execute(query).scalars())


def count_working(tx: Tx) -> int:
    """Count the studies that go on by themselves: neither ended nor paused."""
    busy = studies.c.state.in_([state for state in LIVE if state != "paused"])
    return int(tx.conn.execute(select(func.count()).where(busy)).scalar_one())


def waking(tx: Tx, now: int, limit: int = 500) -> list[int]:
    """Numbers of studies with a timer due by `now`, the earliest first."""
    return list(tx.conn.execute(_WAKING, {"_now": now, "_limit": limit}).scalars())


def next_wake_at(tx: Tx) -> int | None:
    """The due time of the earliest timer; None without timers."""
    value = tx.conn.execute(_NEXT_WAKE_AT).scalar()
    return None if value is None else int(value)


def best_trial_of(tx: Tx, num: int) -> int | None:
    """The number of the best trial of a study; None without one."""
    found = tx.conn.execute(select(studies.c.best_trial).where(studies.c.num == num)).scalar()
    return None if found is None else int(found)


def code_in_use(tx: Tx, *, since: int) -> set[str]:
    """Digests of the code of studies that have not ended, or ended at or after `since`."""
    here = studies.c
    used = or_(here.ended_at.is_(None), here.ended_at >= since)
    query = select(here.code_digest).where(used, here.code_digest.is_not(None)).distinct()
    return set(tx.conn.execute(query).scalars())


# -- trials --------------------------------------------------------------------------------------


def put_trials(tx: Tx, fresh: Sequence[TrialRow], changed: Sequence[TrialRow]) -> None:
    """Insert the rows of new trials, and write those of changed ones, in at most two statements.

    Times that are stored stay as they are.
    """
    if fresh:
        tx.conn.execute(_INSERT_TRIALS, [columns_of(one) for one in fresh])
    if changed:
        tx.conn.execute(_UPDATE_TRIALS, [_changed(one) for one in changed])
        listing.score(tx, [(one.job, one.value) for one in changed])


def _changed(row: TrialRow) -> dict[str, Any]:
    values = columns_of(row)
    del values["submitted_at"]
    for name in ("study", "trial", *_TIMES):
        values[f"_{name}"] = values.pop(name)
    return values


def trials_of(
    tx: Tx, study: int, *, after: int = -1, limit: int = 1000, statuses: Sequence[str] = ()
) -> list[TrialRow]:
    """A study's trials with numbers above `after`, in order; of some statuses only, if any is named."""
    here = trials.c
    query = select(trials).where(here.study == study, here.trial > after)
    if statuses:
        query = query.where(here.status.in_(list(statuses)))
    return read(tx, TrialRow, query.order_by(here.trial).limit(limit))


def slot_seconds_of(tx: Tx, study: int, statuses: Sequence[str]) -> float:
    """Slot-seconds of a study's trials in some statuses."""
    here = trials.c
    query = select(func.sum(here.slot_s)).where(
        here.study == study, here.status.in_(list(statuses))
    )
    return float(tx.conn.execute(query).scalar() or 0.0)


def live_trial_jobs(tx: Tx, statuses: Sequence[str]) -> list[int]:
    """Numbers of the jobs of trials in some statuses, of studies that have not ended."""
    query = (
        select(trials.c.job)
        .join(studies, studies.c.num == trials.c.study)
        .where(
            studies.c.state.in_(LIVE),
            trials.c.status.in_(list(statuses)),
            trials.c.job.is_not(None),
        )
        .order_by(trials.c.job)
    )
    return [int(num) for num in tx.conn.execute(query).scalars()]


def trial(tx: Tx, study: int, number: int) -> TrialRow:
    """One trial. Raises NotFound."""
    here = trials.c
    found = read(tx, TrialRow, select(trials).where(here.study == study, here.trial == number))
    if not found:
        raise NotFound(f"there is no trial {study_label(study)}/{number}")
    return found[0]


def some_trials(tx: Tx, keys: Sequence[tuple[int, int]]) -> dict[tuple[int, int], TrialRow]:
    """Those of these trials (study, number) that exist."""
    found: dict[tuple[int, int], TrialRow] = {}
    here = trials.c
    for start in range(0, len(keys), _BATCH):
        terms = [and_(here.study == a, here.trial == b) for a, b in keys[start : start + _BATCH]]
        query = select(trials).where(or_(*terms))
        found |= {(one.study, one.trial): one for one in read(tx, TrialRow, query)}
    return found


def _stored(row: Mapping[Any, Any]) -> StoredStudy:
    return StoredStudy(
        StudyHeader(**{name: row[name] for name in _HEADER}),
        StudyProgress(**{name: row[name] for name in _PROGRESS}),
        row["version"],
        row["last_seq"],
    )
