"""Imported bills with their lines, and what the ledger has for the comparison with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from sqlalchemy import func, literal, select

from phalanx.core.cost.bills import BilledKey, BilledKind, BillLine, DayKey, LedgerAmount
from phalanx.core.cost.ledger import DAY_US, Account
from phalanx.core.cost.prices import NANO
from phalanx.errors import Conflict, NotFound
from phalanx.store.database import Tx, read, take_numbers
from phalanx.store.engines.many_rows import run_many
from phalanx.store.schema.money import bill_lines, bills
from phalanx.store.tables import cost_rows

MOST_LINES = 1_000_000
"""Lines of one bill."""
MOST_BILLS = 500
MOST_NANO = 9_000_000_000 * NANO
"""The sum of one bill fits 64 bits."""
_COUNTER = "bill"
_LINE, _BILL = bill_lines.c, bills.c
_BATCH = 500


@dataclass(frozen=True, slots=True)
class StoredBill:
    """A bill with the sums of its lines."""

    name: str
    num_lines: int
    nano_usd: int
    imported_at: int  # microseconds UTC, of the newest part
    imported_by: str


def every_bill(tx: Tx) -> list[StoredBill]:
    """All bills, by name."""
    return read(tx, StoredBill, select(bills).order_by(_BILL.name))


def find_bill(tx: Tx, name: str) -> StoredBill | None:
    """The bill of a name; None: there is none."""
    found = read(tx, StoredBill, select(bills).where(_BILL.name == name))
    return found[0] if found else None


def lock_bills(tx: Tx) -> None:
    """Order this transaction among those that import or remove bills."""
    take_numbers(tx, _COUNTER, 0)


def known_lines(tx: Tx, ids: Sequence[str]) -> dict[str, BillLine]:
    """The stored lines among some ids."""
    names = [one.name for one in fields(BillLine)]
    found: dict[str, BillLine] = {}
    for start in range(0, len(ids), _BATCH):
        query = select(*(_LINE[name] for name in names))
        query = query.where(_LINE.id.in_(ids[start : start + _BATCH]))
        for row in tx.conn.execute(query).mappings():
            values = {**row, "kind": BilledKind(row["kind"])}
            found[row["id"]] = BillLine(**values)
    return found


def add_lines(tx: Tx, bill: StoredBill, lines: Sequence[BillLine]) -> StoredBill:
    """Add new lines to a bill; returns it with them. Only under `lock_bills`. Raises Conflict."""
    before = find_bill(tx, bill.name)
    num = len(lines) + (0 if before is None else before.num_lines)
    nano = sum(one.nano_usd for one in lines) + (0 if before is None else before.nano_usd)
    if num > MOST_LINES or abs(nano) > MOST_NANO:
        said = (
            f"bill {bill.name} has more than {MOST_LINES} lines, or {MOST_NANO // NANO} US dollars"
        )
        raise Conflict(said, "import it in parts with names of their own: --name")
    if before is None and len(every_bill(tx)) >= MOST_BILLS:
        raise Conflict(f"there are {MOST_BILLS} bills", "remove some: `phalanx cost bills rm NAME`")
    values = {
        "num_lines": num,
        "nano_usd": nano,
        "imported_at": bill.imported_at,
        "imported_by": bill.imported_by,
    }
    if before is None:
        tx.conn.execute(bills.insert(), values | {"name": bill.name})
    elif lines:
        tx.conn.execute(bills.update().where(_BILL.name == bill.name).values(**values))
    if lines:
        table = [
            {
                **{name.name: getattr(one, name.name) for name in fields(BillLine)},
                "kind": one.kind.value,
                "bill": bill.name,
            }
            for one in lines
        ]
        run_many(tx.conn, bill_lines.insert(), table)
    stored = find_bill(tx, bill.name)
    assert stored is not None
    return stored


def remove_bill(tx: Tx, name: str) -> StoredBill:
    """Remove a bill with its lines; returns what it was. Only under `lock_bills`. Raises NotFound."""
    before = find_bill(tx, name)
    if before is None:
        raise NotFound(f"there is no bill {name!r}", "`phalanx cost bills` lists them")
    tx.conn.execute(bill_lines.delete().where(_LINE.bill == name))
    tx.conn.execute(bills.delete().where(_BILL.name == name))
    return before


def lines_between(tx: Tx, begin: int, end: int) -> list[BillLine]:
    """The lines that are for some of a time; those of equal times and keys as one line without an id."""
    names = ("from_at", "to_at", "kind", "place", "slot_type")
    keys = [_LINE[name] for name in names]
    # The sums of millions of lines may not fit 64 bits: whole US dollars and the rest are added apart.
    whole_usd, rest_nano = func.sum(_LINE.nano_usd // NANO), func.sum(_LINE.nano_usd % NANO)
    query = (
        select(*keys, whole_usd, rest_nano)
        .where(_LINE.from_at < end, (_LINE.to_at > begin) | (_LINE.from_at >= begin))
        .group_by(*keys)
    )
    found = []
    for row in tx.conn.execute(query):
        nano = int(row[-2]) * NANO + int(row[-1])
        found.append(BillLine("", row[0], row[1], BilledKind(row[2]), row[3], row[4], nano))
    return found


def slots_by_day(tx: Tx, begin: int, end: int) -> dict[DayKey, LedgerAmount]:
    """The settled slot time and money by day, pool and slot type."""
    here = cost_rows.c
    held: Any = sum((here[one.value] for one in Account if one is not Account.QUEUED), literal(0))
    day = here.from_at // DAY_US
    query = (
        select(day, here.pool, here.slot_type, func.sum(here.nano_usd), func.sum(held))
        .where(here.from_at >= begin, here.from_at < end, here.generation.is_not(None))
        .group_by(day, here.pool, here.slot_type)
    )
    return {
        (int(at), BilledKey(BilledKind.SLOT, pool, kind)): LedgerAmount(int(nano), int(used))
        for at, pool, kind, nano, used in tx.conn.execute(query)
    }
