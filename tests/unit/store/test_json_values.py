"""Values of JSON columns are read back as they were."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.store.engines.many_rows import JsonText, to_json

_SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(_VALUES)
def test_every_value_is_read_back(value: object) -> None:
    # Texts tell NaN, -0.0 and 1 from 1.0, which `==` does not.
    assert repr(json.loads(to_json(value))) == repr(value)


@pytest.mark.parametrize("value", ["\ud800", {"\udfff": 1}, ["a\ud83d"]])
def test_half_a_surrogate_pair_is_stored(value: object) -> None:
    assert json.loads(to_json(value)) == value


def test_a_serialized_value_is_not_serialized_again() -> None:
    assert to_json(JsonText('{"a":1}')) == '{"a":1}'
    assert to_json('{"a":1}') == '"{\\"a\\":1}"'


def test_infinity_is_stored() -> None:
    assert json.loads(to_json([math.inf, -math.inf])) == [math.inf, -math.inf]
