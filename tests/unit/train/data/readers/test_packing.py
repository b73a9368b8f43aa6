"""Packing of small files into shards: what the reader finds, an interruption, damage, and refusals."""

import json

import pytest

from phalanx.errors import Conflict, DataCorrupt, NotFound, UserError
from phalanx.train.data.readers import packing
from phalanx.train.data.readers.locating import locate
from phalanx.train.programs import data
from phalanx.train.readers import TarShards

pytestmark = pytest.mark.unit


@pytest.fixture
def files(tmp_path):
    for name in ("cat/a.1.jpg", "cat/b.jpg", "dog/a.JPG", "dog/c.png", "cat/__note.jpg"):
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode() * 50)
    return tmp_path / "in"


def read(out, **options):
    shards = TarShards(out, decoders={"cls": int}, verify="full", **options)
    return [shards[at] for at in range(len(shards))]


def test_images_in_class_folders_become_samples_with_labels(files, tmp_path, capsys):
    out = tmp_path / "out"
    assert data.main(["pack", str(files), str(out), "--shard-size", "4000", "--json"]) == 0
    about = json.loads(capsys.readouterr().out)
    assert (about["num_samples"], about["num_files"], about["files_skipped"]) == (4, 2, 1)
    found = read(out)
    assert [one["__key__"] for one in found] == ["cat/a_1", "cat/b", "dog/a", "dog/c"]
    assert [one["cls"] for one in found] == [0, 0, 1, 1]
    assert (found[0]["jpg"], found[3]["png"]) == (b"cat/a.1.jpg" * 50, b"dog/c.png" * 50)
    assert json.loads((out / "classes.json").read_text()) == ["cat", "dog"]


def test_other_files_are_grouped_by_their_key(tmp_path):
    for name in ("x.json", "x.seg.bin", "y", "z/x.txt"):
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    assert data.main(["pack", str(tmp_path / "in"), str(tmp_path / "out")]) == 0
    found = read(tmp_path / "out")
    assert found == [
        {"__key__": "x", "json": b"x.json", "seg.bin": b"x.seg.bin"},
        {"__key__": "y", "bin": b"y"},
        {"__key__": "z/x", "txt": b"z/x.txt"},
    ]


def test_an_interrupted_packing_goes_on_and_is_the_same(files, tmp_path, monkeypatch):
    source = locate(files).source
    plan = packing.plan_packing(source, 1000)
    assert len(plan.shards) == 4
    packing.pack(source, tmp_path / "calm", plan)
    real, left = packing._compare, [2]

    def compare(path, digests):
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        real(path, digests)

    monkeypatch.setattr(packing, "_compare", compare)
    with pytest.raises(KeyboardInterrupt):
        packing.pack(source, tmp_path / "hit", plan)
    monkeypatch.setattr(packing, "_compare", real)
    done = {one.name: one.stat().st_mtime_ns for one in (tmp_path / "hit").glob("*.tar")}
    assert len(done) == 2
    seen = []
    assert packing.pack(source, tmp_path / "hit", plan, seen.append) == 2
    assert sum(seen) == plan.total_bytes
    assert all((tmp_path / "hit" / name).stat().st_mtime_ns == at for name, at in done.items())
    for one in (tmp_path / "calm").iterdir():
        assert one.read_bytes() == (tmp_path / "hit" / one.name).read_bytes()
    assert not list((tmp_path / "hit").glob("*.tmp"))


def test_what_was_written_wrongly_gets_no_name(files, tmp_path, monkeypatch):
    source = locate(files).source
    plan = packing.plan_packing(source, 1 << 20)
    real = packing._write

    def write(source, path, shard, progress):
        digests = real(source, path, shard, progress)
        raw = bytearray(path.read_bytes())
        raw[600] ^= 1
        path.write_bytes(raw)
        return digests

    monkeypatch.setattr(packing, "_write", write)
    with pytest.raises(DataCorrupt, match="what was read back"):
        packing.pack(source, tmp_path / "out", plan)
    assert not list((tmp_path / "out").glob("*.tar"))


def test_refusals(files, tmp_path):
    source, out = locate(files).source, tmp_path / "out"
    packing.pack(source, out, packing.plan_packing(source, 1000))
    with pytest.raises(Conflict, match="other data, or of another shard size"):
        packing.pack(source, out, packing.plan_packing(source, 1 << 20))
    with pytest.raises(Conflict, match="is not empty"):
        packing.pack(source, files, packing.plan_packing(source, 5000))
    (files / "cat" / "a_1.jpg").write_bytes(b"")
    with pytest.raises(UserError, match=r"would both be cat/a_1.jpg"):
        packing.plan_packing(source, 5000)
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotFound):
        packing.plan_packing(locate(tmp_path / "empty").source, 5000)
