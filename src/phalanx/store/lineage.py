"""Read and write checkpoints, generations, restores and data ledgers of jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, select

from phalanx.core.training.ledger import Consumed, merge
from phalanx.store.database import Tx, take_numbers
from phalanx.store.jobs import HOLDING_STATES
from phalanx.store.tables import checkpoints, generations, jobs, ledger_rows, restores

Key = tuple[int, int, int]
"""(job, attempt, generation)."""


@dataclass(frozen=True, slots=True)
class CheckpointRow:
    """One committed checkpoint."""

    id: int  # order of the reports
    job: int  # job number
    attempt: int  # number in the job
    generation: int  # number in the attempt
    step: int  # optimizer steps done
    epoch: int | None  # None: not reported
    path: str  # directory or URL
    size_bytes: int  # all files together
    took_s: float | None  # duration of the save, s
    metrics: Mapping[str, float]  # at the save
    created_at: int  # µs UTC
    state: str  # valid, quarantined or removed


@dataclass(frozen=True, slots=True)
class GenerationRow:
    """Times of one generation, in µs UTC of the control plane's clock."""

    job: int  # job number
    attempt: int  # number in the job
    generation: int  # number in the attempt
    up_at: int | None  # all ranks run
    first_step_at: int | None  # the first completed step
    last_step_at: int | None  # the last completed step
    first_step: int | None  # its number
    last_step: int | None  # its number
    failed_at: int | None  # the first failure
    ended_at: int | None  # all ranks have ended


@dataclass(frozen=True, slots=True)
class RestoreRow:
    """The checkpoint and position from which a generation resumed."""

    job: int  # job number
    attempt: int  # number in the job
    generation: int  # number in the attempt
    path: str | None  # None: started from the beginning
    step: int  # optimizer steps done
    epoch: int  # epoch to continue
    position: int  # positions of the epoch already used
    exact: bool  # whether the data order is continued exactly
    took_s: float | None  # duration of the restore, s
    at: int  # µs UTC


@dataclass(frozen=True, slots=True)
class LedgerSlice:
    """The data that one node consumed in one generation."""

    job: int
    attempt: int
    generation: int
    node_rank: int
    num_samples: int | None
    rows: tuple[Consumed, ...]


def add_checkpoint(tx: Tx, key: Key, values: Mapping[str, Any]) -> None:
    """Add a committed checkpoint, unless its path is already stored for the job."""
    known = select(checkpoints.c.id).where(
        checkpoints.c.job == key[0], checkpoints.c.path == values["path"]
    )
    if tx.conn.execute(known).first() is not None:
        return
    number = take_numbers(tx, "checkpoint")
    row = dict(zip(("job", "attempt", "generation"), key, strict=True))
    tx.conn.execute(checkpoints.insert(), {"id": number, "state": "valid", **row, **values})


def mark_checkpoint(tx: Tx, job: int, path: str, state: str) -> None:
    """Set the state of a checkpoint; an unknown path is ignored."""
    tx.conn.execute(
        checkpoints.update()
        .where(checkpoints.c.job == job, checkpoints.c.path == path)
        .values(state=state)
    )


def checkpoints_of(tx: Tx, job: int) -> list[CheckpointRow]:
    """Read the checkpoints of a job in the order of their reports."""
    query = select(checkpoints).where(checkpoints.c.job == job).order_by(checkpoints.c.id)
    return [CheckpointRow(**row) for row in tx.conn.execute(query).mappings()]


def checkpoints_after(tx: Tx, after: int, *, limit: int) -> list[CheckpointRow]:
    """Read the checkpoints of all jobs after an id, in the order of their reports."""
    query = (
        select(checkpoints).where(checkpoints.c.id > after).order_by(checkpoints.c.id).limit(limit)
    )
    return [CheckpointRow(**row) for row in tx.conn.execute(query).mappings()]


def last_checkpoint_id(tx: Tx) -> int:
    """The id of the newest checkpoint of any job; 0 when there is none."""
    return int(tx.conn.execute(select(func.max(checkpoints.c.id))).scalar() or 0)


def touch_generation(tx: Tx, key: Key, **changes: Any) -> GenerationRow:
    """Update or insert the row of a generation, and return it."""
    where = (
        (generations.c.job == key[0])
        & (generations.c.attempt == key[1])
        & (generations.c.generation == key[2])
    )
    row = tx.conn.execute(select(generations).where(where)).mappings().first()
    if row is None:
        fresh = dict.fromkeys(column.name for column in generations.columns)
        fresh |= dict(zip(("job", "attempt", "generation"), key, strict=True)) | changes
        tx.conn.execute(generations.insert(), fresh)
        return GenerationRow(**fresh)  # type: ignore[arg-type]
    if any(row[name] != value for name, value in changes.items()):
        tx.conn.execute(generations.update().where(where).values(**changes))
    return GenerationRow(**{**row, **changes})


def generations_of(tx: Tx, job: int) -> list[GenerationRow]:
    """Read the generations of a job in order."""
    query = (
        select(generations)
        .where(generations.c.job == job)
        .order_by(generations.c.attempt, generations.c.generation)
    )
    return [GenerationRow(**row) for row in tx.conn.execute(query).mappings()]


def add_restore(tx: Tx, key: Key, values: Mapping[str, Any]) -> bool:
    """Add the restore of a generation; False when it is already stored."""
    where = (
        (restores.c.job == key[0])
        & (restores.c.attempt == key[1])
        & (restores.c.generation == key[2])
    )
    if tx.conn.execute(select(restores.c.step).where(where)).first() is not None:
        return False
    row = dict(zip(("job", "attempt", "generation"), key, strict=True))
    tx.conn.execute(restores.insert(), {**row, **values})
    return True


def restores_of(tx: Tx, job: int) -> list[RestoreRow]:
    """Read the restores of a job, ordered by generation."""
    query = (
        select(restores)
        .where(restores.c.job == job)
        .order_by(restores.c.attempt, restores.c.generation)
    )
    return [RestoreRow(**row) for row in tx.conn.execute(query).mappings()]


def put_ledger(tx: Tx, fresh: LedgerSlice) -> None:
    """Replace the ledger of one node in one generation."""
    key = {
        "job": fresh.job, "attempt": fresh.attempt, "generation": fresh.generation,
        "node_rank": fresh.node_rank,
    }  # fmt: skip
    where = [ledger_rows.c[name] == value for name, value in key.items()]
    rows = [[row.epoch, row.lo, row.hi, row.times] for row in fresh.rows]
    values = {"num_samples": fresh.num_samples, "rows": rows}
    changed = tx.conn.execute(ledger_rows.update().where(*where).values(**values)).rowcount
    if changed == 0:
        tx.conn.execute(ledger_rows.insert(), {**key, **values})


def add_to_ledger(tx: Tx, key: Key, num_samples: int | None, rows: Sequence[Consumed]) -> None:
    """Add data consumed by any node of a generation to one slice, stored for node rank 0.

    The nodes split every batch among them: their merged ledgers need only a few rows.
    """
    here = ledger_rows.c
    where = (here.job == key[0], here.attempt == key[1], here.generation == key[2])
    query = select(ledger_rows).where(*where, here.node_rank == 0).with_for_update()
    known = tx.conn.execute(query).mappings().first()
    before = [] if known is None else [Consumed(*cells) for cells in known["rows"]]
    if num_samples is None and known is not None:
        num_samples = known["num_samples"]
    put_ledger(tx, LedgerSlice(*key, 0, num_samples, merge([*before, *rows])))


def ledger_of(tx: Tx, job: int) -> list[LedgerSlice]:
    """Read the ledger of a job, ordered by generation and node."""
    query = (
        select(ledger_rows)
        .where(ledger_rows.c.job == job)
        .order_by(ledger_rows.c.attempt, ledger_rows.c.generation, ledger_rows.c.node_rank)
    )
    return [
        LedgerSlice(**{**row, "rows": tuple(Consumed(*cells) for cells in row["rows"])})
        for row in tx.conn.execute(query).mappings()
    ]


def count_checkpoints(tx: Tx, job: int) -> dict[str, int]:
    """Count the checkpoints of a job in each state that has any."""
    here = checkpoints.c
    query = select(here.state, func.count()).where(here.job == job).group_by(here.state)
    return {state: int(count) for state, count in tx.conn.execute(query)}


def last_saves(tx: Tx) -> dict[int, tuple[int, float | None]]:
    """Time and duration (s) of the last save of each job that holds slots and has saved.

    The query makes one index seek per job: a job may have ten thousand checkpoints.
    """
    saved = checkpoints.alias()
    newest = (
        select(func.max(checkpoints.c.id))
        .where(checkpoints.c.job == jobs.c.num, checkpoints.c.state == "valid")
        .correlate(jobs)
        .scalar_subquery()
    )
    query = (
        select(saved.c.job, saved.c.created_at, saved.c.took_s)
        .select_from(jobs)
        .join(saved, saved.c.id == newest)
        .where(jobs.c.state.in_(HOLDING_STATES))
    )
    return {job: (at, took_s) for job, at, took_s in tx.conn.execute(query)}


def restoring(tx: Tx) -> set[int]:
    """Jobs that hold slots and have reported a restore: their scripts save on request."""
    query = (
        select(jobs.c.num)
        .where(jobs.c.state.in_(HOLDING_STATES))
        .where(select(restores.c.job).where(restores.c.job == jobs.c.num).exists())
    )
    return set(tx.conn.execute(query).scalars())
