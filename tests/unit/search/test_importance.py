"""Importance of parameters: what decides the objective comes first, and what does not has little."""

from __future__ import annotations

import math

import pytest

from phalanx.core.search.draw import random_params
from phalanx.core.search.sampling import Observation
from phalanx.core.search.space import ChoiceParameter, FloatParameter, IntParameter, Space
from phalanx.search.importance import importance

pytestmark = pytest.mark.unit
SPACE = Space(
    {
        "lr": FloatParameter(1e-5, 1.0, log=True),
        "kind": ChoiceParameter(("a", "b", "c")),
        "noise": FloatParameter(0.0, 1.0),
        "width": IntParameter(1, 64),
        "momentum": FloatParameter(0.0, 1.0, when="kind == 'a'"),
    }
)


def trials(count: int, seed: int) -> list[Observation]:
    found = []
    for number in range(count):
        params = random_params(SPACE, seed, number)
        assert params is not None
        value = (math.log10(float(params["lr"] or 1)) + 2) ** 2 + (params["kind"] != "b")
        found.append(Observation(number, params, value))
    return found


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_what_decides_the_objective_comes_first(seed: int) -> None:
    found = importance(SPACE, trials(200, seed))
    assert list(found)[:2] in (["lr", "kind"], ["kind", "lr"])
    assert found["noise"] < 0.15 and found["width"] < 0.15
    assert sum(found.values()) == pytest.approx(1.0)


def test_values_that_are_not_finite_and_unfinished_trials_say_nothing() -> None:
    some = trials(60, 1)
    more = [
        *some,
        Observation(98, some[0].params, math.inf),
        Observation(99, some[0].params, None),
    ]
    assert importance(SPACE, more) == importance(SPACE, some)


def test_few_trials_have_no_importance() -> None:
    assert importance(SPACE, trials(9, 1)) == {}
