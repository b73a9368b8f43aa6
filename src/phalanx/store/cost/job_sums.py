"""Sums of the ledger by job, of all time: a report by job reads the most expensive ones from an index.

They hold the rows that `days` has folded, up to the same id; both are written in one transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Select, bindparam, func, insert, literal, select

from phalanx.core.cost.ledger import Account
from phalanx.core.cost.totals import Totals
from phalanx.store.cost.rows import ACCOUNTS, LABEL, CostFilter
from phalanx.store.database import Tx
from phalanx.store.tables import cost_job_sums, cost_rows, job_labels

_AMOUNTS = (*ACCOUNTS, "nano_usd")
_SUMS = (*_AMOUNTS, "held")
_BATCH = 500
_HELD: Any = sum(
    (cost_rows.c[one.value] for one in Account if one is not Account.QUEUED), literal(0)
)
_HERE = cost_job_sums.c
_ADD = (
    cost_job_sums.update()
    .where(_HERE.job == bindparam("_job"))
    .values({name: _HERE[name] + bindparam(f"_{name}") for name in _SUMS})
)


def fold(tx: Tx, last: int, top: int) -> None:
    """Add the rows with ids behind `last` up to `top`."""
    here = cost_rows.c
    among = (here.id > last, here.id <= top)
    amounts = [*(func.sum(here[name]).label(name) for name in _AMOUNTS)]
    amounts.append(func.sum(_HELD).label("held"))
    known = here.job.in_(select(_HERE.job))
    again = select(here.job, *amounts).where(*among, known).group_by(here.job)
    changed = [
        {f"_{name}": value if name == "job" else int(value) for name, value in row.items()}
        for row in tx.conn.execute(again).mappings()
    ]
    if changed:
        tx.conn.execute(_ADD, changed)
    owned = [func.max(here[name]).label(name) for name in ("project", "owner", "study")]
    fresh = select(here.job, *owned, *amounts).where(*among, ~known).group_by(here.job)
    names = ["job", "project", "owner", "study", *_SUMS]
    tx.conn.execute(insert(cost_job_sums).from_select(names, fresh))


def serves(wanted: CostFilter) -> bool:
    """Whether these sums can answer: all time, all pools."""
    return (wanted.since, wanted.until, wanted.pool) == (None, None, None)


def dearest(tx: Tx, wanted: CostFilter, limit: int) -> dict[int, Totals]:
    """The most expensive jobs: by money, then by slot time."""
    order = (_HERE.nano_usd.desc(), _HERE.held.desc(), _HERE.job)
    return _read(tx, _filtered(_select(_HERE.job), wanted).order_by(*order).limit(limit))


def of_jobs(tx: Tx, nums: Sequence[int]) -> dict[int, Totals]:
    """The sums of some jobs, those that have any."""
    found: dict[int, Totals] = {}
    for start in range(0, len(nums), _BATCH):
        some = nums[start : start + _BATCH]
        found |= _read(tx, _select(_HERE.job).where(_HERE.job.in_(some)))
    return found


def by_group(tx: Tx, by: str, wanted: CostFilter) -> dict[str, Totals]:
    """Sums by `study` or by a label, as text; empty for jobs that have none."""
    columns = [func.sum(_HERE[name]) for name in _AMOUNTS]
    key: ColumnElement[Any] = _HERE.study
    query = select(key, *columns)
    if by.startswith(LABEL):
        key = job_labels.c.value
        mine = (job_labels.c.job == _HERE.job) & (job_labels.c.name == by.removeprefix(LABEL))
        joined = cost_job_sums.outerjoin(job_labels, mine)
        query = select(key, *columns).select_from(joined)
    found = _read(tx, _filtered(query, wanted).group_by(key))
    return {"" if name is None else str(name): one for name, one in found.items()}


def _select(key: ColumnElement[Any]) -> Select[Any]:
    return select(key, *(_HERE[name] for name in _AMOUNTS))


def _filtered(query: Select[Any], wanted: CostFilter) -> Select[Any]:
    if wanted.projects is not None:
        query = query.where(_HERE.project.in_(wanted.projects))
    for name in ("project", "owner", "study", "job"):
        value = getattr(wanted, name)
        if value is not None:
            query = query.where(_HERE[name] == value)
    return query


def _read(tx: Tx, query: Select[Any]) -> dict[Any, Totals]:
    return {
        row[0]: Totals(
            {one: int(row[index + 1]) for index, one in enumerate(Account) if row[index + 1]},
            int(row[len(ACCOUNTS) + 1]),
        )
        for row in tx.conn.execute(query)
    }
