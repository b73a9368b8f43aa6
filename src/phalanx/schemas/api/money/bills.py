"""Bodies about bills of cloud providers: their lines, and the comparison with the ledger."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from typing import Annotated, Literal

from pydantic import AwareDatetime, Field

from phalanx.schemas.api.body import At, RequestBody, ResponseBody

BILLED_AT_ONCE = 1000
"""Lines of one request, at most."""
_Usd = Annotated[Decimal, Field(ge=-1_000_000_000, le=1_000_000_000, decimal_places=9)]


class BillLineRequest(RequestBody):
    """One line of a bill. A line of a known id that is the same counts once; another one is refused.

    `place` is the pool of slots, or the store of storage and transfer; empty: not known. `end` is not
    included; a line for some days is divided among them evenly. Credits are negative.
    """

    id: Annotated[str, Field(min_length=1, max_length=128)]
    begin: AwareDatetime
    end: AwareDatetime
    kind: Literal["slot", "storage", "transfer", "other"]
    place: Annotated[str, Field(max_length=256)] = ""
    slot_type: Annotated[str, Field(max_length=128)] = ""  # of a transfer: upload or read
    usd: _Usd


class ImportBillRequest(RequestBody):
    """Lines of a bill in US dollars. Large bills are sent in parts; each part may be repeated."""

    lines: Annotated[list[BillLineRequest], Field(min_length=1, max_length=BILLED_AT_ONCE)]


class BillView(ResponseBody):
    """An imported bill."""

    name: str
    num_lines: int
    usd: Decimal
    imported_at: At
    imported_by: str


class ImportedBillView(ResponseBody):
    """What a part of a bill has added; `known` lines were there before, in this or another bill."""

    new: int
    known: int
    bill: BillView


class ReconciledView(ResponseBody):
    """A billed amount beside that of the ledger. `day` is null for the whole month.

    `verdict`: `matched` within the tolerance, `over` (more was billed), `under` (less was billed) or
    `unexplained` (the ledger has nothing of the kind). `quantity` is the ledger's: slot-hours, GB-months or
    moved GB.
    """

    day: date | None = None
    kind: str
    place: str = ""
    slot_type: str = ""
    billed_usd: Decimal
    ledger_usd: Decimal
    difference_usd: Decimal
    quantity: float
    verdict: str


class SuggestedPriceView(ResponseBody):
    """The price with which the ledger would have had what was billed, and the command that sets it."""

    kind: str
    place: str
    slot_type: str
    usd: Decimal
    billed_usd: Decimal
    ledger_usd: Decimal
    command: str


class ReconciliationView(ResponseBody):
    """The bills of a month (UTC) beside the ledger. The sums of the rows are the totals, exactly.

    `by_verdict` has the billed US dollars of each verdict.
    """

    month: str
    rows: list[ReconciledView]
    billed_usd: Decimal
    ledger_usd: Decimal
    by_verdict: dict[str, Decimal]
    prices: list[SuggestedPriceView]
