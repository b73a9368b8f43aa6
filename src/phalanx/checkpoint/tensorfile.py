"""One shard's file: a JSON header, then the raw bytes of its tensors. Never a pickle.

Layout, little endian::

    0    8 bytes  magic  b"PHXTENS1"
    8    u64      length of the header in bytes
    16   …        header: UTF-8 JSON, {"tree": …, "tensors": [{"dtype", "shape", "at", "bytes"}, …]}
    …             zeros up to a multiple of 64
    …             tensors, each at `at` bytes after that point, each at a multiple of 64, C order

A tensor may be a part of a greater one: then its row also has `id`, `of` (the whole shape) and `from`
(where in it the part begins), and the parts of one `id` may lie in several files.

`tree` is any JSON value; what its parts mean is the business of the framework's side (`train/state/tree.py`
writes `{"$tensor": 3}` for the fourth tensor). `dtype` is the framework's name, for example `float32`.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from phalanx.checkpoint.block_writer import BLOCK_BYTES, BackgroundWriter, blocks_of
from phalanx.checkpoint.digest import TreeDigest, digest_of
from phalanx.checkpoint.disk import PAGE_BYTES, Disk
from phalanx.core.training.checkpoints import FileEntry
from phalanx.errors import CheckpointCorrupt

MAGIC = b"PHXTENS1"
ALIGN = 64
_HEAD = struct.Struct("<8sQ")
_LARGEST_HEADER = 1 << 30


@dataclass(frozen=True, slots=True)
class TensorRegion:
    """Which tensor of the checkpoint a blob is a part of: its number, whole shape, and where it begins."""

    id: int
    of: tuple[int, ...]
    start: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TensorBytes:
    """A tensor as bytes: `data` supports the buffer protocol and is in C order."""

    dtype: str
    shape: tuple[int, ...]
    data: Any
    size_bytes: int
    part: TensorRegion | None = None


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """Where a tensor lies in its file; `at` counts from the file's first byte."""

    dtype: str
    shape: tuple[int, ...]
    at: int
    size_bytes: int
    part: TensorRegion


def _padding(size: int) -> int:
    return -size % ALIGN


def lay_out(tree: Any, blobs: Sequence[TensorBytes]) -> Iterator[Any]:
    """The bytes of a tensor file, in pieces; tensors are not copied."""
    at, rows = 0, []
    for blob in blobs:
        row = {"dtype": blob.dtype, "shape": blob.shape, "at": at, "bytes": blob.size_bytes}
        if (part := blob.part) is not None:
            row |= {"id": part.id, "of": part.of, "from": part.start}
        rows.append(row)
        at += blob.size_bytes + _padding(blob.size_bytes)
    header = json.dumps({"tree": tree, "tensors": rows}, separators=(",", ":")).encode()
    if at >= BLOCK_BYTES:
        # Blanks, so that tensors staged in one room begin a page in the file where they do in memory.
        header += b" " * (-(_HEAD.size + len(header)) % PAGE_BYTES)
    lead = _HEAD.pack(MAGIC, len(header)) + header
    yield lead + b"\0" * _padding(len(lead))
    for blob in blobs:
        if blob.size_bytes:
            yield blob.data
        if pad := _padding(blob.size_bytes):
            yield b"\0" * pad


def write_pieces(disk: Disk, root: Path, path: str, pieces: Iterable[Any]) -> FileEntry:
    """Write any bytes as one digested, synced file below `root`. Raises OSError."""
    digest, size = TreeDigest(), 0
    fd = disk.create(root / path)
    try:
        with BackgroundWriter(disk, fd) as behind:
            for block in blocks_of(pieces):
                digest.update(block)
                behind.write(block)
                size += block.nbytes
            behind.finish()
        disk.sync(fd)
    finally:
        disk.close(fd)
    return FileEntry(path, size, digest.text, digest.chunks)


def read_verified(root: Path, entry: FileEntry) -> bytearray:
    """All bytes of a file, checked against its manifest entry.

    A bytearray, because frameworks want writable memory. Raises CheckpointCorrupt.
    """
    path = root / entry.path
    try:
        data = bytearray(path.read_bytes())
    except OSError as error:
        raise CheckpointCorrupt(f"{path}: cannot be read: {error.strerror or error}") from error
    if len(data) != entry.size_bytes:
        raise CheckpointCorrupt(f"{path}: {len(data)} bytes, the manifest says {entry.size_bytes}")
    if digest_of(data, like=entry.digest) != entry.digest:
        raise CheckpointCorrupt(f"{path}: the bytes do not match their digest")
    return data


def parse(data: bytearray, where: str) -> tuple[Any, list[TensorBytes]]:
    """The tree and the tensors of a file's bytes; tensors are views of `data`.

    Raises CheckpointCorrupt when it is not such a file.
    """
    try:
        magic, length = _HEAD.unpack_from(data)
        if magic != MAGIC:
            raise ValueError("not a tensor file")
        start = _HEAD.size + length
        header = json.loads(bytes(data[_HEAD.size : start]))
        base = start + _padding(start)
        view = memoryview(data)
        blobs = []
        for row in header["tensors"]:
            part = view[base + row["at"] : base + row["at"] + row["bytes"]]
            if part.nbytes != row["bytes"]:
                raise ValueError("a tensor reaches beyond the file")
            blobs.append(TensorBytes(row["dtype"], tuple(row["shape"]), part, row["bytes"]))
        return header["tree"], blobs
    except (ValueError, KeyError, TypeError, RecursionError, struct.error) as error:
        raise CheckpointCorrupt(f"{where}: {error}") from error


class ByteSource(Protocol):
    """Ranges of a file's content, checked before they are handed out."""

    @property
    def size_bytes(self) -> int:
        """Bytes of content."""
        ...

    def read_into(self, at: int, into: memoryview) -> None:
        """Fill `into` with what begins at byte `at`. Raises CheckpointCorrupt."""
        ...


def read_header(source: ByteSource, where: str) -> tuple[Any, list[TensorEntry]]:
    """The tree, and where every tensor lies. Raises CheckpointCorrupt when it is not such a file."""
    try:
        head = bytearray(_HEAD.size)
        source.read_into(0, memoryview(head))
        magic, length = _HEAD.unpack(head)
        if magic != MAGIC or length > min(_LARGEST_HEADER, source.size_bytes):
            raise ValueError("not a tensor file")
        text = bytearray(length)
        source.read_into(_HEAD.size, memoryview(text))
        header = json.loads(bytes(text))
        start = _HEAD.size + length
        base = start + _padding(start)
        rows = [_row(at, row, base) for at, row in enumerate(header["tensors"])]
        for row in rows:
            if row.at < base or row.at + row.size_bytes > source.size_bytes:
                raise ValueError("a tensor reaches beyond the file")
        return header["tree"], rows
    except (ValueError, KeyError, TypeError, struct.error) as error:
        raise CheckpointCorrupt(f"{where}: {error}") from error


def _row(at: int, row: Mapping[str, Any], base: int) -> TensorEntry:
    shape = tuple(row["shape"])
    part = TensorRegion(
        at, shape, (0,) * len(shape)
    )  # files of the first schema hold whole tensors only
    if "id" in row:
        part = TensorRegion(row["id"], tuple(row["of"]), tuple(row["from"]))
    return TensorEntry(row["dtype"], shape, base + row["at"], row["bytes"], part)
