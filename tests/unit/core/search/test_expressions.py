"""Conditions and constraints: what they mean, what is refused, and that nothing is executed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.search.expressions import ExpressionInvalid, parse

pytestmark = pytest.mark.unit
NAMES = ("a", "b", "text", "flag", "model.lr", "weight-decay")


@pytest.mark.parametrize(
    ("text", "params", "expected"),
    [
        ("a == 1", {"a": 1}, True),
        ("a == 1", {"a": True}, True),
        ("a != 1", {"a": 2}, True),
        ("text == 'sgd'", {"text": "sgd"}, True),
        ('text == "sgd"', {"text": "adam"}, False),
        ("text == null", {"text": None}, True),
        ("a * b <= 512", {"a": 64, "b": 8}, True),
        ("a * b <= 512", {"a": 64, "b": 9}, False),
        ("1 < a <= 3", {"a": 3}, True),
        ("1 < a <= 3", {"a": 1}, False),
        ("a + b * 2 == 7", {"a": 1, "b": 3}, True),
        ("(a + b) * 2 == 8", {"a": 1, "b": 3}, True),
        ("a - b - 1 == 0", {"a": 3, "b": 2}, True),
        ("-a < -2e-1", {"a": 0.5}, True),
        ("a in [1, 2, 4]", {"a": 4}, True),
        ("a not in (1, 2, 4)", {"a": 3}, True),
        ("not flag", {"flag": False}, True),
        ("flag and a == 1 or b == 2", {"flag": False, "a": 1, "b": 2}, True),
        ("flag == true", {"flag": True}, True),
        ("a / b > 1", {"a": 1, "b": 0}, False),
        ("model.lr < 0.1", {"model.lr": 0.01}, True),
        ("`weight-decay` < a", {"weight-decay": 0.01, "a": 1}, True),
    ],
)
def test_meaning(text, params, expected):
    made = parse(text, NAMES)
    assert made.holds(params) is expected
    assert made.fails(params) is not expected


@pytest.mark.parametrize(
    ("text", "params", "holds", "fails"),
    [
        ("a == 1", {}, False, False),
        ("not a == 1", {}, False, False),
        ("a == 1 and b == 1", {"b": 2}, False, True),
        ("a == 1 or b == 1", {"b": 1}, True, False),
        ("a in [b, 2]", {"a": 2}, True, False),
        ("a in [b, 2]", {"a": 3}, False, False),
    ],
)
def test_inactive_parameters_are_unknown(text, params, holds, fails):
    made = parse(text, NAMES)
    assert (made.holds(params), made.fails(params)) == (holds, fails)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "it ends"),
        ("a ==", "it ends"),
        ("a = 1", "`= 1` is not understood, at character 2"),
        ("a == sgd", "`sgd` is no parameter"),
        ("a == 1 b", "an operator is expected at character 8"),
        ("(a == 1", "`)` is expected"),
        ("a in 3", "a list in brackets"),
        ("a not 3", "`in` is expected"),
        ("__import__('os')", "`__import__` is no parameter"),
        ("a.__class__ == 1", "`a.__class__` is no parameter"),
        ("a ** 99 == 1", "a value is expected"),
        ("a == 1" + "0" * 30, "larger than 1e18"),
        ("(" * 100 + "a", "more than 30 deep"),
        ("not " * 100 + "flag", "more than 30 deep"),
        ("a" + "+1" * 300 + " == 1", "more than 200"),
        ("a == " + "1" * 1000, "at most 1000"),
        ("and", "a value is expected"),
        ("`a == 1", "is not understood"),
    ],
)
def test_refused(text, words):
    with pytest.raises(ExpressionInvalid) as caught:
        parse(text, NAMES)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("text < 'b'", "`<` takes numbers"),
        ("text + 1 == 2", "`+` takes numbers"),
        ("text == 3", "text is never 3; its values are 'sgd', 'adam'"),
        ("text in ['sgd', 'sdg']", "text is never 'sdg'"),
        ("a == 'sgd'", "number is never equal to text"),
        ("a", "neither true nor false"),
        ("a and flag", "`and` takes comparisons"),
        ("a * 2", "neither true nor false"),
    ],
)
def test_faults(text, words):
    values = {"a": None, "text": ("sgd", "adam"), "flag": (True, False)}
    assert words in "; ".join(parse(text, NAMES).faults(values))


def test_no_faults():
    values = {"a": None, "text": ("sgd", None), "flag": (True, False)}
    for text in ("flag", "text == null", "a < 3 and not flag", "flag == 1", "a / 2 <= flag"):
        assert parse(text, NAMES).faults(values) == ()


@given(st.text("ab01.+-*/()<>=! andornoti[],'\"`", max_size=60))
def test_any_text_is_an_expression_or_refused(text):
    try:
        made = parse(text, NAMES)
    except ExpressionInvalid:
        return
    for params in ({}, {"a": 1, "b": 0}, {"a": 1e308, "b": -7}, {"a": "x", "b": None}):
        assert not (made.holds(params) and made.fails(params))
