"""One shard's file, in the safetensors format: a JSON header, then the bytes of its tensors.

Layout, little endian::

    0    u64      length of the header in bytes
    8    …        header: UTF-8 JSON, {name: {"dtype", "shape", "data_offsets"}, …, "__metadata__"}
    …             tensors in C order, without gaps, at their offsets after the header

The header ends in blanks, so that tensors begin at a multiple of 64 bytes; where a tensor's size is no
multiple of 64, a tensor `__padding__.N` of bytes follows it. `__metadata__` has one entry, `phalanx`: JSON
`{"tree": …, "tensors": [row, …]}`, a row for each tensor in order with `name`, `dtype` and `shape`. A
tensor may be a region of a greater one: then its row also has `id`, `of` (the whole shape) and `from`
(where in it the region begins), and the regions of one `id` may lie in several files.

`tree` is any JSON value; what its parts mean is defined by the framework's side (`train/state/tree.py`
writes `{"$tensor": 3}` for the fourth tensor). A row's `dtype` is the framework's name, for example
`float32`; tensors of a dtype that safetensors lacks are bytes (`U8`) to other tools.

Files of manifest schemas 1 and 2 begin with `PHXTENS1` and are still read.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from phalanx.checkpoint.block_writer import BLOCK_BYTES, BackgroundWriter, blocks_of
from phalanx.checkpoint.digest import TreeDigest
from phalanx.checkpoint.disk import PAGE_BYTES, Disk
from phalanx.core.training.checkpoints import FileEntry
from phalanx.errors import CheckpointCorrupt

ALIGN = 64
METADATA = "phalanx"
_LENGTH = struct.Struct("<Q")
_LARGEST_HEADER = 100_000_000  # what the safetensors library reads
_EARLIER_MAGIC = b"PHXTENS1"
_EARLIER_LARGEST_HEADER = 1 << 30
_DTYPES = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "uint16": "U16",
    "int16": "I16",
    "uint32": "U32",
    "int32": "I32",
    "uint64": "U64",
    "int64": "I64",
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "float64": "F64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
}


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
    """The bytes of a tensor file, in pieces; tensors are not copied. Raises ValueError."""
    header = _header(tree, blobs)
    if sum(blob.size_bytes for blob in blobs) >= BLOCK_BYTES:
        # Tensors staged in one buffer then begin a page in the file where they do in memory.
        header += b" " * (-(_LENGTH.size + len(header)) % PAGE_BYTES)
    header += b" " * _padding(_LENGTH.size + len(header))
    if len(header) > _LARGEST_HEADER:
        raise ValueError(f"the header of {len(blobs)} tensors is too large: {len(header)} bytes")
    yield _LENGTH.pack(len(header)) + header
    for blob in blobs:
        if blob.size_bytes:
            yield blob.data
        if pad := _padding(blob.size_bytes):
            yield b"\0" * pad


def _header(tree: Any, blobs: Sequence[TensorBytes]) -> bytes:
    at, rows, entries = 0, [], {}
    for number, (name, blob) in enumerate(zip(_names(tree, blobs), blobs, strict=True)):
        row: dict[str, Any] = {"name": name, "dtype": blob.dtype, "shape": blob.shape}
        if (part := blob.part) is not None:
            row |= {"id": part.id, "of": part.of, "from": part.start}
        rows.append(row)
        dtype = _DTYPES.get(blob.dtype)
        shape = (blob.size_bytes,) if dtype is None else blob.shape
        entries[name] = _entry(dtype or "U8", shape, at, blob.size_bytes)
        at += blob.size_bytes
        if pad := _padding(blob.size_bytes):
            entries[f"__padding__.{number}"] = _entry("U8", (pad,), at, pad)
            at += pad
    own = json.dumps({"tree": tree, "tensors": rows}, separators=(",", ":"))
    return json.dumps({"__metadata__": {METADATA: own}, **entries}, separators=(",", ":")).encode()


def _entry(dtype: str, shape: Sequence[int], at: int, size: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": (at, at + size)}


def _names(tree: Any, blobs: Sequence[TensorBytes]) -> list[str]:
    """A name for every tensor: its path in the tree where that refers to it, else its number."""
    paths: dict[int, str] = {}
    _collect_paths(tree, "", paths)
    names: dict[str, None] = {}
    for number, blob in enumerate(blobs):
        part = blob.part or TensorRegion(number, blob.shape, (0,) * len(blob.shape))
        name = paths.get(part.id, f"tensor.{part.id}")
        if part.of != blob.shape:
            sides = zip(part.start, blob.shape, strict=True)
            name += "[" + ",".join(f"{start}:{start + size}" for start, size in sides) + "]"
        taken = name in names or name.startswith("__")  # the names of the format and of padding
        names[f"{name}#{number}" if taken else name] = None
    return list(names)


def _collect_paths(tree: Any, path: str, paths: dict[int, str]) -> None:
    if isinstance(tree, dict):
        if isinstance(number := tree.get("$tensor"), int):
            paths.setdefault(number, path)
            return
        for key, value in tree.items():
            _collect_paths(value, f"{path}.{key}" if path else str(key), paths)
    elif isinstance(tree, list):
        for at, value in enumerate(tree):
            _collect_paths(value, f"{path}.{at}" if path else str(at), paths)


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


def parse(data: bytearray, where: str) -> tuple[Any, list[TensorBytes]]:
    """The tree and the tensors of a file's bytes; tensors are views of `data`.

    Raises CheckpointCorrupt when it is not such a file.
    """
    tree, entries = read_header(_InMemory(data), where)
    view = memoryview(data)
    return tree, [
        TensorBytes(one.dtype, one.shape, view[one.at : one.at + one.size_bytes], one.size_bytes)
        for one in entries
    ]


class ByteSource(Protocol):
    """Ranges of a file's content, checked before they are handed out."""

    @property
    def size_bytes(self) -> int:
        """Bytes of content."""
        ...

    def read_into(self, at: int, into: memoryview) -> None:
        """Fill `into` with what begins at byte `at`. Raises CheckpointCorrupt."""
        ...


class _InMemory:
    """The bytes of a file that have been read and checked."""

    def __init__(self, data: bytearray) -> None:
        self._data = memoryview(data)
        self.size_bytes = len(data)

    def read_into(self, at: int, into: memoryview) -> None:
        """Fill `into` with what begins at byte `at`. Raises ValueError beyond the end."""
        into[:] = self._data[at : at + into.nbytes]


def read_header(source: ByteSource, where: str) -> tuple[Any, list[TensorEntry]]:
    """The tree, and the place of every tensor. Raises CheckpointCorrupt when it is no tensor file."""
    try:
        head = _read(source, 0, _LENGTH.size)
        read = _read_earlier if head == _EARLIER_MAGIC else _read_safetensors
        tree, entries = read(source)
        for entry in entries:
            if entry.at < 0 or entry.at + entry.size_bytes > source.size_bytes:
                raise ValueError("a tensor reaches beyond the file")
        return tree, entries
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, struct.error) as error:
        raise CheckpointCorrupt(f"{where}: {error}") from error


def _read(source: ByteSource, at: int, size: int) -> bytes:
    data = bytearray(size)
    source.read_into(at, memoryview(data))
    return bytes(data)


def _read_safetensors(source: ByteSource) -> tuple[Any, list[TensorEntry]]:
    (length,) = _LENGTH.unpack(_read(source, 0, _LENGTH.size))
    if length > min(_LARGEST_HEADER, source.size_bytes):
        raise ValueError("not a tensor file")
    header = json.loads(_read(source, _LENGTH.size, length))
    own = json.loads(header["__metadata__"][METADATA])
    base = _LENGTH.size + length
    entries = []
    for number, row in enumerate(own["tensors"]):
        begin, end = header[row["name"]]["data_offsets"]
        if not 0 <= begin <= end:
            raise ValueError("a tensor ends before it begins")
        entries.append(_tensor_entry(number, row, base + begin, end - begin))
    return own["tree"], entries


def _read_earlier(source: ByteSource) -> tuple[Any, list[TensorEntry]]:
    """The header of manifest schemas 1 and 2: magic, length, JSON, zeros up to a multiple of 64."""
    start = len(_EARLIER_MAGIC) + _LENGTH.size
    (length,) = _LENGTH.unpack(_read(source, len(_EARLIER_MAGIC), _LENGTH.size))
    if length > min(_EARLIER_LARGEST_HEADER, source.size_bytes):
        raise ValueError("not a tensor file")
    header = json.loads(_read(source, start, length))
    base = start + length + _padding(start + length)
    entries = [
        _tensor_entry(number, row, base + row["at"], row["bytes"])
        for number, row in enumerate(header["tensors"])
    ]
    return header["tree"], entries


def _tensor_entry(number: int, row: Mapping[str, Any], at: int, size: int) -> TensorEntry:
    shape = tuple(row["shape"])
    part = TensorRegion(number, shape, (0,) * len(shape))  # schema 1 has whole tensors only
    if "id" in row:
        part = TensorRegion(row["id"], tuple(row["of"]), tuple(row["from"]))
    return TensorEntry(row["dtype"], shape, at, size, part)
