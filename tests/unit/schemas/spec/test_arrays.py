"""Indices of arrays: every spelling, what is written back, and the limit."""

from __future__ import annotations

import pytest

from phalanx.errors import SpecInvalid
from phalanx.schemas.spec.document import resolved, validate_spec
from phalanx.schemas.spec.workflow import array_id, fill_index

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("written", "indices", "parallel", "text"),
    [
        ("0-3", [0, 1, 2, 3], None, "0-3"),
        ("0-20:5%2", [0, 5, 10, 15, 20], 2, "0,5,10,15,20"),
        ("7,1-2", [1, 2, 7], None, "1-2,7"),
        (4, [4], None, "4"),
        ([3, 1], [1, 3], None, "1,3"),
        ({"indices": "0-9", "parallel": 3}, list(range(10)), 3, "0-9"),
        ("0-999", list(range(1000)), None, "0-999"),
    ],
)
def test_indices_are_read_and_written(
    written: object, indices: list[int], parallel: int | None, text: str
) -> None:
    spec = validate_spec({"run": "x", "array": written})
    assert spec.array is not None
    assert (spec.array.indices, spec.array.parallel) == (indices, parallel)
    plain = resolved(spec)
    assert plain["array"] == {"indices": text, "parallel": parallel}
    assert validate_spec(plain) == spec


@pytest.mark.parametrize(
    "written", ["0-1000", "3-1", "0-9:0", "0-9%0", "0-9%x", "a", "", True, "0-9%", "-1", []]
)
def test_other_spellings_are_refused(written: object) -> None:
    with pytest.raises(SpecInvalid) as caught:
        validate_spec({"run": "x", "array": written})
    assert caught.value.problems[0].path.startswith("array")


def test_placeholders_are_replaced_at_any_depth() -> None:
    spec = {"run": ["x", "--shard=${array.index}/${array.count}"], "env": {"A": "${array.index}"}}
    assert fill_index(spec, 7, 9) == {"run": ["x", "--shard=7/9"], "env": {"A": "7"}}
    assert (array_id("a-12"), array_id("j-12"), array_id("a-x")) == (12, None, None)
