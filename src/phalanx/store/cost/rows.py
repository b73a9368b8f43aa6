"""Rows of the cost ledger: what each generation and each wait of a job used, by account.

Rows are written once, in the transaction that frees the slots of an attempt or ends a wait. What a job
that has not ended uses now is in no row; `services.ledger` computes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from sqlalchemy import bindparam, func, select

from phalanx.core.cost.ledger import DAY_US, Account, AccountRow
from phalanx.core.cost.totals import Totals
from phalanx.store.database import Tx, take_numbers
from phalanx.store.engines.many_rows import run_many
from phalanx.store.index import listing
from phalanx.store.tables import checkpoints, cost_rows, generations, jobs

ACCOUNTS = tuple(account.value for account in Account)
"""The columns of the accounts."""
_INSERT = cost_rows.insert()
_JOBS: Any = bindparam("_jobs", expanding=True)
_OF_JOB = (
    select(cost_rows).where(cost_rows.c.job == bindparam("_job")).order_by(cost_rows.c.from_at)
)
_GENERATIONS = (
    select(generations)
    .where(generations.c.job.in_(_JOBS))
    .order_by(generations.c.job, generations.c.attempt, generations.c.generation)
)
_SAVES = select(
    checkpoints.c.job,
    checkpoints.c.attempt,
    checkpoints.c.generation,
    checkpoints.c.created_at,
    checkpoints.c.took_s,
).where(
    checkpoints.c.job.in_(_JOBS),
    checkpoints.c.attempt.in_(bindparam("_attempts", expanding=True)),
)
_LAST_ENDS = (
    select(cost_rows.c.job, cost_rows.c.attempt, cost_rows.c.ended_by)
    .where(cost_rows.c.job.in_(_JOBS), cost_rows.c.generation.is_not(None))
    .order_by(cost_rows.c.job, cost_rows.c.from_at)
)
_TRIAL_USD = select(func.sum(cost_rows.c.nano_usd)).where(
    cost_rows.c.study == bindparam("_study"), cost_rows.c.trial == bindparam("_trial")
)
_BATCH = 500
LABEL = "label:"
"""How a group begins that is a label of jobs."""
_COLUMN = {"user": "owner"}


@dataclass(frozen=True, slots=True)
class CostOwner:
    """What rows of the ledger are grouped by, besides the job; fixed when they are written."""

    job: int  # number of the job
    project: str  # name of the project
    owner: str  # submitting user
    study: int | None  # number of the study of its trial; None: none
    trial: int | None  # number of the trial in its study


@dataclass(frozen=True, slots=True)
class CostRow:
    """One row of the ledger with its owner and its money."""

    owner: CostOwner
    attempt: int  # number in the job; that of the next one for a wait
    pool: str  # of the placement; empty for a wait
    ended_by: str | None  # core.cost.ledger.Interruption of the attempt
    row: AccountRow
    nano_usd: int  # price of the slots that were held; 0: they have no price
    slot_type: str = ""  # of all its slots; empty: of several types, or not known


def add_many(tx: Tx, found: Sequence[CostRow]) -> None:
    """Write rows."""
    if found:
        first = take_numbers(tx, "cost_row", len(found))
        table = [{"id": first + index, **_columns(one)} for index, one in enumerate(found)]
        run_many(tx.conn, _INSERT, table)
        listing.add_cost(tx, [(one.owner.job, one.nano_usd) for one in found])


def lock(tx: Tx) -> None:
    """Order this transaction among those that write rows or set prices; numbers are taken in that order."""
    take_numbers(tx, "cost_row", 0)


def _columns(one: CostRow) -> dict[str, Any]:
    owner = {field.name: getattr(one.owner, field.name) for field in fields(one.owner)}
    amounts = {account: 0 for account in ACCOUNTS}
    amounts |= {account.value: amount for account, amount in one.row.amounts}
    return {
        **owner,
        "attempt": one.attempt,
        "pool": one.pool,
        "ended_by": one.ended_by,
        "from_at": one.row.from_at,
        "to_at": one.row.to_at,
        "generation": one.row.generation,
        "slots": one.row.slots,
        "nano_usd": one.nano_usd,
        "slot_type": one.slot_type,
        **amounts,
    }


def of_job(tx: Tx, job: int) -> list[CostRow]:
    """The rows of a job in the order of time."""
    return [_row(one) for one in tx.conn.execute(_OF_JOB, {"_job": job}).mappings()]


def _row(one: Mapping[Any, Any]) -> CostRow:
    amounts = tuple((account, one[account.value]) for account in Account if one[account.value])
    ledger = AccountRow(
        one["from_at"], one["to_at"], one["generation"], one["slots"], tuple(sorted(amounts))
    )
    owner = CostOwner(**{field.name: one[field.name] for field in fields(CostOwner)})
    money, kind = one["nano_usd"], one["slot_type"]
    return CostRow(owner, one["attempt"], one["pool"], one["ended_by"], ledger, money, kind)


def generations_of(tx: Tx, nums: Sequence[int]) -> dict[int, list[Mapping[Any, Any]]]:
    """The rows of the generations of some jobs, in order, by job."""
    found: dict[int, list[Mapping[Any, Any]]] = {}
    for start in range(0, len(nums), _BATCH):
        some = {"_jobs": list(nums[start : start + _BATCH])}
        for row in tx.conn.execute(_GENERATIONS, some).mappings():
            found.setdefault(row["job"], []).append(row)
    return found


def saves_of(tx: Tx, attempts: Mapping[int, int]) -> dict[int, list[tuple[int, int, float | None]]]:
    """(generation, time, duration in s) of the checkpoints of one attempt of each job, by job."""
    found: dict[int, list[tuple[int, int, float | None]]] = {}
    nums = list(attempts)
    for start in range(0, len(nums), _BATCH):
        some = nums[start : start + _BATCH]
        values = {"_jobs": some, "_attempts": list({attempts[num] for num in some})}
        for job, attempt, generation, at, took_s in tx.conn.execute(_SAVES, values):
            if attempts[job] == attempt:
                found.setdefault(job, []).append((generation, at, took_s))
    return found


def last_ends(tx: Tx, nums: Sequence[int]) -> dict[int, tuple[int, str | None]]:
    """The last attempt of each job that has rows, and what ended it."""
    found: dict[int, tuple[int, str | None]] = {}
    for start in range(0, len(nums), _BATCH):
        some = {"_jobs": list(nums[start : start + _BATCH])}
        for job, attempt, ended_by in tx.conn.execute(_LAST_ENDS, some):
            found[job] = (attempt, ended_by)
    return found


@dataclass(frozen=True, slots=True)
class CostFilter:
    """A filter of rows; an empty field matches every row. Times are compared with the begin of a row."""

    since: int | None = None  # µs UTC
    until: int | None = None  # µs UTC, not included
    project: str | None = None
    owner: str | None = None
    pool: str | None = None
    study: int | None = None
    job: int | None = None
    projects: tuple[str, ...] | None = None  # those that the caller may see; None: all

    def takes(self, one: CostRow) -> bool:
        """Whether a row matches."""
        mine = (one.owner.project, one.owner.owner, one.pool, one.owner.study, one.owner.job)
        wanted = (self.project, self.owner, self.pool, self.study, self.job)
        at = one.row.from_at
        return (
            (self.since is None or at >= self.since)
            and (self.until is None or at < self.until)
            and (self.projects is None or one.owner.project in self.projects)
            and all(want is None or want == own for want, own in zip(wanted, mine, strict=True))
        )


def sums(tx: Tx, by: str, wanted: CostFilter, *, after: int = 0) -> dict[str, Totals]:
    """Sums by project, user, job, study, trial, pool, day (a number) or `label:NAME`, as text.

    Only rows behind the id `after` count.
    """
    here = cost_rows.c
    key: Any
    if by.startswith(LABEL):
        key = jobs.c.labels[by.removeprefix(LABEL)].as_string()
    elif by == "day":
        key = here.from_at // DAY_US
    else:
        key = here[_COLUMN.get(by, by)]
    columns = [func.sum(here[name]) for name in (*ACCOUNTS, "nano_usd")]
    query = select(key, *columns).group_by(key)
    if by.startswith(LABEL):
        query = query.select_from(cost_rows.join(jobs, jobs.c.num == here.job))
    if after:
        query = query.where(here.id > after)
    if wanted.since is not None:
        query = query.where(here.from_at >= wanted.since)
    if wanted.until is not None:
        query = query.where(here.from_at < wanted.until)
    if wanted.projects is not None:
        query = query.where(here.project.in_(wanted.projects))
    for name in ("project", "owner", "pool", "study", "job"):
        value = getattr(wanted, name)
        if value is not None:
            query = query.where(here[name] == value)
    return {
        "" if row[0] is None else str(row[0]): Totals(
            {one: int(row[index + 1]) for index, one in enumerate(Account) if row[index + 1]},
            int(row[len(ACCOUNTS) + 1]),
        )
        for row in tx.conn.execute(query)
    }


def nano_usd_of_trial(tx: Tx, study: int, trial: int) -> int:
    """The money of all settled rows of a trial's jobs."""
    return int(tx.conn.execute(_TRIAL_USD, {"_study": study, "_trial": trial}).scalar() or 0)


def kept_checkpoints(
    tx: Tx, wanted: CostFilter, most: int, limit: int
) -> list[tuple[int, int, int]]:
    """(job, number, bytes) of the kept checkpoints of jobs with more than `most`."""
    here, number = checkpoints.c, func.count()
    query = (
        select(here.job, number, func.sum(here.size_bytes))
        .join(jobs, jobs.c.num == here.job)
        .where(here.state == "valid")
        .group_by(here.job)
        .having(number > most)
        .order_by(number.desc(), here.job)
        .limit(limit)
    )
    if wanted.projects is not None:
        query = query.where(jobs.c.project.in_(wanted.projects))
    for column, value in ((jobs.c.project, wanted.project), (jobs.c.owner, wanted.owner)):
        if value is not None:
            query = query.where(column == value)
    return [(int(job), int(count), int(size or 0)) for job, count, size in tx.conn.execute(query)]


def key_of(one: CostRow, by: str, labels: Mapping[str, str]) -> str:
    """The group of a row as `sums` names it; `labels` are those of its job."""
    if by.startswith(LABEL):
        return labels.get(by.removeprefix(LABEL), "")
    if by == "day":
        return str(one.row.from_at // DAY_US)
    if by == "pool":
        return one.pool
    value = getattr(one.owner, _COLUMN.get(by, by))
    return "" if value is None else str(value)
