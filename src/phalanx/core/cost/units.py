"""What a job has cost for each epoch, step, sample and token, from what it reported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Context, Decimal
from enum import StrEnum

from phalanx.core.cost.ledger import Account
from phalanx.core.cost.totals import Totals, usd_of

TOKEN_COUNTS = (
    "tokens",
    "num_tokens",
    "total_tokens",
    "tokens_seen",
    "num_input_tokens_seen",
    "num_tokens_seen",
)
"""Metrics that are a number of tokens so far, over all ranks; the first one that a job has counts."""
TOKEN_RATES = ("tokens_per_s", "tokens_per_sec", "tokens_per_second")
"""Metrics that are tokens per second, over all ranks."""
_US = 1_000_000
_DIGITS = Context(prec=15)


class CostUnit(StrEnum):
    """What a job makes."""

    EPOCH = "epoch"
    STEP = "step"
    SAMPLE = "sample"
    TOKEN = "token"


@dataclass(frozen=True, slots=True)
class MadeUnits:
    """What a job has made, without what it made twice; None: it was not reported."""

    epochs: float | None = None
    steps: float | None = None
    samples: float | None = None
    tokens: float | None = None
    tokens_estimated: bool = False  # from a rate instead of a count


@dataclass(frozen=True, slots=True)
class UnitCost:
    """The whole cost of a job, interruptions included, over the number of units that it made."""

    unit: CostUnit
    count: float
    slot_s: float  # slot-seconds for each
    usd: Decimal | None  # for each; None: no slot had a price
    estimated: bool  # the count is an estimate


def tokens_of(metrics: Mapping[str, float], used: Totals, num_slots: int) -> tuple[float, bool]:
    """The tokens of a job and whether they are an estimate; 0 where no metric tells them."""
    for name in TOKEN_COUNTS:
        if metrics.get(name, 0) > 0:
            return metrics[name], False
    trained_s = used.slot_us.get(Account.PRODUCTIVE, 0) / _US / max(num_slots, 1)
    for name in TOKEN_RATES:
        if metrics.get(name, 0) > 0:
            return metrics[name] * trained_s, True
    return 0.0, False


def unit_costs(used: Totals, made: MadeUnits) -> list[UnitCost]:
    """The cost of each unit that was reported; units of which none is complete are left out."""
    counts = {
        CostUnit.EPOCH: made.epochs,
        CostUnit.STEP: made.steps,
        CostUnit.SAMPLE: made.samples,
        CostUnit.TOKEN: made.tokens,
    }
    return [
        UnitCost(
            unit,
            count,
            used.held_us / _US / count,
            _DIGITS.divide(usd_of(used.nano_usd), Decimal(count)) if used.nano_usd else None,
            unit is CostUnit.TOKEN and made.tokens_estimated,
        )
        for unit, count in counts.items()
        if count and used.held_us
    ]
