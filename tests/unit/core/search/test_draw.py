"""Draws without a model: within the space, repeatable in any process, even, and complete."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.search.draw import (
    grid_params,
    grid_size,
    qmc_params,
    random_params,
    uniform,
)
from phalanx.core.search.space import (
    ChoiceParameter,
    ConstantParameter,
    FloatParameter,
    IntParameter,
    Space,
    cell_of,
)

pytestmark = pytest.mark.unit

GRID = Space(
    {
        "optimizer": ChoiceParameter(("sgd", "adamw")),
        "momentum": FloatParameter(0.8, 0.9, step=0.1, when="optimizer == 'sgd'"),
        "layers": IntParameter(1, 3),
        "width": ChoiceParameter((8, 16)),
        "warmup": ConstantParameter(5),
    },
    ("layers * width <= 32",),
)
MIXED = Space(
    {
        "lr": FloatParameter(1e-5, 1e-1, log=True),
        "layers": IntParameter(1, 8),
        "kind": ChoiceParameter(("a", "b", None)),
        "rate": FloatParameter(0, 1, when="kind == 'a'"),
    },
    ("layers < 7 or kind == 'b'",),
)


@given(st.integers(0, 2**63), st.integers(0, 10**6))
def test_draws_stay_in_the_space(seed, trial):
    for params in (random_params(MIXED, seed, trial), qmc_params(MIXED, seed, trial)):
        assert params is not None
        assert MIXED.violations(params) == ()


def test_draws_are_the_same_in_another_process():
    code = (
        "from phalanx.core.search.draw import *\n"
        "from phalanx.core.search.space import *\n"
        "space = Space({'x': FloatParameter(0, 1), 'k': ChoiceParameter((1, 2, 3))})\n"
        "print(random_params(space, 1, 2), qmc_params(space, 1, 2), uniform(3, 4, 'y'))"
    )
    space = Space({"x": FloatParameter(0, 1), "k": ChoiceParameter((1, 2, 3))})
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    here = f"{random_params(space, 1, 2)} {qmc_params(space, 1, 2)} {uniform(3, 4, 'y')}"
    assert done.stdout.strip() == here


def test_draws_depend_on_seed_trial_and_sub():
    space = Space({"x": FloatParameter(0, 1)})
    drawn = {
        random_params(space, seed, trial, sub)["x"]
        for seed in range(3)
        for trial in range(3)
        for sub in range(3)
    }
    assert len(drawn) == 27


def test_one_more_parameter_leaves_the_draws_of_the_others():
    small = Space({"x": FloatParameter(0, 1)})
    large = Space({"w": IntParameter(0, 9), "x": FloatParameter(0, 1)})
    assert random_params(small, 1, 1)["x"] == random_params(large, 1, 1)["x"]


def test_a_constraint_that_never_holds_gives_nothing():
    space = Space({"x": FloatParameter(0, 1)}, ("x > 2",))
    assert random_params(space, 0, 0) is None
    assert qmc_params(space, 0, 0) is None


def test_a_grid_is_complete_without_repeats():
    seen = [cell_of(grid_params(GRID, 5, index)) for index in range(grid_size(GRID))]
    # sgd: 2 momenta x 5 allowed of 6 sizes; adamw: 5
    assert len(seen) == len(set(seen)) == 15
    assert all(not GRID.violations(grid_params(GRID, 5, index)) for index in range(15))
    assert GRID.num_cells() == 24


def test_a_grid_ends_when_all_was_tried():
    seen = set()
    for index in range(3, 18):  # the first three numbers went to trials of the user
        params = grid_params(GRID, 5, index, seen)
        assert cell_of(params) not in seen
        seen.add(cell_of(params))
    assert grid_params(GRID, 5, 18, seen) is None


def test_a_stopped_grid_is_a_fair_sample():
    space = Space({"a": IntParameter(0, 9), "b": IntParameter(0, 9)})
    first = [grid_params(space, 0, index) for index in range(30)]
    assert len({one["a"] for one in first}) >= 8
    assert [grid_params(space, 1, index) for index in range(30)] != first


def test_grids_that_cannot_be():
    with pytest.raises(ValueError, match="`step` or `values`"):
        grid_params(MIXED, 0, 0)
    with pytest.raises(ValueError, match="1000000 combinations"):
        grid_size(Space({"a": IntParameter(1, 1000), "b": IntParameter(1, 1000)}))


def test_halton_is_more_even_than_chance():
    space = Space({name: FloatParameter(0, 1) for name in "abcdef"})
    for name in "abcdef":
        cells = Counter(int(qmc_params(space, 3, i)[name] * 8) for i in range(256))
        assert max(cells.values()) - min(cells.values()) <= 14  # random: 20 and more
    pairs = Counter(
        (int(p["a"] * 4), int(p["b"] * 3)) for p in (qmc_params(space, 3, i) for i in range(144))
    )
    assert set(pairs.values()) == {12}
    assert qmc_params(space, 3, 7) != qmc_params(space, 4, 7)
