"""Speeds of elastic jobs from measured rates."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from phalanx.core.scheduling.model.scaling import SCALING, speed_curve

pytestmark = pytest.mark.unit


def test_one_size_says_nothing_about_scaling():
    assert speed_curve({}, 4) == speed_curve({2: 5.0}, 4) == ()


def test_measured_sizes_are_met_and_others_lie_between():
    curve = speed_curve({1: 10.0, 4: 20.0}, 4)
    assert curve == (1.0, 1.41, 1.73, 2.0)


def test_a_job_that_does_not_scale_is_not_assumed_to_scale_beyond():
    curve = speed_curve({1: 10.0, 2: 10.5}, 8)
    assert curve[-1] < 1.3


def test_a_job_that_scales_too_well_is_not_trusted_beyond_what_was_seen():
    curve = speed_curve({2: 10.0, 4: 30.0}, 8)
    assert curve[7] / curve[3] == pytest.approx(2**SCALING, rel=0.01)
    assert curve[3] / curve[1] == pytest.approx(3.0, rel=0.01)


@given(
    st.dictionaries(st.integers(1, 64), st.floats(1e-3, 1e3), max_size=6),
    st.integers(1, 64),
)
@example({34: 342.0, 35: 1.0}, 64)  # a drop between neighbours says little about one node
@example({34: 327.0, 35: 1.0}, 1)
def test_a_curve_has_every_size_and_only_positive_speeds(measured, most):
    curve = speed_curve(measured, most)
    assert len(curve) in (0, most)
    assert all(0 < one < float("inf") for one in curve)
