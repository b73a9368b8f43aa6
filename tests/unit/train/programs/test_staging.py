"""Staging of inputs: copied once, told by fingerprint, resumed, compared, never deleted while in use."""

import fcntl
import json
import os
import shutil
from collections import namedtuple

import pytest

from phalanx.train.data.readers.locating import locate, save_index
from phalanx.train.data.readers.scanning import full_index
from phalanx.train.programs import staging

pytestmark = pytest.mark.unit
Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def source(tmp_path):
    for name in ("cat/a.txt", "b.txt"):
        path = tmp_path / "far" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name * 10)
    return tmp_path / "far"


@pytest.fixture
def run(tmp_path, source, capsys):
    def begin(**inputs):
        request = tmp_path / "request.json"
        body = {"root": str(tmp_path / "root"), "links": str(tmp_path / "links")}
        request.write_text(json.dumps({**body, "inputs": inputs or {"train": str(source)}}))
        return staging.main([str(request)]), capsys.readouterr().out

    begin.root, begin.links = tmp_path / "root", tmp_path / "links"
    return begin


def copies(root):
    return sorted(one.name for one in root.iterdir() if one.is_dir() and one.suffix == "")


def test_an_input_is_copied_once_and_found_by_its_name(run, source):
    code, said = run()
    assert code == 0 and "data train: staged: 2 files" in said
    assert (run.links / "train" / "cat" / "a.txt").read_text() == "cat/a.txt" * 10
    code, said = run(train=str(source), other=str(source))
    assert code == 0 and said.count("was there: 2 files") == 2
    assert len(copies(run.root)) == 1
    (source / "b.txt").write_text("B.TXT" * 10)
    os.utime(source / "b.txt", ns=(1, 1))
    code, said = run()
    assert "staged" in said and len(copies(run.root)) == 2, "another content is another copy"
    assert (run.links / "train" / "b.txt").read_text() == "B.TXT" * 10


def test_one_file_is_an_input(run, source):
    assert run(train=str(source / "b.txt"))[0] == 0
    assert [one.name for one in (run.links / "train").iterdir()] == ["b.txt"]


def test_an_interrupted_copy_goes_on(run, monkeypatch):
    real, fetched = staging._fetch, []

    def fetch(one, partial, name, size, digest):
        if name == "cat/a.txt" and not fetched.count("cut"):
            fetched.append("cut")
            raise OSError(5, "the power is off", name)
        fetched.append(name)
        real(one, partial, name, size, digest)

    monkeypatch.setattr(staging, "_THREADS", 1)
    monkeypatch.setattr(staging, "_fetch", fetch)
    code, said = run()
    assert code == 1 and "the power is off" in said and copies(run.root) == []
    assert run()[0] == 0
    assert fetched == ["b.txt", "cut", "cat/a.txt"]


def test_an_index_makes_the_fingerprint_and_finds_damage(run, source):
    place = locate(source)
    index = full_index(place.source, "text")
    save_index(index, place)
    code, said = run()
    assert code == 0 and index.fingerprint() in said
    shutil.rmtree(run.root)
    (source / "b.txt").write_text("X" * 50)
    code, said = run()
    assert code != 0 and "does not match its index" in said and copies(run.root) == []


def test_what_is_not_there_is_told_with_the_code_of_missing_things(run, tmp_path):
    code, said = run(train=str(tmp_path / "away"))
    assert code == 102 and "data train:" in said and "away" in said


def test_short_of_space_unused_copies_go_and_used_ones_stay(run, source, monkeypatch):
    run()
    first = (run.links / "train").resolve()
    (source / "c.txt").write_text("new")
    free = [10]
    monkeypatch.setattr(staging.shutil, "disk_usage", lambda _: Usage(0, 0, free[0]))
    with open(f"{first}.lock", "rb") as held:
        fcntl.flock(held, fcntl.LOCK_SH)
        code, said = run()
        assert code == 1 and "are needed" in said and first.is_dir()
    rmtree = shutil.rmtree

    def delete(path, **options):
        rmtree(path, **options)
        free[0] = 1 << 40

    monkeypatch.setattr(staging.shutil, "rmtree", delete)
    assert run()[0] == 0
    assert not first.exists() and (run.links / "train" / "c.txt").read_text() == "new"
