"""Prices as integers of a billionth of a US dollar: sums do not depend on their order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from decimal import ROUND_HALF_EVEN, Decimal

from phalanx.core.gang.placement import Node, Placement, SlotOffer

NANO = 1_000_000_000
HOUR_US = 3600 * 1_000_000
GB = 1_000_000_000
MONTH_US = 30 * 24 * HOUR_US
"""The month of prices of storage: 30 days."""


def nano_of(price: str) -> int:
    """A decimal price in nano US dollars; 0 for an unknown one."""
    if not price:
        return 0
    return int((Decimal(price) * NANO).to_integral_value(rounding=ROUND_HALF_EVEN))


def priced(slot_us: int, nano_per_hour: int) -> int:
    """The price of slot time (microseconds times slots), rounded to the nearest nano US dollar."""
    return (slot_us * nano_per_hour + HOUR_US // 2) // HOUR_US


def offers_of(placement: Placement, nodes: Mapping[str, Node]) -> tuple[SlotOffer, ...]:
    """The kinds of slots of a placement, with their prices; nodes that are not known offer none."""
    counts: dict[SlotOffer, int] = {}
    for share in placement.shares:
        node = nodes.get(share.node)
        if node is not None:
            kind = offer_of(node, 0)
            counts[kind] = counts.get(kind, 0) + len(share.slots)
    return tuple(replace(kind, num_slots=count) for kind, count in counts.items())


def offer_of(node: Node, slots: int) -> SlotOffer:
    """Some slots of a node, with the price that its pool file says."""
    price = node.price_per_slot_hour
    text = format(Decimal(str(price)), "f") if price else ""
    return SlotOffer(slots, node.slot_type, node.hazard_per_hour > 0, text)
