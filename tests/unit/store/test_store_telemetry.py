"""The cost of a long run: appends are constant, and queries read only what they need."""

import pytest

from phalanx.errors import UserError
from phalanx.services.queries.logs import parse_cursor
from phalanx.store import open_store
from phalanx.store.telemetry import (
    LogSegment,
    add_log,
    line_start,
)

pytestmark = pytest.mark.unit


def append(tx, number):
    """Steps of SQLite's machine that one more segment takes, in tens."""
    steps = []
    raw = tx.conn.connection.driver_connection
    raw.set_progress_handler(lambda: steps.append(1), 10)
    try:
        add_log(tx, LogSegment(0, 1, 1, 0, 0, "out", number * 4, 0, 1, b"abc\n"))
    finally:
        raw.set_progress_handler(None, 0)
    return len(steps)


@pytest.mark.sqlite
def test_an_append_costs_the_same_however_long_the_stream_is(tmp_path):
    store = open_store(tmp_path / "db" / "x.sqlite")
    try:
        costs = store.transact(lambda tx: [append(tx, number) for number in range(200)])
        assert max(costs[-10:]) < 2 * max(costs[5:15]) + 10
    finally:
        store.close()


def test_a_cursor_from_outside_reads_no_more_than_a_line_may_have(tmp_path):
    """A made-up cursor names the beginning of a long stream as that of an unfinished line."""
    store = open_store(tmp_path / "db" / "x.sqlite")
    part = b"x" * (1 << 20)
    try:
        for number in range(12):
            fresh = LogSegment(0, 1, 1, 0, 0, "out", number << 20, 0, 1, part)
            store.transact(lambda tx, fresh=fresh: add_log(tx, fresh))
        start, found = store.view(
            lambda tx: line_start(tx, 1, (1, 0, 0, "out"), start=0, up_to=1 << 40)
        )
        assert start == 0 and 4 << 20 <= len(found) <= 5 << 20
        start, found = store.view(
            lambda tx: line_start(tx, 1, (1, 0, 0, "out"), start=(11 << 20) + 5, up_to=1 << 40)
        )
        assert (start, len(found)) == ((11 << 20) + 5, (1 << 20) - 5)
    finally:
        store.close()
    with pytest.raises(UserError, match="not a log cursor"):
        parse_cursor("1~" + ",".join(f"1.0.{rank}.out.0" for rank in range(2000)))
