"""A clock that does not jump when the wall clock is set."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.kit.clock import APPROACH, SteadyClock
from phalanx.services.timekeeping import MOST_DOWN_S, continued
from phalanx.store.clock import ClockReading
from support.clocks import SettableClock

pytestmark = pytest.mark.unit
DAY_S = 86_400.0


@given(st.lists(st.tuples(st.floats(0, 1000), st.floats(-3 * DAY_S, 3 * DAY_S)), max_size=30))
@settings(max_examples=100)
def test_durations_are_true_whatever_the_wall_clock_does(turns):
    source = SettableClock()
    clock = SteadyClock(source)
    for passed_s, jump_s in turns:
        before = clock.now()
        source.set(jump_s)
        assert clock.now() == before
        source.advance(passed_s)
        measured_s = (clock.now() - before) / 1e6
        assert measured_s == pytest.approx(passed_s, rel=1.01 * APPROACH, abs=1e-4)


def test_it_comes_back_to_the_wall_clock():
    source = SettableClock()
    clock = SteadyClock(source)
    source.set(-3600.0)
    assert clock.ahead_s == pytest.approx(3600.0)
    source.advance(3600.0)
    assert clock.ahead_s == pytest.approx(3600.0 * (1 - APPROACH))
    source.advance(DAY_S * 10)
    assert clock.ahead_s == pytest.approx(0.0, abs=1e-5)


@pytest.mark.parametrize(("jump_s", "after_s"), [(DAY_S, 0.0), (-600.0, 1200.0)])
def test_without_jobs_it_catches_up_and_never_goes_back(jump_s, after_s):
    source = SettableClock()
    clock = SteadyClock(source)
    source.set(jump_s)
    before = clock.now()
    clock.catch_up()
    assert clock.now() >= before
    source.advance(after_s)
    clock.catch_up()
    assert clock.ahead_s == pytest.approx(0.0, abs=1e-5)


def test_the_next_process_goes_on():
    source = SettableClock()
    reading = ClockReading(5_000_000, source.now(), round(source.monotonic() * 1e6), 7)
    source.set(-DAY_S)
    source.advance(100.0)
    assert continued(reading, source, 7) == 105_000_000
    # After another boot only the wall clock says how long it was, and it may have been set.
    assert continued(reading, source, 8) == 5_000_000
    source.set(2 * DAY_S)
    source.monotonic_s = 3.0
    assert continued(reading, source, 8) == 5_000_000 + round(MOST_DOWN_S * 1e6)


def test_a_random_walk_never_goes_back():
    rng = random.Random(7)
    source = SettableClock()
    clock = SteadyClock(source)
    before = clock.now()
    for _ in range(500):
        source.set(rng.uniform(-10, 10))
        source.advance(rng.random())
        if rng.random() < 0.3:
            clock.catch_up()
        assert clock.now() >= before
        before = clock.now()
