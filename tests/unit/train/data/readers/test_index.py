"""The index: what it holds, that it survives storage, and that damage is found."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.checkpoint.digest import canonical, digest_of
from phalanx.errors import DataCorrupt, NotFound, NotSupported, UserError
from phalanx.train.data.readers.layouts.columns import Names, pack, ragged, unpack
from phalanx.train.data.readers.locating import expand, load_index, locate, save_index
from phalanx.train.data.readers.scanning import detect_kind, full_index, list_index
from phalanx.train.data.readers.sources import LocalSource
from phalanx.train.data.readers.verifying import verify

pytestmark = pytest.mark.unit


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in (
        "b/2.jpg",
        "b/1.jpg",
        "a/sub/9.png",
        "a/z.jpg",
        "a/notes.md",
        ".x/1.jpg",
        "top.jpg",
    ):
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
    return tmp_path / "data"


@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))))
def test_names_are_what_was_packed(texts: list[str]) -> None:
    names = Names.of(texts)
    assert list(names) == texts
    assert [names[i] for i in range(len(names))] == texts
    assert names.consistent()


@pytest.mark.parametrize(
    "name", ["/etc/passwd", "../x", "a/../../x", "a/..", "./a", "a\\..\\b", "..", "a/./b"]
)
def test_names_that_leave_the_data_set_are_seen(name: str) -> None:
    assert Names.of(["a/b.jpg", name]).escape()


@pytest.mark.parametrize("name", ["a/b.jpg", "..a/b", "a/b..", "a.b/...c", "..."])
def test_ordinary_names_are_no_escape(name: str) -> None:
    assert not Names.of([name, name]).escape()


def test_tables_come_back_equal() -> None:
    tables = {"a": np.arange(5), "b": np.zeros((0, 16), np.uint8), "c": np.ones((3, 2), np.int32)}
    data, layout = pack(tables)
    back = unpack(data, json.loads(json.dumps(layout)))
    assert all(
        np.array_equal(tables[n], back[n]) and tables[n].shape == back[n].shape for n in tables
    )


@given(st.lists(st.integers(0, 4), min_size=1, max_size=8), st.data())
def test_ragged_takes_whole_groups(counts: list[int], data: st.DataObject) -> None:
    rows = data.draw(st.lists(st.integers(0, len(counts) - 1), max_size=6))
    starts = np.cumsum([0, *counts]).astype(np.int64)
    owned, new = ragged(starts, np.array(rows, np.int64))
    assert owned.tolist() == [i for row in rows for i in range(starts[row], starts[row + 1])]
    assert np.diff(new).tolist() == [counts[row] for row in rows]


def test_images_are_ordered_by_class_folder_and_name(folder: Path) -> None:
    index = list_index(LocalSource(folder), "images")
    assert list(index.files) == ["a/z.jpg", "a/sub/9.png", "b/1.jpg", "b/2.jpg"]
    assert index.classes == ("a", "b")
    assert index.tables["labels"].tolist() == [0, 0, 1, 1]


def test_stored_index_is_the_same_index(folder: Path) -> None:
    index = full_index(LocalSource(folder), "images")
    place = locate(folder)
    save_index(index, place)
    back = load_index(place)
    assert back is not None
    assert back.fingerprint() == index.fingerprint()
    assert list(back.files) == list(index.files)
    assert full_index(LocalSource(folder), "images").fingerprint() == index.fingerprint()


def test_fingerprint_follows_content_and_not_place(folder: Path, tmp_path: Path) -> None:
    before = full_index(LocalSource(folder), "images")
    assert before.fingerprint().startswith("content:")
    folder.rename(tmp_path / "elsewhere")
    moved = LocalSource(tmp_path / "elsewhere")
    assert full_index(moved, "images").fingerprint() == before.fingerprint()
    (tmp_path / "elsewhere/b/1.jpg").write_bytes(b"b/1.jpG")
    assert full_index(moved, "images").fingerprint() != before.fingerprint()
    assert list_index(moved, "images").fingerprint().startswith("listing:")


def test_restricting_keeps_what_belongs_to_a_file(folder: Path) -> None:
    index = full_index(LocalSource(folder), "images")
    some = index.restrict([3, 0])
    assert list(some.files) == ["b/2.jpg", "a/z.jpg"]
    assert [some.digest(0), some.digest(1)] == [index.digest(3), index.digest(0)]
    assert some.tables["labels"].tolist() == [1, 0]


def test_every_flipped_byte_of_an_index_is_found(folder: Path) -> None:
    place = locate(folder)
    save_index(full_index(place.source, "images"), place)
    for path in (folder / "INDEX.json", next(folder.glob("INDEX-*.bin"))):
        good = path.read_bytes()
        for at in range(0, len(good), max(1, len(good) // 60)):
            path.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
            with pytest.raises((DataCorrupt, NotFound, NotSupported)):
                assert load_index(place) is None, "unharmed"
        path.write_bytes(good[:-3])
        with pytest.raises(DataCorrupt):
            load_index(place)
        path.write_bytes(good)
    assert load_index(place) is not None


def _forge(folder: Path, name: str) -> None:
    """An index whose digests are all right, with a file name chosen by an attacker."""
    place = locate(folder)
    index = full_index(place.source, "images")
    files = Names.of([name, *list(index.files)[1:]])
    save_index(replace(index, files=files), place)


def test_an_index_cannot_point_outside(folder: Path) -> None:
    _forge(folder, "a/y.jpg")
    assert load_index(locate(folder)) is not None  # the forgery as such is accepted
    _forge(folder, "../secret")
    with pytest.raises(DataCorrupt, match="outside"):
        load_index(locate(folder))


def test_an_index_of_a_later_version_is_refused_by_name(folder: Path) -> None:
    place = locate(folder)
    save_index(full_index(place.source, "images"), place)
    header = json.loads((folder / "INDEX.json").read_text())
    header.pop("digest")
    header["schema"] = 2
    (folder / "INDEX.json").write_text(
        json.dumps(header | {"digest": digest_of(canonical(header))})
    )
    with pytest.raises(NotSupported, match="schema 2"):
        load_index(place)


def test_verify_tells_the_faults_apart(folder: Path) -> None:
    source = LocalSource(folder)
    index = full_index(source, "images")
    assert verify(source, index) == []
    (folder / "a/z.jpg").unlink()
    (folder / "a/sub/9.png").write_bytes(b"longer than before")
    (folder / "b/1.jpg").write_bytes(b"b/1.jpG")
    (folder / "b/new.jpg").write_bytes(b"new")
    found = {fault.file: fault.what for fault in verify(source, index)}
    changed = {"a/z.jpg": "missing", "a/sub/9.png": "size", "b/1.jpg": "digest"}
    assert found == {**changed, "b/new.jpg": "unlisted"}
    blind = list_index(source, "images").restrict([1])
    assert [fault.what for fault in verify(source, blind, names=["b/1.jpg"])] == []


def test_kinds_are_seen_from_names() -> None:
    assert detect_kind([("a/1.jpg", 1), ("readme.md", 1)], "x") == "images"
    assert detect_kind([("1.tar", 1), ("INDEX.json", 1)], "x") == "tar"
    assert detect_kind([("1.parquet", 1)], "x") == "parquet"
    assert detect_kind([("all.txt", 1)], "x") == "text"
    with pytest.raises(UserError, match="tar and parquet"):
        detect_kind([("1.tar", 1), ("1.parquet", 1)], "x")
    with pytest.raises(NotSupported, match="decompress"):
        detect_kind([("1.tar.gz", 1)], "x")
    with pytest.raises(NotFound):
        detect_kind([("INDEX.json", 1)], "x")


def test_patterns_and_lists(tmp_path: Path) -> None:
    assert expand("t-{08..11}.tar") == ["t-08.tar", "t-09.tar", "t-10.tar", "t-11.tar"]
    for name in ("t-0.txt", "t-1.txt", "u.txt"):
        (tmp_path / name).write_text(name)
    assert locate(f"{tmp_path}/t-{{0..1}}.txt").names == ("t-0.txt", "t-1.txt")
    assert locate(f"{tmp_path}/t*.txt").names == ("t-0.txt", "t-1.txt")
    assert locate(tmp_path / "u.txt").header == "u.txt.INDEX.json"
    with pytest.raises(NotFound):
        locate(tmp_path / "none.txt")
    with pytest.raises(UserError, match="cache"):
        locate("s3://bucket/prefix")
