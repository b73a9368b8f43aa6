"""References to secret managers: set, resolved at each start, and waited for while a manager is away."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from sqlalchemy import select

from integration.rig import Rig, open_rig
from phalanx.cli.__main__ import main as program
from phalanx.cli.client.session import Session
from phalanx.core.reasons import Cause
from phalanx.errors import SecretManagerUnavailable, SecretRefused, SpecInvalid, UserError
from phalanx.executors.protocol import SupervisorRef, SupervisorStatus
from phalanx.schemas.api.credentials import SetSecretRequest
from phalanx.server.settings import ApiSettings, SecretFileSettings, Settings, VaultSettings
from phalanx.services.lifecycle import leftover_logs
from phalanx.services.lifecycle.sync import supervisor_secrets
from phalanx.services.secret_managers.references import PAUSE_S
from phalanx.store.schema import metadata
from phalanx.supervise import boot
from support.secret_server import ROLE, ROOT_TOKEN, SECRET_ID, FakeSecretServer, secret_server

pytestmark = pytest.mark.integration
VALUE = "correct-horse-battery-staple"
HUB = "vault:phalanx/default/hub#token"


@pytest.fixture
def server() -> Iterator[FakeSecretServer]:
    with secret_server() as one:
        one.put("phalanx/default/hub", token=VALUE)
        yield one


@pytest.fixture
def rig(server: FakeSecretServer, tmp_path: Path) -> Iterator[Rig]:
    settings = Settings(
        api=ApiSettings(max_stream_s=0),
        vault=VaultSettings(address=server.url, role_id=ROLE, secret_id=SECRET_ID),
        secret_files=SecretFileSettings(root=tmp_path / "mounted"),
    )
    folder = tmp_path / "mounted" / "default" / "db"
    folder.mkdir(parents=True)
    (folder / "password").write_text("of-the-file")
    with open_rig(tmp_path / "home", settings=settings) as one:
        yield one


def received(rig: Rig, num: int, attempt: int = 1) -> dict[str, str]:
    one = rig.supervisor(num, attempt=attempt)
    return supervisor_secrets(rig.platform, (num, attempt, 0, 0), one.token)


def database(rig: Rig) -> str:
    with rig.store._engine.connect() as conn:
        rows = [
            repr(row) for table in metadata.sorted_tables for row in conn.execute(select(table))
        ]
    return "\n".join(rows)


def test_values_are_read_at_each_start_and_the_database_has_the_reference(
    rig: Rig, server: FakeSecretServer
) -> None:
    made = rig.client.secrets.refer("HUB_TOKEN", HUB)
    rig.client.secrets.refer("DB_PASS", "files:default/db#password")
    rig.client.secrets.set("OWN", "a-stored-value")
    assert (made.source, made.version, made.project) == (HUB, 1, "default")
    listed = {one.name: one.source for one in rig.client.secrets.list()}
    assert listed == {"HUB_TOKEN": HUB, "DB_PASS": "files:default/db#password", "OWN": None}
    num = rig.submit(secrets=["HUB_TOKEN", "DB_PASS", "OWN"])
    rig.turn()
    wanted = {"HUB_TOKEN": VALUE, "DB_PASS": "of-the-file", "OWN": "a-stored-value"}
    assert received(rig, num) == wanted
    # What a supervisor asks over HTTP, and has in memory alone.
    assignment = rig.supervisor(num).assignment
    assert VALUE not in assignment.model_dump_json()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("phalanx.supervise.secret_values._ask", lambda data: received(rig, num))
        assert boot._secrets(json.loads(assignment.model_dump_json())) == wanted
    server.put("phalanx/default/hub", token="second-value")
    rig.supervisor(num).ready()
    rig.executor.bury(SupervisorRef(num, 1, 0))
    rig.turn()
    rig.turn(60)
    assert received(rig, num, attempt=2)["HUB_TOKEN"] == "second-value"
    kept = database(rig)
    assert HUB in kept
    for value in (VALUE, "second-value", "of-the-file", SECRET_ID, "hvs."):
        assert value not in kept
    for path in rig.platform.home.root.rglob("*"):
        assert not path.is_file() or VALUE.encode() not in path.read_bytes(), path
    assert rig.client.secrets.rotate_key() == 1, "a reference has no key"
    rig.client.secrets.set("HUB_TOKEN", "now-stored-here")
    assert {one.name: one.source for one in rig.client.secrets.list()}["HUB_TOKEN"] is None


def test_a_job_waits_for_a_manager_that_is_away_and_is_not_failed(
    rig: Rig, server: FakeSecretServer
) -> None:
    rig.client.secrets.refer("HUB_TOKEN", HUB)
    num = rig.submit(secrets=["HUB_TOKEN"])
    other = rig.submit(name="other", resources={"slots_per_node": 1})
    server.sealed = True
    rig.turn()
    view = rig.job(num)
    assert view.state == "queued" and view.reason.code == "secret_manager_unavailable"
    why = rig.client.why(num)
    assert why.reason.code == "secret_manager_unavailable"
    assert "Vault is sealed" in why.reason.message
    # More often than any budget permits, for hours. The slots are free for other jobs meanwhile.
    for _ in range(60):
        rig.turn(300)
    view = rig.job(num)
    assert view.state == "queued" and view.attempt is None
    assert rig.job(other).state == "starting"
    assert rig.client.why(num).reason.code == "secret_manager_unavailable"
    assert {one.cause for one in view.lineage.restarts} == {"secret_manager_unavailable"}
    rig.client.stop(other, goal="cancel")
    rig.executor.bury(SupervisorRef(other, 1, 0))
    server.sealed = False
    rig.turn(300)
    rig.turn(0)
    view = rig.job(num)
    assert view.state == "starting" and view.attempt is not None
    assert received(rig, num, view.attempt) == {"HUB_TOKEN": VALUE}
    # The outage says nothing about the job: the loss of a node afterwards is its first.
    rig.executor.bury(SupervisorRef(num, view.attempt, 0))
    rig.turn()
    assert rig.job(num).state in ("queued", "starting")
    rig.check_log(num)


def test_a_budget_may_limit_the_waiting(rig: Rig, server: FakeSecretServer) -> None:
    rig.client.secrets.refer("HUB_TOKEN", HUB)
    limit = {Cause.SECRET_MANAGER_UNAVAILABLE.value: {"count": 1, "first_wait": 1}}
    num = rig.submit(secrets=["HUB_TOKEN"], recovery=limit)
    server.sealed = True
    for _ in range(5):
        rig.turn(PAUSE_S)
    view = rig.job(num)
    assert view.state == "failed" and view.failure is not None
    assert view.failure.cause == "secret_manager_unavailable"


def test_what_a_manager_refuses_fails_after_some_starts(rig: Rig, server: FakeSecretServer) -> None:
    rig.client.secrets.refer("HUB_TOKEN", HUB)
    num = rig.submit(secrets=["HUB_TOKEN"])
    server.delete("phalanx/default/hub")
    for _ in range(12):
        rig.turn(120)
    view = rig.job(num)
    assert view.state == "failed" and view.failure is not None
    assert view.failure.cause == "secret_unavailable"
    assert "vault has no secret secret/phalanx/default/hub" in view.model_dump_json()


def test_a_reference_is_checked_when_it_is_set(rig: Rig, server: FakeSecretServer) -> None:
    server.put("phalanx/text/hub", token="of-another-project")
    refer = rig.client.secrets.refer
    with pytest.raises(SecretRefused, match="of project default are below phalanx/default/"):
        refer("HUB", "vault:phalanx/text/hub#token")
    with pytest.raises(SecretRefused, match="has no key none"):
        refer("HUB", "vault:phalanx/default/hub#none")
    with pytest.raises(SecretRefused, match="no secret manager cloud; configured: files, vault"):
        refer("HUB", "cloud:a#b")
    with pytest.raises(UserError, match="write MANAGER:PATH#KEY"):
        refer("HUB", "vault:../x#b")
    server.sealed = True
    with pytest.raises(SecretManagerUnavailable):
        refer("HUB", HUB)
    assert rig.client.secrets.list() == []
    server.sealed = False
    rig.clock.advance(PAUSE_S)
    # One of the whole platform names any path, and jobs of every project can name it.
    refer("HUB", "vault:phalanx/text/hub#token", project=None)
    num = rig.submit(secrets=["HUB"])
    rig.turn()
    assert received(rig, num) == {"HUB": "of-another-project"}
    entries = [one.model_dump_json() for one in rig.client.accounts.audit(action="PUT")]
    assert sum("vault:phalanx/text/hub#token" in one for one in entries) == 1
    assert not any("of-another-project" in one for one in entries)
    for body in ({}, {"value": "a", "source": HUB}):
        with pytest.raises(ValidationError, match="either the value or its source"):
            SetSecretRequest(**body)


def test_a_row_that_was_changed_by_hand_reads_no_path_of_another_project(
    rig: Rig, server: FakeSecretServer
) -> None:
    from phalanx.store.secrets import rows

    server.put("phalanx/text/hub", token="of-another-project")
    rig.client.secrets.refer("HUB", HUB)
    row = rig.store.view(lambda tx: rows.find(tx, "default", "HUB"))
    assert row is not None
    changed = replace(row, source="vault:phalanx/text/hub#token")
    rig.store.transact(lambda tx: rows.put(tx, changed))
    num = rig.submit(secrets=["HUB"])
    rig.turn()
    assert "are below phalanx/default/" in rig.job(num).model_dump_json()


def test_leftover_output_is_not_stored_while_its_values_are_unknown(
    rig: Rig, server: FakeSecretServer
) -> None:
    rig.client.secrets.refer("HUB_TOKEN", HUB)
    num = rig.submit(secrets=["HUB_TOKEN"])
    rig.turn()
    supervisor = rig.supervisor(num)
    supervisor.ready()
    supervisor.started()
    folder = rig.platform.home.node_dir(num, 1, 0) / "g000"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "r00000.out").write_text(f"it is {VALUE}\n")
    server.sealed = True
    gone = SupervisorStatus(supervisor.ref, alive=False)
    leftover_logs.collect_logs(rig.platform, gone, rig.clock.now())
    page: Any = rig.client.logs(num)
    assert VALUE not in page.model_dump_json() and "it is" not in page.model_dump_json()
    server.sealed = False
    rig.clock.advance(PAUSE_S)
    leftover_logs.collect_logs(rig.platform, gone, rig.clock.now())
    assert f"it is {'*' * len(VALUE)}" in rig.client.logs(num).model_dump_json()


def test_the_verb_sets_a_reference(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Session, "client", lambda self: contextlib.nullcontext(rig.client))

    def secrets(*argv: str) -> tuple[object, str]:
        with pytest.raises(SystemExit) as left:
            program(["--home", str(tmp_path / "home"), "secrets", *argv])
        said = capsys.readouterr()
        assert VALUE not in said.out + said.err
        return left.value.code, said.out + said.err

    code, said = secrets("set", "HUB", "--from", HUB)
    assert code == 0 and f"HUB of project default, version 1, is read from {HUB}" in said
    assert HUB in secrets("ls")[1]
    code, said = secrets("set", "HUB", "--from", "vault:phalanx/default/none#token")
    assert code == SecretRefused.exit_code and "vault has no secret" in said
    code, said = secrets("set", "HUB", "B", "--from", HUB)
    assert code == UserError.exit_code and "--from names the value of one secret" in said


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"address": "http://far.example:8200", "token": "t"}, "ADDRESS: must begin with https"),
        ({"address": "https://v"}, "TOKEN: give either the token, or the role id"),
        ({"address": "https://v", "token": "top", "role_id": "r"}, "give either the token"),
        (
            {"address": "https://v", "token": "t", "ca": "/none.pem"},
            "CA: /none.pem: cannot be read",
        ),
    ],
)
def test_settings_that_cannot_be_used(given: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecInvalid, match=f"PHALANX__VAULT__.*{said}|{said}") as caught:
        VaultSettings(**given).resolved()
    assert "top" not in str(caught.value)
    assert VaultSettings().resolved() is None and SecretFileSettings().resolved() is None


def test_settings_show_no_credential() -> None:
    shown = repr(VaultSettings(address="https://v", token=ROOT_TOKEN, secret_id=SECRET_ID))
    config = VaultSettings(address="https://v", token=ROOT_TOKEN).resolved()
    assert ROOT_TOKEN not in shown + repr(config) and SECRET_ID not in shown
    for wrong in ("{project}x", "../{project}", "phalanx", "a//{project}"):
        with pytest.raises(ValidationError):
            VaultSettings(project_path=wrong)
