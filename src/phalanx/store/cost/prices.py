"""Rows of the price table. None begins before the end of the settled rows of the ledger."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, select

from phalanx.core.cost.ledger import DAY_US
from phalanx.core.cost.price_table import Price, PriceKey, PriceKind, PriceTable
from phalanx.store.cost import rows
from phalanx.store.database import Tx
from phalanx.store.tables import cost_prices, cost_rows

MOST = 2000
"""Prices with their history that one platform may have."""
_ALL = select(cost_prices).order_by(
    *(cost_prices.c[name] for name in ("kind", "pool", "slot_type", "spot", "valid_from"))
)
_SPOT = {None: "", True: "yes", False: "no"}
_SPOT_OF = {text: value for value, text in _SPOT.items()}


@dataclass(frozen=True, slots=True)
class StoredPrice:
    """A price, its author and the time when it was set."""

    price: Price
    set_at: int
    set_by: str


def table(tx: Tx) -> PriceTable:
    """All prices with their history."""
    return PriceTable(one.price for one in every(tx))


def every(tx: Tx) -> list[StoredPrice]:
    """All prices by key, in the order of time."""
    return [_stored(row) for row in tx.conn.execute(_ALL)]


def _stored(row: Any) -> StoredPrice:
    key = PriceKey(PriceKind(row.kind), row.pool, row.slot_type, _SPOT_OF[row.spot])
    return StoredPrice(Price(key, row.valid_from, row.nano_usd), row.set_at, row.set_by)


def lock_settlements(tx: Tx) -> int | None:
    """Wait for open transactions that write rows of the ledger; returns the end of the last row.

    A transaction that also takes the lock of stored objects takes that one first.
    """
    rows.lock(tx)
    here = cost_rows.c
    # No row is longer than a day: an index on its begin is enough.
    newest = select(func.max(here.from_at)).scalar_subquery()
    found = tx.conn.execute(select(func.max(here.to_at)).where(here.from_at >= newest - DAY_US))
    last = found.scalar()
    return None if last is None else int(last)


def put(tx: Tx, prices: Sequence[Price], now: int, actor: str) -> None:
    """Store prices; each replaces that of the same key and time."""
    here = cost_prices.c
    for one in prices:
        row = {
            "kind": one.key.kind.value,
            "pool": one.key.pool,
            "slot_type": one.key.slot_type,
            "spot": _SPOT[one.key.spot],
            "valid_from": one.valid_from,
        }
        same = [here[name] == value for name, value in row.items()]
        tx.conn.execute(cost_prices.delete().where(*same))
        said = {"nano_usd": one.nano_usd, "set_at": now, "set_by": actor}
        tx.conn.execute(cost_prices.insert(), row | said)
