"""The forecast of a month from the days before."""

from __future__ import annotations

import pytest

from phalanx.core.cost.forecast import forecast
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
