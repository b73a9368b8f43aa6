"""JSON of requests: what no database, encoder or recursive function can hold is refused first."""

from __future__ import annotations

import json

import pytest

from phalanx.errors import SpecInvalid
from phalanx.server import strict_requests
from phalanx.server.strict_requests import MAX_DEPTH, read_json

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("body", "path", "says"),
    [
        (b'{"a": NaN}', "body", "NaN"),
        (b'{"a": -Infinity}', "body", "-Infinity"),
        (b'{"a": 1e400}', "a", "larger than a number"),
        (b'{"a": [1, ' + b"9" * 400 + b"]}", "a.1", "64 bits"),
        (b'{"a": ' + b"9" * 5000 + b"}", "body", "too many digits"),
        (b'{"a": 9223372036854775808}', "a", "64 bits"),
        (b'{"a": {"b": "x\\ud800"}}', "a.b", "lone surrogate"),
        (b'{"a": "x\\u0000"}', "a", "NUL"),
        (b'{"\\udfff": 1}', "body", "key"),
        (b'{"a": "\xff"}', "body", "UTF-8: see byte 7"),
        (b'{"a": "\xed\xa0\x80"}', "body", "UTF-8"),
        (b"[" * 100_000, "body", "nested deeper"),
        (b'{"a":' * 40 + b"1" + b"}" * 40, "a.a.a.a", "nested deeper"),
        (b'{"a": 1,}', "body", "not valid JSON"),
        (b"", "body", "is required"),
    ],
)
def test_what_cannot_be_stored_is_refused_with_one_message(body, path, says) -> None:
    with pytest.raises(SpecInvalid) as caught:
        read_json(body)
    (problem,) = caught.value.problems
    assert problem.path == path and says in problem.message
    json.dumps(problem.message).encode()


def test_everything_else_is_read_as_it_stands() -> None:
    value = {"a": [1, -(2**63), 2**63 - 1, 1e308, "é\n\U0001f600", None, True, {}]}
    assert read_json(json.dumps(value).encode()) == value
    nested = "[" * MAX_DEPTH + "]" * MAX_DEPTH
    assert read_json(nested.encode()) == json.loads(nested)


def test_the_reports_of_a_supervisor_are_repaired() -> None:
    """A report that is refused would be sent again without end."""
    body = b'{"host": "a\\ud800b", "points": ["x\\u0000", {"\\udfff": 1}], "at": 5}'
    assert read_json(body, True) == {
        "host": "a\ufffdb",
        "points": ["x\ufffd", {"\ufffd": 1}],
        "at": 5,
    }
    for number in (b"1" + b"0" * 30, b"1e400", b"NaN"):
        with pytest.raises(SpecInvalid):
            read_json(b'{"at": ' + number + b"}", True)


@pytest.mark.parametrize(
    "number",
    [
        b"0.0010654985904693604",
        b"-1.5e-05",
        b"9007199254740993",
        b"1795000000000000",
        b"0." + b"1" * 400,
    ],
)
def test_a_report_with_usual_numbers_is_not_searched_value_by_value(
    monkeypatch: pytest.MonkeyPatch, number: bytes
) -> None:
    monkeypatch.setattr(strict_requests, "_faults", lambda value: pytest.fail("searched"))
    monkeypatch.setattr(strict_requests, "_repaired", lambda value: pytest.fail("searched"))
    body = b'{"loss": [' + b",".join([number] * 3) + b'], "name": "e2e step"}'
    assert read_json(body, True) == json.loads(body)


@pytest.mark.parametrize(
    "number",
    [
        b"9" * 19,
        b"-" + b"9" * 19,
        b"1E999",
        b"1e+999",
        b"0.1, " + b"9" * 20,
        b"1." + b"1" * 30 + b", " + b"9" * 19,
        b"9" * 400 + b".5",
        b"1." + b"1" * 30 + b"e400",
    ],
)
def test_a_number_that_is_too_large_is_found_beside_others(number: bytes) -> None:
    with pytest.raises(SpecInvalid, match="larger"):
        read_json(b"[0.12345678901234567890, " + number + b"]", True)
