"""Bills of cloud providers, divided among days, and their comparison with the ledger.

All amounts are integers of 10⁻⁹ US dollars. A line that is for some days is divided among them exactly: its
parts add up to it. The comparison has every billed amount and every amount of the ledger in one row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from phalanx.core.cost.ledger import DAY_US
from phalanx.core.cost.prices import GB, HOUR_US, MONTH_US, NANO

CENT = NANO // 100
LEAST_SLOT_US = HOUR_US
"""Slot time from which a price is suggested."""
LEAST_BYTES = GB
"""Moved bytes, and bytes that were kept for a day, from which a price is suggested."""


class BilledKind(StrEnum):
    """What a line of a bill is for."""

    SLOT = "slot"  # machines: slots with their CPU cores
    STORAGE = "storage"  # kept bytes
    TRANSFER = "transfer"  # moved bytes
    OTHER = "other"  # what the ledger does not count: support, taxes, addresses


@dataclass(frozen=True, slots=True)
class BillLine:
    """One line of a bill. Two lines of one id are the same line."""

    id: str  # of the provider, or a digest of the line
    from_at: int  # microseconds UTC
    to_at: int  # not included; equal to `from_at`: a moment
    kind: BilledKind
    place: str  # the pool or the store; empty: not known
    slot_type: str  # of slots; of a transfer the direction; empty: not known
    nano_usd: int  # credits are negative


@dataclass(frozen=True, slots=True)
class BilledKey:
    """What a bill and the ledger are compared by."""

    kind: BilledKind
    place: str = ""  # the pool or the store; empty: not known
    slot_type: str = ""  # of slots; of a transfer the direction; empty: all


DayKey = tuple[int, BilledKey]
"""A day, counted from 1970, and what was billed."""


@dataclass(frozen=True, slots=True)
class LedgerAmount:
    """What the ledger has: money, and the amount that a price is multiplied with."""

    nano_usd: int = 0
    amount: int = 0  # microseconds times slots, bytes times microseconds, or moved bytes

    def plus(self, other: LedgerAmount) -> LedgerAmount:
        """The sum of both."""
        return LedgerAmount(self.nano_usd + other.nano_usd, self.amount + other.amount)


class BillVerdict(StrEnum):
    """How a billed amount compares with the ledger."""

    MATCHED = "matched"  # equal within the tolerance
    OVER = "over"  # the bill has more than the ledger
    UNDER = "under"  # the bill has less, or nothing
    UNEXPLAINED = "unexplained"  # the ledger has nothing of the kind


@dataclass(frozen=True, slots=True)
class Compared:
    """One row of a comparison."""

    day: int | None  # from 1970; None: the whole time
    key: BilledKey
    billed: int  # nano US dollars
    ledger: LedgerAmount
    verdict: BillVerdict

    @property
    def difference(self) -> int:
        """The billed money less that of the ledger."""
        return self.billed - self.ledger.nano_usd


@dataclass(frozen=True, slots=True)
class SuggestedPrice:
    """The price with which the ledger would have had what was billed."""

    key: BilledKey
    nano_usd: int  # for a slot-hour, a GB-month or a GB
    billed: int  # nano US dollars
    ledger: int  # nano US dollars


def divided(line: BillLine) -> Iterator[tuple[int, int]]:
    """A line as pairs of a day and money; a line for some time is divided evenly, and exactly."""
    whole = line.to_at - line.from_at
    if whole <= 0:
        yield line.from_at // DAY_US, line.nano_usd
        return
    done, begin = 0, line.from_at
    while begin < line.to_at:
        end = min((begin // DAY_US + 1) * DAY_US, line.to_at)
        # The part up to a time is a whole number, so the parts add up whatever they are rounded to.
        reached = line.nano_usd * (end - line.from_at) // whole
        yield begin // DAY_US, reached - done
        done, begin = reached, end


def billed_by_day(lines: Iterable[BillLine], first: int, last: int) -> dict[DayKey, int]:
    """The money of lines by day and key, of the days from `first` to `last`."""
    found: dict[DayKey, int] = {}
    for line in lines:
        key = BilledKey(line.kind, line.place, line.slot_type)
        for day, nano in divided(line):
            if first <= day <= last:
                found[day, key] = found.get((day, key), 0) + nano
    return found


def compared(
    billed: Mapping[DayKey, int],
    ledger: Mapping[DayKey, LedgerAmount],
    *,
    tolerance_percent: float,
    by_day: bool,
) -> list[Compared]:
    """Every amount of a bill beside that of the ledger, in the order of days and keys.

    Stores of the ledger are compared with the billed store that their URL begins with. Slot types are
    compared only where both sides know them; else the pool as a whole is.
    """
    stores = {key.place for _, key in billed if _is_store(key) and key.place}
    theirs = {(day, key): LedgerAmount(nano) for (day, key), nano in billed.items()}
    ours = _changed(ledger, lambda day, key: (day, _with_store(key, stores)))
    if not by_day:
        theirs, ours = (_changed(one, lambda day, key: (_ALL, key)) for one in (theirs, ours))
    unknown = {
        (day, key.kind, key.place)
        for (day, key), one in [*theirs.items(), *ours.items()]
        if not key.slot_type and (one.nano_usd or one.amount)
    }

    def coarse(day: int, key: BilledKey) -> DayKey:
        known = (day, key.kind, key.place) not in unknown
        return (day, key if known else replace(key, slot_type=""))

    theirs, ours = (_changed(one, coarse) for one in (theirs, ours))
    rows = []
    for day, key in sorted(theirs.keys() | ours.keys(), key=_order):
        money = theirs.get((day, key), LedgerAmount()).nano_usd
        mine = ours.get((day, key), LedgerAmount())
        if money or mine.nano_usd:
            verdict = _verdict(money, mine, tolerance_percent)
            rows.append(Compared(None if day == _ALL else day, key, money, mine, verdict))
    return rows


def suggested_prices(
    rows: Iterable[Compared], without: frozenset[str] = frozenset()
) -> list[SuggestedPrice]:
    """The prices that would have given what was billed, of the rows of a whole time that differ.

    `without`: pools with a price of CPU cores, of which no price of slots follows from the bill.
    """
    found = []
    for row in rows:
        if (
            row.verdict not in (BillVerdict.OVER, BillVerdict.UNDER)
            or row.billed <= 0
            or not row.key.place
        ):
            continue
        if row.key.kind is BilledKind.SLOT and row.key.place in without:
            continue
        unit, least = _UNITS[row.key.kind]
        if row.ledger.amount >= least:
            nano = (row.billed * unit + row.ledger.amount // 2) // row.ledger.amount
            found.append(SuggestedPrice(row.key, nano, row.billed, row.ledger.nano_usd))
    return found


_ALL = -1
_UNITS = {
    BilledKind.SLOT: (HOUR_US, LEAST_SLOT_US),
    BilledKind.STORAGE: (GB * MONTH_US, LEAST_BYTES * DAY_US),
    BilledKind.TRANSFER: (GB, LEAST_BYTES),
}


def _is_store(key: BilledKey) -> bool:
    return key.kind in (BilledKind.STORAGE, BilledKind.TRANSFER)


def _with_store(key: BilledKey, stores: Iterable[str]) -> BilledKey:
    """The key with the longest billed store that its URL begins with."""
    if not _is_store(key):
        return key
    above = [one for one in stores if f"{key.place}/".startswith(f"{one.rstrip('/')}/")]
    return replace(key, place=max(above, key=len)) if above else key


def _changed(
    side: Mapping[DayKey, LedgerAmount], change: Callable[[int, BilledKey], DayKey]
) -> dict[DayKey, LedgerAmount]:
    """The same amounts under other keys; those that meet are added."""
    found: dict[DayKey, LedgerAmount] = {}
    for (day, key), one in side.items():
        place = change(day, key)
        found[place] = found.get(place, LedgerAmount()).plus(one)
    return found


def _verdict(billed: int, ledger: LedgerAmount, tolerance_percent: float) -> BillVerdict:
    if billed and not ledger.nano_usd and not ledger.amount:
        return BillVerdict.UNEXPLAINED
    least = round(max(abs(billed), ledger.nano_usd) * tolerance_percent / 100)
    if abs(billed - ledger.nano_usd) <= max(least, CENT):
        return BillVerdict.MATCHED
    return BillVerdict.OVER if billed > ledger.nano_usd else BillVerdict.UNDER


def _order(place: DayKey) -> tuple[int, int, str, str]:
    day, key = place
    return (day, list(BilledKind).index(key.kind), key.place, key.slot_type)
