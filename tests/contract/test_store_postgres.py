"""PostgreSQL keeps the contract of stores: a real server from a wheel, one schema for each test."""

from __future__ import annotations

import itertools
import json
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import JSON, Boolean, MetaData, event, insert, inspect, text

from phalanx.errors import Unauthenticated
from phalanx.services.resources import credentials
from phalanx.store import (
    Store,
    database,
    events,
    jobs,
    lineage,
    migrate,
    open_store,
    planning,
)
from phalanx.store.credentials import SESSION
from phalanx.store.metrics import arrivals
from phalanx.store.metrics.curves import CurveQuery, curves
from phalanx.store.schema import metadata
from phalanx.store.studies import checkpoint_pins
from phalanx.testing.stores import NOW, Reopen, StoreContract, saved
from phalanx.testing.study_stores import StudyStoreContract
from support.databases import PostgresServer
from support.waiting import wait_until

pytestmark = pytest.mark.extras
_numbers = itertools.count(1)


class OnPostgres:
    @pytest.fixture
    def reopen(self, postgres: PostgresServer) -> Iterator[Reopen]:
        url = postgres.create(f"phalanx_{next(_numbers)}")
        opened: list[Store] = []

        def reopen() -> Store:
            opened.append(open_store(url))
            return opened[-1]

        yield reopen
        for store in opened:
            store.close()


class TestPostgres(OnPostgres, StoreContract):
    pass


class TestStudiesOnPostgres(OnPostgres, StudyStoreContract):
    pass


def test_a_database_of_the_schema_before_is_brought_up_to_date(postgres: PostgresServer) -> None:
    """The rows of `fixtures/store_0003.sql`, copied to PostgreSQL at revision 0003."""
    url = postgres.create("phalanx_old")
    engine = database.engine_at(url)
    migrate.upgrade(engine, None, "0003")
    old = MetaData()
    old.reflect(engine)
    source = sqlite3.connect(":memory:")
    source.row_factory = sqlite3.Row
    source.executescript((Path(__file__).parents[1] / "fixtures" / "store_0003.sql").read_text())
    with engine.begin() as conn:
        for name, table in old.tables.items():
            conn.execute(table.delete())
            rows = [_converted(table, row) for row in source.execute(f"SELECT * FROM {name}")]
            if rows:
                conn.execute(insert(table), rows)
    source.close()
    store = open_store(url)
    for num in range(1, 7):
        stored = store.view(lambda tx, n=num: jobs.load(tx, n))
        assert stored.job.num == num
        assert store.view(lambda tx, n=num: events.machine_log(tx, n))
    assert store.view(planning.reservations_now)[5].kind == planning.PREEMPTION
    assert "loss" in store.view(lambda tx: arrivals.names_of(tx, 1))
    query = CurveQuery(names=("loss",), ranks=(1,))
    (curve,) = store.view(lambda tx: curves(tx, [1], query))
    assert (curve.rank, curve.samples.steps.tolist()) == (1, list(range(1, 9)))
    found = inspect(engine)
    assert set(found.get_table_names()) == {*metadata.tables, "alembic_version"}
    for name, table in metadata.tables.items():
        assert {one["name"] for one in found.get_columns(name)} == set(table.columns.keys())
    store.close()
    engine.dispose()


def _converted(table: Any, row: sqlite3.Row) -> dict[str, Any]:
    """A row of SQLite as PostgreSQL takes it: JSON values decoded, booleans as such."""
    values = dict(row)
    for column in table.columns:
        value = values[column.name]
        if isinstance(column.type, JSON) and value is not None:
            values[column.name] = json.loads(value)
        elif isinstance(column.type, Boolean) and value is not None:
            values[column.name] = bool(value)
    return values


# -- two transactions at the same instant --------------------------------------------------------


@pytest.fixture
def store(postgres: PostgresServer) -> Iterator[Store]:
    name = f"phalanx_race_{next(_numbers)}"
    one = open_store(postgres.create(name))
    yield one
    one.close()


def race(
    store: Store, after: str, first: Callable[[], Any], second: Callable[[], Any]
) -> list[Any]:
    """The results of two calls: the second one begins behind the first one's statement on `after`.

    The first goes on when the second has ended, or waits for a lock of the first.
    """
    results: list[Any] = [None, None]

    def run(at: int, call: Callable[[], Any]) -> None:
        try:
            results[at] = call()
        except Exception as error:
            results[at] = error

    one = threading.Thread(target=run, args=(0, first))
    other = threading.Thread(target=run, args=(1, second))

    def waits() -> bool:
        blocked = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        seen = store.view(lambda tx: tx.conn.execute(text(blocked)).first())
        return seen is not None or not other.is_alive()

    def behind(_conn: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        mine = threading.current_thread() is one and other.ident is None
        if mine and statement.startswith(after):
            other.start()
            wait_until(waits, "the other transaction")

    event.listen(store._engine, "after_cursor_execute", behind)
    one.start()
    one.join()
    other.join()
    return results


@pytest.mark.parametrize("first", ["pin", "removal"])
def test_a_pin_and_a_removal_at_the_same_instant_exclude_each_other(
    store: Store, first: str
) -> None:
    """Red without FOR UPDATE in the second statement of each pair."""
    store.transact(lambda tx: lineage.add_checkpoint(tx, (1, 1, 0), saved("/c/3", 3)))

    def pin() -> bool:
        return store.transact(lambda tx: checkpoint_pins.pin(tx, 1, "/c/3", "s-1", NOW))

    def remove() -> bool:
        return bool(store.transact(lambda tx: checkpoint_pins.mark_removed(tx, 1, ["/c/3"])))

    calls = (pin, remove) if first == "pin" else (remove, pin)
    assert race(store, "SELECT checkpoints.", *calls) == [True, False]
    (row,) = store.view(lambda tx: lineage.checkpoints_of(tx, 1))
    held = store.view(lambda tx: checkpoint_pins.pinned(tx, 1))
    assert (row.state, held) == (("valid", {"/c/3"}) if first == "pin" else ("removed", set()))


def test_of_two_uses_of_a_login_link_at_the_same_instant_one_is_refused(store: Store) -> None:
    platform = SimpleNamespace(store=store)
    ticket = credentials.login_ticket("admin", NOW)

    def use() -> str:
        return credentials.open_with_ticket(platform, "admin", ticket, NOW)  # type: ignore[arg-type]

    opened, refused = race(store, "INSERT INTO credentials", use, use)
    assert isinstance(opened, str) and isinstance(refused, Unauthenticated)
    assert "was used" in str(refused)
    assert credentials.caller_of(platform, opened, SESSION, NOW) is not None  # type: ignore[arg-type]
