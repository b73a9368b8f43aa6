"""Sums of kept and moved bytes by day, project, owner and store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sqlalchemy import func, select

from phalanx.core.cost.ledger import DAY_US
from phalanx.core.cost.storage import StorageTotals
from phalanx.store.cost.rows import CostFilter
from phalanx.store.database import Tx
from phalanx.store.schema.storage import storage_days
from phalanx.store.storage.objects import Group

GROUPS = {"project": "project", "user": "owner", "store": "store", "day": "day"}
"""What these sums can be grouped by, with the column."""
_HERE = storage_days.c
_UNIT = 1 << 40
"""Bytes times microseconds are stored as multiples of this and a rest: petabytes for a month fit."""
_AMOUNTS = (
    "byte_units",
    "byte_rest",
    "uploaded_bytes",
    "read_bytes",
    "storage_nano",
    "transfer_nano",
)
DayGroup = tuple[int, Group]


def add(tx: Tx, found: Mapping[DayGroup, StorageTotals]) -> None:
    """Add to the sums; only under `objects.lock`."""
    for (day, (project, owner, store)), one in found.items():
        key = {"day": day, "project": project, "owner": owner, "store": store}
        mine = [_HERE[name] == value for name, value in key.items()]
        row = tx.conn.execute(select(*(_HERE[name] for name in _AMOUNTS)).where(*mine)).first()
        if row is None:
            tx.conn.execute(storage_days.insert(), key | _columns(one))
        else:
            values = _columns(one.plus(_totals(row)))
            tx.conn.execute(storage_days.update().where(*mine).values(**values))


def sums(tx: Tx, by: str, wanted: CostFilter) -> dict[str, StorageTotals]:
    """Sums by what `GROUPS` names, as text; a day is its number from 1970."""
    key = _HERE[GROUPS[by]]
    query = select(*(func.sum(_HERE[name]) for name in _AMOUNTS), key).group_by(key)
    if wanted.since is not None:
        query = query.where(_HERE.day >= wanted.since // DAY_US)
    if wanted.until is not None:
        query = query.where(_HERE.day < wanted.until // DAY_US)
    if wanted.projects is not None:
        query = query.where(_HERE.project.in_(wanted.projects))
    for name in ("project", "owner"):
        value = getattr(wanted, name)
        if value is not None:
            query = query.where(_HERE[name] == value)
    return {str(row[-1]): _totals(row) for row in tx.conn.execute(query)}


def by_store(tx: Tx, first: int, last: int) -> Iterator[tuple[int, str, StorageTotals]]:
    """The sums of the days from `first` to `last`, as (day, store, sum)."""
    sums = [func.sum(_HERE[name]) for name in _AMOUNTS]
    query = select(*sums, _HERE.day, _HERE.store).where(_HERE.day >= first, _HERE.day <= last)
    for row in tx.conn.execute(query.group_by(_HERE.day, _HERE.store)):
        yield int(row[-2]), row[-1], _totals(row)


def takes(wanted: CostFilter, day: int | None, group: Group) -> bool:
    """Whether a filter matches a sum; None: of the present."""
    project, owner, _ = group
    return (
        (day is None or wanted.since is None or day >= wanted.since // DAY_US)
        and (day is None or wanted.until is None or day < wanted.until // DAY_US)
        and (wanted.projects is None or project in wanted.projects)
        and wanted.project in (None, project)
        and wanted.owner in (None, owner)
    )


def _columns(one: StorageTotals) -> dict[str, int]:
    units, rest = divmod(one.byte_us, _UNIT)
    return {
        "byte_units": units,
        "byte_rest": rest,
        "uploaded_bytes": one.uploaded_bytes,
        "read_bytes": one.read_bytes,
        "storage_nano": one.storage_nano,
        "transfer_nano": one.transfer_nano,
    }


def _totals(row: Any) -> StorageTotals:
    units, rest, uploaded, was_read, storage, transfer = (int(one) for one in row[:6])
    return StorageTotals(units * _UNIT + rest, 0, uploaded, was_read, storage, transfer)
