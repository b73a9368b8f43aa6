"""The price table: what slots, CPU cores and storage cost, since when."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from phalanx.core.cost.prices import GB, MONTH_US, nano_of, priced
from phalanx.core.gang.placement import SlotOffer


class PriceKind(StrEnum):
    """What a price is for."""

    SLOT = "slot"  # a slot that is held for an hour
    CPU = "cpu"  # a CPU core that is held for an hour
    STORAGE = "storage"  # a gigabyte (10⁹ bytes) that is kept for 30 days
    TRANSFER = "transfer"  # a gigabyte that is uploaded to or read from a store


@dataclass(frozen=True, slots=True)
class PriceKey:
    """What a price counts for; an empty field: for all.

    Storage and transfer have no pool and no slot type: these fields hold the store, which may be the begin
    of its URL, and the direction, `upload` or `read`.
    """

    kind: PriceKind
    pool: str = ""
    slot_type: str = ""
    spot: bool | None = None  # None: for both


@dataclass(frozen=True, slots=True)
class Price:
    """A price from a time on, until the next one of the same key."""

    key: PriceKey
    valid_from: int  # microseconds UTC
    nano_usd: int  # 1e-9 US dollars a unit of its kind


@dataclass(frozen=True, slots=True)
class Held:
    """What an attempt holds, as far as it has a price."""

    pool: str
    offers: tuple[SlotOffer, ...]  # its slots; their price counts where the table has none
    num_cpus: int = 0


class PriceTable:
    """All prices with their history. The one that names most of a slot counts.

    A price for the pool goes before one for the slot type, and that before one for spot slots.
    """

    def __init__(self, prices: Iterable[Price] = ()) -> None:
        found: dict[PriceKey, list[tuple[int, int]]] = {}
        for one in sorted(prices, key=lambda price: price.valid_from):
            found.setdefault(one.key, []).append((one.valid_from, one.nano_usd))
        # The most exact keys first, so that the first price that is valid counts.
        self._histories = sorted(found.items(), key=lambda item: _unnamed(item[0]))
        self._borders = sorted({at for known in found.values() for at, _ in known})

    def borders(self, from_at: int, to_at: int) -> list[int]:
        """The times between two times at which a price begins."""
        first, last = bisect_right(self._borders, from_at), bisect_left(self._borders, to_at)
        return self._borders[first:last]

    def find(self, wanted: PriceKey, at: int) -> int | None:
        """The price of a slot or CPU core at a time; None: the table has none."""
        for key, history in self._histories:
            if _counts_for(key, wanted):
                index = bisect_right(history, (at, 2**63)) - 1
                if index >= 0:
                    return history[index][1]
        return None

    def nano_per_hour(self, held: Held, at: int) -> int:
        """The price of all that is held, for an hour at a time."""
        total = sum(one.num_slots * self._slot(held.pool, one, at) for one in held.offers)
        return total + held.num_cpus * self._cpu(held.pool, at)

    def nano_usd(self, held: Held, from_at: int, to_at: int) -> int:
        """The price of what is held for a time, split where prices change."""
        total, begin = 0, from_at
        for end in (*self.borders(from_at, to_at), to_at):
            total += priced(max(end - begin, 0), self.nano_per_hour(held, begin))
            begin = end
        return total

    def storage_nano(self, store: str, byte_us: int, at: int) -> int:
        """The price of byte-time (bytes times microseconds) in a store, at a time."""
        price = self.find(PriceKey(PriceKind.STORAGE, store), at) or 0
        return (byte_us * price + GB * MONTH_US // 2) // (GB * MONTH_US)

    def transfer_nano(self, store: str, direction: str, num_bytes: int, at: int) -> int:
        """The price of bytes that were uploaded to or read from a store, at a time."""
        price = self.find(PriceKey(PriceKind.TRANSFER, store, direction), at) or 0
        return (num_bytes * price + GB // 2) // GB

    def _slot(self, pool: str, one: SlotOffer, at: int) -> int:
        found = self.find(PriceKey(PriceKind.SLOT, pool, one.slot_type, one.spot), at)
        return nano_of(one.price) if found is None else found

    def _cpu(self, pool: str, at: int) -> int:
        return self.find(PriceKey(PriceKind.CPU, pool), at) or 0


def _unnamed(key: PriceKey) -> tuple[bool, int, bool, bool]:
    store = key.kind in (PriceKind.STORAGE, PriceKind.TRANSFER)
    # Of two stores the longer one is the more exact: a store is found by the begin of its URL.
    return (not key.pool, -len(key.pool) if store else 0, not key.slot_type, key.spot is None)


def _counts_for(key: PriceKey, wanted: PriceKey) -> bool:
    places = ["", wanted.pool]
    if key.kind in (PriceKind.STORAGE, PriceKind.TRANSFER):
        places += [key.pool] if wanted.pool.startswith(f"{key.pool.rstrip('/')}/") else []
    return (
        key.kind is wanted.kind
        and key.pool in places
        and key.slot_type in ("", wanted.slot_type)
        and key.spot in (None, wanted.spot)
    )
