"""PB2: params of forks from how the objective changed, earlier intervals counting less."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from phalanx.core.search.sampling import ForkBasis, Observation, SampleRequest
from phalanx.core.search.space import ChoiceParameter, FloatParameter, Space
from phalanx.search import gaussian_process, methods

pytestmark = pytest.mark.unit
SPACE = Space({"x": FloatParameter(0.0, 1.0), "kind": ChoiceParameter(("a", "b"))})
FORK = ForkBasis({"x": 0.5, "kind": "b"}, 8)


def interval(number: int, unit: int, best_at: float) -> Observation:
    """One interval of a member; the objective falls the more, the nearer `x` is to `best_at`."""
    x = (0.37 * number + 0.11 * unit) % 1.0
    return Observation(number, {"x": x, "kind": "b"}, -math.exp(-((x - best_at) ** 2) / 0.02), unit)


def suggested(trial: int, observations: list[Observation]) -> float:
    request = SampleRequest(
        SPACE, "pb2", trial=trial, observations=tuple(observations), duplicates="allow", fork=FORK
    )
    made = methods.suggest(request)
    assert made == methods.suggest(request)
    assert made.params["kind"] == "b" and made.sampler == "pb2"  # type: ignore[union-attr]
    return float(made.params["x"])  # type: ignore[union-attr]


def test_a_fork_gets_params_with_which_others_improved_lately(monkeypatch) -> None:
    early = [interval(number, unit, 0.2) for unit in (2, 4) for number in range(6)]
    late = [interval(number, unit, 0.8) for unit in (6, 8) for number in range(6)]
    assert suggested(30, early) == pytest.approx(0.2, abs=0.1)
    assert suggested(30, [*early, *late]) == pytest.approx(0.8, abs=0.1)


def test_an_interval_in_which_a_member_diverged_keeps_forks_away() -> None:
    known = [interval(number, 8, 0.8) for number in range(8)]
    lost = [Observation(20 + n, {"x": 0.78 + n / 100, "kind": "b"}, math.inf, 8) for n in range(5)]
    assert abs(suggested(30, known) - 0.8) < 0.1 < abs(suggested(30, [*known, *lost]) - 0.8)


def test_forks_that_run_keep_others_away() -> None:
    known = [interval(number, 8, 0.8) for number in range(4)]
    first = suggested(30, known)
    running = [Observation(29, {"x": first, "kind": "b"}, None, 10)]
    assert abs(suggested(30, [*known, *running]) - first) > 0.02


def test_members_without_a_parent_are_random() -> None:
    request = SampleRequest(SPACE, "pb2", trial=3)
    assert methods.suggest(request).sampler == "random"  # type: ignore[union-attr]
    early = methods.suggest(replace(request, fork=FORK, duplicates="allow"))
    assert (early.sampler, early.params["kind"]) == ("random", "b")  # type: ignore[union-attr]


def test_what_was_measured_long_ago_counts_less() -> None:
    import numpy as np

    features = np.array([[0.5], [0.5]])
    data = (features, np.array([-1.0, 1.0]), np.full(2, 0.1), np.array([0]), np.empty((0, 1)))
    model = gaussian_process.GaussianProcess(*data, np.array([0.0, 8.0]))
    (now,), _ = model.predict(features[:1], 9.0)
    (then,), _ = model.predict(features[:1], 0.0)
    assert then < 0 < now
