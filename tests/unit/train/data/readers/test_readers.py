"""The readers: exact samples, any order, clear errors."""

from __future__ import annotations

import io
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from phalanx.core.training.batches import BatchPlan
from phalanx.errors import DataCorrupt, UserError
from phalanx.train.data.readers.layouts.tar import read_layout
from phalanx.train.data.readers.layouts.text import MARK_EVERY, scan_text
from phalanx.train.data.readers.locating import locate, save_index
from phalanx.train.data.readers.scanning import full_index
from phalanx.train.readers import Parquet, TarShards, TextFile, rank_counts, skew

pytestmark = pytest.mark.unit


def index(path: Path, kind: str) -> None:
    place = locate(path)
    save_index(full_index(place.source, kind, place.names), place)


def tar(path: Path, members: list[tuple[str, bytes]], kind: bytes = tarfile.REGTYPE) -> Path:
    with tarfile.open(path, "w") as archive:
        for name, data in members:
            about = tarfile.TarInfo(name)
            about.type = kind
            about.size = len(data) if kind == tarfile.REGTYPE else 0
            archive.addfile(about, io.BytesIO(data))
    return path


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    for shard in range(3):
        tar(
            tmp_path / f"t-{shard}.tar",
            [
                (f"d/{shard}{i}.{suffix}", data)
                for i in range(shard + 2)
                for suffix, data in (("cls", b"%d" % i), ("seg.bin", b"s%d%d" % (shard, i)))
            ],
        )
    return tmp_path


def test_tar_shards_read_any_sample_with_and_without_an_index(shards: Path) -> None:
    bare = TarShards(shards, max_open=1)
    expected = [(f"d/{s}{i}", i, b"s%d%d" % (s, i)) for s in range(3) for i in range(s + 2)]
    order = [7, 0, 4, 8, 1, 2, 3, 6, 5, 0]
    for data in (bare, pickle.loads(pickle.dumps(bare))):
        got = [data[i] for i in order]
        assert [(x["__key__"], x["cls"], x["seg.bin"]) for x in got] == [expected[i] for i in order]
    index(shards, "tar")
    indexed = TarShards(shards)
    assert len(indexed) == 9
    assert [indexed[i] for i in range(9)] == [bare[i] for i in range(9)]
    some = TarShards(f"{shards}/t-{{2..1}}.tar".replace("{2..1}", "{1..2}"))
    assert [x["__key__"] for x in some] == [e[0] for e in expected[2:]]  # type: ignore[attr-defined]
    assert some.index.has_digests
    with pytest.raises(IndexError):
        bare[9]


@pytest.mark.parametrize("name", ["../../etc/passwd.txt", "/abs.txt", "a/../../b.txt"])
def test_tar_names_must_stay_inside(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataCorrupt, match="outside"):
        TarShards(tar(tmp_path / "x.tar", [("ok.txt", b"1"), (name, b"1")]))


def test_tar_links_duplicates_and_truncation_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataCorrupt, match="not a plain file"):
        TarShards(tar(tmp_path / "l.tar", [("a.txt", b"")], tarfile.SYMTYPE))
    with pytest.raises(DataCorrupt, match="twice"):
        TarShards(tar(tmp_path / "d.tar", [("a.txt", b"1"), ("a.txt", b"2")]))
    whole = tar(tmp_path / "w.tar", [("a.txt", b"1"), ("b.txt", b"2")]).read_bytes()
    assert read_layout(io.BytesIO(whole), "w").keys == ["a", "b"]
    for cut in range(0, 2048 + 512, 256):
        with pytest.raises(DataCorrupt):
            read_layout(io.BytesIO(whole[:cut]), "w")


def test_a_changed_shard_is_named_at_its_first_opening(shards: Path) -> None:
    index(shards, "tar")
    path = shards / "t-1.tar"
    data = bytearray(path.read_bytes())
    data[600] ^= 1
    path.write_bytes(bytes(data))
    lazy = TarShards(shards)
    assert lazy[0]["cls"] == 0
    with pytest.raises(DataCorrupt, match=r"t-1\.tar does not match"):
        lazy[2]
    with pytest.raises(DataCorrupt, match=r"t-1\.tar does not match"):
        TarShards(shards, verify="full")
    assert (
        TarShards(shards, verify="never")[2]["__key__"] == "d/10"
    )  # the guard off: read as if good
    path.write_bytes(bytes(data[:-512]))
    with pytest.raises(DataCorrupt, match=r"t-1\.tar has"):
        TarShards(shards, verify="never")[2]


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    evil = b"cos\nsystem\n(S'exit 1'\ntR."
    data = TarShards(tar(tmp_path / "p.tar", [("a.pkl", evil), ("a.pth", evil)]))
    assert data[0] == {"__key__": "a", "pkl": evil, "pth": evil}


def test_bytes_are_cut_into_shifted_blocks(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_bytes(bytes(range(23)))
    data = TextFile(tmp_path / "t.txt", 5)
    assert len(data) == 4  # 0, 5, 10, 15; the block at 20 would need 26 bytes
    x, y = data[3]
    assert (x.dtype, x.tolist(), y.tolist()) == (
        torch.int64,
        [15, 16, 17, 18, 19],
        [16, 17, 18, 19, 20],
    )
    assert len(TextFile(tmp_path / "t.txt", 22)) == 1
    with pytest.raises(UserError, match="lower block"):
        TextFile(tmp_path / "t.txt", 23)


@settings(
    max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(
    text=st.text(st.sampled_from("aé漢🙂\n"), min_size=30, max_size=90),
    repeat=st.sampled_from([1, 40]),
    block=st.integers(1, 20),
    stride=st.integers(1, 30),
    indexed=st.booleans(),
)
def test_characters_are_those_of_the_text(
    tmp_path: Path, text: str, repeat: int, block: int, stride: int, indexed: bool
) -> None:
    text *= repeat
    path = tmp_path / "t.txt"
    for old in tmp_path.iterdir():
        old.unlink()
    path.write_bytes(text.encode())
    if indexed:
        index(path, "text")
    data = TextFile(path, block, unit="characters", stride=stride)
    starts = range(0, len(text) - block, stride)
    assert len(data) == len(starts)
    for number in {0, len(data) // 2, len(data) - 1}:
        x, y = data[number]
        at = starts[number]
        assert data.decode(x) == text[at : at + block]
        assert data.decode(y) == text[at + 1 : at + 1 + block]
    assert data.alphabet == "".join(sorted(set(text)))
    assert torch.equal(data.encode(text[:block]), data[0][0])


@pytest.mark.parametrize("chunk", [1, 7, 1000, 1 << 20])
def test_marks_do_not_depend_on_how_a_file_is_read(chunk: int) -> None:
    raw = ("aé漢🙂" * (MARK_EVERY // 2)).encode()
    layout = scan_text(raw[i : i + chunk] for i in range(0, len(raw), chunk))
    assert layout.num_characters == 2 * MARK_EVERY
    assert layout.marks.tolist() == [0, len(raw) // 2]


def test_text_that_is_not_utf8_says_so(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_bytes(b"abc\xff" * 10)
    with pytest.raises(DataCorrupt, match="not UTF-8"):
        TextFile(tmp_path / "t.txt", 4, unit="characters")
    assert TextFile(tmp_path / "t.txt", 4)[0][0].tolist() == [97, 98, 99, 255]


def test_tokens_over_several_files_never_cross(tmp_path: Path) -> None:
    np.arange(10, dtype="<u2").tofile(tmp_path / "a.tok")
    np.arange(100, 108, dtype="<u2").tofile(tmp_path / "b.tok")
    data = TextFile([tmp_path / "a.tok", tmp_path / "b.tok"], 3, unit="uint16")
    blocks = [x.tolist() for x, _ in (data[i] for i in range(len(data)))]
    assert blocks == [[at, at + 1, at + 2] for at in (0, 3, 6, 100, 103)]
    (tmp_path / "odd.tok").write_bytes(b"123")
    with pytest.raises(UserError, match="whole uint16"):
        TextFile(tmp_path / "odd.tok", 1, unit="uint16")
    assert data.fingerprint() != TextFile([tmp_path / "a.tok", tmp_path / "b.tok"], 4).fingerprint()


def test_parquet_rows_in_any_order(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = 50
    for part in range(2):
        table = pa.table(
            {
                "n": pa.array(range(part * rows, (part + 1) * rows), pa.int32()),
                "text": [f"row {part * rows + i}" for i in range(rows)],
                "vec": pa.array([[i, i + 0.5] for i in range(rows)], pa.list_(pa.float32(), 2)),
                "ids": pa.array([list(range(i % 4)) for i in range(rows)], pa.list_(pa.int64())),
            }
        )
        pq.write_table(table, tmp_path / f"{part}.parquet", row_group_size=16)
    data = Parquet(tmp_path, ["n", "text", "vec", "ids"], group_bytes=1)
    assert len(data) == 100
    for number in np.random.default_rng(0).permutation(100).tolist():
        row = data[number]
        assert (row["n"], row["text"]) == (number, f"row {number}")
        assert row["vec"].tolist() == [number % rows, number % rows + 0.5]
        assert row["ids"].tolist() == list(range(number % rows % 4))
    assert len(data._groups) == 1  # the bound of one byte keeps no more than the group in use
    assert pickle.loads(pickle.dumps(data))[99]["n"] == 99
    index(tmp_path, "parquet")
    assert [Parquet(tmp_path, ["n"])[i]["n"] for i in (0, 99, 50)] == [0, 99, 50]
    with pytest.raises(UserError, match="did you mean 'text'"):
        Parquet(tmp_path, ["texd"])[0]
    (tmp_path / "1.parquet").write_bytes(b"PAR1" * 40)
    with pytest.raises(DataCorrupt, match=r"1\.parquet has"):
        Parquet(tmp_path, ["n"])[99]


def test_rank_counts_are_those_of_the_loader() -> None:
    for samples, batch, world in ((100, 12, 5), (7, 4, 3), (96, 8, 4), (5, 8, 3)):
        shares = [
            sum(
                s.hi - s.lo for s in BatchPlan(samples, batch).shares(0, rank, world) if not s.spare
            )
            for rank in range(world)
        ]
        assert rank_counts(samples, batch, world) == shares
    assert skew({"a": 10, "b": 30}).largest_to_mean == 1.5
    assert skew([0, 0]).largest_to_mean == 1.0
