"""The outbox: commands stored with the events that caused them, leased during execution.

A lease that runs out makes a command available again, so that a crash between commit and effect loses
nothing; what it asks for must therefore be idempotent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Integer, bindparam, func, or_, select

from phalanx.core.codec import encode
from phalanx.core.jobs.model import JobCommand
from phalanx.errors import LeaseLost
from phalanx.store.database import Tx, take_numbers
from phalanx.store.engines.many_rows import run_many
from phalanx.store.events import kind_of
from phalanx.store.tables import commands, jobs

TOPIC = "commands"
_INSERT = commands.insert()
_FREE = (
    select(*(commands.c[name] for name in ("id", "job", "attempt", "kind", "tries")))
    .where(
        commands.c.done_at.is_(None),
        commands.c.not_before <= bindparam("_now"),
        or_(
            commands.c.lease_expires_at.is_(None), commands.c.lease_expires_at <= bindparam("_now")
        ),
    )
    .order_by(commands.c.id)
    .limit(bindparam("_limit", type_=Integer))
    .with_for_update(skip_locked=True)
)
_LEASE = (
    commands.update()
    .where(commands.c.id.in_(bindparam("_ids", expanding=True)))
    .values(tries=commands.c.tries + 1)
)
_MINE = commands.update().where(
    commands.c.id == bindparam("_id"),
    commands.c.lease_token == bindparam("_token"),
    commands.c.done_at.is_(None),
)
_NEXT_AT = select(
    func.min(func.coalesce(commands.c.lease_expires_at, commands.c.not_before))
).where(commands.c.done_at.is_(None))
_LAUNCHED = select(commands.c.job, commands.c.attempt).where(
    commands.c.job.in_(bindparam("_jobs", expanding=True)),
    commands.c.kind == "launch_attempt",
    commands.c.done_at.is_not(None),
)

_LAUNCHING = select(commands.c.job, commands.c.attempt).where(
    commands.c.job.in_(bindparam("_jobs", expanding=True)),
    commands.c.kind == "launch_attempt",
    commands.c.done_at.is_(None),
)


@dataclass(frozen=True, slots=True)
class LeasedCommand:
    """A command that this process may execute until the lease expires."""

    id: int
    job: int
    attempt: int
    kind: str
    tries: int
    token: str


def add(tx: Tx, fresh: Sequence[tuple[int, JobCommand]], now: int) -> None:
    """Store commands, each with the number of its job, to be executed in this order."""
    if not fresh:
        return
    first = take_numbers(tx, "command", len(fresh))
    rows: list[dict[str, Any]] = [
        {
            **{"id": first + index, "job": num, "attempt": one.attempt},
            **{"kind": kind_of(type(one)), "data": encode(one)},
            **{"created_at": now, "not_before": now, "tries": 0},
        }
        for index, (num, one) in enumerate(fresh)
    ]
    run_many(tx.conn, _INSERT, rows)
    tx.touched.topics.add(TOPIC)


def open_since(tx: Tx) -> tuple[int, int | None]:
    """The number of commands that are not done, and when the oldest was made, in µs UTC."""
    here = commands.c
    query = select(func.count(), func.min(here.created_at)).where(here.done_at.is_(None))
    number, oldest = tx.conn.execute(query).one()
    return int(number), None if oldest is None else int(oldest)


def lease(
    tx: Tx, *, owner: str, token: str, now: int, expires_at: int, limit: int
) -> list[LeasedCommand]:
    """Lease up to `limit` open commands that no other worker is executing, oldest first."""
    rows = list(tx.conn.execute(_FREE, {"_now": now, "_limit": limit}).mappings())
    if rows:
        mine = {"lease_owner": owner, "lease_token": token, "lease_expires_at": expires_at}
        tx.conn.execute(_LEASE, {"_ids": [row["id"] for row in rows], **mine})
    return [
        LeasedCommand(row["id"], row["job"], row["attempt"], row["kind"], row["tries"] + 1, token)
        for row in rows
    ]


def finish(tx: Tx, done: Sequence[LeasedCommand], now: int) -> None:
    """Mark commands done. Raises LeaseLost when another worker took one of them over."""
    if done:
        _update_leased(tx, done, {"done_at": now, "error": None})


def retry(tx: Tx, command: LeasedCommand, *, not_before: int, error: str) -> None:
    """Release a command for a later retry. Raises LeaseLost."""
    changes = {"not_before": not_before, "error": error, "lease_expires_at": None}
    _update_leased(tx, [command], changes)


def _update_leased(tx: Tx, leased: Sequence[LeasedCommand], changes: dict[str, Any]) -> None:
    rows = [{"_id": one.id, "_token": one.token, **changes} for one in leased]
    if run_many(tx.conn, _MINE, rows) != len(rows):
        names = ", ".join(f"{one.id} of job {one.job}" for one in leased)
        raise LeaseLost(f"command {names} was taken over")


def free_all(tx: Tx) -> None:
    """Release every lease, for an embedded control plane, the only one of its home."""
    tx.conn.execute(
        commands.update().where(commands.c.done_at.is_(None)).values(lease_expires_at=None)
    )


def drop_done(tx: Tx, *, before: int, limit: int) -> int:
    """Delete up to `limit` commands executed before a time and return their number.

    Those of jobs that are not over stay: `launched` asks for them.
    """
    query = (
        select(commands.c.id)
        .join(jobs, jobs.c.num == commands.c.job)
        .where(commands.c.done_at < before, jobs.c.ended_at.is_not(None))
        .limit(limit)
    )
    ids = list(tx.conn.execute(query).scalars())
    if ids:
        tx.conn.execute(commands.delete().where(commands.c.id.in_(ids)))
    return len(ids)


def next_at(tx: Tx) -> int | None:
    """When the next open command may be executed."""
    value = tx.conn.execute(_NEXT_AT).scalar()
    return None if value is None else int(value)


def launched(tx: Tx, live: Sequence[tuple[int, int]]) -> set[tuple[int, int]]:
    """Which of these (job, attempt) have been launched: no start of theirs is under way."""
    if not live:
        return set()
    found = tx.conn.execute(_LAUNCHED, {"_jobs": [num for num, _ in live]})
    return {(job, attempt) for job, attempt in found} & set(live)


def launching(tx: Tx, live: Sequence[tuple[int, int]]) -> set[tuple[int, int]]:
    """Which of these (job, attempt) have a launch that is not done, the first one or a later one."""
    if not live:
        return set()
    found = tx.conn.execute(_LAUNCHING, {"_jobs": [num for num, _ in live]})
    return {(job, attempt) for job, attempt in found} & set(live)
