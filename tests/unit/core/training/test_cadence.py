"""The interval of `checkpoint.every: auto`."""

import random

import pytest

from phalanx.core.training.checkpoints import (
    FAILURE_PRIOR_S,
    LEAST_INTERVAL_S,
    MOST_INTERVAL_S,
    mean_time_between_failures_s,
    save_interval_s,
)

pytestmark = pytest.mark.unit


def lost(interval: float, stall: float, mean: float, rng: random.Random) -> float:
    """Share of the time that is not progress, in a run with random failures."""
    saved = at = 0.0
    clock, fails_at = 0.0, rng.expovariate(1 / mean)
    while at < 200 * mean:
        step = interval + stall
        if clock + step > fails_at:
            clock, at = fails_at, saved
            fails_at = clock + rng.expovariate(1 / mean)
        else:
            clock += step
            at = saved = at + interval
    return 1 - at / clock


@pytest.mark.parametrize(("stall", "mean"), [(2.0, 3000.0), (0.5, 2000.0), (60.0, 4000.0)])
def test_no_other_interval_loses_much_less(stall, mean):
    chosen = save_interval_s(stall, 0.0, mean)
    mine = lost(chosen, stall, mean, random.Random(1))
    for factor in (0.2, 0.5, 2.0, 5.0):
        other = lost(chosen * factor, stall, mean, random.Random(1))
        assert mine < other * 1.05
    assert mine < lost(chosen * 5, stall, mean, random.Random(1)) * 0.9


def test_bounds_and_history():
    assert save_interval_s(0.0, 0.0, FAILURE_PRIOR_S) == LEAST_INTERVAL_S
    assert save_interval_s(1e4, 0.0, 1e6) == MOST_INTERVAL_S
    assert save_interval_s(0.001, 30.0, FAILURE_PRIOR_S) == 120.0  # four times what the disk needs
    assert mean_time_between_failures_s(0, 0.0) == FAILURE_PRIOR_S
    assert mean_time_between_failures_s(9, 0.0) == FAILURE_PRIOR_S / 10
    rare = save_interval_s(1.0, 0.0, mean_time_between_failures_s(0, 3600.0))
    often = save_interval_s(1.0, 0.0, mean_time_between_failures_s(20, 3600.0))
    assert often < rare / 3
