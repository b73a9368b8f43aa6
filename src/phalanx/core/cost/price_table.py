"""The price table: what slots, CPU cores and storage cost, since when."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from phalanx.core.cost.prices import nano_of, priced
from phalanx.core.gang.placement import SlotOffer


class PriceKind(StrEnum):
    """What a price is for."""

    SLOT = "slot"  # a slot that is held for an hour
    CPU = "cpu"  # a CPU core that is held for an hour


@dataclass(frozen=True, slots=True)
class PriceKey:
    """What a price counts for; an empty field: for all."""

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
        first, last = bisect_right(self._borders, from_at), bisect_left(self._borders, to_at)
        total, begin = 0, from_at
        for end in (*self._borders[first:last], to_at):
            total += priced(max(end - begin, 0), self.nano_per_hour(held, begin))
            begin = end
        return total

    def _slot(self, pool: str, one: SlotOffer, at: int) -> int:
        found = self.find(PriceKey(PriceKind.SLOT, pool, one.slot_type, one.spot), at)
        return nano_of(one.price) if found is None else found

    def _cpu(self, pool: str, at: int) -> int:
        return self.find(PriceKey(PriceKind.CPU, pool), at) or 0


def _unnamed(key: PriceKey) -> tuple[bool, bool, bool]:
    return (not key.pool, not key.slot_type, key.spot is None)


def _counts_for(key: PriceKey, wanted: PriceKey) -> bool:
    return (
        key.kind is wanted.kind
        and key.pool in ("", wanted.pool)
        and key.slot_type in ("", wanted.slot_type)
        and key.spot in (None, wanted.spot)
    )
