"""Secret variables of a job: in a file of mode 0600 until it ends, and nowhere else."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import stat
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import select

from integration.rig import Rig, open_rig, spec
from phalanx.cli.__main__ import main as program
from phalanx.cli.client.session import Session
from phalanx.core.contract.secrecy import WITHHELD, split_secrets
from phalanx.errors import NotFound, PlatformError, SpecInvalid, StoreError, UserError
from phalanx.executors.protocol import SupervisorRef
from phalanx.launch import secret_files
from phalanx.schemas.api.jobs import SubmitRequest
from phalanx.server.settings import SecretSettings, Settings
from phalanx.services.lifecycle.sync import supervisor_secrets
from phalanx.services.retention.expired_data import RetentionProgress, retention_step
from phalanx.services.secrets import values as secret_store
from phalanx.services.secrets.values import adopt_files
from phalanx.store.schema import metadata
from phalanx.store.secrets import rows
from phalanx.store.tables import secrets as secrets_table
from phalanx.supervise import boot

pytestmark = pytest.mark.integration
VALUES = {
    "DB_PASS": "value-of-db-pass",
    "SENTRY_DSN": "https://" + "5e" * 16 + "@sentry.example/1",
    "MYSQL_PWD": "value-of-mysql-pwd",
    "SLACK_WEBHOOK_URL": "https://hooks.example/value-of-webhook",
    "WANDB_API_KEY": "value-of-wandb",
    "DATABASE_URL": "postgres://me:value-of-url@db/x",
    "MY_SETTING": "ghp_" + "a1B2" * 9,
}
TOKENS = [value.rpartition("@")[0] or value for value in VALUES.values()]


def run(rig: Rig, **changes: object) -> int:
    body = SubmitRequest(
        spec=spec(env={"JOB_TOKEN": "value-of-job-token", "MODE": "fast"}, **changes),
        kind="run",
        caller_cwd="/",
        caller_env={"LANG": "C", "JOB_TOKEN": "an-outer-one", **VALUES},
        owner="ada",
    )
    view = rig.client.submit(body).job
    assert view is not None
    return view.num


def everything(rig: Rig) -> str:
    """All that the database holds, as text."""
    path = rig.platform.home.database_file
    with sqlite3.connect(path) as conn:
        return "\n".join(conn.iterdump())


@pytest.mark.sqlite
def test_values_reach_the_ranks_and_nothing_else(rig: Rig) -> None:
    num = run(rig)
    rig.turn()
    assignment = rig.supervisor(num).assignment
    shown = json.dumps(
        [rig.client.job(num).model_dump(mode="json"), assignment.model_dump(mode="json")]
    )
    kept = everything(rig)
    for value in (*TOKENS, "value-of-job-token", "an-outer-one"):
        assert value not in shown and value not in kept
    assert rig.client.job(num).spec["env"] == {"JOB_TOKEN": WITHHELD, "MODE": "fast"}
    assert assignment.env == {"LANG": "C", "MODE": "fast"}
    path = rig.platform.home.job_secrets_file(num)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    values = boot._secrets(json.loads(assignment.model_dump_json()))
    assert values == {**VALUES, "JOB_TOKEN": "value-of-job-token"}


@pytest.mark.sqlite
def test_without_the_classifier_the_database_holds_them(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control."""
    monkeypatch.setattr("phalanx.core.contract.secrecy.is_secret", lambda name, value="": False)
    run(rig)
    assert "value-of-db-pass" in everything(rig)
    assert split_secrets(VALUES)[1] == {}


def test_roles_have_their_own(rig: Rig) -> None:
    roles = {
        "trainer": {
            "run": ["a"],
            "nodes": 1,
            "slots_per_node": 1,
            "env": {"X_TOKEN": "of-trainer"},
        },
        "evaluator": {"run": ["b"], "nodes": 1, "slots_per_node": 1, "env": {"X_TOKEN": "plain"}},
    }
    base = {"schema": 1, "name": "roles", "env": {"X_TOKEN": "of-all", "Y_TOKEN": "y"}}
    view = rig.client.submit(SubmitRequest(spec=base | {"roles": roles}, owner="ada")).job
    assert view is not None
    rig.turn()
    found = [
        boot._secrets(json.loads(rig.supervisor(view.num, node).assignment.model_dump_json()))
        for node in (0, 1)
    ]
    assert found == [
        {"X_TOKEN": "of-trainer", "Y_TOKEN": "y"},
        {"X_TOKEN": "plain", "Y_TOKEN": "y"},
    ]
    assert "of-trainer" not in everything(rig)


def test_a_secret_of_the_project_replaces_the_variable(rig: Rig) -> None:
    rig.client.secrets.set("DB_PASS", "of-the-project")
    num = run(rig, secrets=["DB_PASS"])
    rig.turn()
    values = sent(rig, num)
    assert values["DB_PASS"] == "of-the-project" and values["MYSQL_PWD"] == VALUES["MYSQL_PWD"]


def sent(rig: Rig, num: int, attempt: int = 1) -> dict[str, str]:
    """What the control plane sends to the supervisor of node 0 of an attempt."""
    one = rig.supervisor(num, attempt=attempt)
    return supervisor_secrets(rig.platform, (num, attempt, 0, 0), one.token)


def test_a_withheld_value_is_no_value(rig: Rig) -> None:
    with pytest.raises(SpecInvalid, match=r"env\.DB_PASS: the value was withheld"):
        rig.submit(env={"DB_PASS": WITHHELD})


def test_a_dry_run_withholds_and_stores_nothing(rig: Rig) -> None:
    body = SubmitRequest(spec=spec(env={"DB_PASS": "value-of-db-pass"}), owner="ada")
    answer = rig.client.submit(body, dry_run=True)
    assert answer.spec["env"] == {"DB_PASS": WITHHELD}
    assert not list(rig.platform.home.root.glob("jobs/*/secrets.json"))


def test_the_file_goes_with_the_job(rig: Rig) -> None:
    num, other = run(rig), run(rig)
    path, kept = map(rig.platform.home.job_secrets_file, (num, other))
    rig.client.stop(num, goal="cancel")
    rig.turn()
    assert rig.job(num).is_terminal and not rig.job(other).is_terminal
    orphan = rig.platform.home.job_secrets_file(99)
    secret_files.store_own(orphan, {"job": {"A_TOKEN": "x"}})
    young = rig.platform.home.job_secrets_file(98)
    secret_files.store_own(young, {"job": {"A_TOKEN": "x"}})
    now = rig.clock.now()
    for one, age_s in ((orphan, 7200), (young, 60)):
        os.utime(one, (now / 1e6 - age_s, now / 1e6 - age_s))
    retention_step(rig.platform, RetentionProgress(), now)
    assert [one.exists() for one in (path, kept, orphan, young)] == [False, True, False, True]


def test_a_lost_file_is_said_without_a_value(rig: Rig, tmp_path: Path) -> None:
    num = run(rig)
    rig.turn()
    path = rig.platform.home.job_secrets_file(num)
    path.write_text('{"caller": "value-of-db-pass"}')
    with pytest.raises(NotFound, match="secret variables of the job cannot be read") as caught:
        secret_files.read_own(path, rig.supervisor(num).assignment.own_secrets)
    assert "value-of" not in str(caught.value)


# -- secrets of projects and of the whole platform ---------------------------------------------------

PLANTED = "correct-horse-battery-staple"


def test_a_stored_value_is_in_no_row_and_no_answer(rig: Rig) -> None:
    first = rig.client.secrets.set("DB_PASS", PLANTED)
    again = rig.client.secrets.set("DB_PASS", PLANTED, project=None)
    num = rig.submit(secrets=["DB_PASS"])
    rig.turn()
    rig.supervisor(num).ready()
    assert (first.project, first.version, again.project) == ("default", 1, None)
    shown = [
        *(one.model_dump_json() for one in rig.client.secrets.list()),
        *(one.model_dump_json() for one in rig.client.secrets.list(None)),
        rig.job(num).model_dump_json(),
        rig.supervisor(num).assignment.model_dump_json(),
    ]
    assert PLANTED not in "".join(shown)
    with rig.store._engine.connect() as conn:
        stored = [
            repr(row) for table in metadata.sorted_tables for row in conn.execute(select(table))
        ]
    assert stored and not any(PLANTED in row for row in stored)
    key = rig.platform.home.secrets_key_file
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    for path in rig.platform.home.root.rglob("*"):
        assert not path.is_file() or PLANTED.encode() not in path.read_bytes(), path


@pytest.mark.sqlite
def test_without_encryption_the_database_holds_it(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control."""
    monkeypatch.setattr("phalanx.store.secrets.envelope._encrypt", lambda key, data, context: data)
    rig.client.secrets.set("DB_PASS", PLANTED)
    with rig.store._engine.connect() as conn:
        assert any(PLANTED in repr(row) for row in conn.execute(select(secrets_table)))


def test_one_of_the_project_wins_and_others_do_not_see_it(rig: Rig) -> None:
    rig.client.secrets.set("A_KEY", "of the whole", project=None)
    rig.client.secrets.set("B_KEY", "of vision", project="vision")
    rig.client.secrets.set("A_KEY", "of vision", project="vision")
    platform = rig.platform
    assert secret_store.values(platform, "vision", ["A_KEY", "B_KEY"]) == {
        "A_KEY": "of vision",
        "B_KEY": "of vision",
    }
    assert secret_store.values(platform, "default", ["A_KEY"]) == {"A_KEY": "of the whole"}
    assert [(one.name, one.project) for one in rig.client.secrets.list()] == [("A_KEY", None)]
    with pytest.raises(SpecInvalid, match="project default has no such secret"):
        rig.submit(secrets=["B_KEY"])


def test_the_next_attempt_gets_the_new_value_and_a_removed_one_fails_the_launch(rig: Rig) -> None:
    rig.client.secrets.set("DB_PASS", "first-value")
    num = rig.submit(secrets=["DB_PASS"])
    rig.turn()
    assert sent(rig, num) == {"DB_PASS": "first-value"}
    assert rig.client.secrets.set("DB_PASS", "second-value").version == 2
    rig.executor.bury(SupervisorRef(num, 1, 0))  # it dies, and the job is tried again
    rig.turn()
    rig.turn(60)
    assert sent(rig, num, attempt=2) == {"DB_PASS": "second-value"}
    rig.client.secrets.remove("DB_PASS")
    rig.executor.bury(SupervisorRef(num, 2, 0))
    for _ in range(12):
        rig.turn(120)
    view = rig.job(num)
    assert view.state == "failed" and view.failure is not None
    assert view.failure.cause == "secret_unavailable"
    assert "phalanx secrets set DB_PASS --project default" in view.model_dump_json()
    assert view.lineage.restarts[-1].cause == "secret_unavailable"
    assert "secret DB_PASS of project default does not exist any more" in view.model_dump_json()
    with pytest.raises(NotFound, match="project default has no secret DB_PASS"):
        rig.client.secrets.remove("DB_PASS")


def test_a_row_opens_in_its_own_place_alone(rig: Rig) -> None:
    rig.client.secrets.set("A_KEY", "value-of-a", project="vision")
    found = rig.store.view(lambda tx: rows.find(tx, "vision", "A_KEY"))
    assert found is not None
    rig.store.transact(lambda tx: rows.put(tx, replace(found, project="default")))
    with pytest.raises(StoreError, match="a secret does not open") as caught:
        secret_store.values(rig.platform, "default", ["A_KEY"])
    assert "value-of" not in str(caught.value)


def test_the_master_key_is_rotated_and_a_crash_in_between_loses_nothing(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("A_KEY", "B_KEY"):
        rig.client.secrets.set(name, f"value of {name}")
    file = rig.platform.home.secrets_key_file
    old = file.read_text()

    def crash(*_: object) -> None:
        raise StoreError("the power is gone")

    with monkeypatch.context() as patch:
        patch.setattr(rows, "every", crash)
        with pytest.raises(StoreError):
            secret_store.rotate_key(rig.platform)
    assert old in file.read_text() and len(file.read_text().split()) == 2
    wanted = {"A_KEY": "value of A_KEY", "B_KEY": "value of B_KEY"}
    assert secret_store.values(rig.platform, "default", wanted) == wanted
    assert rig.client.secrets.rotate_key() == 2
    assert old not in file.read_text() and len(file.read_text().split()) == 1
    assert secret_store.values(rig.platform, "default", wanted) == wanted
    file.write_text(old)
    num = rig.submit(secrets=["A_KEY"])
    with pytest.raises(StoreError, match=r"the master key \w+ is not here"):
        secret_store.values(rig.platform, "default", wanted)
    for _ in range(12):
        rig.turn(120)
    view = rig.job(num)
    assert view.state == "failed" and view.failure is not None
    assert view.failure.cause == "secret_unavailable"
    assert "keep it with the home" in view.model_dump_json()


def test_keys_of_the_settings(tmp_path: Path) -> None:
    one, two = "11" * 32, "22" * 32
    home = tmp_path / "home"
    for given, rotated in ((one, 1), (f"{two},{one}", 1), (two, 1)):
        settings = Settings(secrets=SecretSettings(key=given))
        with open_rig(home, settings=settings) as rig:
            if given == one:
                rig.client.secrets.set("A_KEY", "kept")
            assert secret_store.values(rig.platform, "default", ["A_KEY"]) == {"A_KEY": "kept"}
            assert rig.client.secrets.rotate_key() == rotated
            assert not rig.platform.home.secrets_key_file.exists()
    with pytest.raises(SpecInvalid, match="PHALANX__SECRETS__KEY") as caught:
        SecretSettings(key="short").resolved()
    assert "short" not in str(caught.value)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("sh -c 'echo 11; exit 3'", "ended with status 3"),
        ("/no/such/program", "cannot be run"),
        ("", "cannot be run"),
        ("sh -c 'unclosed", "cannot be run"),
        ("echo short-secret", "not a list of keys"),
    ],
)
def test_command_without_a_key_is_refused_and_its_output_is_not_shown(
    command: str, said: str
) -> None:
    with pytest.raises(SpecInvalid, match=said) as caught:
        SecretSettings(key=f"command:{command}").resolved()
    assert "PHALANX__SECRETS__KEY" in str(caught.value)
    assert "short-secret" not in str(caught.value)


def test_key_of_a_command_opens_what_the_same_key_sealed(tmp_path: Path) -> None:
    key = "33" * 32
    printed = Settings(secrets=SecretSettings(key=f"command:printf %s {key}"))
    with open_rig(tmp_path / "home", settings=printed) as rig:
        rig.client.secrets.set("A_KEY", "kept")
    with open_rig(tmp_path / "home", settings=Settings(secrets=SecretSettings(key=key))) as rig:
        assert secret_store.values(rig.platform, "default", ["A_KEY"]) == {"A_KEY": "kept"}


def test_files_of_an_earlier_release_move_into_the_database(rig: Rig) -> None:
    folder = rig.platform.home.secret_files_dir / "default"
    folder.mkdir(parents=True)
    (folder / "A_KEY").write_text("of the file")
    (folder / "B_KEY").write_text("old")
    rig.client.secrets.set("B_KEY", "new")
    assert adopt_files(rig.platform, rig.clock.now()) == 2
    assert not folder.exists()
    values = secret_store.values(rig.platform, "default", ["A_KEY", "B_KEY"])
    assert values == {"A_KEY": "of the file", "B_KEY": "new"}
    assert adopt_files(rig.platform, rig.clock.now()) == 0


@pytest.mark.parametrize("value", ["", "top\0secret", "x" * (64 << 10) + "x"])
def test_a_value_that_cannot_be_stored_is_refused_and_not_quoted(rig: Rig, value: str) -> None:
    with pytest.raises(PlatformError) as caught:
        secret_store.set_secret(rig.platform, "default", "A_KEY", value, 1, actor="user:admin")
    assert "top" not in str(caught.value) and "xx" not in str(caught.value)


def test_names_are_those_of_variables(rig: Rig) -> None:
    for name in ("A-B", "1A", "../A", "A" * 129):
        with pytest.raises(UserError):
            rig.client.secrets.set(name, "x")


def test_the_verbs_print_no_value(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Session, "client", lambda self: contextlib.nullcontext(rig.client))
    monkeypatch.setenv("MY_TOKEN", PLANTED)
    (tmp_path / "key.pem").write_text("two\nlines\n")

    def secrets(*argv: str) -> tuple[object, str]:
        with pytest.raises(SystemExit) as left:
            program(["--home", str(tmp_path / "home"), "secrets", *argv])
        said = capsys.readouterr()
        assert PLANTED not in said.out + said.err
        return left.value.code, said.out

    assert secrets("set", "MY_TOKEN", "--project", "vision")[0] == 0
    assert secrets("set", "PEM", "--whole", "--file", str(tmp_path / "key.pem"))[0] == 0
    stored = secret_store.values(rig.platform, "vision", ["MY_TOKEN", "PEM"])
    assert stored == {"MY_TOKEN": PLANTED, "PEM": "two\nlines"}
    listed = json.loads(secrets("ls", "--project", "vision", "--json")[1])
    assert [(one["name"], one["project"]) for one in listed] == [
        ("PEM", None),
        ("MY_TOKEN", "vision"),
    ]
    assert secrets("rotate-key")[0] == 0
    assert secrets("rm", "MY_TOKEN", "--project", "vision")[0] == 0
    assert secrets("rm", "MY_TOKEN", "--project", "vision")[0] == NotFound.exit_code
    remote = ("--url", "http://far.example:1", "--token", "t", "secrets", "set", "MY_TOKEN")
    with pytest.raises(SystemExit) as left:
        program(list(remote))
    assert left.value.code == UserError.exit_code
    assert "unencrypted connection" in capsys.readouterr().err
