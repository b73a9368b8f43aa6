"""Files of checkpoints on their way between a rank and the object store, in the process with its client.

Bytes pass through pipes; what is written near on the way is a cache. Uploads and downloads never wait for
the disk: what it does not take in time is missing in the near file, and is fetched when it is read.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import IO, Any

from phalanx.checkpoint.digest import CHUNK_BYTES
from phalanx.checkpoint.disk import Disk
from phalanx.checkpoint.remote_store import ObjectStore
from phalanx.errors import CheckpointCorrupt, CheckpointUnavailable, NotSupported

FRAME = struct.Struct("<I")
"""Before a block of a file from a rank: its size; 0 at the file's end."""
ABORTED = 0xFFFFFFFF
CHUNK = struct.Struct("<QI")
"""Before a chunk of a file for a rank: its first byte and its size; size 0 at the end of a request."""
REQUEST_BYTES = (16 << 20, 128 << 20)
"""Least and most bytes of one request when ranges of a file are fetched."""
_STREAMS = 8
_OPEN_OBJECTS = 8
_TRIES = 3  # without progress; the client itself has tried again before each counts
_BLOCKS_BEHIND = 8

Take = Callable[[int, Sequence[memoryview]], None]
"""Gets a chunk: its first byte, and its bytes in pieces. Several threads call it."""


def frames(pipe: IO[bytes]) -> Iterator[bytearray]:
    """The blocks of one file from a rank. Raises ValueError where the rank gave it up."""
    while True:
        (size,) = FRAME.unpack(_exactly(pipe, FRAME.size))
        if size == ABORTED:
            raise ValueError("the rank gave the file up")
        if size == 0:
            return
        yield _exactly(pipe, size)


def _exactly(pipe: IO[bytes], size: int) -> bytearray:
    data = bytearray(size)
    view = memoryview(data)
    while view:
        got = pipe.readinto(view)  # type: ignore[attr-defined]
        if not got:
            raise ValueError("the rank has ended")
        view = view[got:]
    return data


def put_part(
    store: ObjectStore, place: str, blocks: Iterator[bytearray], size_bytes: int, near: NearCopy
) -> None:
    """Make an object of blocks, and a near copy as far as the disk takes it in time.

    `size_bytes` is about how large it will be. All blocks are taken, also after an error. Raises
    CheckpointUnavailable, PermissionDenied.
    """
    with contextlib.ExitStack() as stack:
        stack.callback(near.close)
        source = _copied(blocks, near)
        # The rank waits until its last block is taken.
        stack.callback(lambda: [None for _ in source])
        store.put_stream(place, source, size_bytes)


def _copied(blocks: Iterator[bytearray], near: NearCopy) -> Iterator[bytearray]:
    at = 0
    for block in blocks:
        near.offer(at, [memoryview(block)])
        yield block
        at += len(block)


class NearCopies:
    """Writes near copies in one thread, past the page cache where the file system allows it."""

    def __init__(self, disk: Disk | None = None) -> None:
        self._disk = disk or Disk()
        self._pool = ThreadPoolExecutor(1, "phalanx-near")
        self._room = threading.BoundedSemaphore(_BLOCKS_BEHIND)
        # Filled by a system call: other threads go on meanwhile, which they do not where Python copies.
        self._memory = os.memfd_create("phalanx-near")
        os.ftruncate(self._memory, CHUNK_BYTES)
        self._buffer = memoryview(mmap.mmap(self._memory, CHUNK_BYTES))

    def create(self, path: Path) -> NearCopy:
        """A new near file, which is written from its beginning."""
        return NearCopy(self, path, os.O_CREAT | os.O_TRUNC)

    def fill(self, path: Path) -> NearCopy:
        """A near file that exists, of which something is missing."""
        return NearCopy(self, path, 0)

    def submit(self, work: Callable[[], None]) -> bool:
        """Do one thing behind what was asked for before; False: too much is left to do."""
        if not self._room.acquire(blocking=False):
            return False
        self._pool.submit(self._done, work)
        return True

    def _done(self, work: Callable[[], None]) -> None:
        try:
            work()
        finally:
            self._room.release()

    def last(self, work: Callable[[], None]) -> None:
        """Do one thing behind what was asked for before, however much is left to do."""
        self._pool.submit(work)

    def write(self, fd: int, at: int, pieces: Sequence[memoryview]) -> None:
        """Write a chunk. Only for the thread. Raises OSError."""
        size = os.pwritev(self._memory, pieces, 0)  # gathered where a page begins
        os.lseek(fd, at, os.SEEK_SET)
        self._disk.write(fd, self._buffer[:size])

    def finish(self) -> None:
        """Wait until everything is written. Nothing more may follow."""
        self._pool.shutdown()
        os.close(self._memory)


class NearCopy:
    """A near file that is written behind an upload or download, as far as the disk is in time."""

    def __init__(self, copies: NearCopies, path: Path, flags: int) -> None:
        self._copies = copies
        self._fd, self._failed = -1, False
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | flags, 0o644)

    def offer(self, at: int, pieces: Sequence[memoryview]) -> None:
        """Have a chunk written soon, unless the disk is behind or refuses. Never fails."""
        if self._fd >= 0 and not self._failed:
            self._copies.submit(partial(self._write, at, pieces))

    def _write(self, at: int, pieces: Sequence[memoryview]) -> None:
        if not self._failed:
            try:
                self._copies.write(self._fd, at, pieces)
            except OSError:
                self._failed = True

    def close(self) -> None:
        """Close the file behind what is left to write."""
        fd = self._fd
        if fd >= 0:
            self._copies.last(partial(os.close, fd))


class _OpenObject:
    """An object that is read from its beginning, in chunks: `at` is the next one's first byte."""

    def __init__(self, store: ObjectStore, place: str, size: int) -> None:
        self.at = 0
        self._stream = store.stream(place)
        self._chunks = _in_chunks(0, size, self._stream)

    def next(self) -> tuple[int, list[memoryview]] | None:
        """The next chunk and its first byte; None: the object has ended."""
        found = next(self._chunks, None)
        if found is not None:
            self.at = found[0] + _size(found[1])
        return found

    def close(self) -> None:
        """End the connection."""
        self._stream.close()


class Downloads:
    """Reads ranges of objects, as whole chunks of their files.

    Where the server serves ranges, several are fetched at a time. Where it does not, one object is read
    from its beginning once, by all requests for ranges in the order of the file.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._objects: OrderedDict[str, _OpenObject] = OrderedDict()
        self._knows = False

    def copy(
        self,
        place: str,
        size: int,
        ranges: Sequence[Sequence[int]],
        take: Take,
        passed: Take = lambda _at, _pieces: None,
    ) -> None:
        """Give `take` the chunks of ranges (first byte, end) of an object of `size` bytes, in any order.

        Ranges begin and end with a chunk. A chunk may come twice. `passed` gets chunks that came by. Raises
        NotFound, CheckpointCorrupt when the object is shorter, CheckpointUnavailable, PermissionDenied.
        """
        if self._store.serves_ranges:
            try:
                self._in_parallel(place, ranges, take)
                return
            except NotSupported:
                pass
        self._in_order(place, size, ranges, take, passed)

    def close(self) -> None:
        """End the connections of objects that were not read to their end."""
        while self._objects:
            self._objects.popitem()[1].close()

    def _in_parallel(self, place: str, ranges: Sequence[Sequence[int]], take: Take) -> None:
        cuts = _cuts(ranges)
        if (
            not self._knows
        ):  # the first alone: a server that serves no ranges may send the whole object
            for cut in cuts[:1]:
                self._range(place, cut, take)
                self._knows = True
            cuts = cuts[1:]
        if not cuts:
            return
        with ThreadPoolExecutor(min(_STREAMS, len(cuts))) as pool:
            for _ in pool.map(lambda cut: self._range(place, cut, take), cuts):
                pass

    def _range(self, place: str, cut: tuple[int, int], take: Take) -> None:
        (at, end), failures = cut, 0
        while at < end:
            reached = at
            try:
                for start, pieces in _in_chunks(at, end, self._store.stream(place, (at, end))):
                    take(start, pieces)
                    at = start + _size(pieces)
            except CheckpointUnavailable:
                failures = failures + 1 if at == reached else 0
                if failures == _TRIES:
                    raise
                continue
            if at < end:
                raise CheckpointCorrupt(f"{place}: the object ends before byte {end}")

    def _in_order(
        self, place: str, size: int, ranges: Sequence[Sequence[int]], take: Take, passed: Take
    ) -> None:
        wanted = sorted((begin, end) for begin, end in ranges if begin < end)
        for tried in range(1, _TRIES + 1):
            try:
                self._read_on(place, size, wanted, take, passed)
                return
            except CheckpointUnavailable:
                if tried == _TRIES:
                    raise

    def _read_on(
        self,
        place: str,
        size: int,
        wanted: Sequence[tuple[int, int]],
        take: Take,
        passed: Take,
    ) -> None:
        """Read an object from where the last request ended, or from its beginning."""
        if not wanted:
            return
        source = self._objects.pop(place, None)
        if source is not None and source.at > wanted[0][0]:
            source.close()
            source = None
        source = source or _OpenObject(self._store, place, size)
        while source.at < wanted[-1][1]:
            found = source.next()
            if found is None:
                raise CheckpointCorrupt(f"{place}: the object ends before byte {wanted[-1][1]}")
            asked = any(begin <= found[0] < end for begin, end in wanted)
            (take if asked else passed)(*found)
        if source.at < size:
            self._objects[place] = source
            if len(self._objects) > _OPEN_OBJECTS:
                self._objects.popitem(last=False)[1].close()


def _size(pieces: Iterable[memoryview]) -> int:
    return sum(piece.nbytes for piece in pieces)


def _cuts(ranges: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """The requests for some ranges: about as many as there are streams, and neither small nor endless."""
    least, most = REQUEST_BYTES
    share = sum(end - begin for begin, end in ranges) // _STREAMS // CHUNK_BYTES * CHUNK_BYTES
    step = min(max(least, share), most)
    return [(at, min(at + step, end)) for begin, end in ranges for at in range(begin, end, step)]


def _in_chunks(
    begin: int, end: int, pieces: Iterable[Any]
) -> Iterator[tuple[int, list[memoryview]]]:
    """Whole chunks, and the rest before `end`; what is left of a chunk that does not end is dropped."""
    held: list[memoryview] = []
    at = filled = begin
    for piece in pieces:
        view = memoryview(piece).cast("B")
        while view and at < end:
            part = view[: min(at + CHUNK_BYTES, end) - filled]
            held.append(part)
            filled, view = filled + part.nbytes, view[part.nbytes :]
            if filled == min(at + CHUNK_BYTES, end):
                yield at, held
                held, at = [], filled
        if at == end:
            return
