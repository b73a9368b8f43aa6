"""Compressed checkpoint files: frames of zstd that any range can be read from.

A packed file, little endian::

    0    8 bytes  magic  b"PHXPACK1"
    8    u32      plain bytes of a frame; only the last frame holds fewer
    12   u32      zero
    16   …        frames, back to back; one that did not shrink is stored as it was
    …    u32 each the stored bytes of every frame
    …    u64 u64  plain bytes of the file, and where those numbers begin
    …    8 bytes  magic

Before a frame is compressed its bytes are sorted into four planes (every fourth byte): the exponents of
float32 values then lie together, and they are what compresses. Digests are over the packed bytes.
"""

from __future__ import annotations

import importlib
import itertools
import os
import struct
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from phalanx.checkpoint.tensorfile import ByteSource
from phalanx.errors import CheckpointCorrupt, NotSupported

MAGIC = b"PHXPACK1"
FRAME_BYTES = 1 << 20
_HEAD = struct.Struct("<8sII")
_TAIL = struct.Struct("<QQ8s")
_LEVEL = 1
_PLANES = 4
_MAX_THREADS = 4


def zstd() -> Any:
    """The module `compression.zstd`, or its twin for older Pythons. Raises NotSupported."""
    for name in ("compression.zstd", "backports.zstd"):
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    raise NotSupported(
        "compressed checkpoints need zstd, which is not installed",
        "install phalanx[zstd], also on the nodes that train",
    )


class FileCompression:
    """The stored form of a file before it is encrypted and written; here the plain bytes."""

    def wrap(self, pieces: Iterable[Any]) -> Iterable[Any]:
        """The bytes as they are stored."""
        return pieces


class ZstdCompression(FileCompression):
    """Files stored in frames of zstd."""

    def __init__(self) -> None:
        """Raises NotSupported where there is no zstd."""
        self._zstd = zstd()

    def wrap(self, pieces: Iterable[Any]) -> Iterator[Any]:
        """The bytes of a packed file; a few frames are compressed at a time, on threads."""
        yield _HEAD.pack(MAGIC, FRAME_BYTES, 0)
        sizes: list[int] = []
        plain = 0
        threads = min(_MAX_THREADS, len(os.sched_getaffinity(0)))
        under_way: deque[Future[bytes]] = deque()
        with ThreadPoolExecutor(threads, "phalanx-packing") as pool:
            for frame in _frames(pieces):
                plain += len(frame)
                under_way.append(pool.submit(self._pack, frame))
                if len(under_way) > 2 * threads:
                    stored = under_way.popleft().result()
                    sizes.append(len(stored))
                    yield stored
            for one in under_way:
                stored = one.result()
                sizes.append(len(stored))
                yield stored
        yield struct.pack(f"<{len(sizes)}I", *sizes)
        yield _TAIL.pack(plain, _HEAD.size + sum(sizes), MAGIC)

    def _pack(self, frame: bytes) -> bytes:
        planes = b"".join(frame[at::_PLANES] for at in range(_PLANES))
        packed: bytes = self._zstd.compress(planes, _LEVEL)
        return packed if len(packed) < len(frame) else frame


def compression_for(compression: str) -> FileCompression:
    """How files are stored under one of `core.checkpoints.COMPRESSIONS`. Raises NotSupported."""
    return FileCompression() if compression == "none" else ZstdCompression()


def _frames(pieces: Iterable[Any]) -> Iterator[bytes]:
    frame = bytearray()
    for piece in pieces:
        view = memoryview(piece).cast("B")
        while view:
            size = min(view.nbytes, FRAME_BYTES - len(frame))
            frame += view[:size]
            view = view[size:]
            if len(frame) == FRAME_BYTES:
                yield bytes(frame)
                frame.clear()
    if frame:
        yield bytes(frame)


def decompressed(source: ByteSource, where: str) -> ByteSource:
    """The plain content of a file, whether it is packed or not.

    Raises CheckpointCorrupt, NotSupported.
    """
    head = bytearray(len(MAGIC))
    if source.size_bytes < _HEAD.size + _TAIL.size:
        return source
    source.read_into(0, memoryview(head))
    return CompressedFile(source, where) if head == MAGIC else source


class CompressedFile:
    """The plain content of a packed file, a range at a time."""

    def __init__(self, source: ByteSource, where: str) -> None:
        """Raises CheckpointCorrupt, NotSupported."""
        self._source, self._where, self._zstd = source, where, zstd()
        self._kept: tuple[int, bytes] = (-1, b"")
        end = source.size_bytes - _TAIL.size
        _, self._frame_bytes, _ = _HEAD.unpack(self._stored(0, _HEAD.size))
        self.size_bytes, index, magic = _TAIL.unpack(self._stored(end, _TAIL.size))
        count = -(-self.size_bytes // self._frame_bytes) if self._frame_bytes else -1
        if magic != MAGIC or index + 4 * count != end or not 0 < self._frame_bytes <= FRAME_BYTES:
            raise CheckpointCorrupt(f"{where}: not a compressed file")
        sizes = struct.unpack(f"<{count}I", self._stored(index, 4 * count))
        self._starts = list(itertools.accumulate(sizes, initial=_HEAD.size))
        if self._starts[-1] != index:
            raise CheckpointCorrupt(f"{where}: the frame sizes do not match the file")

    def read_into(self, at: int, into: memoryview) -> None:
        """Fill `into` with the plain bytes that begin at `at`. Raises CheckpointCorrupt."""
        into = into.cast("B")
        if at < 0 or at + into.nbytes > self.size_bytes:
            raise CheckpointCorrupt(f"{self._where}: the file ends before byte {at + into.nbytes}")
        while into:
            number, inside = divmod(at, self._frame_bytes)
            piece = memoryview(self._frame(number))[inside : inside + into.nbytes]
            into[: piece.nbytes] = piece
            at, into = at + piece.nbytes, into[piece.nbytes :]

    def _frame(self, number: int) -> bytes:
        if self._kept[0] != number:
            start, end = self._starts[number : number + 2]
            stored = self._stored(start, end - start)
            plain = min(self._frame_bytes, self.size_bytes - number * self._frame_bytes)
            self._kept = (number, self._unpacked(stored, plain))
        return self._kept[1]

    def _unpacked(self, stored: bytes, plain: int) -> bytes:
        if len(stored) == plain:
            return stored
        try:
            planes = self._zstd.ZstdDecompressor().decompress(stored, max_length=plain)
        except self._zstd.ZstdError as error:
            raise CheckpointCorrupt(f"{self._where}: {error}") from error
        if len(planes) != plain:
            raise CheckpointCorrupt(f"{self._where}: a frame has the wrong size")
        frame, at = bytearray(plain), 0
        for plane in range(_PLANES):
            size = len(range(plane, plain, _PLANES))
            frame[plane::_PLANES] = planes[at : at + size]
            at += size
        return bytes(frame)

    def _stored(self, at: int, size: int) -> bytes:
        data = bytearray(size)
        self._source.read_into(at, memoryview(data))
        return bytes(data)
