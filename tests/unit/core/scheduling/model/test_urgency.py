"""Urgency: the learned rate, limits and progress, age, the guard, and when running jobs end."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from phalanx.core.scheduling import PlannerConfig, QueuedJob, RunningJob
from phalanx.core.scheduling.model.durations import EDGES, History, KindKey, bin_of
from phalanx.core.scheduling.model.urgency import (
    aged,
    base_of,
    base_urgency,
    bin_ends_at,
    expected_end,
    expected_s,
    held_base,
    is_guarded,
    kind_key,
    protected_until,
    remaining_of,
    settled_end,
)
from support.clusters import queued, running

pytestmark = pytest.mark.unit

US = 1_000_000
DAY_S = 86_400.0
NEVER = 1 << 62
CONFIG = PlannerConfig()
TWO = KindKey("", "", 2)
FOUR = {0: (0, 1, 2, 3)}


def learned() -> History:
    """A history of a hundred jobs of four slots that ended after 600 slot-seconds."""
    history = History()
    for _ in range(100):
        history.observe(TWO, 600.0)
    return history


TOTAL = EDGES[bin_of(600.0) + 1]


class TestBase:
    @pytest.mark.parametrize(
        ("slots", "exponent", "base"),
        [(16, 0.5, 2.0), (16, 1.0, 0.5), (16, 0.0, 8.0), (0, 0.5, 0.5)],
    )
    def test_a_large_gang_gains_by_the_exponent(
        self, slots: int, exponent: float, base: float
    ) -> None:
        assert base_of(slots, 0.5, replace(CONFIG, size_exponent=exponent)) == base

    def test_a_kind_is_told_by_project_name_and_size(self) -> None:
        assert kind_key(queued(1, 3, 4, project="p", kind="k")) == KindKey("p", "k", 3)

    @pytest.mark.parametrize(
        ("facts", "index"),
        [
            ({"remaining_s": 100.0}, 1 / 400),
            ({"remaining_s": 0.0}, 1.0),
            # Progress is better than a limit.
            ({"remaining_s": 100.0, "max_duration_s": 10.0}, 1 / 400),
            ({"max_duration_s": 100.0, "attained_slot_s": 100.0}, 1 / 300),
            # Within a minute of the limit nothing becomes more urgent.
            ({"max_duration_s": 100.0, "attained_slot_s": 390.0}, 1 / 60),
            ({"max_duration_s": 100.0, "attained_slot_s": 9e9}, 1 / 60),
        ],
    )
    def test_progress_and_limits_replace_what_is_learned(
        self, facts: dict[str, float], index: float
    ) -> None:
        job = queued(1, 1, 4, **facts)
        spot = bin_of(job.attained_slot_s)
        assert base_urgency(job, TWO, spot, History(), CONFIG) == pytest.approx(2 * index)

    def test_a_limit_never_makes_a_job_less_urgent(self) -> None:
        history, spot = learned(), bin_of(500.0)
        plain, limited = queued(1, 1, 4), queued(1, 1, 4, max_duration_s=1e6)
        base = base_urgency(plain, TWO, spot, history, CONFIG)
        assert base == 2 * history.index(TWO, spot)
        assert base_urgency(limited, TWO, spot, history, CONFIG) == base

    def test_a_running_job_counts_from_the_start_of_its_bin(self) -> None:
        limited = running(1, FOUR, max_duration_s=100.0)
        at_bin = held_base(limited, bin_of(75.0), History(), CONFIG)
        assert at_bin == pytest.approx(2 / (400.0 - 60.0))
        plain, history = running(1, FOUR), learned()
        assert held_base(plain, 3, history, CONFIG) == 2 * history.index(TWO, 3)


class TestAge:
    @pytest.mark.parametrize(
        ("days", "factor"),
        [(0.0, 1.0), (0.5, 1.5 + 6.0**-8), (1.0, 2.0 + 3.0**-8), (3.0, 5.0), (6.0, 7.0 + 2.0**8)],
    )
    def test_a_wait_counts_linearly_then_steeply(self, days: float, factor: float) -> None:
        assert aged(0.25, days * DAY_S, CONFIG) == pytest.approx(0.25 * factor)

    def test_the_guard_applies_after_its_time_and_not_at_it(self) -> None:
        config = replace(CONFIG, guard_after_s=10.0)
        assert not is_guarded(5 * US, 15 * US, config)
        assert is_guarded(5 * US, 15 * US + 1, config)


class TestBinEnds:
    @pytest.mark.parametrize(
        ("facts", "spot", "ends_at"),
        [
            ({}, 0, 15 * US),
            ({"started_at": 7 * US}, 0, 22 * US),
            ({"attained_slot_s": 20.0}, 0, 10 * US),
            ({}, 1, int(EDGES[2] / 4 * US)),
            ({"started_at": None}, 0, NEVER),
        ],
    )
    def test_a_bin_ends_when_its_service_is_attained(
        self, facts: dict[str, float], spot: int, ends_at: int
    ) -> None:
        assert bin_ends_at(running(1, FOUR, **facts), spot) == ends_at

    def test_without_slots_no_service_is_attained(self) -> None:
        assert bin_ends_at(running(1, {0: ()}), 0) == NEVER


class TestExpectedEnd:
    @pytest.mark.parametrize(
        ("facts", "end_s"),
        [
            ({}, None),
            ({"started_at": None, "remaining_s": 5.0}, None),
            ({"remaining_s": 100.0}, 150.0),
            ({"remaining_s": 0.0}, 51.0),
            ({"max_duration_s": 100.0}, 100.0),
            ({"max_duration_s": 20.0}, 51.0),  # overdue: at any moment
            ({"remaining_s": 100.0, "max_duration_s": 60.0}, 150.0),
            ({"stopping": True, "remaining_s": 900.0}, 80.0),
            ({"stopping": True, "save_s": None}, 50.0),
        ],
    )
    def test_an_end_is_what_is_known_of_it(
        self, facts: dict[str, float], end_s: float | None
    ) -> None:
        found = expected_end(running(1, FOUR, **facts), History(), 50 * US)
        assert found == (None if end_s is None else int(end_s * US))

    def test_a_learned_total_is_service_and_earlier_service_counts(self) -> None:
        end = int(TOTAL / 4 * US)
        assert expected_end(running(1, FOUR), learned(), 0, 0.5) == end
        before = running(1, FOUR, attained_slot_s=100.0)
        assert expected_end(before, learned(), 0, 0.5) == int((TOTAL - 100.0) / 4 * US)
        # With a limit, the earlier of the two.
        assert expected_end(replace(before, max_duration_s=9.0), learned(), 0, 0.5) == 9 * US

    def test_three_quarters_of_the_jobs_have_ended_by_default(self) -> None:
        history = History()
        for slot_s in (600.0, 600.0, 600.0, 600.0, 60_000.0, 60_000.0) * 50:
            history.observe(TWO, slot_s)
        held = running(1, FOUR)
        assert expected_end(held, history, 0) == expected_end(held, history, 0, 0.75)
        assert expected_end(held, history, 0) != expected_end(held, history, 0, 0.5)

    @pytest.mark.parametrize(
        ("total", "limit_s", "end_s"),
        [
            (None, None, None),
            (None, 9.0, 13.0),
            (400.0, None, 79.0),
            (400.0, 9.0, 13.0),
            (400.0, 90.0, 79.0),
        ],
    )
    def test_the_settled_part_is_the_earlier_of_total_and_limit(
        self, total: float | None, limit_s: float | None, end_s: float | None
    ) -> None:
        held = running(1, FOUR, started_at=4 * US, attained_slot_s=100.0, max_duration_s=limit_s)
        assert settled_end(held, total) == (None if end_s is None else int(end_s * US))


class TestRemaining:
    @pytest.mark.parametrize(
        ("remaining_s", "limit_s", "left_s"),
        [
            (None, None, None),
            (50.0, None, 50.0),
            (50.0, 20.0, 20.0),
            (50.0, 90.0, 50.0),
            (50.0, 0.25, 1.0),
            (None, 20.0, 20.0),
            (None, 0.25, 1.0),
        ],
    )
    def test_progress_ends_at_the_limit(
        self, remaining_s: float | None, limit_s: float | None, left_s: float | None
    ) -> None:
        assert remaining_of(TWO, 4, 0.0, remaining_s, limit_s, History(), 0.5) == left_s

    def test_learned_service_is_shared_by_the_slots(self) -> None:
        history = learned()
        assert remaining_of(TWO, 4, 100.0, None, None, history, 0.5) == (TOTAL - 100.0) / 4
        assert remaining_of(TWO, 0, 100.0, None, None, history, 0.5) == TOTAL - 100.0
        assert remaining_of(TWO, 4, 100.0, None, 9.0, history, 0.5) == 9.0

    def test_a_queued_job_is_expected_to_take_what_its_facts_say(self) -> None:
        job: QueuedJob = queued(1, 1, 4, attained_slot_s=100.0)
        assert expected_s(job, TWO, learned()) == (TOTAL - 100.0) / 4
        assert expected_s(replace(job, remaining_s=7.0), TWO, learned()) == 7.0
        assert expected_s(replace(job, max_duration_s=8.0), TWO, learned()) == 8.0
        assert expected_s(job, TWO, History()) is None


class TestCosts:
    """What stopping a running job costs: four slots that have run for an hour."""

    NOW = 3600 * US

    @pytest.mark.parametrize(
        ("facts", "lost", "cost"),
        [
            ({}, 0.0, 4 * 90.0),
            ({"save_s": 0.0, "restart_s": 10.0}, 0.0, 4 * 10.0),
            ({"save_s": None}, 4 * 3600.0, 4 * 3660.0),
            ({"save_s": None, "saved_at": 3000 * US}, 4 * 600.0, 4 * 660.0),
            ({"save_s": None, "started_at": None}, 0.0, 4 * 60.0),
        ],
    )
    def test_a_stop_costs_a_pause_and_the_work_since_the_last_save(
        self, facts: dict[str, float], lost: float, cost: float
    ) -> None:
        held: RunningJob = running(1, FOUR, **facts)
        assert (held.lost_work(self.NOW), held.eviction_cost(self.NOW)) == (lost, cost)

    @pytest.mark.parametrize(("started_at", "attained"), [(0, 14_405.0), (None, 5.0)])
    def test_service_grows_with_slots_and_time(
        self, started_at: int | None, attained: float
    ) -> None:
        held = running(1, FOUR, started_at=started_at, attained_slot_s=5.0)
        assert held.attained(self.NOW) == attained
        assert math.isclose(held.attained(self.NOW + US) - attained, 4.0 * (started_at == 0))


class TestProtection:
    HOUR = 3600 * 1_000_000

    @pytest.mark.parametrize(
        ("num", "until"), [(7, 0), (8, HOUR + 1), (9, HOUR + 2)], ids=["seven", "eight", "nine"]
    )
    def test_the_eighth_last_preemption_is_more_than_an_hour_ago_before_the_next(
        self, num: int, until: int
    ) -> None:
        assert protected_until(self.HOUR // 2, 0.0, range(num), PlannerConfig()) == until

    def test_a_job_started_by_the_guard_has_its_quantum(self) -> None:
        config = PlannerConfig(guard_after_s=100.0, guard_quantum_s=10.0)
        assert protected_until(5, 101.0, (), config) == 5 + 10 * US
        assert protected_until(5, 100.0, (), config) == 0
