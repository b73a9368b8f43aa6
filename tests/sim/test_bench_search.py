"""The benchmark of search: the tables are whole, and rungs keep their goals on a few orders of each."""

from __future__ import annotations

import statistics

import pytest
from bench.search import economy

from phalanx.core.search.model import RungPolicy

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("name", ["digits_1", "digits_2"])
def test_promotion_trains_little_and_finds_nearly_the_best(name: str) -> None:
    errors = economy.table(name)
    assert errors.shape == (291, economy.EPOCHS) and 0 < errors.min() < errors.max() <= 1
    found = [economy.study(errors, RungPolicy(), seed) for seed in range(500, 504)]
    full = economy.NUM_TRIALS * economy.EPOCHS
    assert statistics.mean(one.epochs for one in found) <= economy.TARGET_SHARE * full
    assert statistics.mean(one.regret for one in found) <= 0.005
    whole = economy.study(errors, None, 500)
    assert whole.epochs == full and whole.regret == 0
