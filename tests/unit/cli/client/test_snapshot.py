"""The archive of a work directory: equal content, equal bytes; nothing that does not belong."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

import pytest

from phalanx.cli.client.snapshot import _Walk, take
from phalanx.errors import UserError

pytestmark = pytest.mark.unit


def write(root: Path, **files: str) -> Path:
    for name, text in files.items():
        path = root / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def names(snapshot) -> list[str]:
    with tarfile.open(snapshot.path) as archive:
        return archive.getnames()


def test_equal_content_gives_equal_bytes(tmp_path: Path):
    first = write(tmp_path / "a", train_dot_py="x", lib__m_dot_py="y")
    second = write(tmp_path / "b", lib__m_dot_py="y", train_dot_py="x")
    os.utime(second / "train.py", (1, 1))
    one, two = take(first, tmp_path / "1.tar"), take(second, tmp_path / "2.tar")
    assert one.digest == two.digest
    assert one.path.read_bytes() == two.path.read_bytes()
    (second / "train.py").write_text("X")
    assert take(second, tmp_path / "3.tar").digest != one.digest


def test_times_and_owners_do_not_travel(tmp_path: Path):
    root = write(tmp_path / "a", run_dot_sh="x")
    (root / "run.sh").chmod(0o750)
    with tarfile.open(take(root, tmp_path / "1.tar").path) as archive:
        (info,) = archive.getmembers()
    assert (info.mtime, info.uid, info.uname, info.mode) == (0, 0, "", 0o755)


def test_ignore_files_count_at_every_depth(tmp_path: Path):
    root = write(
        tmp_path / "a",
        _dot_gitignore="*.log\n/data/\n",
        keep_dot_py="",
        x_dot_log="",
        data__big="",
        sub___dot_gitignore="!x.log\nsecret\n",
        sub__x_dot_log="",
        sub__secret="",
        sub__data__small="",
        _dot_phalanxignore="notes.txt\n",
        notes_dot_txt="",
    )
    found = names(take(root, tmp_path / "1.tar"))
    expected = (
        ".gitignore .phalanxignore keep.py sub sub/.gitignore sub/data sub/data/small sub/x.log"
    )
    assert " ".join(found) == expected


def test_ignore_files_of_the_repository_above_count_too(tmp_path: Path):
    write(tmp_path, _dot_git__HEAD="", _dot_gitignore="*.bin\n/work/out/\n", work__a_dot_py="")
    write(tmp_path / "work", b_dot_bin="", out__x="")
    assert names(take(tmp_path / "work", tmp_path / "1.tar")) == ["a.py"]


def test_repositories_environments_and_the_home_stay_behind(tmp_path: Path):
    root = write(
        tmp_path / "a",
        _dot_git__HEAD="",
        myenv__pyvenv_dot_cfg="",
        myenv__lib="",
        home__token="",
        __pycache____x_dot_pyc="",
        a_dot_py="",
    )
    snapshot = take(root, tmp_path / "1.tar", excluded=[root / "home"])
    assert "home/token" not in names(snapshot)
    assert names(snapshot) == ["a.py"]


def test_links_inside_stay_links_and_links_outside_are_left_out(tmp_path: Path):
    root = write(tmp_path / "a", lib__m_dot_py="y")
    (root / "in").symlink_to(root / "lib" / "m.py")
    (root / "out").symlink_to("/etc/passwd")
    (root / "dangling").symlink_to("nowhere")
    os.mkfifo(root / "pipe")
    snapshot = take(root, tmp_path / "1.tar")
    assert names(snapshot) == ["in", "lib", "lib/m.py"]
    assert [note.partition(":")[0] for note in snapshot.notes] == ["dangling", "out", "pipe"]
    with tarfile.open(snapshot.path) as archive:
        archive.extractall(tmp_path / "copy", filter="data")
    assert (tmp_path / "copy" / "in").read_text() == "y"


def test_a_folder_that_is_too_large_is_refused_by_its_largest_entries(tmp_path: Path):
    root = write(tmp_path / "a", a_dot_py="x", data__one="y" * 4000, weights="z" * 3000)
    with pytest.raises(UserError, match=r"data \(4\.0 KB\), weights \(3\.0 KB\)"):
        take(root, tmp_path / "1.tar", max_bytes=5000)


def test_names_with_spaces_and_other_alphabets(tmp_path: Path):
    root = tmp_path / "a"
    root.mkdir()
    (root / "é ü.py").write_text("")
    (root / ("n" * 200)).write_text("")
    assert names(take(root, tmp_path / "1.tar")) == ["n" * 200, "é ü.py"]


def test_what_goes_away_while_it_is_copied_is_left_out(tmp_path: Path, monkeypatch):
    root = write(tmp_path / "a", gone_dot_py="x", left_dot_py="y")
    real = _Walk.entries

    def entries(self):
        for relative, entry in real(self):
            if relative == "gone.py":
                os.unlink(entry.path)
            yield relative, entry

    monkeypatch.setattr(_Walk, "entries", entries)
    snapshot = take(root, tmp_path / "1.tar")
    assert names(snapshot) == ["left.py"] and "gone.py: left out" in snapshot.notes[0]


PLANTED = {
    "a.py": ("x = 1\nkey = 'AKIA" + "ABCDEFGH23456777'", "a.py:2: an AWS access key id"),
    "id_rsa": ("-----BEGIN OPENSSH PRIVATE KEY-----\n" + "b3BlbnNz" * 8, "id_rsa:1: a private key"),
    "b.txt": ("\n\nghp_" + "a1B2c3D4e" * 4, "b.txt:3: a GitHub token"),
    "c.yaml": ("t: hf_" + "a1" * 17, "c.yaml:1: a Hugging Face token"),
    "d": ("xoxb" + "-123456789012-abcdefghijkl", "d:1: a Slack token"),
    ".env": ("MODE=fast\nexport DB_PASSWORD='hunter2'", ".env:2: the value of DB_PASSWORD"),
}


@pytest.mark.parametrize("name", PLANTED)
def test_code_with_credentials_is_refused_and_none_is_quoted(tmp_path: Path, name: str):
    text, said = PLANTED[name]
    root = tmp_path / "code"
    root.mkdir()
    (root / name).write_text(text)
    with pytest.raises(UserError) as caught:
        take(root, tmp_path / "1.tar")
    assert said in caught.value.message
    assert text.split()[-1].strip("'\"")[-12:] not in str(caught.value)
    (root / ".phalanxcredentials").write_text(f"{name}\n")
    assert name in names(take(root, tmp_path / "2.tar"))


def test_code_that_speaks_of_credentials_passes(tmp_path: Path):
    root = write(
        tmp_path / "code",
        a_dot_py="AKIAIOSFODNN7EXAMPLE\npassword = os.environ['PASSWORD']\nhf_hub_download(x)",
        b_dot_py="BEGIN = '-----BEGIN PRIVATE KEY-----'\n",
    )
    (root / ".env").write_text("MODE=fast\n")
    (root / ".env.example").write_text("DB_PASSWORD=change-me\n")
    assert len(names(take(root, tmp_path / "1.tar"))) == 4
