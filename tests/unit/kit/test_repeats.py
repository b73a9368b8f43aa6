"""Lines of a log that repeat are limited and counted."""

from __future__ import annotations

import logging

import pytest

from phalanx.kit.repeats import RepeatFilter

pytestmark = pytest.mark.unit


def test_lines_of_one_kind_are_limited_and_those_left_out_are_counted() -> None:
    now = [0.0]
    limit = RepeatFilter(burst=3, period_s=60.0, monotonic=lambda: now[0])

    def says(message: str, *args: object) -> str | None:
        record = logging.LogRecord("n", logging.WARNING, "f", 1, message, args, None)
        return record.getMessage() if limit.filter(record) else None

    told = [says("job %d", n) for n in range(100)]
    assert told[:4] == ["job 0", "job 1", "job 2", None] and not any(told[3:])
    assert says("something else") == "something else"
    now[0] = 61.0
    assert says("job %d", 7) == "job 7 (97 more such lines were left out)"
    assert [says("job %d", 8), says("job %d", 9), says("job %d", 10)] == ["job 8", "job 9", None]


def test_the_number_of_kinds_is_limited() -> None:
    limit = RepeatFilter()
    for n in range(5000):
        limit.filter(logging.LogRecord("n", logging.WARNING, "f", 1, f"line {n}", (), None))
    assert len(limit._seen) <= 1000
