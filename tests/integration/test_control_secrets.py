"""Secret variables of a job: in a file of mode 0600 until it ends, and nowhere else."""

from __future__ import annotations

import json
import os
import sqlite3
import stat
from pathlib import Path

import pytest

from integration.rig import Rig, spec
from phalanx.core.contract.secrecy import WITHHELD, split_secrets
from phalanx.errors import NotFound, SpecInvalid
from phalanx.launch import secret_files
from phalanx.schemas.api.jobs import SubmitRequest
from phalanx.services.lifecycle.retention import RetentionProgress, retention_step
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
    secret_files.store(rig.platform.home.secrets_dir("default"), "DB_PASS", "of-the-project")
    num = run(rig, secrets=["DB_PASS"])
    rig.turn()
    values = boot._secrets(json.loads(rig.supervisor(num).assignment.model_dump_json()))
    assert values["DB_PASS"] == "of-the-project" and values["MYSQL_PWD"] == VALUES["MYSQL_PWD"]


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
