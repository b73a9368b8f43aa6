"""Sums of the ledger: slot time by account, and money."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal

from phalanx.core.cost.ledger import WASTED, Account
from phalanx.core.cost.prices import NANO


@dataclass(frozen=True, slots=True)
class Totals:
    """Slot time in microseconds times slots by account, and nano US dollars."""

    slot_us: Mapping[Account, int] = field(default_factory=dict)
    nano_usd: int = 0

    @property
    def held_us(self) -> int:
        """Slot time in which slots were held: all accounts but the wait in the queue."""
        return sum(amount for one, amount in self.slot_us.items() if one is not Account.QUEUED)

    @property
    def wasted_us(self) -> int:
        """Slot time that interruptions have cost."""
        return sum(self.slot_us.get(one, 0) for one in WASTED)

    @property
    def usd(self) -> Decimal:
        """The money in US dollars."""
        return usd_of(self.nano_usd)


def usd_of(nano: int) -> Decimal:
    """Nano US dollars in US dollars, exactly."""
    return (Decimal(nano) / NANO).normalize() + Decimal(0)


def added(parts: Iterable[Totals]) -> Totals:
    """The sum of totals."""
    slot_us: dict[Account, int] = {}
    nano_usd = 0
    for one in parts:
        nano_usd += one.nano_usd
        for account, amount in one.slot_us.items():
            slot_us[account] = slot_us.get(account, 0) + amount
    return Totals(slot_us, nano_usd)
