"""Checkpoints without a server: list, show, verify, rm."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from phalanx.checkpoint import list_checkpoints
from phalanx.cli.__main__ import main as program

pytestmark = pytest.mark.unit


def run(capsys, *argv: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        program(["checkpoints", *argv])
    said = capsys.readouterr()
    return left.value.code, said.out, said.err


def test_a_folder_that_is_not_there(capsys, tmp_path: Path):
    code, _, err = run(capsys, "list", str(tmp_path / "no"))
    assert (code, "no such folder" in err) == (102, True)


def test_an_empty_folder(capsys, tmp_path: Path):
    code, out, err = run(capsys, "list", str(tmp_path))
    assert (code, out) == (0, "")
    assert "no checkpoints here" in err


def test_debris_and_broken_ones_are_listed_as_such(capsys, tmp_path: Path):
    (tmp_path / "step-00000010-0123abcd.tmp").mkdir()
    broken = tmp_path / "step-00000020-0123abcd"
    broken.mkdir()
    (broken / "MANIFEST.json").write_text("{}")
    code, out, _ = run(capsys, "list", str(tmp_path))
    assert code == 0
    assert "incomplete" in out
    assert "bad: " in out
    code, out, _ = run(capsys, "list", str(tmp_path), "--json")
    body = json.loads(out)
    assert (len(body["bad"]), len(body["debris"]), body["good"]) == (1, 1, [])
    code, out, err = run(capsys, "verify", str(tmp_path))
    assert (code, "1 of 1 checkpoints cannot be used" in err) == (1, True)
    assert list_checkpoints(tmp_path) == []


@pytest.mark.parametrize(
    ("argv", "says"),
    [(("list",), "no path was given"), (("bogus", "x"), "unknown action 'bogus'")],
)
def test_wrong_words(capsys, argv, says):
    code, _, err = run(capsys, *argv)
    assert (code, says in err) == (1, True)
