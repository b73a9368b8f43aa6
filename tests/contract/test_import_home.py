"""`phalanx admin import-home`: a home that ran jobs goes on, on PostgreSQL, without the loss of a row."""

from __future__ import annotations

import itertools
import sqlite3
from pathlib import Path

import pytest

from integration.rig import Rig, open_rig
from phalanx.errors import Conflict, InvariantBroken, NotFound, StoreError
from phalanx.kit.clock import SystemClock
from phalanx.schemas.home import HomeLayout
from phalanx.standalone.home import HomeLock, prepare_home
from phalanx.standalone.import_home import import_home, main
from phalanx.store import events, jobs, open_store, transfer
from support.databases import PostgresServer

pytestmark = [pytest.mark.extras, pytest.mark.sqlite]
_numbers = itertools.count(1)


@pytest.fixture
def home(tmp_path: Path) -> HomeLayout:
    """A home with a job that runs, one that waits, output, metrics and an error."""
    made = prepare_home(tmp_path / "home")
    with open_rig(made.root) as rig:
        _live(rig)
    return made


def _live(rig: Rig) -> None:
    first = rig.submit(env={"TEXT": "é \U0001f680 \\ \t"})
    rig.submit(name="waits", resources={"nodes": 1, "slots_per_node": 3})
    rig.turn()
    supervisor = rig.supervisor(first)
    supervisor.ready()
    supervisor.started()
    supervisor.step(0, 1, 0.1 + 0.2)
    supervisor.log(0, bytes(range(256)))
    supervisor.failed()


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    return postgres.create(f"imported_{next(_numbers)}")


def rows_of(file: Path) -> dict[str, int]:
    with sqlite3.connect(file) as conn:
        return {
            name: conn.execute(f"SELECT count(*) FROM {name}").fetchone()[0]
            for name in transfer.metadata.tables
            if name not in ("leases", "replicas")
        }


def test_every_row_arrives_and_the_jobs_go_on(home: HomeLayout, url: str) -> None:
    before = rows_of(home.database_file)
    file = open_store(home.database_file)
    kept = [file.view(lambda tx, n=num: events.of_job(tx, n, limit=1000)) for num in (1, 2)]
    identity = file.database_id
    file.close()
    copied, aside = import_home(home, url)
    assert {one.name: one.rows for one in copied} == before and before["events"] > 5
    assert not home.database_file.exists() and (aside / "phalanx.sqlite").exists()
    assert home.database_place.read_text().startswith("postgresql://")
    store = open_store(url)
    assert store.database_id == identity
    for num in (1, 2):
        assert store.view(lambda tx, n=num: events.of_job(tx, n, limit=1000)) == kept[num - 1]
    assert store.transact(jobs.new_num) == 3
    store.close()
    with pytest.raises(NotFound, match="no SQLite"):
        import_home(home, url)


def test_an_import_that_ended_behind_its_commit_is_repeated(home: HomeLayout, url: str) -> None:
    target = open_store(url)
    first = transfer.copy_database(home.database_file, target)
    target.close()
    assert import_home(home, url)[0] == first


def test_a_running_home_and_a_target_with_rows_are_refused(
    home: HomeLayout, url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lock = HomeLock(home)
    lock.take(SystemClock(), 0.0)
    with pytest.raises(Conflict, match="running already"):
        import_home(home, url)
    lock.release()
    other = prepare_home(tmp_path / "other")
    with open_rig(other.root) as rig:
        rig.submit()
    import_home(other, url)
    assert main(["--home", str(home.root), "--database-url", "file:" + _file(tmp_path, url)]) == 1
    assert "the target is not empty: it has rows in" in capsys.readouterr().err
    assert home.database_file.exists() and not home.database_place.exists()


def _file(folder: Path, url: str) -> str:
    (folder / "url").write_text(url)
    return str(folder / "url")


@pytest.mark.parametrize(
    ("damage", "error"),
    [
        ("UPDATE jobs SET name = 'a' || char(0) || 'b'", StoreError),
        ("UPDATE jobs SET name = replace(hex(zeroblob(150)), '0', 'x')", StoreError),
    ],
)
def test_a_row_that_does_not_fit_leaves_the_target_empty(
    home: HomeLayout, url: str, damage: str, error: type[Exception]
) -> None:
    with sqlite3.connect(home.database_file) as conn:
        conn.execute(damage)
    with pytest.raises(error, match="table jobs cannot be copied"):
        import_home(home, url)
    store = open_store(url)
    assert store.view(lambda tx: events.of_job(tx, 1, limit=10)) == []
    store.close()
    assert home.database_file.exists()


def test_a_copy_that_differs_is_found(
    home: HomeLayout, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = transfer._fill

    def one_less(source: object, target: object, table: object) -> None:
        whole(source, target, table)  # type: ignore[arg-type]
        target.exec_driver_sql("UPDATE jobs SET priority = priority + 1")  # type: ignore[attr-defined]

    monkeypatch.setattr(transfer, "_fill", one_less)
    with pytest.raises(InvariantBroken, match="table jobs differs"):
        import_home(home, url)
    assert home.database_file.exists()
