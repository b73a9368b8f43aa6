"""Where the cost of the present month goes: what was used, the trend, and what is expected at its end."""

from __future__ import annotations

import calendar
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from phalanx.core.cost.ledger import DAY_US
from phalanx.core.cost.totals import Totals, added

_DAYS = 7


@dataclass(frozen=True, slots=True)
class Forecast:
    """Slot time (microseconds times slots) and nano US dollars of a month, UTC."""

    used: Totals
    expected_us: int  # of the whole month
    expected_nano: int
    trend: (
        float | None
    )  # the last seven whole days over the seven before; None: nothing was used then


def forecast(days: Mapping[int, Totals], now: int) -> Forecast:
    """The forecast from totals by day, counted from 1970: the last whole days go on as they were."""
    at = datetime.fromtimestamp(now // 1_000_000, UTC)
    today = now // DAY_US
    first = today - at.day + 1
    used = added(one for day, one in days.items() if first <= day <= today)
    last = added(one for day, one in days.items() if today - _DAYS <= day < today)
    before = added(one for day, one in days.items() if today - 2 * _DAYS <= day < today - _DAYS)
    end = first + calendar.monthrange(at.year, at.month)[1]
    left_us = end * DAY_US - now
    return Forecast(
        used,
        used.held_us + last.held_us * left_us // (_DAYS * DAY_US),
        used.nano_usd + last.nano_usd * left_us // (_DAYS * DAY_US),
        last.held_us / before.held_us if before.held_us else None,
    )
