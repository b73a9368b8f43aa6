"""Roll-ups say the same as the samples that they were made of, in whatever order those came."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.curves import rollups
from phalanx.core.curves.columns import NO_SAMPLES, Samples, joined

pytestmark = pytest.mark.unit
VALUES = st.floats(-1e6, 1e6) | st.just(math.nan) | st.sampled_from([math.inf, -math.inf])


def samples(pairs: list[tuple[int, float]]) -> Samples:
    steps = np.array([step for step, _ in pairs], np.int64)
    values = np.array([value for _, value in pairs], np.float64)
    return Samples(steps, values, steps * 10)


def height(value: float) -> float:
    return value if math.isfinite(value) else math.inf


@given(st.lists(st.tuples(st.integers(0, 200), VALUES), max_size=200), st.integers(1, 64))
def test_intervals_say_the_same_as_their_samples(
    pairs: list[tuple[int, float]], width: int
) -> None:
    newest = dict(pairs)
    found = rollups.by_step(rollups.intervals_of(samples(pairs).newest()), width)
    numbers = sorted({step // width for step in newest})
    assert (found["last_step"] // width).tolist() == numbers
    for one, number in zip(found, numbers, strict=True):
        mine = {step: value for step, value in sorted(newest.items()) if step // width == number}
        finite = [value for value in mine.values() if math.isfinite(value)]
        assert (one["count"], one["finite"]) == (len(mine), len(finite))
        assert one["sum"] == pytest.approx(sum(finite), abs=1e-6)
        assert (one["first_step"], one["last_step"]) == (min(mine), max(mine))
        assert repr(float(one["last"])) == repr(mine[max(mine)])
        assert height(float(one["low"])) == min(map(height, mine.values()))
        assert height(float(one["high"])) == max(map(height, mine.values()))
        assert repr(float(one["high"])) == repr(mine[int(one["high_step"])])
        assert one["low_time"] == 10 * one["low_step"]


@given(
    st.lists(st.tuples(st.integers(-200, 200), VALUES), min_size=1, max_size=200),
    st.integers(1, 64),
)
def test_the_quick_way_to_intervals_is_the_same(pairs: list[tuple[int, float]], width: int) -> None:
    whole = samples(pairs).newest()
    found = rollups.intervals_by_step(whole, width)
    wanted = rollups.by_step(rollups.intervals_of(whole), width)
    assert np.allclose(found["sum"], wanted["sum"])
    for one in (found, wanted):
        one["sum"] = 0.0
    assert rollups.pack_intervals(found) == rollups.pack_intervals(wanted)


@given(
    st.lists(st.tuples(st.integers(0, 300), VALUES), min_size=1, max_size=120),
    st.lists(st.tuples(st.integers(0, 300), VALUES), min_size=1, max_size=60),
)
def test_newer_samples_change_only_what_they_replace(
    before: list[tuple[int, float]], after: list[tuple[int, float]]
) -> None:
    """As a restart does: some steps come again, and the result is that of all samples at once."""
    old, new, width = samples(before).newest(), samples(after).newest(), 8
    known = rollups.by_step(rollups.intervals_of(old), width)
    renewed = rollups.renewed(known, new, width, int(old.steps[-1]), old.between)
    found = rollups.replaced(known, renewed, width)
    whole = rollups.by_step(rollups.intervals_of(joined([old, new]).newest()), width)
    # A sum of parts differs by rounding.
    assert np.allclose(found["sum"], whole["sum"])
    for one in (found, whole):
        one["sum"] = 0.0
    assert rollups.pack_intervals(found) == rollups.pack_intervals(whole)


@given(st.lists(VALUES, max_size=300), st.integers(4, 60), st.booleans())
def test_thinning_keeps_ends_and_extremes(values: list[float], most: int, by_level: bool) -> None:
    whole = samples(list(enumerate(values)))
    if by_level and len(whole) > most:
        kept = rollups.narrowed(rollups.intervals_of(whole), 1, most)
    else:
        kept = rollups.thinned(whole, most)
    assert len(kept) <= most or len(whole) <= most
    assert (np.diff(kept.steps) > 0).all()
    if values:
        assert (kept.steps[0], kept.steps[-1]) == (0, len(values) - 1)
    finite = [value for value in values if math.isfinite(value)]
    if finite and len(finite) == len(values):
        assert kept.values.max() == max(finite) and kept.values.min() == min(finite)
    if len(finite) < len(values):
        assert not np.isfinite(kept.values).all()


@given(st.lists(st.tuples(st.integers(0, 10**6), VALUES), max_size=50))
def test_short_series_and_pages_come_back(pairs: list[tuple[int, float]]) -> None:
    one = samples(pairs).newest()
    again = rollups.unpack_samples(rollups.pack_samples(one))
    assert again.steps.tolist() == one.steps.tolist()
    assert np.array_equal(again.values, one.values, equal_nan=True)
    page = rollups.intervals_of(one)
    assert rollups.pack_intervals(rollups.unpack_intervals(rollups.pack_intervals(page))) == (
        rollups.pack_intervals(page)
    )


def test_bytes_of_another_length_are_refused() -> None:
    with pytest.raises(ValueError, match="short series"):
        rollups.unpack_samples(b"\0" * 23)
    with pytest.raises(ValueError, match="page of roll-ups"):
        rollups.unpack_intervals(b"\0" * (1025 * rollups.INTERVAL.itemsize))


def test_the_stride_is_the_usual_distance_of_steps() -> None:
    assert rollups.stride_of(NO_SAMPLES) == 1
    assert rollups.stride_of(samples([(1000, 0.0)])) == 1000
    assert rollups.stride_of(samples([(0, 0.0), (10, 0.0), (20, 0.0), (500, 0.0)])) == 10
