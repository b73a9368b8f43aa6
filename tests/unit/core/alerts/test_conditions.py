"""Conditions of alerts and the queries that they stand for."""

from __future__ import annotations

import pytest

from phalanx.core.alerts.conditions import (
    AllOf,
    AnyOf,
    Compare,
    Plus,
    Query,
    Ratio,
    Reading,
    Times,
    Unless,
    names_read,
    promql,
    readings,
)
from phalanx.core.alerts.table import ALERTS, BY_NAME
from phalanx.core.slo.burn import span

JOBS = Reading("phalanx_jobs", ("state",), (("state", "running|queued"),), how="max")
ENDED = Reading("phalanx_jobs_ended_total", where=(("fault", "user"),), window_s=600)


def test_readings_take_one_replica_first_and_keep_their_labels() -> None:
    assert promql(JOBS) == (
        'max by (state) (max without (instance, pod) (phalanx_jobs{state=~"running|queued"}))'
    )
    assert promql(ENDED) == (
        "round(sum (max without (instance, pod) "
        '(increase(phalanx_jobs_ended_total{fault="user"}[10m]))))'
    )


def test_values_and_conditions_are_written_with_brackets() -> None:
    a, b = Reading("phalanx_leader"), Reading("phalanx_replicas")
    one, two = promql(a), promql(b)
    assert promql(Ratio(a, b)) == f"({one} / ({two} > 0))"
    assert promql(Times(3.0, Plus(a, b))) == f"(3 * ({one} + {two}))"
    less, more = Compare(a, "<", 0.25), Compare(a, ">", b)
    assert promql(AllOf((less, more))) == f"({one} < 0.25) and ({one} > {two})"
    assert promql(AnyOf((less, more))) == f"({one} < 0.25) or ({one} > {two})"
    assert promql(Unless(less, b)) == f"({one} < 0.25) unless ({two})"


def test_all_readings_of_a_condition_are_found() -> None:
    a, b = Reading("phalanx_leader"), Reading("phalanx_replicas")
    less = Compare(Ratio(a, Times(2, b)), "<", Plus(JOBS, ENDED))
    assert list(readings(AnyOf((AllOf((less,)), Unless(less, b))))) == [
        *(a, b, JOBS, ENDED),
        *(a, b, JOBS, ENDED, b),
    ]
    assert list(readings(Query("vector(1)"))) == []
    assert names_read(Query("absent(phalanx_build_info)")) == {"phalanx_build_info"}


@pytest.mark.parametrize(
    ("duration_s", "text"), [(90, "90s"), (300, "5m"), (21_600, "6h"), (259_200, "3d"), (0, "0s")]
)
def test_durations_are_written_as_prometheus_does(duration_s: int, text: str) -> None:
    assert span(duration_s) == text


def test_names_of_alerts_are_unique() -> None:
    assert len(ALERTS) == len(BY_NAME)
