"""Import bills of cloud providers, and compare those of a month with the ledger."""

from __future__ import annotations

import calendar
import shlex
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Literal

from phalanx.core.cost.bills import (
    BilledKey,
    BilledKind,
    BillLine,
    Compared,
    DayKey,
    LedgerAmount,
    SuggestedPrice,
    billed_by_day,
    compared,
    suggested_prices,
)
from phalanx.core.cost.ledger import DAY_US
from phalanx.core.cost.price_table import PriceKey, PriceKind, PriceTable
from phalanx.core.cost.prices import GB, HOUR_US, MONTH_US, NANO
from phalanx.core.cost.totals import usd_of
from phalanx.errors import Conflict, UserError
from phalanx.schemas.api.body import at_of
from phalanx.schemas.api.money.bills import (
    BillLineRequest,
    BillView,
    ImportedBillView,
    ReconciledView,
    ReconciliationView,
    SuggestedPriceView,
)
from phalanx.services.ledger.settle import live_rows
from phalanx.services.ledger.storage import accrued
from phalanx.services.platform import Platform
from phalanx.store.cost import bills, prices
from phalanx.store.cost.bills import StoredBill
from phalanx.store.database import Tx
from phalanx.store.storage import days, objects
from phalanx.store.tenancy import audit

MOST_ROWS = 20_000
_UNITS = {
    BilledKind.SLOT: HOUR_US,
    BilledKind.STORAGE: GB * MONTH_US,
    BilledKind.TRANSFER: GB,
    BilledKind.OTHER: 1,
}


def import_lines(
    platform: Platform, name: str, wanted: Sequence[BillLineRequest], now: int, *, actor: str
) -> ImportedBillView:
    """Add lines to a bill, all or none; those that are known already change nothing.

    Raises UserError for a line that ends before it begins, and Conflict for another line of a known id.
    """
    lines: dict[str, BillLine] = {}
    for request in wanted:
        one = _line(request)
        if lines.setdefault(one.id, one) != one:
            raise Conflict(f"two different lines have the id {one.id!r}", _REPLACE)

    def work(tx: Tx) -> ImportedBillView:
        bills.lock_bills(tx)
        known = bills.known_lines(tx, list(lines))
        for id, stored in known.items():
            if stored != lines[id]:
                raise Conflict(f"another line with the id {id!r} is stored already", _REPLACE)
        new = [one for id, one in lines.items() if id not in known]
        bill = bills.add_lines(tx, StoredBill(name, 0, 0, now, actor), new)
        money = str(usd_of(sum(one.nano_usd for one in new)))
        audit.describe(tx, f"bill {name}", None, {"new_lines": len(new), "usd": money})
        return ImportedBillView(new=len(new), known=len(known), bill=_bill_view(bill))

    return platform.store.transact(work)


_REPLACE = "a corrected bill replaces the old one: `phalanx cost import --replace`"


def _line(request: BillLineRequest) -> BillLine:
    begin, end = (round(at.timestamp() * 1_000_000) for at in (request.begin, request.end))
    if not 0 <= begin <= end or end - begin > 400 * DAY_US:
        said = "a line must not end before it begins, nor be for more than 400 days"
        raise UserError(f"line {request.id!r}: {said}", "look at its begin and end")
    kind = BilledKind(request.kind)
    nano = int(request.usd * NANO)
    return BillLine(request.id, begin, end, kind, request.place, request.slot_type, nano)


def list_bills(platform: Platform) -> list[BillView]:
    """All imported bills, by name."""
    return [_bill_view(one) for one in platform.store.view(bills.every_bill)]


def remove_bill(platform: Platform, name: str) -> None:
    """Remove a bill with its lines. Raises NotFound."""

    def work(tx: Tx) -> None:
        bills.lock_bills(tx)
        before = bills.remove_bill(tx, name)
        said = {"num_lines": before.num_lines, "usd": str(usd_of(before.nano_usd))}
        audit.describe(tx, f"bill {name}", said, None)

    platform.store.transact(work)


def _bill_view(one: StoredBill) -> BillView:
    return BillView(
        name=one.name,
        num_lines=one.num_lines,
        usd=usd_of(one.nano_usd),
        imported_at=at_of(one.imported_at),
        imported_by=one.imported_by,
    )


def reconcile(
    platform: Platform,
    month: str,
    now: int,
    *,
    by: Literal["day", "month"],
    tolerance_percent: float,
) -> ReconciliationView:
    """Compare all bills of a month (`2026-11`, UTC) with the ledger, live jobs included.

    Raises UserError for what is no month, and for more rows than an answer can have.
    """
    begin, end = _bounds(month)
    first, last = begin // DAY_US, end // DAY_US - 1

    def work(tx: Tx) -> tuple[list[Compared], list[SuggestedPrice]]:
        billed = billed_by_day(bills.lines_between(tx, begin, end), first, last)
        table = prices.table(tx)
        ledger = _ledger(platform, tx, table, begin, min(end, now))
        rows = compared(billed, ledger, tolerance_percent=tolerance_percent, by_day=by == "day")
        whole = compared(billed, ledger, tolerance_percent=tolerance_percent, by_day=False)
        return rows, suggested_prices(whole, _with_cpu_price(table, whole, end - 1))

    rows, suggested = platform.store.view(work)
    if len(rows) > MOST_ROWS:
        raise UserError(f"the comparison has {len(rows)} rows", "ask for it by month")
    verdicts: dict[str, int] = {}
    for row in rows:
        verdicts[row.verdict.value] = verdicts.get(row.verdict.value, 0) + row.billed
    return ReconciliationView(
        month=month,
        rows=[_row_view(one) for one in rows],
        billed_usd=usd_of(sum(one.billed for one in rows)),
        ledger_usd=usd_of(sum(one.ledger.nano_usd for one in rows)),
        by_verdict={name: usd_of(nano) for name, nano in verdicts.items()},
        prices=[_price_view(one) for one in suggested],
    )


def _bounds(month: str) -> tuple[int, int]:
    try:
        at = datetime.strptime(month, "%Y-%m").replace(tzinfo=UTC)
        if not 1970 <= at.year < 2100:
            raise ValueError
    except ValueError:
        raise UserError(f"{month!r} is no month", "write one such as 2026-11") from None
    begin = int(at.timestamp()) * 1_000_000
    return begin, begin + calendar.monthrange(at.year, at.month)[1] * DAY_US


def _ledger(
    platform: Platform, tx: Tx, table: PriceTable, begin: int, end: int
) -> Mapping[DayKey, LedgerAmount]:
    """What the ledger has in a time, up to now."""
    found = bills.slots_by_day(tx, begin, end)

    def put(day: int, key: BilledKey, nano: int, amount: int) -> None:
        if nano or amount:
            before = found.get((day, key), LedgerAmount())
            found[day, key] = before.plus(LedgerAmount(nano, amount))

    for rows in live_rows(tx, platform.scheduler_cache.rows.holding(tx), end).values():
        for row in rows:
            if begin <= row.row.from_at < end:
                key = BilledKey(BilledKind.SLOT, row.pool, row.slot_type)
                put(row.row.from_at // DAY_US, key, row.nano_usd, row.row.total)
    stored = list(days.by_store(tx, begin // DAY_US, (end - 1) // DAY_US))
    settled = max(objects.settled_to(tx) or objects.first_begin(tx) or end, begin)
    fresh = accrued(tx, table, settled, end) if settled < end else {}
    for day, store, one in [
        *stored,
        *((day, group[2], one) for (day, group), one in fresh.items()),
    ]:
        put(day, BilledKey(BilledKind.STORAGE, store), one.storage_nano, one.byte_us)
        moved = one.uploaded_bytes + one.read_bytes
        put(day, BilledKey(BilledKind.TRANSFER, store), one.transfer_nano, moved)
    return found


def _with_cpu_price(table: PriceTable, rows: Sequence[Compared], at: int) -> frozenset[str]:
    """The pools with a price of CPU cores."""
    pools = {row.key.place for row in rows if row.key.kind is BilledKind.SLOT}
    return frozenset(pool for pool in pools if table.find(PriceKey(PriceKind.CPU, pool), at))


def _row_view(one: Compared) -> ReconciledView:
    return ReconciledView(
        day=None if one.day is None else _date(one.day),
        kind=one.key.kind.value,
        place=one.key.place,
        slot_type=one.key.slot_type,
        billed_usd=usd_of(one.billed),
        ledger_usd=usd_of(one.ledger.nano_usd),
        difference_usd=usd_of(one.difference),
        quantity=one.ledger.amount / _UNITS[one.key.kind],
        verdict=one.verdict.value,
    )


def _date(day: int) -> date:
    return at_of(day * DAY_US).date()


def _price_view(one: SuggestedPrice) -> SuggestedPriceView:
    usd = _rounded(usd_of(one.nano_usd))
    words = ["phalanx", "prices", "set", one.key.kind.value, f"{usd:f}"]
    is_slot = one.key.kind is BilledKind.SLOT
    words += ["--pool" if is_slot else "--store", one.key.place]
    if one.key.slot_type:
        words += ["--slot-type" if is_slot else "--direction", one.key.slot_type]
    return SuggestedPriceView(
        kind=one.key.kind.value,
        place=one.key.place,
        slot_type=one.key.slot_type,
        usd=usd,
        billed_usd=usd_of(one.billed),
        ledger_usd=usd_of(one.ledger),
        command=shlex.join(words),
    )


def _rounded(usd: Decimal) -> Decimal:
    """A price with six digits behind the point: a bill is no evidence of more."""
    return usd.quantize(Decimal("0.000001")).normalize() + Decimal(0)
