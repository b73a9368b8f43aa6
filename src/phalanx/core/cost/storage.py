"""What kept bytes and transfers cost: byte-time as exact integers, and money from the price table.

A stored object is kept from one time to another. Its byte-time in times that follow one another adds up to
that of the whole time, so the sums by day, by store and by job are of the same integers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Context, Decimal
from enum import StrEnum

from phalanx.core.cost.ledger import DAY_US
from phalanx.core.cost.price_table import PriceTable
from phalanx.core.cost.prices import GB, MONTH_US

NODES = "nodes"
"""The store of checkpoints in folders of the nodes."""
LOGS = "logs"
"""The store of the output that the control plane keeps."""
_DIGITS = Context(prec=18)


class ObjectKind(StrEnum):
    """What a stored object is."""

    NEAR = "near"  # a checkpoint in a folder of the nodes
    REMOTE = "remote"  # a checkpoint in an object store: it was uploaded when it began to be kept
    LOGS = "logs"  # the stored output of a job
    READ = "read"  # bytes that a restore has read from an object store; nothing is kept


@dataclass(frozen=True, slots=True)
class StoredObject:
    """Some bytes of a job in a store, from one time to another."""

    store: str
    kind: ObjectKind
    size_bytes: int
    from_at: int  # microseconds UTC
    to_at: int | None = None  # None: it is kept

    def byte_us(self, begin: int, end: int) -> int:
        """Bytes times microseconds between two times."""
        if self.kind is ObjectKind.READ:
            return 0
        last = end if self.to_at is None else min(self.to_at, end)
        return self.size_bytes * max(last - max(self.from_at, begin), 0)


@dataclass(frozen=True, slots=True)
class StorageTotals:
    """Kept and moved bytes with their money in nano US dollars."""

    byte_us: int = 0  # bytes times microseconds
    kept_bytes: int = 0  # at present
    uploaded_bytes: int = 0
    read_bytes: int = 0
    storage_nano: int = 0
    transfer_nano: int = 0

    def plus(self, other: StorageTotals) -> StorageTotals:
        """The sum of both."""
        return StorageTotals(
            self.byte_us + other.byte_us,
            self.kept_bytes + other.kept_bytes,
            self.uploaded_bytes + other.uploaded_bytes,
            self.read_bytes + other.read_bytes,
            self.storage_nano + other.storage_nano,
            self.transfer_nano + other.transfer_nano,
        )

    @property
    def gb_months(self) -> Decimal:
        """The byte-time in gigabytes (10⁹) times months of 30 days."""
        return _DIGITS.divide(Decimal(self.byte_us), Decimal(GB * MONTH_US))


def storage_added(parts: Iterable[StorageTotals]) -> StorageTotals:
    """The sum of totals."""
    total = StorageTotals()
    for one in parts:
        total = total.plus(one)
    return total


def windows(table: PriceTable, begin: int, end: int) -> list[tuple[int, int]]:
    """A time, divided where a day begins or a price changes: each part has one price and one day."""
    days = range((begin // DAY_US + 1) * DAY_US, end, DAY_US)
    cuts = sorted({begin, *days, *table.borders(begin, end)})
    return [(one, other) for one, other in zip(cuts, [*cuts[1:], end], strict=True) if other > one]


def kept_totals(table: PriceTable, store: str, byte_us: int, at: int) -> StorageTotals:
    """Byte-time in a store with its money; `at` is a time in it, of the price that counts."""
    return StorageTotals(byte_us=byte_us, storage_nano=table.storage_nano(store, byte_us, at))


def moved_totals(table: PriceTable, one: StoredObject) -> StorageTotals:
    """What an object has moved between nodes and store, with its money."""
    if one.kind is ObjectKind.REMOTE:
        nano = table.transfer_nano(one.store, "upload", one.size_bytes, one.from_at)
        return StorageTotals(uploaded_bytes=one.size_bytes, transfer_nano=nano)
    if one.kind is ObjectKind.READ:
        nano = table.transfer_nano(one.store, "read", one.size_bytes, one.from_at)
        return StorageTotals(read_bytes=one.size_bytes, transfer_nano=nano)
    return StorageTotals()


def totals_of_objects(
    objects: Iterable[StoredObject], table: PriceTable, now: int
) -> StorageTotals:
    """What objects have cost up to now, as for a job."""
    total = StorageTotals()
    for one in objects:
        end = now if one.to_at is None else min(one.to_at, now)
        for begin, last in windows(table, one.from_at, end):
            total = total.plus(kept_totals(table, one.store, one.byte_us(begin, last), begin))
        if one.from_at < now:
            total = total.plus(moved_totals(table, one))
        if one.to_at is None:
            total = total.plus(StorageTotals(kept_bytes=one.size_bytes))
    return total
