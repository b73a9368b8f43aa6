"""Opening a database: fresh, old, damaged, foreign, on the wrong file system, full."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from importlib import import_module
from pathlib import Path

import pytest
from sqlalchemy import Table, create_engine, inspect

import phalanx.store.schema
from phalanx.core.gang.placement import Demand
from phalanx.errors import NotSupported, StoreCorrupt, StoreUnavailable
from phalanx.store import Store, jobs, migrate, open_store, planning
from phalanx.store.engines import sqlite_file
from phalanx.store.listings.jobs import JobFilter, page
from phalanx.store.schema import metadata
from phalanx.testing.stores import add_job

pytestmark = [pytest.mark.unit, pytest.mark.sqlite]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "db" / "phalanx.sqlite"


def filled(path: Path, num_jobs: int = 40) -> bytes:
    store = open_store(path)
    for _ in range(num_jobs):
        store.transact(add_job)
    store.close()
    return path.read_bytes()


def test_text_in_place_of_a_database_is_refused_and_kept(path: Path) -> None:
    path.parent.mkdir()
    path.write_text("not a database")
    with pytest.raises(StoreCorrupt, match="not a database of this platform"):
        open_store(path)
    assert path.read_text() == "not a database"


def test_a_damaged_page_is_refused_and_kept(path: Path) -> None:
    good = filled(path)
    bad = good[:8192] + b"\xff" * 8192 + good[16384:]
    path.write_bytes(bad)
    with pytest.raises(StoreCorrupt, match="is damaged") as caught:
        open_store(path)
    assert caught.value.hint == sqlite_file.RESCUE
    assert path.read_bytes() == bad
    path.write_bytes(good)
    open_store(path).close()  # the damage was the only fault


def test_a_truncated_file_is_refused(path: Path) -> None:
    path.write_bytes(filled(path)[: 4096 * 3 + 100])
    with pytest.raises(StoreCorrupt):
        open_store(path)


def test_tables_of_somebody_else_are_refused(path: Path) -> None:
    path.parent.mkdir()
    with sqlite3.connect(path) as conn:
        conn.execute("CREATE TABLE theirs (x)")
    conn.close()
    with pytest.raises(StoreCorrupt, match="not those of this platform"):
        open_store(path)


def test_a_later_schema_is_refused(path: Path) -> None:
    filled(path, 1)
    with sqlite3.connect(path) as conn:
        conn.execute("UPDATE alembic_version SET version_num = '9999'")
    conn.close()
    with pytest.raises(StoreCorrupt, match="'9999'"):
        open_store(path)


def test_migrations_and_tables_agree(tmp_path: Path) -> None:
    """What Alembic builds step by step is what a fresh database gets at once."""
    by_steps = create_engine(f"sqlite:///{tmp_path}/steps.sqlite")
    at_once = create_engine(f"sqlite:///{tmp_path}/once.sqlite")
    migrate.upgrade(by_steps, None)
    migrate.to_head(at_once)
    assert migrate.stored_revision(by_steps) == migrate.HEAD == migrate.stored_revision(at_once)
    one, other = inspect(by_steps), inspect(at_once)
    for table in metadata.tables:
        for look in ("get_columns", "get_indexes", "get_pk_constraint", "get_unique_constraints"):
            found, wanted = getattr(one, look)(table), getattr(other, look)(table)
            assert _plain(found) == _plain(wanted), (table, look)
    with by_steps.connect() as a, at_once.connect() as b:
        counted = "SELECT name, value FROM counters ORDER BY name"
        assert a.exec_driver_sql(counted).all() == b.exec_driver_sql(counted).all()
    by_steps.dispose()
    at_once.dispose()


def _plain(found: object) -> object:
    if isinstance(found, list):
        return sorted((_plain(one) for one in found), key=repr)
    if isinstance(found, dict):
        # The condition of a partial index is an object of its own: its text counts.
        shown = {
            key: {name: f"{part}" for name, part in one.items()} if isinstance(one, dict) else one
            for key, one in found.items()
        }
        return {key: repr(one) for key, one in shown.items() if key not in ("name", "comment")} | (
            {"column": found["name"]} if "type" in found else {}
        )
    return found


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "9p"])
def test_network_file_systems_are_refused(path: Path, kind: str) -> None:
    mounts = f"/dev/sda / ext4 rw 0 0\nserver:/x {path.parent} {kind} rw 0 0\n"
    with pytest.raises(NotSupported, match=kind):
        sqlite_file.check(path, mounts)
    sqlite_file.check(path, mounts.replace(kind, "ext4"))


def test_the_innermost_mount_decides(tmp_path: Path) -> None:
    mounts = f"s:/x / nfs rw 0 0\n/dev/sda {tmp_path} ext4 rw 0 0\n"
    assert sqlite_file.file_system(tmp_path / "deep" / "er", mounts) == "ext4"
    assert sqlite_file.file_system(Path("/elsewhere"), mounts) == "nfs"
    assert sqlite_file.file_system(Path(f"{tmp_path}-other"), mounts) == "nfs"


def test_a_full_disk_loses_nothing(path: Path) -> None:
    store = open_store(path)
    for _ in range(5):
        store.transact(add_job)
    with store._engine.connect() as conn:
        conn.exec_driver_sql("PRAGMA max_page_count = 1")  # no page more than there are
        conn.rollback()
    with pytest.raises(StoreUnavailable, match="full"):
        fill(store)
    with store._engine.connect() as conn:
        conn.exec_driver_sql("PRAGMA max_page_count = 100000")
        conn.rollback()
    before = store.view(lambda tx: add_count(tx))
    assert store.transact(add_job) == before + 1
    store.close()


def fill(store: Store) -> None:
    for _ in range(500):
        store.transact(add_job)


def add_count(tx) -> int:
    return tx.conn.exec_driver_sql("SELECT count(*) FROM jobs").scalar_one()


def test_a_database_of_the_first_release_is_brought_up_to_date(path: Path) -> None:
    """Its jobs are read as before; what later columns say of them is that nothing is known."""
    add_old_job(path)
    store = open_store(path)
    stored = store.view(lambda tx: jobs.load(tx, 1))
    assert (stored.job.num, stored.facts.demand) == (1, Demand())
    assert (stored.job.queued_at, stored.job.attained_slot_s) == (None, 0.0)
    wanted = JobFilter(entry_point="old.py", data="/data/*")
    listed = store.view(lambda tx: page(tx, wanted, limit=9))
    assert [one.num for one in listed.jobs] == [1]
    assert store.transact(add_job) == 2
    assert store.view(planning.reservations_now) == {}
    store.close()


def add_old_job(path: Path) -> None:
    """A database at the first revision with one job as that release wrote it."""
    from alembic import command
    from alembic.config import Config

    path.parent.mkdir(parents=True, exist_ok=True)
    config = Config()
    config.set_main_option("script_location", str(Path(migrate.__file__).parent / "migrations"))
    engine = create_engine(f"sqlite:///{path}")
    with engine.begin() as conn:
        config.attributes["connection"] = conn
        command.upgrade(config, "0001")
    fresh = path.with_name("fresh.sqlite")
    made = open_store(fresh)
    spec = {"schema": 1, "run": "python old.py", "data": {"train": "/data/old"}}
    made.transact(lambda tx: add_job(tx, spec=spec))
    made.close()
    new = {"demand", "contract", "attained_slot_s", "pending_code", "pending_message"}
    new |= {"study", "trial", "array", "array_index", "pool", "slot_type"}
    with sqlite3.connect(fresh) as source, sqlite3.connect(path) as target:
        source.row_factory = sqlite3.Row
        row = dict(source.execute("SELECT * FROM jobs").fetchone())
        snapshot = json.loads(row["snapshot"])
        for name in ("queued_at", "attained_slot_s"):
            del snapshot[name]
        del snapshot["policy"]["min_nodes"]
        kept = {key: value for key, value in row.items() if key not in new}
        kept["snapshot"] = json.dumps(snapshot)
        marks = ", ".join("?" for _ in kept)
        target.execute(f"INSERT INTO jobs ({', '.join(kept)}) VALUES ({marks})", [*kept.values()])
        target.execute("UPDATE counters SET value = 1 WHERE name = 'job'")
    source.close()
    target.close()
    engine.dispose()


def test_a_process_that_imports_nothing_else_makes_every_table(tmp_path: Path) -> None:
    """Tables are known once their module is imported; a database must not depend on other imports."""
    code = (
        "import sys, pathlib; from phalanx.store import open_store; "
        "open_store(pathlib.Path(sys.argv[1])).close()"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "db")], check=True, timeout=100)
    modules = Path(phalanx.store.schema.__file__).parent.glob("[a-z]*.py")
    wanted = {
        table.name
        for one in modules
        for table in vars(import_module(f"phalanx.store.schema.{one.stem}")).values()
        if isinstance(table, Table)
    }
    with closing(sqlite3.connect(tmp_path / "db")) as conn:
        found = {name for (name,) in conn.execute("SELECT name FROM sqlite_master")}
    assert wanted and wanted <= found
