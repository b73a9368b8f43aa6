"""Where the cost of the present month goes: what was used, the trend, and what is expected at its end."""

from __future__ import annotations

import calendar
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import mean, pstdev

from phalanx.core.cost.anomalies import LEAST_DAYS, WINDOW_DAYS, expectation, is_irregular
from phalanx.core.cost.ledger import DAY_US
from phalanx.core.cost.totals import Totals, added

_DAYS = 7
# Four days in five are within so many standard deviations.
_BAND = 1.2816


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


@dataclass(frozen=True, slots=True)
class DayAhead:
    """What a day will probably use, and what four such days in five use; units are those of the history."""

    amount: int
    low: int
    high: int


def days_ahead(history: Sequence[int], num_days: int) -> list[DayAhead]:
    """The days behind `history`, the use of whole days, the newest last.

    Weekdays and trend go on as in the last six weeks. Where fewer than two weeks are known, or use is
    irregular, each day is as the mean one.
    """
    first = next((index for index, used in enumerate(history) if used > 0), len(history))
    known = list(history[max(first, len(history) - WINDOW_DAYS) :])
    usual = None if is_irregular(known) else expectation(known)
    if usual is None or len(known) < LEAST_DAYS:
        amount, spread = (mean(known), pstdev(known)) if known else (0, 0)
        return [_day_ahead(amount, spread)] * num_days
    share = usual.spread / max(usual.amount, 1)
    found: list[DayAhead] = []
    for _ in range(num_days):
        # Of the day that follows what is known and what was expected so far.
        usual = expectation(known)
        amount = known[-WINDOW_DAYS // 6] if usual is None else usual.amount
        found.append(_day_ahead(amount, share * amount))
        known.append(amount)
    return found


def _day_ahead(amount: float, spread: float) -> DayAhead:
    away = _BAND * spread
    return DayAhead(round(amount), max(round(amount - away), 0), round(amount + away))
