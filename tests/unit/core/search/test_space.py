"""Spaces of search: faults, conditions, constraints, and params that fit or do not."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.codec import decode, encode
from phalanx.core.search.sampling import Exhausted, Observation, SampleRequest, oriented
from phalanx.core.search.space import (
    ChoiceParameter,
    ConstantParameter,
    FloatParameter,
    IntParameter,
    Space,
    cell_of,
)

pytestmark = pytest.mark.unit

SPACE = Space(
    {
        "momentum": FloatParameter(0.5, 0.99, when="optimizer == 'sgd'"),
        "lr": FloatParameter(1e-5, 1e-1, log=True),
        "optimizer": ChoiceParameter(("sgd", "adamw")),
        "layers": IntParameter(1, 8),
        "width": IntParameter(8, 1024, log=True),
        "dropout": FloatParameter(0.0, 0.6, step=0.1),
        "warmup": ConstantParameter(500),
    },
    ("layers * width <= 2048",),
)
PARAMS = {
    "lr": 0.01,
    "optimizer": "sgd",
    "momentum": 0.9,
    "layers": 2,
    "width": 64,
    "dropout": 0.3,
    "warmup": 500,
}


def test_a_sound_space():
    assert SPACE.problems() == []
    assert SPACE.order.index("optimizer") < SPACE.order.index("momentum")
    assert SPACE.is_conditional
    assert "warmup" not in SPACE.searched
    assert SPACE.num_cells() is None
    assert SPACE.violations(PARAMS) == ()


def test_stored_and_read_again():
    request = SampleRequest(SPACE, "tpe", {"kappa": 2.0}, 7, 3, (Observation(0, PARAMS, 0.5, 9),))
    again = decode(SampleRequest, json.loads(json.dumps(encode(request))))
    assert again == request
    assert isinstance(again.space.parameters["layers"], IntParameter)
    assert hash(again.space) == hash(SPACE)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"lr": 1.0}, "lr = 1.0 is not between 1e-05 and 0.1"),
        ({"lr": "0.01"}, "lr = '0.01' is not a number"),
        ({"lr": True}, "is not a number"),
        ({"lr": math.nan}, "is not between"),
        ({"layers": 2.0}, "layers = 2.0 is not an integer"),
        ({"layers": 9}, "is not between 1 and 8"),
        ({"dropout": 0.25}, "is not 0 plus a multiple of 0.1"),
        ({"optimizer": "lion"}, "is none of 'sgd', 'adamw'"),
        ({"optimizer": "adamw"}, "momentum is used only when optimizer == 'sgd'"),
        ({"width": 1024, "layers": 8}, "layers * width <= 2048 does not hold"),
        ({"warmup": 1}, "is not 500"),
        ({"depth": 1}, "depth is no parameter"),
        ({"lr": None}, "is not a number"),
    ],
)
def test_violations(change, words):
    assert words in "; ".join(SPACE.violations(PARAMS | change))


def test_missing_params():
    rest = {name: value for name, value in PARAMS.items() if name != "momentum"}
    assert SPACE.violations(rest) == ("momentum is missing",)
    assert SPACE.violations(rest | {"optimizer": "adamw"}) == ()


def test_params_of_users_are_completed():
    given_ = {"x": 1, "mode": "a"}
    space = Space(
        {
            "x": FloatParameter(0, 2),
            "mode": ChoiceParameter(("a", "b")),
            "c": ConstantParameter(3),
            "d": ConstantParameter(4, when="mode == 'b'"),
        }
    )
    done = space.completed(given_)
    assert done == {"x": 1.0, "mode": "a", "c": 3}
    assert type(done["x"]) is float
    assert space.violations(done) == ()


@pytest.mark.parametrize(
    ("parameters", "constraints", "words"),
    [
        ({}, (), "0 parameters"),
        ({"x": FloatParameter(1, 0)}, (), "space.x: the lower bound 1 is above"),
        ({"x": FloatParameter(0, math.inf)}, (), "must be finite"),
        ({"x": FloatParameter(0, 1, log=True)}, (), "needs a lower bound above 0"),
        ({"x": FloatParameter(1, 2, log=True, step=0.1)}, (), "exclude each other"),
        ({"x": FloatParameter(0, 1, step=2)}, (), "at most the range"),
        ({"x": FloatParameter(0, 1, step=0)}, (), "above 0"),
        ({"x": FloatParameter(0, 1e9, step=1e-9)}, (), "too many values"),
        ({"x": FloatParameter(-1e308, 1e308)}, (), "too large"),
        ({"x": IntParameter(0, 8, log=True)}, (), "at least 1"),
        ({"x": IntParameter(0, 8, step=0)}, (), "at least 1"),
        ({"x": IntParameter(0, 2**60)}, (), "2**53"),
        ({"x": IntParameter(9, 8)}, (), "above the upper bound"),
        ({"x": ChoiceParameter(())}, (), "0 values"),
        ({"x": ChoiceParameter((1, 1.0))}, (), "given twice"),
        ({"x": ChoiceParameter((math.nan,))}, (), "not finite"),
        ({"x": ConstantParameter("y" * 2000)}, (), "2000 characters"),
        ({"x y": ConstantParameter(1)}, (), "at most 64 letters"),
        ({"not": ConstantParameter(1)}, (), "a word of the language"),
        ({"x": ConstantParameter(1)}, ("y < 1",), "constraints[0]: `y` is no parameter"),
        ({"x": ConstantParameter(1, when="x == 1")}, (), "in a circle"),
        (
            {"x": IntParameter(0, 1, when="y == 1"), "y": IntParameter(0, 1, when="x == 1")},
            (),
            "the conditions of x, y refer to one another in a circle",
        ),
    ],
)
def test_problems(parameters, constraints, words):
    problems = Space(parameters, constraints).problems()
    assert words in "\n".join(map(str, problems))


def test_chains_of_conditions():
    space = Space(
        {
            "c": IntParameter(0, 1, when="b == 1"),
            "b": IntParameter(0, 1, when="a == 1"),
            "a": IntParameter(0, 1),
        }
    )
    assert space.order == ("a", "b", "c")
    assert space.active({"a": 0, "b": 1, "c": 1}) == {"a": 0}
    assert space.active({"a": 1, "b": 1, "c": 1}) == {"a": 1, "b": 1, "c": 1}
    assert space.violations({"a": 0, "c": 1}) == ("c is used only when b == 1",)


def test_cells_tell_true_from_one():
    assert cell_of({"x": 1}) != cell_of({"x": True})
    assert cell_of({"x": 1, "y": 2}) == cell_of({"y": 2, "x": 1.0})


def test_steps_are_what_they_look_like():
    assert [FloatParameter(0.0, 0.6, step=0.1).level(k) for k in (3, 6)] == [0.3, 0.6]
    assert FloatParameter(0.0, 0.6, step=0.1).num_levels == 7


@given(st.floats(0, 1, exclude_max=True), st.sampled_from(sorted(SPACE.parameters)))
def test_values_of_places_are_within_bounds(unit, name):
    one = SPACE.parameters[name]
    value = one.value_at(unit)
    assert one.refuses(value) == ""
    assert 0 <= one.unit_of(value) <= 1
    if isinstance(one, FloatParameter) and one.step is None:
        assert one.unit_of(value) == pytest.approx(unit, abs=1e-9)
    elif not isinstance(one, ConstantParameter | FloatParameter):
        assert one.value_at(one.unit_of(value)) == value


def test_orientation():
    assert oriented(0.9, "maximize") == -0.9
    assert oriented(0.9, "minimize") == 0.9
    assert oriented(None, "maximize") is None
    assert not Observation(0, {}, math.nan).is_finite
    assert not Observation(0, {}, math.inf).is_running
    assert Observation(0, {}).is_running
    assert Exhausted("all tried").reason
