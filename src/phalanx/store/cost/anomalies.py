"""Anomalies of cost, and what the detector reads: uses by group and day, and what a day consisted of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import ColumnElement, Select, bindparam, func, literal, select

from phalanx.core.codec import decode, encode
from phalanx.core.cost.anomalies import AnomalyKey, AnomalyScope, Use
from phalanx.core.cost.anomaly_life import LIVE, AnomalyState, Breakdown, CostAnomaly
from phalanx.core.cost.ledger import DAY_US, Account
from phalanx.errors import NotFound
from phalanx.kit.text import shorten
from phalanx.store.cost import days
from phalanx.store.cost.rows import ACCOUNTS
from phalanx.store.database import Tx, raise_counter, take_numbers
from phalanx.store.schema.money import cost_anomalies
from phalanx.store.tables import cost_days, cost_rows, counters, job_labels

COLUMNS = {AnomalyScope.PROJECT: "project", AnomalyScope.USER: "owner", AnomalyScope.POOL: "pool"}
"""The groups that sums by day have, with their columns."""
ANOMALY, JUDGED = "cost_anomaly", "cost_judged"
_MOST_NAME = 500
_HERE = cost_anomalies.c
Uses = dict[AnomalyKey, dict[int, Use]]


def judged_to(tx: Tx) -> int:
    """The last whole day that was judged, counted from 1970; 0: none."""
    query = select(counters.c.value).where(counters.c.name == JUDGED)
    return int(tx.conn.execute(query).scalar() or 0)


def set_judged(tx: Tx, day: int) -> None:
    """Note that a whole day was judged."""
    raise_counter(tx, JUDGED, day)


def label_key(name: str, value: str) -> AnomalyKey:
    """The group of the jobs with a label."""
    return AnomalyKey(AnomalyScope.LABEL, shorten(f"{name}={value}", _MOST_NAME))


def _held(columns: Any) -> ColumnElement[Any]:
    return sum((columns[one.value] for one in Account if one is not Account.QUEUED), literal(0))


def uses_by_day(tx: Tx, labels: Sequence[str], since: int) -> Uses:
    """The settled uses by project, user, pool and the labels of these names, from a day on."""
    found: Uses = {}
    last = days.folded(tx)
    for scope, column in COLUMNS.items():
        here, fresh = cost_days.c, cost_rows.c
        day = fresh.from_at // DAY_US
        summed = (func.sum(here.nano_usd), func.sum(_held(here)))
        rows = (func.sum(fresh.nano_usd), func.sum(_held(fresh)))
        for query in (
            select(here[column], here.day, *summed)
            .where(here.day >= since)
            .group_by(here[column], here.day),
            select(fresh[column], day, *rows)
            .where(fresh.id > last, fresh.from_at >= since * DAY_US)
            .group_by(fresh[column], day),
        ):
            for name, at, nano, held in tx.conn.execute(query):
                add_use(found, AnomalyKey(scope, name), int(at), Use(int(nano), int(held)))
    if labels:
        _add_labels(tx, found, labels, since)
    return found


def _add_labels(tx: Tx, found: Uses, labels: Sequence[str], since: int) -> None:
    here, label = cost_rows.c, job_labels.c
    day = here.from_at // DAY_US
    query = (
        select(label.name, label.value, day, func.sum(here.nano_usd), func.sum(_held(here)))
        .select_from(cost_rows.join(job_labels, label.job == here.job))
        .where(label.name.in_(labels), here.from_at >= since * DAY_US)
        .group_by(label.name, label.value, day)
    )
    for name, value, at, nano, held in tx.conn.execute(query):
        add_use(found, label_key(name, value), int(at), Use(int(nano), int(held)))


def add_use(found: Uses, key: AnomalyKey, day: int, one: Use) -> None:
    """Add to the use of a group in a day."""
    by_day = found.setdefault(key, {})
    by_day[day] = by_day.get(day, Use()).plus(one)


def breakdown(tx: Tx, key: AnomalyKey, first: int, last: int) -> Breakdown:
    """What a group has settled in some days, the last one included, by job, pool and account."""
    here = cost_rows.c
    columns = [func.sum(here[name]) for name in (*ACCOUNTS, "nano_usd")]
    query: Select[Any] = (
        select(here.job, here.pool, *columns)
        .where(here.from_at >= first * DAY_US, here.from_at < (last + 1) * DAY_US)
        .group_by(here.job, here.pool)
    )
    if key.scope is AnomalyScope.LABEL:
        name, _, value = key.name.partition("=")
        mine = (job_labels.c.job == here.job) & (job_labels.c.name == name)
        query = query.select_from(cost_rows.join(job_labels, mine))
        query = query.where(job_labels.c.value == value)
    else:
        query = query.where(here[COLUMNS[key.scope]] == key.name)
    found = Breakdown({}, {}, {})
    for row in tx.conn.execute(query):
        amounts = dict(zip(Account, map(int, row[2:-1]), strict=True))
        found = broken_down(found, int(row[0]), row[1], amounts, int(row[-1]))
    return found


def broken_down(
    one: Breakdown, job: int, pool: str, amounts: dict[Account, int], nano_usd: int
) -> Breakdown:
    """A breakdown with the use of a job in a pool added."""
    held = sum(used for account, used in amounts.items() if account is not Account.QUEUED)
    more = Use(nano_usd, held)
    jobs, pools, accounts = dict(one.jobs), dict(one.pools), dict(one.accounts)
    jobs[job] = jobs.get(job, Use()).plus(more)
    if pool:
        pools[pool] = pools.get(pool, Use()).plus(more)
    for account, used in amounts.items():
        accounts[account] = accounts.get(account, 0) + used
    return Breakdown(jobs, pools, accounts)


def live_anomalies(tx: Tx) -> list[CostAnomaly]:
    """The anomalies that are not closed, in the order in which they were found."""
    query = select(_HERE.data).where(_HERE.state.in_([one.value for one in LIVE]))
    return [_anomaly(data) for data in tx.conn.execute(query.order_by(_HERE.num)).scalars()]


def newest(
    tx: Tx,
    *,
    projects: Sequence[str] | None,
    states: Iterable[AnomalyState],
    limit: int,
) -> list[CostAnomaly]:
    """The newest anomalies in some states; `projects`: only those of these projects, None: all."""
    query = select(_HERE.data).order_by(_HERE.num.desc()).limit(limit)
    query = query.where(_HERE.state.in_([one.value for one in states]))
    if projects is not None:
        mine = _HERE.name.in_(list(projects))
        query = query.where(_HERE.scope == AnomalyScope.PROJECT.value, mine)
    return [_anomaly(data) for data in tx.conn.execute(query).scalars()]


def load_anomaly(tx: Tx, num: int) -> CostAnomaly:
    """One anomaly. Raises NotFound."""
    data = tx.conn.execute(select(_HERE.data).where(_HERE.num == bindparam("_num")), {"_num": num})
    found = data.scalar()
    if found is None:
        raise NotFound(f"there is no anomaly {num}", "`phalanx cost anomalies` lists them")
    return _anomaly(found)


def _anomaly(data: Any) -> CostAnomaly:
    return decode(CostAnomaly, data)


def put_anomaly(tx: Tx, one: CostAnomaly) -> CostAnomaly:
    """Store a new or changed anomaly; returns it with its number."""
    new = one.num == 0
    if new:
        one = replace(one, num=take_numbers(tx, ANOMALY))
    values = {
        "state": one.state.value,
        "scope": one.key.scope.value,
        "name": one.key.name,
        "found_at": one.found_at,
        "data": encode(one),
    }
    if new:
        tx.conn.execute(cost_anomalies.insert(), values | {"num": one.num})
    else:
        tx.conn.execute(cost_anomalies.update().where(_HERE.num == one.num).values(**values))
    return one
