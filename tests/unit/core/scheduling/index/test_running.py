"""Running jobs by urgency and by expected end: entries change only when their facts do."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.core.scheduling import PlannerConfig, RunningJob
from phalanx.core.scheduling.index.running import NEVER, RunningIndex
from phalanx.core.scheduling.model.durations import EDGES, History, KindKey, bin_of
from phalanx.core.scheduling.model.urgency import aged, expected_end, held_base
from support.clusters import running

pytestmark = pytest.mark.unit

US = 1_000_000
CONFIG = PlannerConfig()


def index_of(*jobs: RunningJob, history: History | None = None) -> RunningIndex:
    index = RunningIndex(History() if history is None else history, CONFIG)
    for held in jobs:
        index.add(held)
    return index


def job(num: int, **facts: object) -> RunningJob:
    return running(num, {0: (0,)}, **facts)


def learned() -> History:
    """A history of fifty jobs of one slot that ended after 600 slot-seconds."""
    history = History()
    for _ in range(50):
        history.observe(KindKey("", "", 0), 600.0)
    return history


class TestRanking:
    def test_the_least_urgent_of_each_priority_comes_first(self) -> None:
        index = index_of(
            job(1, remaining_s=10.0),
            job(2, remaining_s=100.0),
            job(3, remaining_s=100.0),
            job(4, remaining_s=50.0, priority=40),
        )
        index.settle(0)
        assert index.ranked == {50: [(0.01, 2), (0.01, 3), (0.1, 1)], 40: [(0.02, 4)]}

    @pytest.mark.parametrize(
        "facts", [{"preemptible": False}, {"stopping": True}, {"started_at": None}]
    )
    def test_what_may_not_be_preempted_is_not_ranked(self, facts: dict[str, object]) -> None:
        index = index_of(job(1, **facts))
        index.settle(5)
        assert index.ranked == {}
        index.remove(1)

    def test_earlier_waits_add_urgency(self) -> None:
        index = index_of(job(1, remaining_s=10.0, delayed_s=86_400.0))
        index.settle(0)
        assert index.ranked == {50: [(aged(0.1, 86_400.0, CONFIG), 1)]}

    def test_a_job_that_leaves_is_forgotten_before_and_after_it_is_ranked(self) -> None:
        index = index_of(job(1), job(2))
        index.remove(1)
        index.settle(0)
        assert [num for _, num in index.ranked[50]] == [2]
        index.remove(2)
        assert index.ranked == {}
        assert index.ends(0) == []

    def test_service_changes_urgency_at_the_border_of_its_bin(self) -> None:
        index = index_of(job(1))
        border = int(EDGES[6] * US)
        scores = []
        for now in (int(EDGES[5] * US) + US, border - US, border + US):
            index.settle(now)
            scores.append(index.ranked[50][0][0])
        assert scores[0] == scores[1] != scores[2]
        assert scores[2] == held_base(job(1), 6, index.history, CONFIG)
        assert scores[2] == index.score_of(job(1), border + US)

    def test_one_history_changes_only_its_kinds(self) -> None:
        history, one, other = History(), KindKey("", "one", 0), KindKey("", "other", 0)
        for _ in range(2000):
            history.observe(other, 5000.0)
        index = index_of(job(1, kind="one"), job(2, kind="other"), history=history)
        index.settle(0)
        before = {num: score for score, num in index.ranked[50]}
        for _ in range(40):
            history.observe(one, 300.0)
        index.settle(0)
        after = {num: score for score, num in index.ranked[50]}
        assert after[2] == before[2]
        assert after[1] == held_base(job(1, kind="one"), 0, history, CONFIG) != before[1]


class TestEnds:
    HISTORY = learned()
    TOTAL = int(EDGES[bin_of(600.0) + 1] * US)

    @pytest.mark.parametrize(
        ("facts", "end"),
        [
            ({}, TOTAL),
            ({"max_duration_s": 30.0}, 30 * US),
            ({"max_duration_s": 3.0}, 11 * US),  # overdue: a second from now
            ({"remaining_s": 30.0}, 40 * US),
            ({"stopping": True}, 40 * US),
            ({"started_at": None}, NEVER),
            ({"preemptible": False}, TOTAL),
        ],
    )
    def test_an_end_is_that_of_the_facts(self, facts: dict[str, object], end: int) -> None:
        index = index_of(job(1, **facts), history=self.HISTORY)
        assert index.ends(10 * US) == [(end, 1)]
        assert index.end_of(1, 10 * US) == (None if end == NEVER else end)

    def test_the_earliest_comes_first_and_the_unknown_last(self) -> None:
        jobs = [job(num, remaining_s=left) for num, left in ((1, 9.0), (2, 3.0), (3, 9.0))]
        index = index_of(job(4, started_at=None), *jobs)
        assert [num for _, num in index.ends(0)] == [2, 1, 3, 4]
        index.add(job(5, remaining_s=5.0))
        index.remove(1)
        assert index.ends(0) == [(3 * US, 2), (5 * US, 5), (9 * US, 3), (NEVER, 4)]

    def test_nothing_is_known_without_any_history(self) -> None:
        index = index_of(job(1))
        assert index.ends(0) == [(NEVER, 1)]
        assert index.end_of(1, 0) is None


CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["add", "add", "remove", "observe", "later", "ask"]),
        st.integers(1, 30),
        st.integers(0, 40),
    ),
    max_size=60,
)


@settings(max_examples=60)
@given(CHANGES)
def test_after_any_changes_scores_and_ends_are_those_of_each_job(
    changes: list[tuple[str, int, int]],
) -> None:
    history, now = History(), 0
    index, there = RunningIndex(history, CONFIG), dict[int, RunningJob]()
    for change, num, how in changes:
        if change == "add" and num not in there:
            there[num] = job(
                num,
                kind=f"k{how % 3}",
                priority=40 + how % 2,
                started_at=now - how * 20 * US,
                delayed_s=float(how % 3) * 1e4,
                remaining_s=float(how) if how % 5 == 0 else None,
                max_duration_s=500.0 if how % 7 == 0 else None,
                preemptible=how % 11 != 0,
                stopping=how % 13 == 0,
            )
            index.add(there[num])
        elif change == "remove" and num in there:
            index.remove(num)
            del there[num]
        elif change == "observe":
            for _ in range(how):
                history.observe(KindKey("", f"k{num % 3}", 0), 100.0 * num)
        elif change == "later":
            now += how * how * US
        elif change == "ask":
            index.settle(now)
    index.settle(now)
    ranked: dict[int, list[tuple[float, int]]] = {}
    for num, held in there.items():
        if held.preemptible and not held.stopping:
            base = held_base(held, bin_of(held.attained(now)), history, CONFIG)
            score = aged(base, held.delayed_s, CONFIG)
            ranked.setdefault(held.priority, []).append((score, num))
    assert {p: here for p, here in index.ranked.items() if here} == {
        priority: sorted(here) for priority, here in ranked.items()
    }
    ends = [(expected_end(held, history, now), num) for num, held in there.items()]
    assert index.ends(now) == sorted((NEVER if end is None else end, num) for end, num in ends)
    assert all(math.isfinite(score) for here in index.ranked.values() for score, _ in here)


def test_many_changes_at_once_and_a_few_rank_alike() -> None:
    # More than sixteen for each change are moved one by one, fewer are sorted together.
    jobs = [job(num, remaining_s=float(num)) for num in range(1, 41)]
    index = index_of(*jobs)
    index.settle(0)
    assert [num for _, num in index.ranked[50]] == list(range(40, 0, -1))
    index.remove(7)
    index.add(replace(jobs[6], remaining_s=25.5))
    index.settle(0)
    order = [num for _, num in index.ranked[50]]
    assert order[order.index(7) - 1 : order.index(7) + 2] == [26, 7, 25]
