"""Read and write checkpoints, generations, restores and data ledgers of jobs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, ScalarSelect, Select, Table, bindparam, func, select

from phalanx.core.metrics.catalogue import family
from phalanx.core.training.checkpoints import step_of
from phalanx.core.training.ledger import Consumed, merge
from phalanx.store.database import (
    Tx,
    columns_of,
    numbers_of,
    plain_numbers,
    read,
    take_numbers,
)
from phalanx.store.engines.many_rows import run_many
from phalanx.store.index import listing
from phalanx.store.jobs import HOLDING_STATES
from phalanx.store.tables import checkpoints, generations, jobs, ledger_rows, restores, supervisors

Key = tuple[int, int, int]
"""(job, attempt, generation)."""
QUARANTINED = "quarantined"
STORED = "stored"
_OF_GENERATION = (
    (generations.c.job == bindparam("_job"))
    & (generations.c.attempt == bindparam("_attempt"))
    & (generations.c.generation == bindparam("_generation"))
)
_FIND_GENERATION = select(generations).where(_OF_GENERATION)
_OF_ATTEMPTS = select(generations).where(
    generations.c.job.in_(bindparam("_jobs", expanding=True)),
    generations.c.attempt.in_(bindparam("_attempts", expanding=True)),
)
_INSERT_GENERATION = generations.insert()
_UPDATE_GENERATION = generations.update().where(_OF_GENERATION)
_LAST_STEP = select(func.max(generations.c.last_step)).where(generations.c.job == bindparam("_job"))


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
    copy_state: str | None  # in the object store: uploading, stored or failed; None: no report
    copy_bytes: int | None  # sent, or to send
    copied_at: int | None  # µs UTC of the last report

    def __post_init__(self) -> None:
        """Convert metrics that are not finite, which are stored as text."""
        object.__setattr__(self, "metrics", numbers_of(self.metrics))


@dataclass(frozen=True, slots=True)
class GenerationRow:
    """Times of one generation, in µs UTC of the control plane's clock."""

    job: int  # job number
    attempt: int  # number in the job
    generation: int  # number in the attempt
    up_at: int | None = None  # all ranks run
    first_step_at: int | None = None  # the first completed step
    last_step_at: int | None = None  # the last completed step
    first_step: int | None = None  # its number
    last_step: int | None = None  # its number
    failed_at: int | None = None  # the first failure
    ended_at: int | None = None  # all ranks have ended


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


def _of_generation(table: Table, key: Key) -> ColumnElement[bool]:
    return (table.c.job == key[0]) & (table.c.attempt == key[1]) & (table.c.generation == key[2])


def _columns(key: Key) -> dict[str, int]:
    return {"job": key[0], "attempt": key[1], "generation": key[2]}


def add_checkpoint(tx: Tx, key: Key, values: Mapping[str, Any]) -> bool:
    """Add a committed checkpoint, unless its path is already stored for the job.

    Returns whether the job may resume from it: not if it was quarantined before this report came.
    Then its values are completed: the report of a quarantine has only the path.
    """
    path = (checkpoints.c.job == key[0]) & (checkpoints.c.path == values["path"])
    state = tx.conn.execute(select(checkpoints.c.state).where(path)).scalar()
    row = {**_columns(key), **values, "metrics": plain_numbers(values["metrics"])}
    if state is None:
        _insert_checkpoint(tx, {"state": "valid", **row})
        _count(tx, values)
    elif state == QUARANTINED:
        tx.conn.execute(checkpoints.update().where(path).values(row))
    if state != QUARANTINED:
        listing.improve(tx, key[0], values["metrics"])
    return state != QUARANTINED


def _count(tx: Tx, values: Mapping[str, Any]) -> None:
    """Count a checkpoint that was committed."""
    totals = tx.touched.totals
    totals.add("phalanx_checkpoints", "committed")
    totals.add("phalanx_checkpoint_bytes", by=values["size_bytes"])
    if values.get("took_s") is not None:
        name = "phalanx_checkpoint_save_seconds"
        totals.observe(name, family(name).bounds, values["took_s"])


def quarantine_checkpoint(tx: Tx, key: Key, path: str, at: int) -> None:
    """Mark a checkpoint as quarantined; add it if its commit was never reported.

    That happens when a rank is killed between the commit and its report. `key` is the generation
    that found the damage, `at` the time of its report in µs UTC.
    """
    if mark_checkpoint(tx, key[0], path, QUARANTINED):
        return
    step = step_of(path.rpartition("/")[2]) or 0
    found = {"path": path, "step": step, "size_bytes": 0, "metrics": {}, "created_at": at}
    _insert_checkpoint(tx, {"state": QUARANTINED, **_columns(key), **found})


def _insert_checkpoint(tx: Tx, row: Mapping[str, Any]) -> None:
    tx.conn.execute(checkpoints.insert(), {"id": take_numbers(tx, "checkpoint"), **row})


def mark_checkpoint(tx: Tx, job: int, path: str, state: str) -> bool:
    """Set the state of a checkpoint; False when the path is unknown."""
    known = (checkpoints.c.job == job) & (checkpoints.c.path == path)
    return tx.conn.execute(checkpoints.update().where(known).values(state=state)).rowcount > 0


def mark_copy(tx: Tx, job: int, name: str, state: str, size_bytes: int, at: int) -> None:
    """Set what is known of a checkpoint's copy in the object store; unknown names are passed over.

    An upload that begins again does not undo one that is complete.
    """
    here = checkpoints.c
    path = (here.job == job) & here.path.endswith(f"/{name}", autoescape=True)
    if state != STORED:
        path &= here.copy_state.is_(None) | (here.copy_state != STORED)
    values = {"copy_state": state, "copy_bytes": size_bytes, "copied_at": at}
    tx.conn.execute(checkpoints.update().where(path).values(**values))


def paths_named(tx: Tx, job: int, name: str) -> list[str]:
    """The paths of the valid checkpoints of a job that end with a name."""
    here = checkpoints.c
    path = (here.job == job) & here.path.endswith(f"/{name}", autoescape=True)
    return list(tx.conn.execute(select(here.path).where(path, here.state == "valid")).scalars())


def checkpoints_of(tx: Tx, job: int) -> list[CheckpointRow]:
    """Read the checkpoints of a job in the order of their reports."""
    query = select(checkpoints).where(checkpoints.c.job == job).order_by(checkpoints.c.id)
    return read(tx, CheckpointRow, query)


def saves_of(
    tx: Tx, job: int, paths: Iterable[str] | None = None
) -> list[tuple[str, int, float | None]]:
    """Path, time and duration of the checkpoints of a job; of those at `paths` only, where given."""
    here = checkpoints.c
    query = select(here.path, here.created_at, here.took_s).where(here.job == job)
    if paths is not None:
        query = query.where(here.path.in_(list(paths)))
    return [(row[0], row[1], row[2]) for row in tx.conn.execute(query)]


def valid_checkpoints_of(tx: Tx, job: int) -> list[CheckpointRow]:
    """Read the checkpoints of a job that are neither removed nor quarantined."""
    here = checkpoints.c
    query = select(checkpoints).where(here.job == job, here.state == "valid").order_by(here.id)
    return read(tx, CheckpointRow, query)


def with_several_checkpoints(tx: Tx, nums: Sequence[int]) -> set[int]:
    """Those of these jobs that have more than one valid checkpoint."""
    here = checkpoints.c
    query = select(here.job).where(here.job.in_(nums), here.state == "valid")
    return set(tx.conn.execute(query.group_by(here.job).having(func.count() > 1)).scalars())


def newest_job_with_checkpoint(tx: Tx, project: str, name: str) -> int | None:
    """The newest job of a name and project that has a valid checkpoint; None: there is none."""
    here = checkpoints.c
    query = (
        select(func.max(jobs.c.num))
        .join_from(jobs, checkpoints, here.job == jobs.c.num)
        .where(jobs.c.project == project, jobs.c.name == name, here.state == "valid")
    )
    found = tx.conn.execute(query).scalar()
    return None if found is None else int(found)


def newest_valid(tx: Tx, job: int, *, after_attempt: int = 0) -> CheckpointRow | None:
    """The checkpoint that was reported last of those that are neither removed nor quarantined.

    Only later attempts than `after_attempt` count.
    """
    here = checkpoints.c
    valid = (here.job == job, here.state == "valid", here.attempt > after_attempt)
    query = select(checkpoints).where(*valid)
    return next(iter(read(tx, CheckpointRow, query.order_by(here.id.desc()).limit(1))), None)


def find_generation(tx: Tx, key: Key) -> GenerationRow | None:
    """Read the row of a generation, or None before anything of it was stored."""
    where = {f"_{name}": number for name, number in _columns(key).items()}
    return next(iter(read(tx, GenerationRow, _FIND_GENERATION, where)), None)


def generations_of_attempts(
    tx: Tx, attempts: Iterable[tuple[int, int]]
) -> dict[tuple[int, int], dict[int, GenerationRow]]:
    """Read the generations of some attempts, each (job, attempt), by number."""
    found: dict[tuple[int, int], dict[int, GenerationRow]] = {one: {} for one in attempts}
    if found:
        jobs, numbers = {job for job, _ in found}, {attempt for _, attempt in found}
        where = {"_jobs": sorted(jobs), "_attempts": sorted(numbers)}
        for row in read(tx, GenerationRow, _OF_ATTEMPTS, where):
            if (row.job, row.attempt) in found:
                found[row.job, row.attempt][row.generation] = row
    return found


def put_generations(tx: Tx, rows: Iterable[tuple[GenerationRow, GenerationRow | None]]) -> None:
    """Store rows of generations, each with what is stored; None: nothing."""
    fresh = []
    groups: dict[frozenset[str], list[dict[str, Any]]] = {}
    for row, before in rows:
        if before is None:
            fresh.append(columns_of(row))
        elif row != before:
            known = columns_of(before)
            changes = {name: one for name, one in columns_of(row).items() if one != known[name]}
            where = {"_job": row.job, "_attempt": row.attempt, "_generation": row.generation}
            groups.setdefault(frozenset(changes), []).append({**where, **changes})
    for some in groups.values():
        run_many(tx.conn, _UPDATE_GENERATION, some)
    if fresh:
        run_many(tx.conn, _INSERT_GENERATION, fresh)


def put_generation(tx: Tx, row: GenerationRow, before: GenerationRow | None) -> None:
    """Store the row of a generation; `before` is what is stored, None: nothing."""
    put_generations(tx, [(row, before)])


def generations_of(tx: Tx, job: int) -> list[GenerationRow]:
    """Read the generations of a job in order."""
    return read(tx, GenerationRow, _of_job(generations, job))


def last_step(tx: Tx, job: int) -> int:
    """The highest step that any generation of a job has reported; 0 without one."""
    return int(tx.conn.execute(_LAST_STEP, {"_job": job}).scalar() or 0)


def _of_job(table: Table, job: int) -> Select[Any]:
    query = select(table).where(table.c.job == job)
    return query.order_by(table.c.attempt, table.c.generation)


def add_restore(tx: Tx, key: Key, values: Mapping[str, Any]) -> bool:
    """Add the restore of a generation; False when it is already stored."""
    where = _of_generation(restores, key)
    if tx.conn.execute(select(restores.c.step).where(where)).first() is not None:
        return False
    tx.conn.execute(restores.insert(), {**_columns(key), **values})
    return True


def restores_of(tx: Tx, job: int) -> list[RestoreRow]:
    """Read the restores of a job, ordered by generation."""
    return read(tx, RestoreRow, _of_job(restores, job))


def put_ledger(tx: Tx, fresh: LedgerSlice) -> None:
    """Replace the ledger of one node in one generation."""
    key = (fresh.job, fresh.attempt, fresh.generation)
    where = _of_generation(ledger_rows, key) & (ledger_rows.c.node_rank == fresh.node_rank)
    rows = [[row.epoch, row.lo, row.hi, row.times] for row in fresh.rows]
    values = {"num_samples": fresh.num_samples, "rows": rows}
    changed = tx.conn.execute(ledger_rows.update().where(where).values(**values)).rowcount
    if changed == 0:
        row = _columns(key) | {"node_rank": fresh.node_rank}
        tx.conn.execute(ledger_rows.insert(), {**row, **values})


def add_to_ledger(tx: Tx, key: Key, num_samples: int | None, rows: Sequence[Consumed]) -> None:
    """Add data consumed by any node of a generation to one slice, stored for node rank 0.

    The nodes split every batch among them: their merged ledgers need only a few rows.
    """
    where = _of_generation(ledger_rows, key) & (ledger_rows.c.node_rank == 0)
    query = select(ledger_rows).where(where).with_for_update()
    known = tx.conn.execute(query).mappings().first()
    before = [] if known is None else [Consumed(*cells) for cells in known["rows"]]
    if num_samples is None and known is not None:
        num_samples = known["num_samples"]
    put_ledger(tx, LedgerSlice(*key, 0, num_samples, merge([*before, *rows])))


def ledger_of(tx: Tx, job: int) -> list[LedgerSlice]:
    """Read the ledger of a job, ordered by generation and node."""
    query = _of_job(ledger_rows, job).order_by(ledger_rows.c.node_rank)
    return [
        LedgerSlice(**{**row, "rows": tuple(Consumed(*cells) for cells in row["rows"])})
        for row in tx.conn.execute(query).mappings()
    ]


def count_checkpoints(tx: Tx, job: int) -> dict[str, int]:
    """Count the checkpoints of a job in each state that has any."""
    here = checkpoints.c
    query = select(here.state, func.count()).where(here.job == job).group_by(here.state)
    return {state: int(count) for state, count in tx.conn.execute(query)}


def count_copies(tx: Tx, job: int) -> dict[str, int]:
    """Count the valid checkpoints of a job by the state of their copy, where one was reported."""
    here = checkpoints.c
    query = select(here.copy_state, func.count()).where(
        here.job == job, here.state == "valid", here.copy_state.is_not(None)
    )
    return {state: int(count) for state, count in tx.conn.execute(query.group_by(here.copy_state))}


def _newest_saves() -> Select[Any]:
    saved = checkpoints.alias()
    newest = (
        select(func.max(checkpoints.c.id))
        .where(checkpoints.c.job == jobs.c.num, checkpoints.c.state == "valid")
        .correlate(jobs)
        .scalar_subquery()
    )
    return (
        select(saved.c.job, saved.c.created_at, saved.c.took_s)
        .select_from(jobs)
        .join(saved, saved.c.id == newest)
        .where(jobs.c.state.in_(HOLDING_STATES))
    )


def _time_of_save(back: int) -> ScalarSelect[Any]:
    """When a job saved the newest valid checkpoint, or the one so many before it."""
    return (
        select(checkpoints.c.created_at)
        .where(checkpoints.c.job == jobs.c.num, checkpoints.c.state == "valid")
        .order_by(checkpoints.c.id.desc())
        .limit(1)
        .offset(back)
        .correlate(jobs)
        .scalar_subquery()
    )


_NEWEST_SAVES = _newest_saves()
_SAVE_TIMES = (
    select(jobs.c.num, _time_of_save(0), _time_of_save(1))
    .where(jobs.c.state.in_(HOLDING_STATES))
    .where(_time_of_save(0).is_not(None))
)
_RESTORING = (
    select(jobs.c.num)
    .where(jobs.c.state.in_(HOLDING_STATES))
    .where(select(restores.c.job).where(restores.c.job == jobs.c.num).exists())
)


def last_saves(tx: Tx) -> dict[int, tuple[int, float | None]]:
    """Time and duration (s) of the last save of each job that holds slots and has saved.

    The query makes one index seek per job: a job may have ten thousand checkpoints.
    """
    return {job: (at, took_s) for job, at, took_s in tx.conn.execute(_NEWEST_SAVES)}


def save_times(tx: Tx) -> dict[int, tuple[int, int | None]]:
    """Time of the newest save, and of the one before it, of each job that holds slots and has saved."""
    return {job: (at, before) for job, at, before in tx.conn.execute(_SAVE_TIMES)}


def step_counts(tx: Tx, nums: Sequence[int]) -> list[tuple[int, int, int, float]]:
    """(job, nodes of the attempt, steps, seconds) of every generation of these jobs that made steps.

    The first step of a generation is the beginning of the measurement: it includes compilation.
    """
    size = (
        select(func.count())
        .where(supervisors.c.job == generations.c.job)
        .where(supervisors.c.attempt == generations.c.attempt)
        .where(supervisors.c.incarnation == 0)
        .correlate(generations)
        .scalar_subquery()
    )
    steps = generations.c.last_step - generations.c.first_step
    lasted = generations.c.last_step_at - generations.c.first_step_at
    query = (
        select(generations.c.job, size, steps, lasted)
        .where(generations.c.job.in_(nums))
        .where(steps > 0, lasted > 0)
    )
    return [(job, num, made, us * 1e-6) for job, num, made, us in tx.conn.execute(query)]


def restoring(tx: Tx) -> set[int]:
    """Jobs that hold slots and have reported a restore: their scripts save on request."""
    return set(tx.conn.execute(_RESTORING).scalars())
