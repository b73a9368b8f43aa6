"""Objectives: budgets and burn rates from events, at any time and in any order."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.slo.burn import BURN_WINDOWS, MIN_BAD
from phalanx.core.slo.objectives import (
    DEFAULT_CLASS,
    STANDARD,
    Indicator,
    JobClass,
    ServiceObjective,
    SliEvent,
    Tally,
    class_of,
    judge,
    tally,
)

NOW = 90 * 86_400_000_000
DAY_S = 86_400.0
HOUR_US = 3_600_000_000
SUCCESS = ServiceObjective(Indicator.SUCCESS, 0.99)
_EVENTS = st.lists(
    st.builds(
        lambda age_s, total, share: SliEvent(NOW - age_s * 1_000_000, total, total * share),
        st.integers(0, 40 * 86_400),
        st.floats(0.1, 1e6),
        st.floats(0, 1),
    ),
    max_size=30,
)


def jobs(num_good: int, num_bad: int, at: int = NOW) -> list[SliEvent]:
    return [SliEvent(at, 1.0, 0.0)] * num_good + [SliEvent(at, 1.0, 1.0)] * num_bad


def test_a_budget_is_spent_by_bad_events_and_by_nothing_else() -> None:
    left = {
        bad: judge(SUCCESS, jobs(1000 - bad, bad), NOW, 30 * DAY_S, pages=True).budget_left
        for bad in (0, 5, 10, 20)
    }
    assert left == {0: 1.0, 5: pytest.approx(0.5), 10: pytest.approx(0.0), 20: pytest.approx(-1.0)}


@pytest.mark.parametrize(
    ("events", "state"),
    [
        ([], "no data"),
        (jobs(1000, 0), "ok"),
        (jobs(10, MIN_BAD), "spent"),
        (jobs(10_000, 0, NOW - 200 * HOUR_US) + jobs(7, 3), "burning"),
        (jobs(10_000, 0, NOW - 200 * HOUR_US) + jobs(0, MIN_BAD - 1), "ok"),
    ],
)
def test_states(events: list[SliEvent], state: str) -> None:
    assert judge(SUCCESS, events, NOW, 30 * DAY_S, pages=True).state == state


def test_one_failure_in_a_quiet_hour_fires_nothing() -> None:
    found = judge(SUCCESS, jobs(0, 1), NOW, 30 * DAY_S, pages=True)
    assert [one.fires for one in found.burns] == [False] * 4
    assert {round(one.long) for one in found.burns} == {100}


def test_classes_that_do_not_page_and_short_periods_have_fewer_pairs() -> None:
    few = judge(SUCCESS, [], NOW, 30 * DAY_S, pages=False)
    assert [one.window.pages for one in few.burns] == [False, False]
    low = judge(replace(SUCCESS, target=0.9), [], NOW, 30 * DAY_S, pages=True)
    assert [one.window.burn for one in low.burns] == [6.0, 3.0, 1.0]
    short = judge(SUCCESS, [], NOW, DAY_S, pages=True)
    assert [one.window.long_s for one in short.burns] == [3600, 21_600, 86_400]


@given(_EVENTS, st.randoms())
def test_sums_do_not_depend_on_the_order_and_add_up_over_windows(events, random) -> None:
    shuffled = list(events)
    random.shuffle(shuffled)
    middle, first = NOW - 5 * 86_400_000_000, NOW - 20 * 86_400_000_000
    whole = tally(events, first, NOW)
    both = tally(shuffled, first, middle) + tally(shuffled, middle, NOW)
    assert both == replace(whole, total=pytest.approx(whole.total), bad=pytest.approx(whole.bad))
    assert 0.0 <= whole.share <= 1.0 + 1e-9


@given(_EVENTS, st.floats(0.5, 0.9999))
def test_what_burns_exceeds_both_windows_and_its_rate_is_possible(events, target) -> None:
    found = judge(ServiceObjective(Indicator.GOODPUT, target), events, NOW, 30 * DAY_S, pages=True)
    for one in found.burns:
        assert one.window in BURN_WINDOWS and one.window.burn * (1 - target) < 1
        assert one.long * (1 - target) <= 1 + 1e-9
        if one.fires:
            assert min(one.long, one.short) > one.window.burn
    assert (found.budget_left <= 1.0) and (
        found.tally == tally(events, NOW - 30 * 86_400_000_000, NOW)
    )


@given(_EVENTS)
def test_good_events_never_make_it_worse(events) -> None:
    before = judge(SUCCESS, events, NOW, 30 * DAY_S, pages=True)
    after = judge(SUCCESS, [*events, SliEvent(NOW, 1000.0, 0.0)], NOW, 30 * DAY_S, pages=True)
    if before.tally.total:
        assert after.budget_left >= before.budget_left - 1e-9
    for old, new in zip(before.burns, after.burns, strict=True):
        assert new.long <= old.long + 1e-9


def test_means_of_ratios_would_be_wrong() -> None:
    """One bad job in a quiet hour beside many good ones: the mean of ratios is eight times the share."""
    events = jobs(0, 1, NOW - HOUR_US // 2) + jobs(15, 0, NOW - HOUR_US * 3 // 2)
    hours = [tally(events, NOW - (n + 1) * HOUR_US, NOW - n * HOUR_US) for n in range(2)]
    assert sum(hours, Tally()).share == 1 / 16
    assert sum(one.share for one in hours) / 2 == 0.5


def test_a_class_that_the_settings_dropped_counts_as_the_default() -> None:
    mine = JobClass("production", (SUCCESS,))
    classes = {DEFAULT_CLASS: STANDARD, "production": mine}
    assert class_of("production", classes) is mine
    assert class_of("", classes) is STANDARD and class_of("gone", classes) is STANDARD
