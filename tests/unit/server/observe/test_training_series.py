"""Series of live jobs are the same from the columns of reports as from their points one by one."""

from __future__ import annotations

import math
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.contract.records import MetricPoint
from phalanx.core.curves.columns import columns_of
from phalanx.core.metrics.training import STEP_TIME
from phalanx.core.telemetry.instruments import INSTRUMENTS, Kind, bucket_name, sum_name
from phalanx.server.observe.training import JobSeries

pytestmark = pytest.mark.unit
GAUGE = next(one.name for one in INSTRUMENTS.values() if one.kind is Kind.GAUGE)
COUNTER = next(one.name for one in INSTRUMENTS.values() if one.kind is Kind.COUNTER)
SECTION = next(
    one.name for one in INSTRUMENTS.values() if one.kind is Kind.HISTOGRAM and one.name != STEP_TIME
)
NAMES = (
    *(GAUGE, COUNTER, SECTION, "loss", "of_another_release|b1"),
    *(bucket_name(STEP_TIME, 2), sum_name(STEP_TIME), bucket_name(SECTION, 3), sum_name(SECTION)),
)
REPORTS = st.lists(
    st.lists(
        st.builds(
            MetricPoint,
            st.integers(0, 3),
            st.integers(0, 9),
            st.just(1),
            st.dictionaries(st.sampled_from(NAMES), st.integers(0, 1000).map(float), max_size=9),
        ),
        min_size=1,
        max_size=6,
    ),
    max_size=4,
)


@given(REPORTS)
def test_sums_and_newest_values_are_those_of_all_points(reports: list[list[MetricPoint]]) -> None:
    series = JobSeries()
    newest: dict[tuple[int, str], float] = {}
    sums: dict[tuple[int, str], float] = defaultdict(float)
    for report in reports:
        series.add(columns_of(report))
        for point in report:
            for name, value in point.values.items():
                newest[point.rank, name] = value
                sums[point.rank, name] += value
    assert series.values == {
        name: one for (rank, name), one in newest.items() if (rank, name) == (0, "loss")
    }
    for rank in range(4):
        mine = series.ranks.get(rank)
        if mine is None:
            own = {GAUGE, COUNTER, SECTION, bucket_name(STEP_TIME, 2), sum_name(STEP_TIME)}
            assert not any((rank, name) in newest for name in own)
            continue
        assert mine.gauges.get(GAUGE) == newest.get((rank, GAUGE))
        assert mine.counters.get(COUNTER, 0.0) == sums[rank, COUNTER]
        assert mine.means.get(SECTION) == newest.get((rank, SECTION))
        if mine.steps is not None:
            assert mine.steps.counts[2] == sums[rank, bucket_name(STEP_TIME, 2)]
            assert mine.steps.total_s == sums[rank, sum_name(STEP_TIME)]
    whole = series.sections.get(SECTION)
    counted = sum(sums[rank, bucket_name(SECTION, 3)] for rank in range(4))
    assert counted == (0 if whole is None else whole.counts[3])


def test_a_part_that_is_no_number_is_left_out() -> None:
    series = JobSeries()
    for value in (2.0, math.nan, math.inf):
        point = MetricPoint(0, 1, 1, {bucket_name(SECTION, 3): value, sum_name(SECTION): value})
        series.add(columns_of([point]))
    assert (series.sections[SECTION].counts[3], series.sections[SECTION].total_s) == (2, 2.0)


@given(REPORTS.filter(len), st.data())
def test_a_part_of_columns_has_the_points_of_its_rows(
    reports: list[list[MetricPoint]], data: st.DataObject
) -> None:
    points = [one for report in reports for one in report]
    begin = data.draw(st.integers(0, len(points)))
    end = data.draw(st.integers(begin, len(points)))
    part = columns_of(points).part(begin, end)
    assert part.num_rows == end - begin
    assert part.points(0, part.num_rows) == points[begin:end]
