"""Scanning of files into an index: the kind of data, and the contents of each file."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import numpy as np

from phalanx.checkpoint.digest import Digest, digest_of
from phalanx.errors import NotFound, NotSupported, UserError
from phalanx.train.data.readers.cache import OpenFile
from phalanx.train.data.readers.index import Index
from phalanx.train.data.readers.layouts.columns import Array, Int64s, Names
from phalanx.train.data.readers.layouts.parquet import group_rows
from phalanx.train.data.readers.layouts.tar import ShardLayout, read_layout
from phalanx.train.data.readers.layouts.text import NOT_TEXT, TextLayout, scan_text
from phalanx.train.data.readers.layouts.tfrecord import scan_records
from phalanx.train.data.readers.sources import DataSource

Progress = Callable[[int], None]
"""Called with the number of bytes just done, from several threads."""

Row = tuple[str, int]

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png")
_COMPRESSED_TARS = (".tar.gz", ".tgz", ".tar.xz", ".tar.bz2", ".tar.zst")
# `x.tfrecord`, `x.tfrecords`, `x.tfrec`, `x.tfrecord-00003-of-00128`
_TFRECORD = re.compile(r"\.tfrec(ords?)?(-\d+-of-\d+)?$")
_THREADS = 8
_NAMES_PER_TASK = 256
ALGORITHM = digest_of(b"").partition(":")[0]


def quiet(num_bytes: int) -> None:
    """Ignore progress."""


def belongs(name: str, kind: str) -> bool:
    """Return whether a file is part of a data set of this kind."""
    lower = name.lower()
    if "INDEX" in name and lower.endswith(("index.json", ".bin")):
        return False
    if kind == "images":
        return "/" in name and lower.endswith(IMAGE_SUFFIXES)
    if kind == "tar":
        return lower.endswith(".tar")
    if kind == "parquet":
        return lower.endswith((".parquet", ".pq"))
    if kind == "tfrecord":
        return _TFRECORD.search(lower) is not None
    return True


def detect_kind(rows: Sequence[Row], where: str) -> str:
    """Detect the kind of data. Raises NotFound, UserError or NotSupported."""
    found = [
        k
        for k in ("tar", "parquet", "tfrecord", "images")
        if any(belongs(name, k) for name, _ in rows)
    ]
    if len(found) > 1:
        raise UserError(f"{where} holds {' and '.join(found)}", "choose one with --kind")
    if found:
        return found[0]
    if any(name.lower().endswith(_COMPRESSED_TARS) for name, _ in rows):
        raise NotSupported(
            f"{where} holds compressed tar files",
            "decompress them: only .tar files allow random access",
        )
    if any(belongs(name, "text") for name, _ in rows):
        return "text"
    raise NotFound(f"{where} holds no data")


def list_index(source: DataSource, kind: str, names: Sequence[str] | None = None) -> Index:
    """Build an index from names, sizes and headers, without digests. Cheap but for tar shards."""
    return _index(_rows(source, kind, names), kind, source, _Inspector(source, kind))


def full_index(
    source: DataSource, kind: str, names: Sequence[str] | None = None, progress: Progress = quiet
) -> Index:
    """Build an index with digests; reads every byte once."""
    inspector = _FullInspector(source, kind, progress)
    index = _index(_rows(source, kind, names), kind, source, inspector)
    return replace(index, algorithm=ALGORITHM)


def _rows(source: DataSource, kind: str, names: Sequence[str] | None) -> list[Row]:
    listing = source.listing()
    if names is not None:
        sizes = dict(listing)
        missing = [name for name in names if name not in sizes]
        if missing:
            raise NotFound(f"{source.where} has no file {missing[0]}")
        return [(name, sizes[name]) for name in names]
    rows = [row for row in listing if belongs(row[0], kind)]
    if not rows:
        wanted = {
            "images": "images in class folders",
            "tar": ".tar files",
            "parquet": ".parquet files",
            "tfrecord": ".tfrecord files",
        }
        raise NotFound(f"{source.where} holds no {wanted.get(kind, 'files')}")
    return sorted(rows, key=lambda row: _image_order(row[0])) if kind == "images" else rows


def _image_order(name: str) -> tuple[str, str, str]:
    return (name.partition("/")[0], *posixpath.split(name))


@dataclass(slots=True)
class _Found:
    """The contents of one file, or of a run of image files."""

    digests: bytes = b""
    shard: ShardLayout = field(default_factory=ShardLayout)
    groups: list[int] = field(default_factory=list)
    records: list[tuple[int, int]] = field(default_factory=list)
    text: TextLayout = NOT_TEXT


class _Inspector:
    """An inspection of headers only."""

    def __init__(self, source: DataSource, kind: str) -> None:
        self.source = source
        self.kind = kind

    def images(self, rows: Sequence[Row]) -> _Found:
        return _Found()

    def file(self, row: Row) -> _Found:
        if self.kind == "text":
            return _Found()
        file = self.source.open(row[0], row[1], None, lambda: None)
        try:
            return self.inside(file, row[0])
        finally:
            file.close()

    def inside(self, file: OpenFile, name: str) -> _Found:
        if self.kind == "tar":
            with open(file.path, "rb") as stream:
                return _Found(shard=read_layout(stream, f"{self.source.where}/{name}"))
        if self.kind == "tfrecord":
            with open(file.path, "rb") as stream:
                return _Found(records=scan_records(stream, f"{self.source.where}/{name}"))
        return _Found(groups=group_rows(file.path))


class _FullInspector(_Inspector):
    """An inspection of headers and contents."""

    def __init__(self, source: DataSource, kind: str, progress: Progress) -> None:
        super().__init__(source, kind)
        self.progress = progress

    def images(self, rows: Sequence[Row]) -> _Found:
        digests = []
        for name, size in rows:
            digests.append(_raw(digest_of(self.source.read(name, size))))
        self.progress(sum(size for _, size in rows))
        return _Found(digests=b"".join(digests))

    def file(self, row: Row) -> _Found:
        file = self.source.open(row[0], row[1], None, lambda: None)
        try:
            digest = Digest(ALGORITHM)
            for chunk in file.chunks():
                digest.update(chunk)
                self.progress(len(chunk))
            text = self.kind == "text"
            found = _Found(text=scan_text(file.chunks())) if text else self.inside(file, row[0])
            return replace(found, digests=_raw(digest.text))
        finally:
            file.close()


def _raw(digest: str) -> bytes:
    return bytes.fromhex(digest.partition(":")[2])


def _index(rows: list[Row], kind: str, source: DataSource, inspector: _Inspector) -> Index:
    with ThreadPoolExecutor(_THREADS) as pool:
        if kind == "images":
            runs = [rows[at : at + _NAMES_PER_TASK] for at in range(0, len(rows), _NAMES_PER_TASK)]
            found = list(pool.map(inspector.images, runs))
        else:
            found = list(pool.map(inspector.file, rows))
    sizes = np.array([size for _, size in rows], np.int64)
    digests = np.frombuffer(b"".join(one.digests for one in found), np.uint8).reshape(-1, 16)
    index = Index(
        kind, Names.of(n for n, _ in rows), sizes, _starts([1] * len(rows)), digests=digests
    )
    if kind == "images":
        return _with_labels(index, rows)
    if kind == "tar":
        return _with_members(index, [one.shard for one in found])
    if kind == "parquet":
        return _with_groups(index, [one.groups for one in found])
    if kind == "tfrecord":
        return _with_records(index, [one.records for one in found])
    return _with_marks(index, [one.text for one in found])


def _starts(counts: Sequence[int]) -> Int64s:
    return np.cumsum([0, *counts], dtype=np.int64)


def _with_labels(index: Index, rows: Sequence[Row]) -> Index:
    names = [name.partition("/")[0] for name, _ in rows]
    classes = sorted(set(names))
    number = {name: i for i, name in enumerate(classes)}
    labels = np.array([number[name] for name in names], np.int32)
    return replace(index, classes=tuple(classes), tables={"labels": labels})


def _with_members(index: Index, shards: Sequence[ShardLayout]) -> Index:
    suffixes = sorted({suffix for shard in shards for suffix in shard.suffixes})
    number = {suffix: i for i, suffix in enumerate(suffixes)}
    keys = Names.of(key for shard in shards for key in shard.keys)
    members: Array = np.array(
        [pair for shard in shards for pair in zip(shard.offsets, shard.sizes, strict=True)],
        np.int64,
    ).reshape(-1, 2)
    tables: dict[str, Array] = {
        "key_blob": keys.blob,
        "key_ends": keys.ends,
        "member_starts": _starts([n for shard in shards for n in shard.num_members]),
        "members": members,
        "member_suffixes": np.array(
            [number[s] for shard in shards for s in shard.suffixes], np.int32
        ),
    }
    starts = _starts([len(shard.keys) for shard in shards])
    return replace(index, sample_starts=starts, suffixes=tuple(suffixes), tables=tables)


def _with_groups(index: Index, groups: Sequence[Sequence[int]]) -> Index:
    tables: dict[str, Array] = {
        "group_starts": _starts([len(one) for one in groups]),
        "groups": np.array([n for one in groups for n in one], np.int64),
    }
    return replace(index, sample_starts=_starts([sum(one) for one in groups]), tables=tables)


def _with_records(index: Index, records: Sequence[Sequence[tuple[int, int]]]) -> Index:
    table: Array = np.array([one for file in records for one in file], np.int64).reshape(-1, 2)
    starts = _starts([len(one) for one in records])
    return replace(index, sample_starts=starts, tables={"records": table})


def _with_marks(index: Index, texts: Sequence[TextLayout]) -> Index:
    alphabet = sorted({int(code) for text in texts for code in text.alphabet})
    tables: dict[str, Array] = {
        "mark_starts": _starts([len(text.marks) for text in texts]),
        "marks": np.concatenate([np.zeros(0, np.int64), *(text.marks for text in texts)]),
        "num_characters": np.array([text.num_characters for text in texts], np.int64),
        "alphabet": np.array(alphabet, np.int32),
    }
    return replace(index, sample_starts=_starts([int(n) for n in index.sizes]), tables=tables)
