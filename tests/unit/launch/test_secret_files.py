"""Secrets by name: kept, listed, read and forgotten, and never quoted."""

import json

import pytest

from phalanx.cli.__main__ import main as program
from phalanx.errors import NotFound, UserError
from phalanx.launch import secret_files

pytestmark = pytest.mark.unit


def test_kept_with_mode_0600_and_read_by_name(tmp_path):
    folder = tmp_path / "secrets" / "default"
    assert secret_files.names(folder) == []
    secret_files.store(folder, "A_KEY", "one")
    secret_files.store(folder, "A_KEY", "two\nlines")
    secret_files.store(folder, "B", "ü")
    assert secret_files.names(folder) == ["A_KEY", "B"]
    assert secret_files.read(folder, ["B", "A_KEY"]) == {"A_KEY": "two\nlines", "B": "ü"}
    assert (folder / "A_KEY").stat().st_mode & 0o777 == 0o600
    assert folder.stat().st_mode & 0o777 == 0o700
    secret_files.remove(folder, "B")
    with pytest.raises(NotFound, match="secret B cannot be read"):
        secret_files.read(folder, ["A_KEY", "B"])


@pytest.mark.parametrize(
    ("name", "value"), [("../x", "v"), ("A-B", "v"), ("", "v"), ("A", ""), ("A", "top\0secret")]
)
def test_what_cannot_be_a_variable_is_refused_and_not_quoted(tmp_path, name, value):
    with pytest.raises(UserError) as caught:
        secret_files.store(tmp_path, name, value)
    assert "secret\0" not in str(caught.value) and "top" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def run(capsys, tmp_path, *argv):
    with pytest.raises(SystemExit) as left:
        program(["--home", str(tmp_path), "secrets", *argv])
    said = capsys.readouterr()
    return left.value.code, said.out, said.err


def test_the_verb_takes_values_from_the_environment_and_prints_none(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("MY_TOKEN", "nobody-may-print")
    code, out, err = run(capsys, tmp_path, "set", "MY_TOKEN", "--project", "vision")
    assert (code, "nobody-may-print" in out + err) == (0, False)
    code, out, _ = run(capsys, tmp_path, "list", "--project", "vision", "--json")
    assert json.loads(out) == ["MY_TOKEN"]
    assert run(capsys, tmp_path, "list")[1] == ""  # another project
    assert run(capsys, tmp_path, "rm", "MY_TOKEN", "--project", "vision")[0] == 0
    assert run(capsys, tmp_path, "rm", "MY_TOKEN", "--project", "vision")[0] == 102


@pytest.mark.parametrize("words", [("set",), ("show", "X"), ("list", "--project", "../x")])
def test_wrong_words(capsys, tmp_path, words):
    assert run(capsys, tmp_path, *words)[0] == 1


def test_no_name_leads_out_of_the_folder(tmp_path):
    folder = tmp_path / "secrets"
    folder.mkdir()
    (tmp_path / "other").write_text("not yours")
    with pytest.raises(NotFound, match="names are letters"):
        secret_files.read(folder, ["../other"])
    with pytest.raises(NotFound, match="names are letters"):
        secret_files.remove(folder, "../other")
    assert (tmp_path / "other").exists()
