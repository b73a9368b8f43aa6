"""Learned durations: bins, borrowed evidence, rates and quantiles, and the bound on the memory."""

from __future__ import annotations

from itertools import accumulate, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.core.scheduling.model.durations import (
    EDGES,
    KINDS_KEPT,
    History,
    KindKey,
    bin_of,
    size_class,
)

pytestmark = pytest.mark.unit

MINE = KindKey("p", "me/train", 2)
NUM_BINS = 64


def seen(key: KindKey, **times: int) -> History:
    """A history of job ends of one kind: `s600=75` is 75 ends after 600 slot-seconds each."""
    history = History()
    for name, num in times.items():
        for _ in range(num):
            history.observe(key, float(name[1:]))
    return history


def after(slot_s: float) -> float:
    """The upper border of the bin of so much service."""
    return EDGES[bin_of(slot_s) + 1]


class TestBins:
    def test_borders_grow_by_one_ratio_from_a_minute(self) -> None:
        assert len(EDGES) == NUM_BINS + 1
        assert EDGES[:2] == (0.0, 60.0)
        assert EDGES[48] == pytest.approx(5e7)
        ratios = [high / low for low, high in pairwise(EDGES[1:])]
        assert ratios == pytest.approx([(5e7 / 60.0) ** (1 / 47)] * (NUM_BINS - 1))

    @pytest.mark.parametrize("spot", [0, 1, 2, 30, NUM_BINS - 1])
    def test_a_border_belongs_to_the_bin_that_it_opens(self, spot: int) -> None:
        assert bin_of(EDGES[spot]) == spot
        assert bin_of((EDGES[spot] + EDGES[spot + 1]) / 2) == spot
        if spot:
            assert bin_of(EDGES[spot] * (1 - 1e-9)) == spot - 1

    def test_the_last_bin_has_no_end(self) -> None:
        assert bin_of(EDGES[-1]) == bin_of(1e15) == NUM_BINS - 1

    @pytest.mark.parametrize(
        ("slots", "size"), [(0, 0), (1, 0), (2, 1), (3, 1), (4, 2), (7, 2), (8, 3), (1023, 9)]
    )
    def test_sizes_are_powers_of_two(self, slots: int, size: int) -> None:
        assert size_class(slots) == size


class TestQuantiles:
    def test_twenty_ends_are_enough_to_say_something(self) -> None:
        assert seen(MINE, s600=19).total_slot_s(MINE, 0.0, 0.5) is None
        assert seen(MINE, s600=19).remaining_slot_s(MINE, 0.0, 0.5) is None
        assert seen(MINE, s600=20).total_slot_s(MINE, 0.0, 0.5) == after(600)

    @pytest.mark.parametrize(
        ("attained", "quantile", "total"),
        [
            (0.0, 0.5, 600.0),
            (0.0, 0.7, 600.0),
            (0.0, 0.9, 60_000.0),
            (500.0, 0.5, 600.0),
            (1000.0, 0.5, 60_000.0),  # those that ended early say nothing about it any more
        ],
    )
    def test_a_quantile_is_the_end_of_the_bin_that_reaches_it(
        self, attained: float, quantile: float, total: float
    ) -> None:
        history = seen(MINE, s600=75, s60000=25)
        assert history.total_slot_s(MINE, attained, quantile) == after(total)
        assert history.remaining_slot_s(MINE, attained, quantile) == after(total) - attained

    def test_the_total_is_the_same_throughout_a_bin(self) -> None:
        history, spot = seen(MINE, s600=75, s60000=25), bin_of(10_000.0)
        inside = [EDGES[spot], (EDGES[spot] + EDGES[spot + 1]) / 2, EDGES[spot + 1] * (1 - 1e-9)]
        assert len({history.total_slot_s(MINE, attained, 0.9) for attained in inside}) == 1

    def test_a_second_is_left_at_least(self) -> None:
        assert seen(MINE, s600=20).remaining_slot_s(MINE, 1e15, 0.5) == 1.0

    @pytest.mark.parametrize(
        "asked", [KindKey("p", "me/new", 2), KindKey("q", "", 2), KindKey("p", "me/train", 5)]
    )
    def test_a_kind_without_ends_borrows_from_its_size_then_from_all(self, asked: KindKey) -> None:
        assert seen(MINE, s600=100).total_slot_s(asked, 0.0, 0.5) == after(600)

    def test_a_kind_goes_by_its_own_ends_before_those_of_others(self) -> None:
        history = seen(KindKey("p", "other", 2), s600=100)
        for _ in range(20):
            history.observe(MINE, 60_000.0)
        assert history.total_slot_s(MINE, 0.0, 0.5) == after(60_000)
        # One of its size trusts those of its size: a hundred against twenty.
        assert history.total_slot_s(KindKey("p", "new", 2), 0.0, 0.5) == after(600)

    def test_a_size_counts_twice_what_all_jobs_count(self) -> None:
        history = seen(KindKey("p", "large", 6), s60000=150)
        for _ in range(100):
            history.observe(KindKey("p", "small", 1), 600.0)
        # 100 × 1.5 of its own size against 150 × 0.5 of the others.
        assert history.total_slot_s(KindKey("p", "new", 1), 0.0, 0.5) == after(600)
        assert history.total_slot_s(KindKey("p", "new", 3), 0.0, 0.5) == after(60_000)


def best_rates(weights: list[float]) -> list[float]:
    """For every bin, the most ends per slot-second of all ways to go on for some bins: by definition."""
    tail = list(accumulate(reversed(weights)))[::-1]
    widths = [high - low for low, high in pairwise(EDGES)]
    costs = [left * width for left, width in zip(tail, widths, strict=True)]
    rates = []
    for first in range(NUM_BINS):
        ends = accumulate(weights[first:])
        spent = accumulate(costs[first:])
        rates.append(max(e / s for e, s in zip(ends, spent, strict=True)))
    return rates


class TestRates:
    @settings(max_examples=40)
    @given(st.lists(st.tuples(st.sampled_from([1, 2, 5]), st.floats(0.0, 1e8)), max_size=40))
    def test_the_index_is_the_best_rate_of_ends(self, ends: list[tuple[int, float]]) -> None:
        history = History()
        for size, slot_s in ends:
            history.observe(KindKey("p", "k", size), slot_s)
        key = KindKey("p", "k", 2)
        weights = [20.0 / 48] * NUM_BINS
        for size, slot_s in ends:
            weights[bin_of(slot_s)] += 0.5 + (1.0 + 20.0) * (size == 2)
        found = [history.index(key, spot) for spot in range(NUM_BINS)]
        assert found == pytest.approx(best_rates(weights))

    def test_without_history_less_service_goes_first(self) -> None:
        rates = [History().index(MINE, spot) for spot in range(1, 50)]
        assert rates == sorted(rates, reverse=True)

    def test_a_job_that_is_about_to_end_gains_urgency_and_loses_it_after(self) -> None:
        history, spot = seen(MINE, s60000=50), bin_of(60_000.0)
        assert history.index(MINE, spot) > history.index(MINE, spot - 3)
        assert history.index(MINE, spot + 1) < history.index(MINE, spot) / 10


class TestVersions:
    def test_a_version_says_whether_the_quantiles_are_known(self) -> None:
        assert History().version(MINE) == 0
        assert [seen(MINE, s600=num).version(MINE) % 2 for num in (1, 19, 20, 400)] == [0, 0, 1, 1]

    def test_evidence_of_others_counts_less(self) -> None:
        history = seen(KindKey("p", "other", 5), s600=100)
        same_size = seen(KindKey("p", "other", 2), s600=100)
        assert history.version(MINE) < same_size.version(MINE) < seen(MINE, s600=100).version(MINE)

    def test_answers_change_with_the_version_and_only_then(self) -> None:
        asked = History()
        before = asked.version(MINE), asked.index(MINE, 5)
        changes = 0
        for num in range(1, 120):
            asked.observe(MINE, 600.0 * (num % 7 + 1))
            now = asked.version(MINE), asked.index(MINE, 5)
            if now[0] == before[0]:
                assert now == before
            else:
                changes += 1
                anew = History()
                for one in range(1, num + 1):
                    anew.observe(MINE, 600.0 * (one % 7 + 1))
                assert now[1] == anew.index(MINE, 5)
            before = now
        assert 20 < changes < 100


def test_the_usual_wait_of_a_size_follows_the_last_ones() -> None:
    history = History()
    history.observe_wait(4, 100.0)
    assert history.requeue_s == {2: 100.0}
    history.observe_wait(7, 200.0)
    history.observe_wait(8, 5.0)
    assert history.requeue_s == {2: pytest.approx(110.0), 3: 5.0}


def test_kinds_that_were_seen_longest_ago_are_forgotten() -> None:
    history, more = History(), 50
    keys = [KindKey("p", f"me/run-{i}", 0) for i in range(KINDS_KEPT + more)]
    for key in keys[:KINDS_KEPT]:
        history.observe(key, 600.0)
    history.observe(keys[0], 600.0)  # comes again: it is not the oldest any more
    assert len(history.counts) == KINDS_KEPT + 2  # beside all jobs, and those of one size
    for key in keys[KINDS_KEPT:]:
        history.observe(key, 600.0)
    assert len(history.counts) == KINDS_KEPT + 2
    assert keys[0] in history.counts and keys[-1] in history.counts
    assert not any(key in history.counts for key in keys[1 : more + 1])
    assert history.num_observed == KINDS_KEPT + more + 1  # all jobs together are still known
    # A kind that was forgotten is estimated as one that was never seen.
    forgotten, never = keys[1], KindKey("p", "me/never", 0)
    assert history.index(forgotten, 0) == history.index(never, 0)
    assert history.index(keys[0], 0) != history.index(never, 0)


def test_answers_about_kinds_are_not_kept_without_end_either() -> None:
    history = History()
    first = KindKey("p", "me/one", 0)
    table = history._table(first)
    asked = [KindKey("p", f"me/asked-{i}", 0) for i in range(KINDS_KEPT - 1)]
    history._tables.update(dict.fromkeys(asked, table))
    assert len(history._tables) == KINDS_KEPT
    for i in range(5):
        history.index(KindKey("p", f"me/more-{i}", 0), 0)
    assert len(history._tables) == KINDS_KEPT and first not in history._tables
