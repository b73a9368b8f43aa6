"""Delete the rows of a job, and keep one row that says what was deleted, by what and when.

`begin` is one transaction: the job is gone after it. Its other rows are deleted in batches afterwards, and
the row in `deleted_jobs` is the queue: it is open until everything of the job is deleted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Table, and_, func, select, tuple_

from phalanx.core.cost.budgets import BudgetScope
from phalanx.core.retention.holds import RemovalCause
from phalanx.core.retention.policy import DataKind
from phalanx.store.database import Tx, columns_of, read
from phalanx.store.schema.experiments import run_params, run_terms
from phalanx.store.schema.listings import job_data, job_listing
from phalanx.store.schema.logs import log_packs, log_positions
from phalanx.store.schema.metrics import (
    metric_chunks,
    metric_last,
    metric_names,
    metric_pages,
    metric_series,
)
from phalanx.store.schema.provenance import attempt_images, attempt_inputs, attempt_software
from phalanx.store.schema.retention import (
    checkpoint_removals,
    deleted_jobs,
    job_marks,
    removal_totals,
)
from phalanx.store.tables import (
    array_turns,
    checkpoint_pins,
    checkpoints,
    commands,
    cost_budgets,
    events,
    generations,
    job_dependencies,
    job_labels,
    jobs,
    ledger_rows,
    log_segments,
    log_streams,
    log_volumes,
    quota_alerts,
    reservations,
    restores,
    supervisors,
    trial_reports,
)

DELETIONS = "deletions"
"""The topic of new work for the step that deletes."""
_HERE = deleted_jobs.c
_OPEN = _HERE.done_at.is_(None)
# Rows that are many: deleted in batches. Checkpoints come last: their names are needed until then.
_LARGE: tuple[Table, ...] = (
    *(log_segments, log_packs, metric_chunks, metric_pages, metric_series),
    *(events, trial_reports, commands),
)
_SMALL: tuple[Table, ...] = (
    *(
        log_streams,
        log_volumes,
        log_positions,
        metric_last,
        metric_names,
        supervisors,
        generations,
        restores,
        ledger_rows,
    ),
    *(attempt_software, attempt_images, attempt_inputs, run_params),
    *(reservations, quota_alerts, checkpoint_pins, checkpoint_removals),
)
_WITH_THE_JOB: tuple[Table, ...] = (
    *(job_labels, job_data, array_turns, job_dependencies, job_marks, run_terms),
)
DELETED_TABLES = frozenset(table.name for table in (*_LARGE, *_SMALL, *_WITH_THE_JOB, checkpoints))
"""Tables with rows of jobs that go with their job."""
KEPT_TABLES = frozenset({"cost_rows", "cost_job_sums", "stored_objects", "trials", "schedule_runs"})
"""Tables with rows about jobs that stay: the cost ledger, and what studies and schedules did."""


@dataclass(frozen=True, slots=True)
class DeletedJob:
    """A deleted job, and what is left to delete of it."""

    job: int  # job number
    name: str  # display name
    project: str  # name of the project
    owner: str  # submitting user
    deleted_at: int  # µs UTC
    deleted_by: str  # id of a principal, or `retention`
    cause: str  # core.retention.holds.RemovalCause
    #: where its data is; None: everything is deleted. Of one that was given up, what was left
    remains: Mapping[str, Any] | None
    tries: int = 0  # that failed
    not_before: int = 0  # of the next try, µs UTC
    error: str | None = None  # of the last try
    done_at: int | None = None  # when everything was deleted, µs UTC
    #: id of the principal that gave up its copies; None: they were not given up
    abandoned_by: str | None = None


def begin(tx: Tx, one: DeletedJob) -> None:
    """Delete the row of a job, and store what is left to delete of it."""
    tx.conn.execute(deleted_jobs.insert(), columns_of(one))
    for table in _WITH_THE_JOB:
        tx.conn.execute(table.delete().where(table.c.job == one.job))
    named = and_(cost_budgets.c.scope == BudgetScope.JOB.value, cost_budgets.c.name == str(one.job))
    tx.conn.execute(cost_budgets.delete().where(named))
    tx.conn.execute(job_listing.delete().where(job_listing.c.num == one.job))
    tx.conn.execute(jobs.delete().where(jobs.c.num == one.job))
    tx.touched.topics.add(DELETIONS)


def find(tx: Tx, num: int, *, lock: bool = False) -> DeletedJob | None:
    """The deleted job of this number; with `lock`, no other transaction changes it meanwhile."""
    query = select(deleted_jobs).where(_HERE.job == num)
    found = read(tx, DeletedJob, query.with_for_update() if lock else query)
    return found[0] if found else None


def due(tx: Tx, now: int, *, limit: int) -> list[DeletedJob]:
    """Deleted jobs of which something is left, with a next try that is due, the oldest first."""
    query = select(deleted_jobs).where(_OPEN, _HERE.not_before <= now)
    return read(tx, DeletedJob, query.order_by(_HERE.not_before, _HERE.job).limit(limit))


def every_open(tx: Tx, *, limit: int) -> list[DeletedJob]:
    """Deleted jobs of which something is left, in the order of their deletion."""
    query = select(deleted_jobs).where(_OPEN).order_by(_HERE.deleted_at, _HERE.job)
    return read(tx, DeletedJob, query.limit(limit))


def count_open(tx: Tx) -> int:
    """The number of deleted jobs of which something is left."""
    return int(tx.conn.execute(select(func.count()).where(_OPEN)).scalar_one())


def next_at(tx: Tx) -> int | None:
    """When the next try of a deletion is due, in µs UTC."""
    found = tx.conn.execute(select(func.min(_HERE.not_before)).where(_OPEN)).scalar()
    return None if found is None else int(found)


def drop_rows(tx: Tx, num: int, *, limit: int) -> bool:
    """Delete up to `limit` rows of a deleted job, without its checkpoints; returns whether any is left."""
    for table in _LARGE:
        keys = list(table.primary_key.columns)
        query = select(*keys).where(table.c.job == num).limit(limit)
        found = [tuple(row) for row in tx.conn.execute(query)]
        if found:
            same = tuple_(*keys).in_(found) if len(keys) > 1 else keys[0].in_([k for (k,) in found])
            tx.conn.execute(table.delete().where(same))
            return True
    for table in _SMALL:
        tx.conn.execute(table.delete().where(table.c.job == num))
    return False


def checkpoint_paths(tx: Tx, num: int) -> list[str]:
    """Paths of a job's checkpoints that are valid or marked as removed."""
    here = checkpoints.c
    query = select(here.path).where(here.job == num, here.state.in_(("valid", "removed")))
    return list(tx.conn.execute(query).scalars())


def checkpoint_names(tx: Tx, num: int) -> list[str]:
    """Names of the folders of a job's checkpoints, as far as they were reported."""
    query = select(checkpoints.c.path).where(checkpoints.c.job == num)
    return sorted({path.rpartition("/")[2] for path in tx.conn.execute(query).scalars()})


def abandon(tx: Tx, num: int, by: str, now: int) -> None:
    """Give up the copies of a deleted job: the next try completes the rest without them."""
    values = {"abandoned_by": by, "tries": 0, "not_before": now}
    tx.conn.execute(deleted_jobs.update().where(_HERE.job == num, _OPEN).values(**values))
    tx.touched.topics.add(DELETIONS)


def every_abandoned(tx: Tx, *, limit: int) -> list[DeletedJob]:
    """Deleted jobs of which copies were left, the newest deletion first."""
    # Where the store came back in the last moment, everything was deleted after all.
    query = select(deleted_jobs).where(_HERE.abandoned_by.is_not(None), _HERE.error.is_not(None))
    return read(tx, DeletedJob, query.order_by(_HERE.deleted_at.desc()).limit(limit))


def copies(tx: Tx, num: int) -> tuple[list[str], int]:
    """Names and bytes of a job's checkpoints that were sent to its store, as far as was reported."""
    here = checkpoints.c
    query = select(here.path, here.copy_bytes, here.size_bytes).where(here.job == num)
    rows = list(tx.conn.execute(query.where(here.copy_state.is_not(None))))
    names = sorted({path.rpartition("/")[2] for path, _, _ in rows})
    return names, sum(int(sent or size or 0) for _, sent, size in rows)


def finish(tx: Tx, num: int, now: int, left: Mapping[str, Any] | None = None) -> None:
    """Note that everything of a job is deleted, or all but what is `left`; rows of checkpoints go."""
    tx.conn.execute(checkpoints.delete().where(checkpoints.c.job == num))
    values = {"remains": left, "done_at": now} | ({} if left else {"error": None})
    tx.conn.execute(deleted_jobs.update().where(_HERE.job == num, _OPEN).values(**values))


def retry(tx: Tx, num: int, *, tries: int, not_before: int, error: str) -> None:
    """Note that a try failed, and when the next one is due, unless it was given up meanwhile."""
    values = {"tries": tries, "not_before": not_before, "error": error}
    same = (_HERE.job == num, _HERE.tries == tries - 1, _OPEN)
    tx.conn.execute(deleted_jobs.update().where(*same).values(**values))


def count(tx: Tx, kind: DataKind, cause: RemovalCause, items: int, num_bytes: int) -> None:
    """Add to what was deleted."""
    if not items and not num_bytes:
        return
    here = removal_totals.c
    same = and_(here.kind == kind.value, here.cause == cause.value)
    more = {"items": here["items"] + items, "bytes": here["bytes"] + num_bytes}
    if not tx.conn.execute(removal_totals.update().where(same).values(**more)).rowcount:
        row = {"kind": kind.value, "cause": cause.value, "items": items, "bytes": num_bytes}
        tx.conn.execute(removal_totals.insert(), row)


def totals(tx: Tx) -> dict[tuple[str, str], tuple[int, int]]:
    """Items and bytes that were deleted, by kind and cause."""
    rows: Sequence[Any] = tx.conn.execute(select(removal_totals)).all()
    return {(kind, cause): (int(items), int(size)) for kind, cause, items, size in rows}


def sizes(tx: Tx, num: int) -> dict[DataKind, tuple[int, int]]:
    """Items and bytes of what a job has in the database and as checkpoints; bytes 0 where not known."""
    logs = select(func.coalesce(func.sum(log_volumes.c.stored_bytes), 0))
    chunks = select(func.count()).select_from(metric_chunks).where(metric_chunks.c.job == num)
    rows = select(func.count(), func.coalesce(func.sum(checkpoints.c.size_bytes), 0))
    log_bytes = int(tx.conn.execute(logs.where(log_volumes.c.job == num)).scalar_one())
    good = rows.where(checkpoints.c.job == num, checkpoints.c.state == "valid")
    num_good, good_bytes = tx.conn.execute(good).one()
    return {
        DataKind.LOGS: (int(log_bytes > 0), log_bytes),
        DataKind.METRICS: (int(tx.conn.execute(chunks).scalar_one()), 0),
        DataKind.CHECKPOINTS: (int(num_good), int(good_bytes)),
    }
