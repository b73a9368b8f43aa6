"""`phalanx doctor --server` against control planes that are really broken: each check, one by one."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from integration.rig import TOKEN, URL, Rig
from integration.served import Served, served
from integration.test_control_tls import DAY, NOW, given
from phalanx.cli.client import server_checkup
from phalanx.cli.client.checkup import CheckResult
from phalanx.cli.client.server_checkup import examine_server
from phalanx.sdk import PhalanxClient
from phalanx.server.leadership import Leadership
from support import databases

pytestmark = pytest.mark.integration


def checks(client: PhalanxClient) -> dict[str, CheckResult]:
    return {one.subject: one for one in examine_server(client)}


def broken(client: PhalanxClient) -> dict[str, str]:
    """The checks that are not in order, with their verdicts. The clock of a rig stands still in 2023."""
    found = {name: one.verdict for name, one in checks(client).items() if one.verdict != "ok"}
    assert found.pop("clock", "warn") == "warn"
    return found


@contextmanager
def client_of(rig: Rig, token: str = TOKEN) -> Iterator[PhalanxClient]:
    with PhalanxClient(URL, token, transport=rig.transport) as one:
        yield one


def test_a_control_plane_in_order_passes_every_check(tmp_path: Path) -> None:
    with served(tmp_path / "home") as server, server.client() as client:
        wait = {name: one.verdict for name, one in checks(client).items()}
    assert set(wait.values()) == {"ok"}, wait
    assert {"reachable", "database", "loops", "leader", "certificate", "token"} <= wait.keys()
    assert {"version", "replicas", "clock", "pool local"} <= wait.keys()


def test_a_control_plane_that_has_gone_is_one_failed_check(tmp_path: Path) -> None:
    with served(tmp_path / "home") as server:
        url = server.url
    with PhalanxClient(url, TOKEN) as client:
        assert broken(client) == {"reachable": "FAIL"}


def test_a_slow_answer(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_checkup, "_SLOW_S", 0.0)
    assert broken(rig.client) == {"reachable": "warn"}


def test_a_database_that_cannot_be_used(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """What needs no database is still said, and the check of the database has the reason."""
    made = rig.client.create_token("ci", ["read"])
    _remove_database(rig)
    found = broken(rig.client)
    assert found["database"] == "FAIL" and "reachable" not in found
    with client_of(rig, made.token) as client:
        found = broken(client)
    assert found["database"] == "FAIL" and "reachable" not in found


def _remove_database(rig: Rig) -> None:
    if databases.without_files():
        with rig.store._engine.begin() as conn:
            conn.exec_driver_sql("DROP TABLE alembic_version CASCADE")
    else:
        file = rig.platform.home.database_file
        file.rename(file.with_name("gone"))
        rig.store._engine.dispose()


def test_a_loop_that_makes_no_step(rig: Rig) -> None:
    rig.context.beats["scheduler"] = rig.clock.monotonic()
    assert broken(rig.client) == {}
    rig.clock.advance(3600.0)
    found = checks(rig.client)["loops"]
    assert found.verdict == "FAIL" and "scheduler" in found.said and found.remedy


def test_a_standby_without_a_leader(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Leadership, "role", "standby")
    assert broken(rig.client) == {"leader": "FAIL"}


@pytest.mark.parametrize(("age", "verdict"), [(20, "warn"), (2, "ok")])
def test_a_certificate_that_ends_soon(tmp_path: Path, age: int, verdict: str) -> None:
    certificate = given(tmp_path, NOW - age * DAY)
    certificate.renew(NOW)
    with served(tmp_path / "home", certificate=certificate) as server, _tls(server) as client:
        found = checks(client)
    assert found["certificate"].verdict == verdict
    assert found["certificate"].said.startswith("valid until 20")


def _tls(server: Served) -> PhalanxClient:
    return PhalanxClient(server.url, TOKEN, ca=server.ca)


def test_tokens(rig: Rig) -> None:
    soon = rig.client.create_token("ci", ["read"], expires_s=3600.0)
    with client_of(rig, soon.token) as client:
        found = checks(client)["token"]
        assert found.verdict == "warn" and "phalanx token create" in found.remedy
        rig.client.revoke_token(soon.view.id)
        assert broken(client)["token"] == "FAIL"
        assert "reachable" not in broken(client)
    later = rig.client.create_token("ci", ["read"], expires_s=30 * 86400.0)
    with client_of(rig, later.token) as client:
        assert checks(client)["token"].verdict == "ok"


def test_an_account_without_a_role_is_told_what_it_may_not_see(rig: Rig) -> None:
    account = rig.client.accounts.add("ada")
    made = rig.client.create_token("ada", ["read"], principal=account.id)
    with client_of(rig, made.token) as client:
        found = broken(client)
    assert found == {"control plane": "warn", "pools": "warn"}


def test_another_release(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_checkup, "__version__", "0.0.1")
    assert broken(rig.client) == {"version": "warn"}


def test_a_clock_that_differs(rig: Rig) -> None:
    found = checks(rig.client)["clock"]
    assert found.verdict == "warn" and "NTP" in found.remedy


@pytest.mark.sqlite
def test_a_database_that_cannot_be_written(rig: Rig) -> None:
    """Another process holds the lock of the file: reads go on, and what failed last is named."""
    with contextlib.closing(
        sqlite3.connect(rig.platform.home.database_file, isolation_level=None)
    ) as other:
        other.execute("BEGIN IMMEDIATE")
        found = checks(rig.client)
        assert found["database"].verdict == found["storage"].verdict == "FAIL"
        assert "locked" in found["database"].said and "reachable" in found
        other.execute("ROLLBACK")
    rig.clock.advance(10.0)
    assert broken(rig.client) == {}


def test_pools_without_nodes_and_with_closed_ones(rig: Rig) -> None:
    rig.client.drain("local")
    found = checks(rig.client)["pool local"]
    assert found.verdict == "warn" and "phalanx nodes" in found.remedy
    rig.client.undrain("local")
    assert broken(rig.client) == {}
    rig.executor.nodes = ()
    rig.turn(60.0)
    found = checks(rig.client)
    assert "FAIL" in {one.verdict for name, one in found.items() if name.startswith("pool")}
