"""Names, buckets, and how a distribution travels in windows."""

import re

import pytest

from phalanx.core.telemetry.instruments import (
    BOUNDS,
    INSTRUMENTS,
    PARTS,
    Distribution,
    bucket_name,
    bucket_of,
    is_part,
    sum_name,
)

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("seconds", "index"),
    [
        (0.0, 0),
        (BOUNDS[0], 0),
        (BOUNDS[0] * 1.01, 1),
        (0.03, BOUNDS.index(0.05)),
        (1e9, len(BOUNDS)),
    ],
)
def test_a_bucket_includes_its_upper_bound(seconds: float, index: int) -> None:
    assert bucket_of(seconds) == index


def test_parts_add_up_and_strange_ones_are_passed_over() -> None:
    one = Distribution.empty()
    for name, value in (
        (bucket_name("step_time_seconds", 2), 3.0),
        (bucket_name("step_time_seconds", 2), 1.0),
        (bucket_name("step_time_seconds", len(BOUNDS)), 1.0),
        (sum_name("step_time_seconds"), 0.5),
        (bucket_name("step_time_seconds", 99), 7.0),
        ("step_time_seconds|-1", 7.0),
        ("step_time_seconds|le", 7.0),
    ):
        assert is_part(name)
        if name in PARTS:
            one.add(PARTS[name][1], value)
    shown = one.cumulative()
    assert shown[1] == ("0.00025", 0)
    assert shown[2] == ("0.0005", 4)
    assert shown[-1] == ("+Inf", 5)
    assert one.total_s == 0.5


def test_bounds_are_numbers_that_grow() -> None:
    texts = [float(bound) for bound, _ in Distribution.empty().cumulative()]
    assert texts == [*BOUNDS, float("inf")]
    assert texts == sorted(set(texts))


def test_names_are_names_of_prometheus() -> None:
    for name in INSTRUMENTS:
        assert re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]*", name)
        assert not is_part(name)
