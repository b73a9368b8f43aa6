"""Past usage decays by half in a half-life, whatever the steps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.scheduling.model.planner_state import (
    Usage,
    changed_usage,
    decayed_average,
    past_slots,
)

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


def test_usage_is_written_where_the_slots_held_have_changed() -> None:
    first = changed_usage({}, {"a": 4, "b": 2}, 3600.0, 0)
    assert first == {"a": Usage("a", 0.0, 4, 0), "b": Usage("b", 0.0, 2, 0)}
    hour = 3600 * 1_000_000
    then = changed_usage(first, {"a": 4}, 3600.0, hour)
    assert then == {"b": Usage("b", 1.0, 0, hour)}
    assert past_slots(first["a"], 3600.0, hour) == 2.0
    assert past_slots(None, 3600.0, hour) == 0.0
