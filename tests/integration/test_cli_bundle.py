"""`phalanx bundle`: one archive of a job, without secrets."""

from __future__ import annotations

import json
import tarfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from integration.rig import Rig
from phalanx.cli.app import app
from phalanx.cli.verbs.monitoring import job_bundle
from phalanx.errors import NotFound, PermissionDenied, UserError

pytestmark = pytest.mark.integration
TOKEN = "hf_" + "a1B2c3D4e5" * 3
PASSWORD = "correct-horse-battery"


@pytest.fixture
def failed(rig: Rig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> int:
    """A job that printed and raised secrets, with a fault that it recovered from."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(job_bundle, "connected", lambda ctx: nullcontext(rig.client))
    num = rig.submit(name="leaky", env={"COLOR": "blue", "DB_PASSWORD": PASSWORD})
    rig.turn()
    supervisor = rig.supervisor(num)
    supervisor.ready()
    supervisor.started()
    supervisor.log(0, f"logged in with {TOKEN}\nstep 1\n".encode())
    supervisor.step(0, 4)
    said = f"cannot reach postgres://ada:{PASSWORD}@db/train"
    supervisor.failed(exit_code=3, exception="OSError", message=said, traceback=f"OSError: {said}")
    supervisor.ended(0, "failed", step=4)
    return num


def bundle(*words: str) -> str:
    done = CliRunner().invoke(app, ["bundle", *words], catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout


def texts(path: Path) -> dict[str, str]:
    with tarfile.open(path) as archive:
        members = archive.getmembers()
        assert all(one.isfile() and one.mode == 0o600 for one in members)
        return {one.name: archive.extractfile(one).read().decode() for one in members}  # type: ignore[union-attr]


def test_all_that_is_known_is_in_it_and_no_secret(failed: int, tmp_path: Path) -> None:
    said = bundle(f"j-{failed}")
    path = tmp_path / f"j-{failed}-bundle.tar.gz"
    assert path.name in said and path.stat().st_mode & 0o777 == 0o600
    found = texts(path)
    folder = f"j-{failed}"
    names = (
        "job.json why.json provenance.json events.jsonl checkpoints.jsonl stacks.json metrics.json"
    )
    expected = {
        f"{folder}/{one}" for one in [*names.split(), "server.json", "output.txt", "README.md"]
    }
    assert set(found) == expected
    assert json.loads(found[f"{folder}/job.json"])["name"] == "leaky"
    kinds = [json.loads(line)["kind"] for line in found[f"{folder}/events.jsonl"].splitlines()]
    assert kinds[0] == "submitted" and "rank_failed" in kinds
    assert "rank 0 out | logged in with (withheld)\n" in found[f"{folder}/output.txt"]
    readme = found[f"{folder}/README.md"]
    assert "| 1.0 |" in readme and "rank_crash" in readme and "`events.jsonl`" in readme
    everything = "".join(found.values())
    assert TOKEN not in everything and PASSWORD not in everything
    assert [one.name for one in tmp_path.iterdir() if "bundle" in one.name] == [path.name]


def test_without_the_guard_the_secrets_would_be_in_it(
    failed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_bundle, "redacted", lambda text: text)
    bundle(f"j-{failed}", "-o", "open.tar.gz")
    assert TOKEN in "".join(texts(tmp_path / "open.tar.gz").values())


def test_values_with_names_of_secrets_are_withheld_in_any_depth() -> None:
    given = {"env": [{"API_KEY": "x1", "LR": "0.1"}], "note": f"use {TOKEN}", "steps": 3}
    found = job_bundle._withheld(given)
    assert found == {
        "env": [{"API_KEY": "(withheld)", "LR": "0.1"}],
        "note": "use (withheld)",
        "steps": 3,
    }


def test_what_is_refused_is_said_and_the_rest_is_written(
    rig: Rig, failed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionDenied("reading output needs the role member")

    monkeypatch.setattr(type(rig.client), "logs", refuse)
    said = bundle(f"j-{failed}")
    assert "not in it: output.txt: reading output needs the role member" in said
    found = texts(tmp_path / f"j-{failed}-bundle.tar.gz")
    assert f"j-{failed}/output.txt" not in found
    assert "not `output.txt`: reading output" in found[f"j-{failed}/README.md"]


def test_nothing_is_overwritten_and_a_job_that_is_not_there_is_said(
    failed: int, tmp_path: Path
) -> None:
    taken = tmp_path / "taken.tar.gz"
    taken.write_text("mine")
    with pytest.raises(UserError, match="exists"):
        bundle(f"j-{failed}", "--output", "taken.tar.gz")
    assert taken.read_text() == "mine"
    with pytest.raises(NotFound):
        bundle("j-999")
    with pytest.raises(UserError, match="cannot be written"):
        bundle(f"j-{failed}", "-o", "no/such/folder.tar.gz")
    answer = json.loads(bundle(f"j-{failed}", "--json", "--lines", "0", "-o", "b.tar.gz"))
    assert answer["files"][0] == "README.md" and answer["missing"] == {}
    assert texts(tmp_path / "b.tar.gz")[f"j-{failed}/output.txt"] == ""
