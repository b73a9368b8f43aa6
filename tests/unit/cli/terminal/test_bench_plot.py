"""The table of a scaling benchmark."""

import pytest

from phalanx.cli.terminal.bench_plot import bars, svg
from phalanx.core.telemetry.scaling import in_words, rows

pytestmark = pytest.mark.unit


def test_speed_up_efficiency_and_cost():
    table = rows({1: 0.1, 2: 0.125, 4: 0.2}, {1: 8, 2: 16, 4: 32}, samples=28_800, price=2.0)
    assert [row.speed_up for row in table] == pytest.approx([1, 1.6, 2.0])
    assert [row.efficiency for row in table] == pytest.approx([1, 0.8, 0.5])
    assert [row.epoch_s for row in table] == pytest.approx([360, 225, 180])
    assert [row.cost for row in table] == pytest.approx([0.2, 0.25, 0.4])
    assert "beyond 2 ranks" in in_words(table) and "2.00 times" in in_words(table)


def test_the_smallest_number_is_the_measure_and_prices_may_be_missing():
    table = rows({2: 0.1, 4: 0.1}, {2: 8, 4: 16}, samples=100, price=None)
    assert [(row.speed_up, row.efficiency, row.cost) for row in table] == [
        (2, 1, None),
        (4, 1, None),
    ]
    assert "at least 80%" in in_words(table) and rows({}, {}, 1, None) == []
    assert "two numbers of ranks" in in_words(table[:1])


def test_the_summary_ends_at_the_first_number_that_scales_badly():
    table = rows({1: 0.1, 2: 0.2, 4: 0.1}, {1: 8, 2: 16, 4: 32}, samples=10, price=None)
    assert [row.efficiency >= 0.8 for row in table] == [True, False, True]
    assert "below 80% beyond 1 ranks" in in_words(table)


def test_it_is_drawn():
    table = rows({1: 0.1, 2: 0.125}, {1: 8, 2: 16}, samples=10, price=None)
    assert bars([1.0, 1.6], [1.0, 2.0]) == ["█" * 12, "█" * 19 + "·" * 5]
    picture = svg(table, "resnet50")
    assert picture.count("<circle") == 2 and "80%" in picture
