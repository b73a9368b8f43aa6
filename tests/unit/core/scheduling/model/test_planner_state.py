"""Past usage decays by half in a half-life, whatever the steps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.scheduling.model.planner_state import decayed_average

pytestmark = pytest.mark.unit

SLOTS = st.floats(0.0, 1e4)
SECONDS = st.floats(0.0, 1e6)


def test_half_is_left_after_a_half_life() -> None:
    assert decayed_average(8.0, 0.0, 3600.0, 3600.0) == 4.0
    assert decayed_average(0.0, 8.0, 3600.0, 3600.0) == 4.0


def test_a_clock_that_goes_back_changes_nothing() -> None:
    assert decayed_average(8.0, 2.0, -5.0, 3600.0) == 8.0


@given(SLOTS, SLOTS, SECONDS, SECONDS)
def test_two_steps_are_one(average: float, held: float, first_s: float, then_s: float) -> None:
    half_life_s = 86_400.0
    halfway = decayed_average(average, held, first_s, half_life_s)
    assert decayed_average(halfway, held, then_s, half_life_s) == pytest.approx(
        decayed_average(average, held, first_s + then_s, half_life_s), abs=1e-6
    )
