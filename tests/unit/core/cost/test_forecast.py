"""The forecast of a month from the days before."""

from __future__ import annotations

import pytest

from phalanx.core.cost.forecast import DayAhead, days_ahead, forecast
from phalanx.core.cost.ledger import DAY_US, Account
from phalanx.core.cost.totals import Totals

pytestmark = pytest.mark.unit

# 2026-01-21, 12:00 UTC; day 0 of the month is 20454.
FIRST = 20454
NOW = (FIRST + 20) * DAY_US + DAY_US // 2


def days(amounts: dict[int, int]) -> dict[int, Totals]:
    return {
        FIRST + day: Totals({Account.PRODUCTIVE: amount, Account.QUEUED: 99}, 2 * amount)
        for day, amount in amounts.items()
    }


def test_the_last_seven_whole_days_go_on() -> None:
    found = forecast(days({day: 100 for day in range(-40, 20)} | {20: 50}), NOW)
    assert found.used.held_us == 2050
    # Ten days and a half are left of 31.
    assert (found.expected_us, found.expected_nano) == (3100, 6200)
    assert found.trend == 1.0


def test_the_trend_compares_two_weeks() -> None:
    found = forecast(days({13: 300, 19: 300, 12: 50, 6: 250, 5: 999}), NOW)
    assert found.trend == 2.0
    assert found.expected_us == 1899 + 600 * 21 // 14


def test_without_a_past_nothing_more_is_expected() -> None:
    found = forecast({}, NOW)
    assert (found.expected_us, found.trend) == (0, None)


def test_days_ahead_have_the_rhythm_and_the_trend_of_six_weeks() -> None:
    weeks = [700, 700, 700, 700, 700, 100, 100] * 6
    found = days_ahead(weeks, 9)
    assert [one.amount for one in found] == [700, 700, 700, 700, 700, 100, 100, 700, 700]
    assert all(one.low < one.amount < one.high for one in found)
    growing = days_ahead([1000 + 10 * day for day in range(42)], 10)
    assert [one.amount for one in growing] == pytest.approx(
        [1420 + 10 * day for day in range(10)], rel=0.01
    )
    assert days_ahead([], 2) == [DayAhead(0, 0, 0)] * 2
    assert days_ahead([0, 0, 4, 8], 1)[0].amount == 6
    # Irregular use goes on as its mean, with a wide band.
    bursts = days_ahead([90 if day % 3 == 0 else 0 for day in range(42)], 1)[0]
    assert (bursts.amount, bursts.low) == (30, 0) and bursts.high > 80
