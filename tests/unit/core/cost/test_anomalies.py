"""Days that cost much more than expected: what is found, and the life of what was found."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.core.cost.anomalies import (
    LEAST_DAYS,
    AnomalyKey,
    AnomalyLimits,
    AnomalyScope,
    Finding,
    Use,
    expectation,
    find_anomalies,
)
from phalanx.core.cost.anomaly_life import (
    LIVE,
    MOST_DAYS,
    AnomalyCause,
    AnomalyState,
    Breakdown,
    CostAnomaly,
    acknowledged,
    cause_of,
    judged_day,
)
from phalanx.core.cost.ledger import Account
from phalanx.core.cost.prices import HOUR_US, NANO

pytestmark = pytest.mark.unit
VISION = AnomalyKey(AnomalyScope.PROJECT, "vision")
ADA = AnomalyKey(AnomalyScope.USER, "ada")
GPU = AnomalyKey(AnomalyScope.POOL, "gpu")


def test_the_expectation_is_that_of_the_weekday_with_the_trend() -> None:
    weeks = [700, 700, 700, 700, 700, 100, 100] * 6
    monday, saturday = expectation(weeks), expectation([*weeks, *[700] * 5])
    assert monday is not None and (monday.amount, monday.threshold) == (700, 1050)
    assert saturday is not None and saturday.amount == 100
    growing = expectation([100 + 10 * day for day in range(42)])
    assert growing is not None and growing.amount == pytest.approx(520, abs=1)
    shrinking = expectation([1000 - 10 * day for day in range(42)])
    assert shrinking is not None and shrinking.amount == pytest.approx(580, abs=1)


def test_a_group_is_judged_from_two_weeks_after_its_first_use_on() -> None:
    assert expectation([]) is None and expectation([0] * 42) is None
    assert expectation([0] * 29 + [100] * (LEAST_DAYS - 1)) is None
    known = expectation([0] * 28 + [100] * LEAST_DAYS)
    assert known is not None and known.amount == 100


def test_earlier_anomalies_move_the_expectation_hardly() -> None:
    days = [1000 + (day * 37) % 50 for day in range(42)]
    spiked = list(days)
    for day in (20, 28, 36):
        spiked[day] *= 9
    clean, moved = expectation(days), expectation(spiked)
    assert clean is not None and moved is not None
    assert moved.amount == pytest.approx(clean.amount, rel=0.03)
    assert moved.threshold == pytest.approx(clean.threshold, rel=0.05)


def test_an_irregular_group_is_compared_with_its_largest_day() -> None:
    bursts = [900 if day % 3 == 0 else 0 for day in range(42)]
    one = expectation(bursts)
    assert one is not None and one.threshold == 1350
    # Weekends without use are a rhythm, not irregular.
    workdays = expectation([100, 100, 100, 100, 100, 0, 0] * 6)
    assert workdays is not None and (workdays.amount, workdays.threshold) == (100, 150)


def by_day(values: list[int], first: int = 0, unit: int = NANO) -> dict[int, Use]:
    return {first + day: Use(one * unit, one * HOUR_US) for day, one in enumerate(values)}


def test_the_extra_amount_must_reach_the_minimum_in_money_or_slot_time() -> None:
    uses = {VISION: by_day([*[20] * 42, 31]), ADA: by_day([*[4] * 42, 13])}
    limits = AnomalyLimits(nano_usd=10 * NANO, slot_us=10 * HOUR_US)
    (found,) = find_anomalies(uses, 42, limits)
    assert (found.key, found.in_money, found.extra) == (VISION, True, 11 * NANO)
    assert find_anomalies(uses, 41, limits) == []
    free = {VISION: {day: replace(one, nano_usd=0) for day, one in uses[VISION].items()}}
    (hours,) = find_anomalies(free, 42, limits)
    assert (hours.in_money, hours.extra) == (False, 11 * HOUR_US)
    assert find_anomalies(free, 42, replace(limits, slot_us=12 * HOUR_US)) == []


def a_finding(key: AnomalyKey, actual: int = 30, expected: int = 10) -> Finding:
    return Finding(key, True, actual, expected)


def one_of(found: list[CostAnomaly]) -> CostAnomaly:
    (one,) = found
    return one


def test_an_anomaly_opens_grows_is_acknowledged_and_closes() -> None:
    job = AnomalyCause(job=7, job_extra=20)
    opened = one_of(judged_day([], [(a_finding(VISION), job)], 5, 1, is_whole=False))
    assert (opened.state, opened.extra, opened.cause) == (AnomalyState.OPEN, 20, job)
    grown = one_of(judged_day([opened], [(a_finding(VISION, 50), job)], 5, 2, is_whole=True))
    assert (len(grown.days), grown.extra, grown.found_at) == (1, 40, 1)
    # The present day is not over: it closes nothing.
    assert judged_day([grown], [], 6, 3, is_whole=False) == [grown]
    seen = acknowledged(grown, "ada", 4)
    assert acknowledged(seen, "eve", 5) == seen
    again = one_of(judged_day([seen], [(a_finding(VISION), job)], 6, 5, is_whole=True))
    assert (again.state, again.extra, len(again.days)) == (AnomalyState.ACKNOWLEDGED, 60, 2)
    closed = one_of(judged_day([again], [], 7, 6, is_whole=True))
    assert (closed.state, closed.closed_at) == (AnomalyState.CLOSED, 6)
    assert acknowledged(closed, "ada", 7) == closed
    assert judged_day([closed], [], 8, 8, is_whole=True) == []


def test_groups_that_grow_because_of_one_job_are_one_anomaly() -> None:
    job, other = AnomalyCause(job=7), AnomalyCause(job=8)
    found = [(a_finding(VISION), job), (a_finding(ADA), job), (a_finding(GPU), other)]
    first, second = judged_day([], found, 5, 1, is_whole=True)
    assert (first.key, first.also, second.key) == (VISION, (ADA,), GPU)
    # The next day only the user has grown: it is the same anomaly.
    later = judged_day([first], [(a_finding(ADA, 90), job)], 6, 2, is_whole=True)
    assert one_of(later).actual == 120


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.dictionaries(
                st.sampled_from([VISION, ADA, GPU]),
                st.tuples(st.integers(11, 99), st.sampled_from([None, 7, 8])),
            ),
            st.booleans(),
        ),
        max_size=80,
    )
)
def test_a_group_has_one_live_anomaly_at_most_and_closed_ones_are_final(days) -> None:
    after: list[CostAnomaly] = []
    for day, (found, ack) in enumerate(days):
        pairs = [
            (a_finding(key, actual), AnomalyCause(job=job))
            for key, (actual, job) in sorted(found.items(), key=lambda one: one[0].rank)
        ]
        for is_whole in (False, True):
            before = after
            after = judged_day(before, pairs, day, day, is_whole=is_whole)
            live = [one for one in after if one.state in LIVE]
            # Judging a day again changes nothing.
            assert judged_day(live, pairs, day, day, is_whole=is_whole) == live
            keys = [key for one in live for key in one.keys]
            assert len(keys) == len(set(keys))
            assert set(found) <= set(keys)
            for one in after:
                assert [known.day for known in one.days] == sorted(
                    {known.day for known in one.days}
                )
                assert len(one.days) <= MOST_DAYS and one.extra > 0
            after = live
        if not found:
            assert after == []
        if ack:
            after = [acknowledged(one, "ada", day) for one in after]


def test_the_cause_is_what_grew_most_from_the_mean_day_of_the_week_before() -> None:
    week = Breakdown(
        {1: Use(70, 70), 2: Use(700, 700)},
        {"gpu": Use(700, 700), "cpu": Use(70, 70)},
        {Account.PRODUCTIVE: 700, Account.LOST_TO_FAILURE: 0},
    )
    present = Breakdown(
        {1: Use(80, 50), 2: Use(120, 190)},
        {"gpu": Use(100, 100), "cpu": Use(60, 60)},
        {Account.PRODUCTIVE: 90, Account.LOST_TO_FAILURE: 60, Account.QUEUED: 999},
    )
    found = cause_of(present, week, in_money=True)
    assert (found.job, found.job_extra, found.pool, found.pool_extra) == (1, 70, "cpu", 50)
    assert (found.account, found.account_extra_us) == (Account.LOST_TO_FAILURE, 60)
    assert cause_of(present, week, in_money=False).job == 2
    assert cause_of(Breakdown({}, {}, {}), week, in_money=True) == AnomalyCause()
