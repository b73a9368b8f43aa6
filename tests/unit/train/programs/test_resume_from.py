"""The program that stages the checkpoint to begin from: verified where it is, or told in one line."""

from __future__ import annotations

import json

import pytest

from phalanx.train.programs import resume_from
from support.checkpoints import commit

pytestmark = pytest.mark.unit


@pytest.fixture
def run(tmp_path, capsys):
    def begin(*places):
        request = tmp_path / "resume.json"
        body = {"places": [str(one) for one in places], "into": str(tmp_path / "into")}
        request.write_text(json.dumps(body))
        code, staged = resume_from.main([str(request)]), tmp_path / "resume.json.staged"
        found = json.loads(staged.read_bytes()) if staged.exists() else None
        return code, found, capsys.readouterr().out

    return begin


def test_a_checkpoint_and_a_folder_of_some_are_verified_in_place(run, tmp_path):
    one, two = (commit(tmp_path / "store", step) for step in (1, 2))
    assert run(one)[:2] == (0, {"path": str(one), "step": 1, "why": "interval"})
    assert run(tmp_path / "store")[1]["path"] == str(two)
    # One that is damaged is passed over where another one is there.
    (two / "state.bin").write_bytes(b"WEIGHTS" * 2)
    assert run(tmp_path / "store")[1]["path"] == str(one)


def test_one_that_is_damaged_or_missing_is_told_in_one_line_and_no_restart_helps(run, tmp_path):
    one = commit(tmp_path / "store", 1)
    (one / "state.bin").write_bytes(b"WEIGHTS")
    code, found, said = run(one, tmp_path / "nowhere")
    assert (code, found) == (102, None)
    assert said.startswith(f"resume_from: {one}: ") and said.count("\n") == 1
    assert f"{tmp_path}/nowhere: there is no committed checkpoint here" in said


def test_the_second_place_counts_where_the_first_cannot_be_read(run, tmp_path):
    one = commit(tmp_path / "store", 1)
    assert run(tmp_path / "nowhere", one)[:2] == (
        0,
        {"path": str(one), "step": 1, "why": "interval"},
    )
