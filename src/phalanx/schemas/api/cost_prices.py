"""Bodies about the price table."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Literal

from pydantic import AwareDatetime, Field

from phalanx.schemas.api.body import At, RequestBody, ResponseBody

PricedKind = Literal["slot", "cpu"]
"""What has a price: a slot, or a CPU core."""
UNITS: dict[str, str] = {"slot": "slot-hour", "cpu": "core-hour"}
_Name = Annotated[str, Field(max_length=128)]
# 1e-9 US dollars is the smallest amount; a day of 30,000 slots at the highest price fits 64 bits.
Usd = Annotated[Decimal, Field(ge=0, le=10_000, decimal_places=9)]


class PriceRequest(RequestBody):
    """A price in US dollars for a slot or a CPU core, and an hour. An empty field: for all.

    It counts from `valid_from` on (null: now) until the next one of its kind, pool, slot type and spot.
    """

    kind: PricedKind = "slot"
    pool: _Name = ""
    slot_type: _Name = ""
    spot: bool | None = None  # null: for both
    usd: Usd
    valid_from: AwareDatetime | None = None


class SetPricesRequest(RequestBody):
    """Prices to store, all or none; those that are stored already change nothing."""

    prices: Annotated[list[PriceRequest], Field(min_length=1, max_length=2000)]


class PriceView(ResponseBody):
    """A price, what it is for, and its author."""

    kind: str
    pool: str
    slot_type: str
    spot: bool | None
    usd: Decimal
    unit: str
    valid_from: At
    set_at: At
    set_by: str
