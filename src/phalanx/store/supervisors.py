"""Read and write the row of each supervisor: its token, clock offset, progress and processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import bindparam, func, or_, select

from phalanx.store.database import Tx
from phalanx.store.engines.many_rows import run_many
from phalanx.store.jobs import HOLDING_STATES
from phalanx.store.tables import jobs, supervisors

Key = tuple[int, int, int, int]
"""Job, attempt, node rank and incarnation of a supervisor."""


@dataclass(frozen=True, slots=True)
class SupervisorRow:
    """The stored state of one supervisor."""

    job: int  # job number
    attempt: int  # number in the job
    node_rank: int  # rank of its node in the gang
    incarnation: int  # number of supervisors that the node rank had before in the attempt
    token_hash: str  # SHA-256 of its token
    last_seq: int  # number of the last stored report
    first_seen_at: int | None  # first contact, µs UTC
    last_seen_at: int | None  # last contact, µs UTC
    clock_offset_us: int | None  # add to its clock to get the control plane's
    host: str | None  # host name
    pid: int | None  # of the supervisor
    generation: int  # current number
    step: int | None  # last reported step
    epoch: int | None  # epochs done
    num_epochs: int | None  # epochs planned
    phase: str  # what the ranks do now
    pids: tuple[int, ...]  # of the ranks, by local rank
    warm: bool | None  # ranks are forks of the warm process
    released_at: int | None  # exit reported, µs UTC

    @property
    def key(self) -> Key:
        """Its name."""
        return self.job, self.attempt, self.node_rank, self.incarnation


_NAMES = ("job", "attempt", "node_rank", "incarnation")
_IS = (
    (supervisors.c.job == bindparam("_job"))
    & (supervisors.c.attempt == bindparam("_attempt"))
    & (supervisors.c.node_rank == bindparam("_node_rank"))
    & (supervisors.c.incarnation == bindparam("_incarnation"))
)
# SQLite, with its one writer, leaves the lock out.
_FIND = select(supervisors).where(_IS)
_FIND_LOCKED = _FIND.with_for_update()
_UPDATE = supervisors.update().where(_IS)
_INSERT = supervisors.insert()
_KNOWS_TOKEN = (
    select(supervisors.c.job).where(supervisors.c.token_hash == bindparam("_hash")).limit(1)
)
_OF_JOBS = (
    select(supervisors)
    .where(supervisors.c.job.in_(bindparam("_jobs", expanding=True)))
    .order_by(supervisors.c.job, supervisors.c.incarnation)
)
_SOME = _OF_JOBS.where(supervisors.c.attempt.in_(bindparam("_attempts", expanding=True)))
_SOME_LOCKED = _SOME.with_for_update()
_RELEASED = (
    select(*(supervisors.c[name] for name in _NAMES))
    .join(jobs, jobs.c.num == supervisors.c.job)
    .where(
        jobs.c.state.in_(HOLDING_STATES),
        supervisors.c.attempt == jobs.c.attempts,
        supervisors.c.released_at.is_not(None),
    )
)
_EPOCHS = (
    select(supervisors.c.job, func.min(supervisors.c.epoch), func.max(supervisors.c.num_epochs))
    .join(jobs, jobs.c.num == supervisors.c.job)
    .where(
        jobs.c.state.in_(HOLDING_STATES),
        supervisors.c.attempt == jobs.c.attempts,
        supervisors.c.num_epochs.is_not(None),
    )
    .group_by(supervisors.c.job)
)
_INITIAL: Mapping[str, Any] = {"last_seq": 0, "generation": 0, "phase": "", "pids": []}


def expect(tx: Tx, launches: Mapping[Key, str]) -> None:
    """Insert the missing rows of supervisors that are about to be launched, by the hash of their token.

    Of a supervisor that is replaced, the row stays: the next one on its node may send what it left unsent.
    Its epochs count no more.
    """
    live = list({key[:2] for key in launches})
    known = {row.key for row in of_attempts(tx, live)}
    fresh = {key: hashed for key, hashed in launches.items() if key not in known}
    if fresh:
        rows = [
            dict(zip(_NAMES, key, strict=True)) | {"token_hash": hashed, **_INITIAL}
            for key, hashed in fresh.items()
        ]
        run_many(tx.conn, _INSERT, rows)
    lost = [(*key[:3], key[3] - 1) for key in fresh if key[3]]
    update_many(tx, [(key, {"epoch": None, "num_epochs": None}) for key in lost])


def find(tx: Tx, key: Key) -> SupervisorRow | None:
    """Read one supervisor, or None when it was never launched.

    A write transaction of PostgreSQL locks the row: a supervisor's retried call waits for the first
    call to be stored, and its reports are then recognized as duplicates.
    """
    query = _FIND if tx.read_only else _FIND_LOCKED
    row = tx.conn.execute(query, _key(key)).mappings().first()
    return None if row is None else _row(row)


def find_many(tx: Tx, keys: Sequence[Key]) -> dict[Key, SupervisorRow]:
    """Read supervisors of different jobs as `find` does, in the order of the jobs."""
    values = {
        "_jobs": [key[0] for key in keys],
        "_attempts": list({key[1] for key in keys}),
    }
    wanted, query = set(keys), _SOME if tx.read_only else _SOME_LOCKED
    rows = (_row(row) for row in tx.conn.execute(query, values).mappings())
    return {row.key: row for row in rows if row.key in wanted}


def knows_token(tx: Tx, token_hash: str) -> bool:
    """Whether a token with this hash was ever issued to a supervisor."""
    return tx.conn.execute(_KNOWS_TOKEN, {"_hash": token_hash}).first() is not None


def of_attempt(tx: Tx, job: int, attempt: int) -> list[SupervisorRow]:
    """Read the newest supervisor of each node rank of an attempt."""
    query = (
        select(supervisors)
        .where(supervisors.c.job == job, supervisors.c.attempt == attempt)
        .order_by(supervisors.c.node_rank, supervisors.c.incarnation)
    )
    rows = (_row(row) for row in tx.conn.execute(query).mappings())
    return list({row.node_rank: row for row in rows}.values())


def of_attempts(tx: Tx, live: Sequence[tuple[int, int]]) -> list[SupervisorRow]:
    """Read the newest supervisor of each node rank of several attempts, each (job, attempt)."""
    if not live:
        return []
    wanted = set(live)
    found = tx.conn.execute(_OF_JOBS, {"_jobs": [job for job, _ in live]})
    rows = (_row(row) for row in found.mappings())
    return list({row.key[:3]: row for row in rows if row.key[:2] in wanted}.values())


def silent_attempts(tx: Tx, job: int, live: int) -> set[int]:
    """Attempts with a supervisor that connected, has ended and never reported its exit.

    In the `live` attempt, which may be 0 for none, those have ended that were replaced.
    """
    here, later = supervisors.c, supervisors.alias()
    replaced = (
        select(later.c.job)
        .where(later.c.job == here.job, later.c.attempt == here.attempt)
        .where(later.c.node_rank == here.node_rank, later.c.incarnation > here.incarnation)
        .exists()
    )
    query = select(here.attempt).where(
        here.job == job,
        here.first_seen_at.is_not(None),
        here.released_at.is_(None),
        or_(here.attempt != live, replaced),
    )
    return set(tx.conn.execute(query).scalars())


def released(tx: Tx) -> set[Key]:
    """Supervisors that reported their exit, of jobs that hold slots."""
    return {(job, attempt, rank, n) for job, attempt, rank, n in tx.conn.execute(_RELEASED)}


def epochs_now(tx: Tx) -> dict[int, tuple[int, int]]:
    """Epochs done (by the slowest node) and planned, of each job that holds slots."""
    return {
        job: (done, planned) for job, done, planned in tx.conn.execute(_EPOCHS) if done is not None
    }


def update(tx: Tx, key: Key, **changes: Any) -> None:
    """Update columns of one supervisor."""
    tx.conn.execute(_UPDATE, {**_key(key), **changes})


def update_many(tx: Tx, changes: Sequence[tuple[Key, Mapping[str, Any]]]) -> None:
    """Update columns of many supervisors: one statement for those with the same columns."""
    groups: dict[frozenset[str], list[dict[str, Any]]] = {}
    for key, values in changes:
        groups.setdefault(frozenset(values), []).append({**_key(key), **values})
    for rows in groups.values():
        run_many(tx.conn, _UPDATE, rows)


def _key(key: Key) -> dict[str, int]:
    return {f"_{name}": number for name, number in zip(_NAMES, key, strict=True)}


def _row(row: Mapping[Any, Any]) -> SupervisorRow:
    return SupervisorRow(**{**row, "pids": tuple(row["pids"])})
