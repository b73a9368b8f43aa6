"""`phalanx submit` of several jobs: what is wrong with one of them names its file and its line."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path

import pytest
from typer.testing import CliRunner

from integration.rig import Rig
from phalanx.cli.app import app
from phalanx.cli.client.session import Session
from phalanx.cli.verbs import submit
from phalanx.errors import SpecInvalid

pytestmark = pytest.mark.integration
GOOD = """\
schema: 1
name: first
run: "true"
"""


@pytest.fixture
def folder(rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(Session, "client", lambda self: nullcontext(rig.client))
    monkeypatch.setattr(Session, "begin", lambda self, num_slots=None: None)
    monkeypatch.setattr(submit, "_upload", lambda *_: "0" * 64)
    made = tmp_path / "jobs"
    made.mkdir()
    return made


def refused(folder: Path, *names: str, dry: bool = True) -> list[str]:
    words = [str(folder / name) for name in names] + (["--dry-run"] if dry else [])
    env = {"PHALANX_HOME": str(folder), "PATH": os.environ["PATH"]}
    done = CliRunner().invoke(app, ["submit", *words], env=env)
    assert isinstance(done.exception, SpecInvalid), (done.output, done.exception)
    return [str(one) for one in done.exception.problems]


def test_every_problem_of_every_document_has_its_line(rig: Rig, folder: Path) -> None:
    (folder / "jobs.yaml").write_text(
        f"{GOOD}resources:\n  nodez: 2\n---\n{GOOD}---\n# third\n{GOOD}env:\n  A: [1]\npriority: 500\n"
    )
    said = refused(folder, "jobs.yaml")
    assert said[0].startswith("jobs.yaml, line 5: resources.nodez: unknown key; did you mean nodes")
    assert any(one.startswith("jobs.yaml, line 16: env.A: ") for one in said)
    assert any(one.startswith("jobs.yaml, line 17: priority: must be at most 100") for one in said)


def test_what_the_server_refuses_has_the_line_of_its_entry(rig: Rig, folder: Path) -> None:
    (folder / "jobs.yaml").write_text(
        f"{GOOD}---\n{GOOD}resources:\n  nodes: 1\n  slots_per_node: 99\n"
    )
    (one,) = refused(folder, "jobs.yaml")
    assert one.startswith("jobs.yaml, line 10: resources.slots_per_node: "), one
    (folder / "a.yaml").write_text(GOOD)
    (folder / "b.yaml").write_text(f"{GOOD}pool: nowhere\n")
    (one,) = refused(folder, "a.yaml", "b.yaml")
    assert one.startswith("b.yaml, line 4: pool"), one


def test_a_folder_that_is_missing_and_a_field_that_is_not_supported_have_lines(
    rig: Rig, folder: Path
) -> None:
    (folder / "jobs.yaml").write_text(f"{GOOD}---\n{GOOD}workdir: nowhere\n")
    (one,) = refused(folder, "jobs.yaml")
    assert one.startswith("jobs.yaml, line 8: workdir: no such folder"), one


def test_dependencies_and_names_of_a_batch_have_lines(rig: Rig, folder: Path) -> None:
    second = GOOD.replace("first", "second")
    (folder / "twice.yaml").write_text(f"{GOOD}---\n{GOOD}---\n{second}depends_on: [first]\n")
    (one,) = refused(folder, "twice.yaml")
    assert one.startswith("twice.yaml, line 6: name: another job of the batch has this name"), one
    (folder / "circle.yaml").write_text(
        f"{GOOD}depends_on: [second]\n---\n{second}depends_on: [first]\n"
    )
    (one,) = refused(folder, "circle.yaml")
    assert one.startswith("circle.yaml, line 4: depends_on: the jobs wait"), one


def test_an_array_alone_has_the_line_too(rig: Rig, folder: Path) -> None:
    (folder / "array.yaml").write_text(f"{GOOD}array: 0-3\nresources: {{slots_per_node: 99}}\n")
    (one,) = refused(folder, "array.yaml")
    assert one.startswith("array.yaml, line 5: resources.slots_per_node: "), one


def test_an_object_of_another_tool_has_the_line_of_its_key(rig: Rig, folder: Path) -> None:
    (folder / "pipeline.yaml").write_text(
        "name: pipeline\n---\nname: data\nrun: python prepare.py\n---\n"
        "name: train\nnum_nodes: 50\nrun: python train.py\n"
    )
    (one,) = refused(folder, "pipeline.yaml")
    assert one.startswith("pipeline.yaml, line 7: resources"), one


def test_a_document_that_is_no_mapping_and_aliases(rig: Rig, folder: Path) -> None:
    (folder / "jobs.yaml").write_text(f"{GOOD}---\n- a list\n")
    (one,) = refused(folder, "jobs.yaml")
    assert one == "jobs.yaml, line 5: this document is not a mapping"
    bomb = "a: &a [x]\n" + "".join(
        f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n"
        for before, name in zip("abcdefgh", "bcdefghi", strict=True)
    )
    (folder / "bomb.yaml").write_text(f"{GOOD}---\n{bomb}{GOOD}")
    assert all(one.startswith("bomb.yaml, line ") for one in refused(folder, "bomb.yaml"))
