"""Burn rates: pairs of windows that can fire, and how much of a budget each pair stands for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.alerts.conditions import DAY_S, Reading, burns, promql, readings
from phalanx.core.slo.burn import BURN_WINDOWS, windows_for


def test_pairs_spend_the_part_of_a_budget_of_thirty_days_that_the_workbook_names() -> None:
    spent = [one.burn * one.long_s / (30 * DAY_S) for one in BURN_WINDOWS]
    assert [round(share, 4) for share in spent] == [0.02, 0.05, 0.1, 0.1]
    assert all(one.short_s * 12 == one.long_s for one in BURN_WINDOWS)


@pytest.mark.parametrize(
    ("target", "burning"), [(0.999, [14.4, 6.0]), (0.9, [6.0]), (0.8, []), (0.93, [6.0])]
)
def test_a_pair_that_cannot_fire_is_left_out(target: float, burning: list[float]) -> None:
    assert [one.burn for one in windows_for(target, pages=True)] == burning


@given(st.floats(0.0, 1.0), st.booleans())
def test_a_pair_is_there_exactly_if_all_bad_events_exceed_it(target: float, pages: bool) -> None:
    kept = windows_for(target, pages=pages)
    for one in BURN_WINDOWS:
        if one.pages is pages:
            assert (one in kept) == (one.burn * (1.0 - target) < 1.0)


def test_an_objective_without_pairs_has_no_condition() -> None:
    def count(window_s: int) -> Reading:
        return Reading("phalanx_jobs_ended_total", window_s=window_s)

    assert burns(count, count, 0.5, pages=True) is None
    found = burns(count, count, 0.99, pages=False)
    assert found is not None
    assert {one.window_s for one in readings(found)} == {7200, 86400, 21600, 259200}
    assert " or " in promql(found)
