"""Bodies about the price table."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Literal, Self

from pydantic import AwareDatetime, Field, model_validator

from phalanx.schemas.api.body import At, RequestBody, ResponseBody

PricedKind = Literal["slot", "cpu", "storage", "transfer"]
"""What has a price: a slot or a CPU core that is held, bytes that are kept, bytes that are moved."""
UNITS: dict[str, str] = {
    "slot": "slot-hour",
    "cpu": "core-hour",
    "storage": "GB-month",
    "transfer": "GB",
}
_Name = Annotated[str, Field(max_length=128)]
_Store = Annotated[str, Field(max_length=128)]
# 1e-9 US dollars is the smallest amount; a day of 30,000 slots at the highest price fits 64 bits.
Usd = Annotated[Decimal, Field(ge=0, le=10_000, decimal_places=9)]


class PriceRequest(RequestBody):
    """A price in US dollars for a slot, a CPU core, storage or transfer. An empty field: for all.

    Slots and CPU cores: for an hour. Storage: for a gigabyte (10⁹ bytes) kept in `store` for 30 days.
    Transfer: for a gigabyte that is uploaded to it or read from it. `store` is `nodes` (folders of the
    nodes), `logs`, or the begin of a URL.
    It counts from `valid_from` on (null: now) until the next one of its kind, pool, slot type and spot.
    """

    kind: PricedKind = "slot"
    pool: _Name = ""
    slot_type: _Name = ""
    spot: bool | None = None  # null: for both
    store: _Store = ""
    direction: Literal["", "upload", "read"] = ""  # of a transfer
    usd: Usd
    valid_from: AwareDatetime | None = None

    @model_validator(mode="after")
    def _direction_of_transfers(self) -> Self:
        if self.direction and self.kind != "transfer":
            raise ValueError("direction: only a price of transfer has one")
        return self


class SetPricesRequest(RequestBody):
    """Prices to store, all or none; those that are stored already change nothing."""

    prices: Annotated[list[PriceRequest], Field(min_length=1, max_length=2000)]


class PriceView(ResponseBody):
    """A price, what it is for, and its author."""

    kind: str
    pool: str
    slot_type: str
    spot: bool | None
    store: str = ""
    direction: str = ""
    usd: Decimal
    unit: str
    valid_from: At
    set_at: At
    set_by: str
