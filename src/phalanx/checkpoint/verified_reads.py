"""Reading parts of a checkpoint's files in bounded memory, verified by their digests."""

from __future__ import annotations

import errno
import mmap
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from phalanx.checkpoint.digest import CHUNK_BYTES, Digest, digest_of_file, is_tree, root_of
from phalanx.core.training.checkpoints import MANIFEST, FileEntry
from phalanx.errors import CheckpointCorrupt, CheckpointUnavailable

_BLOCK_BYTES = 1 << 20
_MAX_THREADS = 4
_THREADS_FROM = 2  # chunks
_own = threading.local()
Places = Sequence[tuple[int, memoryview]]
"""Memory to fill, each with what begins at a byte of the file."""
_MAX_VIEWS = 512  # the kernel takes 1024 at a time


def _open_past_the_cache(path: Path) -> int:
    """A descriptor that reads from the device; -1 where the file system has none. Raises OSError."""
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_DIRECT", 0))
    except OSError as error:
        if error.errno == errno.EINVAL:
            return -1
        raise


@dataclass(frozen=True, slots=True)
class Descriptors:
    """Descriptors: an ordinary one, and one past the cache or -1."""

    fd: int
    direct: int


class VerifiedFile:
    """One file of a checkpoint, beside what its manifest says about it.

    A file of the first schema has one digest for all of it and is checked whole, once. With `direct`,
    chunks that are not in the page cache are read past it: for bytes that no other process reads. New
    pages cost more than reading a fast device does, and evict training data.
    """

    def __init__(self, root: Path, entry: FileEntry, *, direct: bool = False) -> None:
        """Raises CheckpointCorrupt when the entry contradicts itself."""
        self.path, self._root = root / entry.path, root
        self.size_bytes = entry.size_bytes
        self._entry, self._direct = entry, direct
        self._in_chunks = is_tree(entry.digest)
        self._whole_checked = False
        self._lock = threading.Lock()
        self._checked: set[int] = set()
        self._kept: tuple[int, memoryview] | None = None
        if self._in_chunks:
            self._algorithm = entry.digest.partition(":")[0].removesuffix("-tree")
            self._check_entry()

    def _check_entry(self) -> None:
        entry = self._entry
        expected = -(-entry.size_bytes // CHUNK_BYTES)
        try:
            root = root_of(entry.chunks, entry.digest.partition(":")[0])
        except ValueError as error:
            raise CheckpointCorrupt(f"{self.path}: {error}") from error
        if root != entry.digest or len(entry.chunks) != expected:
            raise CheckpointCorrupt(f"{self.path}: the digests of the chunks do not match")

    @property
    def num_chunks(self) -> int:
        """How many parts can be checked one by one."""
        return len(self._entry.chunks) if self._in_chunks else 1

    def has_checked(self, chunk: int) -> bool:
        """Whether this reader has read that chunk, and found it good."""
        return chunk in self._checked

    def check_size(self) -> None:
        """Raises CheckpointCorrupt when the file is missing, shorter or longer than it was.

        This and all methods that read raise CheckpointUnavailable where the file system does not answer.
        """
        try:
            size = self.path.stat().st_size
        except OSError as error:
            raise self._unreadable(error) from error
        if size != self.size_bytes:
            text = f"{self.path}: {size} bytes, the manifest says {self.size_bytes}"
            raise CheckpointCorrupt(text)

    def prepare(self, chunks: Iterable[int]) -> None:
        """Have these chunks at hand, for `check`: a file on a disk always has."""

    def check(self, chunk: int) -> None:
        """Read one chunk and compare its digest. Raises CheckpointCorrupt."""
        if not self._in_chunks:
            self._check_whole()
            return
        scratch = memoryview(bytearray(min(_BLOCK_BYTES, self.size_bytes)))
        with self._opened() as file:
            self._read_chunk(file, chunk, None, scratch)

    def read_into(self, at: int, into: memoryview) -> None:
        """Fill `into` with what begins at byte `at`, with several threads when it is much.

        Chunks are read to their end, because only whole ones can be checked. Raises CheckpointCorrupt.
        """
        into = into.cast("B")
        if at < 0 or at + into.nbytes > self.size_bytes:
            raise CheckpointCorrupt(f"{self.path}: the file ends before byte {at + into.nbytes}")
        if not into.nbytes:
            return
        if not self._in_chunks:
            self._check_whole()
            with self._opened() as file:
                self._read_views(file, at, [into])
            return
        first, last = at // CHUNK_BYTES, (at + into.nbytes - 1) // CHUNK_BYTES
        with self._opened() as file:
            chunks = range(first, last + 1)
            in_threads([partial(self._part, file, chunk, at, into) for chunk in chunks])

    def read_scattered(self, wanted: Iterable[tuple[int, memoryview]]) -> None:
        """Fill many places, each with what begins at its byte; every chunk is read once.

        Raises CheckpointCorrupt; some places may then be filled, and with wrong bytes.
        """
        if not self._in_chunks:
            for at, into in wanted:
                self.read_into(at, into)
            return
        self._scatter_all(self._by_chunk(wanted))

    def _by_chunk(self, wanted: Iterable[tuple[int, memoryview]]) -> Mapping[int, Places]:
        """The places of each chunk in order; what is wanted twice is read at once."""
        places: dict[int, list[tuple[int, memoryview]]] = {}
        end = 0
        for at, into in sorted(wanted, key=lambda one: one[0]):
            into = into.cast("B")
            if at < end or at + into.nbytes > self.size_bytes:  # twice the same, or too far
                self.read_into(at, into)
                continue
            end = at + into.nbytes
            while into:
                size = min(into.nbytes, CHUNK_BYTES - at % CHUNK_BYTES)
                places.setdefault(at // CHUNK_BYTES, []).append((at, into[:size]))
                at, into = at + size, into[size:]
        return places

    def _scatter_all(self, places: Mapping[int, Places]) -> None:
        with self._opened() as file:
            in_threads([partial(self._scatter, file, *one) for one in places.items()])

    def _scatter(self, file: Descriptors, chunk: int, places: Places) -> None:
        digest = Digest(self._algorithm)
        if (cold := self._from_device(file, chunk)) is not None:
            digest.update(cold)
            self._compare(chunk, digest)
            start, _ = self._bounds(chunk)
            for at, view in places:
                view[:] = cold[at - start : at - start + view.nbytes]
            return
        for at, block in in_blocks(places, *self._bounds(chunk)):
            self._read_views(file, at, block)
            for view in block:
                digest.update(view)
        self._compare(chunk, digest)

    def _part(self, file: Descriptors, chunk: int, at: int, into: memoryview) -> None:
        start, end = self._bounds(chunk)
        lo, hi = max(start, at), min(end, at + into.nbytes)
        if (lo, hi) == (start, end):
            self._read_chunk(file, chunk, into[start - at : end - at], None)
            return
        whole = self._kept_chunk(file, chunk)
        into[lo - at : hi - at] = whole[lo - start : hi - start]

    def _kept_chunk(self, file: Descriptors, chunk: int) -> memoryview:
        """A whole chunk, read for a part of it; the last one is kept for the parts that follow."""
        kept = self._kept
        if kept is not None and kept[0] == chunk:
            return kept[1]
        start, end = self._bounds(chunk)
        whole = memoryview(bytearray(end - start))
        self._read_chunk(file, chunk, whole, None)
        with self._lock:
            if self._kept is None or self._kept[0] <= chunk:
                self._kept = (chunk, whole)
        return whole

    def _bounds(self, chunk: int) -> tuple[int, int]:
        return chunk * CHUNK_BYTES, min((chunk + 1) * CHUNK_BYTES, self.size_bytes)

    def _read_chunk(
        self, file: Descriptors, chunk: int, into: memoryview | None, scratch: memoryview | None
    ) -> None:
        """Read into `into`, or over and over into `scratch`; the digest must match either way."""
        start, end = self._bounds(chunk)
        digest = Digest(self._algorithm)
        if (cold := self._from_device(file, chunk)) is not None:
            digest.update(cold)
            if into is not None:
                into[:] = cold
            self._compare(chunk, digest)
            return
        for at in range(start, end, _BLOCK_BYTES):
            size = min(_BLOCK_BYTES, end - at)
            if into is not None:
                block = into[at - start : at - start + size]
            else:
                assert scratch is not None
                block = scratch[:size]
            self._read_views(file, at, [block])
            digest.update(block)
        self._compare(chunk, digest)

    def _compare(self, chunk: int, digest: Digest) -> None:
        if not self._matches(chunk, digest):
            raise self._mismatch(chunk)

    def _matches(self, chunk: int, digest: Digest) -> bool:
        if digest.hexdigest != self._entry.chunks[chunk]:
            return False
        self._checked.add(chunk)
        return True

    def _mismatch(self, chunk: int) -> CheckpointCorrupt:
        start, end = self._bounds(chunk)
        return CheckpointCorrupt(f"{self.path}: bytes {start} to {end} do not match their digest")

    def _check_whole(self) -> None:
        if self._whole_checked:
            return
        self.check_size()
        try:
            digest = digest_of_file(self.path, like=self._entry.digest)
        except OSError as error:
            raise self._unreadable(error) from error
        except ValueError as error:
            raise CheckpointCorrupt(f"{self.path}: cannot be verified: {error}") from error
        if digest != self._entry.digest:
            raise CheckpointCorrupt(f"{self.path}: the bytes do not match their digest")
        self._whole_checked = True

    @contextmanager
    def _opened(self) -> Iterator[Descriptors]:
        with ExitStack() as open_files:
            try:
                fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
                open_files.callback(os.close, fd)
                direct = _open_past_the_cache(self.path) if self._direct else -1
            except OSError as error:
                raise self._unreadable(error) from error
            if direct >= 0:
                open_files.callback(os.close, direct)
            yield Descriptors(fd, direct)

    def _from_device(self, file: Descriptors, chunk: int) -> memoryview | None:
        """An uncached chunk, read into this thread's buffer; None: read through the cache."""
        start, end = self._bounds(chunk)
        if file.direct < 0 or _is_cached(file.fd, start):
            return None
        if not hasattr(_own, "buffer"):
            _own.buffer = memoryview(mmap.mmap(-1, CHUNK_BYTES))
        buffer: memoryview = _own.buffer
        got = 0
        try:
            while got < end - start:
                read = os.preadv(file.direct, [buffer[got:]], start + got)
                got += read
                if read == 0 or got % mmap.PAGESIZE:
                    break
        except OSError as error:
            if error.errno == errno.EINVAL:
                return None
            raise self._unreadable(error) from error
        return buffer[: end - start] if got >= end - start else None

    def _read_views(self, file: Descriptors, at: int, views: Sequence[memoryview]) -> None:
        try:
            while views:
                got = os.preadv(file.fd, views, at)
                if got == 0:
                    raise CheckpointCorrupt(f"{self.path}: the file ends at byte {at}")
                at, views = at + got, behind(views, got)
        except OSError as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: OSError) -> CheckpointCorrupt | CheckpointUnavailable:
        """The error to raise: an input or output error says nothing about the bytes of the file.

        A file is lost only if the checkpoint that names it is there; otherwise its folder is away.
        """
        said = f"{self.path}: cannot be read: {error.strerror or error}"
        if isinstance(error, FileNotFoundError) and is_there(self._root / MANIFEST):
            return CheckpointCorrupt(said)
        return CheckpointUnavailable(said)


def is_there(path: Path) -> bool:
    """Whether a path exists; False also where the file system does not answer."""
    try:
        os.stat(path)
    except OSError:
        return False
    return True


def _is_cached(fd: int, at: int) -> bool:
    """Whether a byte of a file is in memory; True where that cannot be asked."""
    try:
        return os.preadv(fd, [bytearray(1)], at, getattr(os, "RWF_NOWAIT", 0)) >= 0
    except BlockingIOError:
        return False
    except OSError:
        return True


def behind(views: Sequence[memoryview], size: int) -> Sequence[memoryview]:
    """What is left of memory in several places after `size` bytes of it."""
    for at, view in enumerate(views):
        if size < view.nbytes:
            return [view[size:], *views[at + 1 :]]
        size -= view.nbytes
    return []


def in_blocks(places: Places, start: int, end: int) -> Iterator[tuple[int, list[memoryview]]]:
    """(first byte, memory for what follows) until `end`; the gaps between places go to scratch memory.

    Blocks are small enough to be in the processor's cache when they are digested.
    """
    block: list[memoryview] = []
    begin = at = start
    for place, view in [*places, (end, memoryview(b""))]:
        room = memoryview(bytearray(place - at))
        for piece in (room, view):
            while piece:
                size = min(piece.nbytes, begin + _BLOCK_BYTES - at)
                block.append(piece[:size])
                at, piece = at + size, piece[size:]
                if at == begin + _BLOCK_BYTES or len(block) == _MAX_VIEWS:
                    yield begin, block
                    begin, block = at, []
    if block:
        yield begin, block


def in_threads(work: Sequence[Callable[[], None]]) -> None:
    """Run all functions, in threads if there are many; raises the first error."""
    threads = min(_MAX_THREADS, len(os.sched_getaffinity(0)), len(work))
    if threads < 2 or len(work) < _THREADS_FROM:
        for one in work:
            one()
        return
    # In runs, so that every thread reads one stretch of the disk after another.
    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(lambda one: one(), work):
            pass
