"""What a long run costs: an append to a stream does not pay for all that was appended before."""

import pytest

from phalanx.store import open_store
from phalanx.store.telemetry import LogSegment, add_log

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


def test_an_append_costs_the_same_however_long_the_stream_is(tmp_path):
    store = open_store(tmp_path / "db" / "x.sqlite")
    try:
        costs = store.transact(lambda tx: [append(tx, number) for number in range(200)])
        assert max(costs[-10:]) < 2 * max(costs[5:15]) + 10
    finally:
        store.close()
