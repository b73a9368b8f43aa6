"""A lost, replaced or restored database: no number is used twice, no supervisor of another is adopted."""

from __future__ import annotations

import shutil
import sqlite3
import threading
from pathlib import Path

import httpx
import pytest

from integration.rig import URL, Rig, open_rig
from phalanx.errors import Conflict, NotFound, ServerError, StoreUnavailable
from phalanx.kit.clock import SystemClock
from phalanx.schemas.home import HomeLayout
from phalanx.services.lifecycle.numbers import continue_numbers
from phalanx.services.secrets import values
from phalanx.standalone import backup
from phalanx.standalone.home import HomeLock, prepare_home
from phalanx.store import jobs, open_store

pytestmark = pytest.mark.integration


def ready(rig: Rig) -> tuple[int, dict[str, str]]:
    with httpx.Client(base_url=URL, transport=rig.transport) as http:
        answer = http.get("/readyz")
        return answer.status_code, answer.json().get("checks", {})


def drop_database(home: HomeLayout) -> None:
    for path in home.database_file.parent.iterdir():
        path.unlink()


@pytest.mark.sqlite
def test_a_database_that_is_deleted_while_it_is_used_stores_nothing(rig: Rig) -> None:
    rig.submit()
    assert ready(rig) == (200, {"database": "ok", "loops": "ok"})
    drop_database(rig.platform.home)
    with pytest.raises(StoreUnavailable, match="deleted or replaced while it was in use"):
        rig.submit()
    with pytest.raises(StoreUnavailable):
        rig.client.jobs()
    rig.clock.advance(2)
    code, checks = ready(rig)
    assert code == 503 and "deleted or replaced" in checks["database"]
    with httpx.Client(base_url=URL, transport=rig.transport) as http:
        assert http.get("/healthz").status_code == 200  # alive, and to be restarted by its operator


@pytest.mark.sqlite
def test_without_the_check_an_answer_of_success_is_lost(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: open connections go on with the deleted file."""
    home = rig.platform.home
    kept = home.database_file.with_suffix(".gone")
    home.database_file.rename(kept)
    monkeypatch.setattr(type(rig.store), "check_place", lambda self: None)
    assert rig.submit() == 1
    assert not home.database_file.exists()


@pytest.mark.sqlite
def test_a_database_in_the_place_of_another_is_not_taken_for_it(rig: Rig, tmp_path: Path) -> None:
    path = rig.platform.home.database_file
    path.rename(tmp_path / "moved")
    shutil.copy(tmp_path / "moved", path)
    with pytest.raises(StoreUnavailable):
        rig.submit()


def test_loops_that_stand_still_are_told(rig: Rig) -> None:
    rig.context.beats.update(scheduler=rig.clock.monotonic())
    assert ready(rig)[0] == 200
    rig.clock.advance(10_000)
    assert ready(rig) == (503, {"database": "ok", "loops": "no step is completed in: scheduler"})


@pytest.mark.sqlite
def test_an_older_schema_is_told(rig: Rig) -> None:
    with sqlite3.connect(rig.platform.home.database_file) as conn:
        conn.execute("UPDATE alembic_version SET version_num = '0001'")
    conn.close()
    code, checks = ready(rig)
    assert code == 503 and "the schema is 0001" in checks["database"]


def test_numbers_go_on_above_those_that_the_disk_knows(tmp_path: Path) -> None:
    with open_rig(tmp_path / "home") as rig:
        home = rig.platform.home
        (home.checkpoints_dir / "vision" / "j-41").mkdir(parents=True)
        home.job_dir(17).mkdir(parents=True)
        (home.root / "jobs" / "j-x").mkdir()
        continue_numbers(rig.store, home)
        assert rig.submit() == 42
        continue_numbers(rig.store, home)
        assert rig.submit() == 43


@pytest.mark.sqlite
def test_a_fresh_database_shares_nothing_with_the_lost_one(tmp_path: Path) -> None:
    with open_rig(tmp_path / "home") as rig:
        num, first = rig.submit(), rig.client.info().database
        rig.turn()
        token = rig.supervisor(num).token
        rig.platform.home.job_dir(num).mkdir(parents=True, exist_ok=True)
        drop_database(rig.platform.home)
    with open_rig(tmp_path / "home") as rig:
        assert rig.client.info().database != first
        # The guard of the numbers, off: even the same number is not the same job.
        num = rig.submit()
        rig.turn()
        supervisor = rig.supervisor(num)
        assert (num, supervisor.ref.attempt) == (1, 1) and supervisor.token != token
        old = supervisor.post(supervisor.request(), token=token)
        assert old.status_code == 401, "a live supervisor of the lost database is not adopted"


def test_a_job_has_a_name_that_no_other_database_gives(rig: Rig) -> None:
    one_slot = {"nodes": 1, "slots_per_node": 1}
    first, second = rig.submit(resources=one_slot), rig.submit(resources=one_slot)
    rig.turn()
    names = [rig.supervisor(num).assignment.gang.job.uid for num in (first, second)]
    assert len(set(names)) == 2
    assert all(name.startswith(f"{rig.store.database_id}-") for name in names)


# -- backup and restore ------------------------------------------------------------------------------


@pytest.mark.sqlite
def test_a_backup_is_made_while_jobs_are_submitted_and_restored(tmp_path: Path) -> None:
    home = prepare_home(tmp_path / "home")
    (home.root / "key").write_text("ab" * 32)
    with open_rig(home.root) as rig:
        rig.client.secrets.set("A_TOKEN", "x")
        before = [rig.submit() for _ in range(5)]
        stop, made = threading.Event(), []

        def submit() -> None:
            while not stop.is_set():
                made.append(rig.submit())

        thread = threading.Thread(target=submit)
        thread.start()
        try:
            about = backup.back_up(home, tmp_path / "backup")
        finally:
            stop.set()
            thread.join()
        with pytest.raises(Conflict, match="name a new folder"):
            backup.back_up(home, tmp_path / "backup")
        last = rig.submit()
        database_id = rig.store.database_id
    assert len(before) <= about["jobs"] <= len(before) + len(made)  # type: ignore[operator]

    fresh = HomeLayout(tmp_path / "fresh")
    assert backup.restore(tmp_path / "backup", fresh.root, force=False) is None
    assert (fresh.root / "token").read_text() == (home.root / "token").read_text()
    with open_rig(fresh.root) as rig:
        assert values.values(rig.platform, "default", ["A_TOKEN"]) == {"A_TOKEN": "x"}
        assert rig.store.database_id == database_id
        assert len(rig.client.jobs(limit=1000).jobs) == about["jobs"]
        for num in before:
            assert rig.job(num).state == "queued"

    with pytest.raises(Conflict, match="has a database"):
        backup.restore(tmp_path / "backup", home.root, force=False)
    home.job_dir(last).mkdir(parents=True, exist_ok=True)
    aside = backup.restore(tmp_path / "backup", home.root, force=True)
    assert aside is not None and (aside / "phalanx.sqlite").exists()
    with open_rig(home.root) as rig:
        continue_numbers(rig.store, rig.platform.home)
        assert rig.submit() == last + 1, (
            "a number of a job that the backup does not know is not used again"
        )


def test_what_is_no_backup_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="is not a backup"):
        backup.restore(tmp_path, tmp_path / "home", force=False)
    with pytest.raises(NotFound, match="no SQLite database"):
        backup.back_up(HomeLayout(tmp_path / "home"), tmp_path / "backup")
    assert backup.main(["--home", str(tmp_path / "home"), "restore", str(tmp_path)]) == 102


@pytest.mark.sqlite
def test_a_running_control_plane_is_not_overwritten(tmp_path: Path) -> None:
    with open_rig(tmp_path / "home") as rig:
        rig.submit()
        backup.back_up(rig.platform.home, tmp_path / "backup")
    lock = HomeLock(HomeLayout(tmp_path / "home"))
    lock.take(SystemClock(), 0.0)
    try:
        with pytest.raises(Conflict, match="is running already"):
            backup.restore(tmp_path / "backup", tmp_path / "home", force=True)
    finally:
        lock.release()
    store = open_store(tmp_path / "home" / "db" / "phalanx.sqlite")
    assert store.view(jobs.count_live) == 1
    store.close()


@pytest.mark.sqlite
def test_a_backup_of_a_later_release_is_refused(tmp_path: Path) -> None:
    with open_rig(tmp_path / "home") as rig:
        backup.back_up(rig.platform.home, tmp_path / "backup")
    about = tmp_path / "backup" / "backup.json"
    about.write_text(about.read_text().replace('"schema": "0', '"schema": "9'))
    with pytest.raises(ServerError, match="this release reads up to"):
        backup.restore(tmp_path / "backup", tmp_path / "other", force=False)
