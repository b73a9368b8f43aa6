"""Sums of the ledger by day, project, user and pool: reports over many jobs read them instead of rows.

Rows are folded in the order of their ids, each once; those behind the last folded one are read as rows.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import bindparam, func, select

from phalanx.core.cost.ledger import DAY_US, Account
from phalanx.core.cost.totals import Totals, added
from phalanx.store.cost import job_sums, rows
from phalanx.store.cost.rows import ACCOUNTS, CostFilter
from phalanx.store.database import Tx
from phalanx.store.tables import cost_days, cost_rows, counters

FOLDED = "cost_folded"
"""The counter with the id of the last row that is in the sums."""
GROUPS = frozenset({"project", "user", "pool", "day"})
"""What these sums can be grouped by."""
_AMOUNTS = (*ACCOUNTS, "nano_usd")
_KEYS = ("day", "project", "owner", "pool")
# Other writers of SQLite wait for the transaction.
_AT_ONCE = 2_000
_ADD = (
    cost_days.update()
    .where(*(cost_days.c[name] == bindparam(f"_{name}") for name in _KEYS))
    .values({name: cost_days.c[name] + bindparam(f"_{name}") for name in _AMOUNTS})
)
_LAST = select(counters.c.value).where(counters.c.name == FOLDED)


def folded(tx: Tx) -> int:
    """The id of the last row that is in the sums."""
    return int(tx.conn.execute(_LAST).scalar() or 0)


def is_behind(tx: Tx) -> bool:
    """Whether there are rows that are not in the sums."""
    newest = tx.conn.execute(select(func.max(cost_rows.c.id))).scalar()
    return int(newest or 0) > folded(tx)


def fold(tx: Tx) -> None:
    """Add the next rows to the sums."""
    # The update takes the lock of the counter first: two control planes never fold the same rows.
    mine = counters.update().where(counters.c.name == FOLDED)
    tx.conn.execute(mine.values(value=counters.c.value))
    last, here = folded(tx), cost_rows.c
    ids = select(here.id).where(here.id > last).order_by(here.id).limit(_AT_ONCE).subquery()
    top = int(tx.conn.execute(select(func.max(ids.c.id))).scalar() or last)
    keys = [(here.from_at // DAY_US).label("day"), here.project, here.owner, here.pool]
    query = (
        select(*keys, *(func.sum(here[name]).label(name) for name in _AMOUNTS))
        .where(here.id > last, here.id <= top)
        .group_by(*keys)
    )
    for row in tx.conn.execute(query).mappings().all():
        values = {name: int(row[name]) if name in _AMOUNTS else row[name] for name in row}
        if tx.conn.execute(_ADD, {f"_{name}": one for name, one in values.items()}).rowcount == 0:
            tx.conn.execute(cost_days.insert(), values)
    job_sums.fold(tx, last, top)
    tx.conn.execute(mine.values(value=top))


def sums(tx: Tx, by: str, wanted: CostFilter) -> dict[str, Totals]:
    """The same as `rows.sums`, for what `serves` says."""
    here = cost_days.c
    key = here["owner" if by == "user" else by]
    query = select(key, *(func.sum(here[name]) for name in _AMOUNTS)).group_by(key)
    if wanted.since is not None:
        query = query.where(here.day >= wanted.since // DAY_US)
    if wanted.until is not None:
        query = query.where(here.day < wanted.until // DAY_US)
    if wanted.projects is not None:
        query = query.where(here.project.in_(wanted.projects))
    for name in ("project", "owner", "pool"):
        value: Any = getattr(wanted, name)
        if value is not None:
            query = query.where(here[name] == value)
    last = folded(tx)
    found = {
        str(row[0]): Totals(
            {one: int(row[index + 1]) for index, one in enumerate(Account) if row[index + 1]},
            int(row[len(ACCOUNTS) + 1]),
        )
        for row in tx.conn.execute(query)
    }
    fresh = rows.sums(tx, by, wanted, after=last)
    return {
        name: added([found.get(name, Totals()), fresh.get(name, Totals())])
        for name in {*found, *fresh}
    }


def serves(by: str, wanted: CostFilter) -> bool:
    """Whether sums by day can answer: whole days, and neither a job nor a study is asked for."""
    times = (wanted.since or 0, wanted.until or 0)
    whole = all(at % DAY_US == 0 for at in times)
    return by in GROUPS and whole and wanted.study is None and wanted.job is None
