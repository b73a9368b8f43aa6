"""The built-in evaluation on the cases by which Prometheus is held against the table of alerts."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.alerts.conditions import Compare, Query, Reading
from phalanx.core.alerts.table import ALERTS, BY_NAME
from phalanx.core.notify.alert_life import AlertPhase, LiveAlert, evaluated
from phalanx.core.notify.samples import (
    BUILT_IN,
    READ,
    Sampled,
    Series,
    condition_values,
    kept,
    needs_prometheus,
)
from support.alert_cases import CASES, AlertCase

MINUTE_US = 60_000_000
_LABEL = re.compile(r'(\w+)="([^"]*)"')
HERE = [one for one in CASES if not needs_prometheus(BY_NAME[one.alert])]


def values(text: str) -> list[float | None]:
    """The samples of a series as promtool writes them: `0x4 1+2x10 _`."""
    found: list[float | None] = []
    for part in text.split():
        match = re.fullmatch(r"(_|[-\d.e]+)([+-][\d.]+)?(?:x(\d+))?", part)
        assert match is not None, part
        for at in range(int(match[3] or 0) + 1):
            step = float(match[2] or 0)
            found.append(None if match[1] == "_" else float(match[1]) + step * at)
    return found


def series_of(text: str) -> Series:
    name, _, given = text.partition("{")
    pairs = [pair for pair in _LABEL.findall(given) if pair[0] != "instance"]
    return name, tuple(sorted(pairs))


def minutes(case: AlertCase) -> Iterator[tuple[int, dict[Series, float]]]:
    """The samples of a case, minute by minute of its interval."""
    series = {series_of(key): values(text) for key, text in case.series.items()}
    last = max(case.firing)
    for at in range(last // case.interval_m + 1):
        now = {
            key: value
            for key, found in series.items()
            if at < len(found) and (value := found[at]) is not None
        }
        yield at * case.interval_m, now


@pytest.mark.parametrize("case", HERE, ids=str)
def test_cases_of_prometheus_fire_here_too(case: AlertCase) -> None:
    history: list[Sampled] = []
    live: dict[str, LiveAlert] = {}
    for minute, now in minutes(case):
        at = minute * MINUTE_US
        keeping = kept([*(one.at for one in history), at], at)
        history = [*(one for one in history if one.at in keeping), Sampled(at, now)]
        live = evaluated(live.values(), [BY_NAME[case.alert]], history)
        if minute in case.firing:
            fires = any(one.phase is AlertPhase.FIRING for one in live.values())
            assert fires is case.firing[minute], minute


def test_only_what_is_about_the_scrape_or_the_leader_needs_prometheus() -> None:
    left = {one.name for one in ALERTS} - {one.name for one in BUILT_IN}
    assert left == {"PhalanxDown", "PhalanxNoLeader", "PhalanxReplicaLost"}
    assert not any(
        isinstance(one.condition, Query) for one in BUILT_IN if one.name != "PhalanxHeartbeat"
    )
    assert "phalanx_jobs_ended_total" in READ and "phalanx_replicas" not in READ


@given(st.lists(st.integers(0, 5 * 24 * 60), max_size=200, unique=True))
def test_few_samples_are_kept_and_every_window_has_its_beginning(ages: list[int]) -> None:
    now = 10 * 24 * 60 * MINUTE_US
    times = [now - age * MINUTE_US for age in ages]
    found = kept([*times, now], now)
    assert found <= {*times, now} and now in found and len(found) <= 350
    assert kept(found, now) == found
    # What is younger than an hour is kept whole.
    assert {at for at in times if now - at <= 60 * MINUTE_US} <= found


@given(st.lists(st.integers(0, 9), min_size=1, max_size=40), st.integers(1, 40))
def test_an_increase_is_the_sum_of_the_steps_up(steps: list[int], window_m: int) -> None:
    value, history = 100, list[Sampled]()
    for at, step in enumerate(steps):
        # In the middle the counter begins anew, as after a restart of what counts.
        value = step if at and at == len(steps) // 2 else value + step
        history.append(Sampled(at * MINUTE_US, {("n", ()): float(value)}))
    reading = Reading("n", window_s=window_m * 60)
    found = condition_values(Compare(reading, ">=", -1), history)
    inside = steps[1:][-window_m:]
    assert found == {(): float(sum(inside))}


def test_labels_are_kept_and_values_of_one_name_only_are_read() -> None:
    now = Sampled(
        0,
        {
            ("phalanx_jobs", (("pool", "a"), ("state", "running"))): 2.0,
            ("phalanx_jobs", (("pool", "a"), ("state", "queued"))): 5.0,
            ("phalanx_jobs", (("pool", "b"), ("state", "failed"))): 7.0,
            ("phalanx_job", ()): 9.0,
        },
    )
    reading = Reading("phalanx_jobs", ("pool",), (("state", "running|queued"),), how="max")
    assert condition_values(Compare(reading, ">", 0), [now]) == {(("pool", "a"),): 5.0}
    assert condition_values(Query("absent(up)"), [now]) == {}
