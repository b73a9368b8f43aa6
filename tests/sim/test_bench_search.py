"""The benchmark of search: the tables are whole, and rungs keep their goals on a few orders of each."""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

import pytest
from bench.search import economy, quality

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


def test_quality_is_judged_by_rank_and_each_table_against_random(
    capsys: pytest.CaptureFixture[str],
) -> None:
    methods = ["random", "auto", "peer"]
    found = {
        (method, task, seed): loss + seed
        for task in ("a", "b")
        for seed in range(4)
        for method, loss in (("random", 3.0), ("auto", 1.0), ("peer", 2.0))
    }
    assert quality.judged(found, methods)
    assert "auto           1.00 [1.00, 1.00]" in capsys.readouterr().out
    # Worse than random on one table is a failure, whatever the mean rank is.
    found.update({("auto", "b", seed): 9.0 + seed for seed in range(4)})
    assert not quality.judged(found, methods)
    assert "WORSE" in capsys.readouterr().out


def test_a_report_judges_the_seeds_that_are_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "kept"
    rows = [
        [method, task, seed, 60, float(loss), 1.0]
        for seed in (0, 1)
        for task in quality.JUDGING
        for loss, method in enumerate(("auto", "random"))
    ]
    kept.write_text("".join(json.dumps(row) + "\n" for row in rows[:-1]))
    arguments = ["quality.py", "--kept", str(kept), "--report", "--methods", "auto,random"]
    monkeypatch.setattr(sys, "argv", arguments)
    assert quality.main() == 0
    assert "9 tables x 1 seeds" in capsys.readouterr().out
