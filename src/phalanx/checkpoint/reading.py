"""Reading parts of a checkpoint's files in bounded memory; no byte is handed out unchecked."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from phalanx.checkpoint.digest import CHUNK_BYTES, Digest, digest_of_file, is_tree, root_of
from phalanx.core.checkpoints import FileEntry
from phalanx.errors import CheckpointCorrupt

_BLOCK_BYTES = 1 << 20
_MAX_THREADS = 4
_THREADS_FROM = 4  # chunks: fewer are read before a thread has started


class VerifiedFile:
    """One file of a checkpoint, beside what its manifest says about it.

    A file of the first schema has one digest for all of it and is checked whole, once.
    """

    def __init__(self, root: Path, entry: FileEntry) -> None:
        """Raises CheckpointCorrupt when the entry contradicts itself."""
        self.path = root / entry.path
        self.size_bytes = entry.size_bytes
        self._entry = entry
        self._in_chunks = is_tree(entry.digest)
        self._whole_checked = False
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
            raise CheckpointCorrupt(f"{self.path}: its chunks do not add up to its digest")

    @property
    def num_chunks(self) -> int:
        """How many parts can be checked one by one."""
        return len(self._entry.chunks) if self._in_chunks else 1

    def check_size(self) -> None:
        """Raises CheckpointCorrupt when the file is missing, shorter or longer than it was."""
        try:
            size = self.path.stat().st_size
        except OSError as error:
            raise CheckpointCorrupt(f"{self.path}: {error.strerror}") from error
        if size != self.size_bytes:
            text = f"{self.path}: {size} bytes, the manifest says {self.size_bytes}"
            raise CheckpointCorrupt(text)

    def check(self, chunk: int) -> None:
        """Read one chunk and compare its digest. Raises CheckpointCorrupt."""
        if not self._in_chunks:
            self._check_whole()
            return
        scratch = memoryview(bytearray(min(_BLOCK_BYTES, self.size_bytes)))
        self._read_chunk(chunk, None, scratch)

    def read_into(self, at: int, into: memoryview) -> None:
        """Fill `into` with what begins at byte `at`, with several threads when it is much.

        Chunks are read to their end, because only whole ones can be checked. Raises CheckpointCorrupt.
        """
        into = into.cast("B")
        if at < 0 or at + into.nbytes > self.size_bytes:
            raise CheckpointCorrupt(f"{self.path}: it ends before byte {at + into.nbytes}")
        if not into.nbytes:
            return
        if not self._in_chunks:
            self._check_whole()
            self._read(at, into)
            return
        first, last = at // CHUNK_BYTES, (at + into.nbytes - 1) // CHUNK_BYTES

        def read(chunk: int) -> Callable[[], None]:
            return lambda: self._part(chunk, at, into)

        in_threads([read(chunk) for chunk in range(first, last + 1)])

    def _part(self, chunk: int, at: int, into: memoryview) -> None:
        start, end = self._bounds(chunk)
        lo, hi = max(start, at), min(end, at + into.nbytes)
        if (lo, hi) == (start, end):
            self._read_chunk(chunk, into[start - at : end - at], None)
            return
        whole = memoryview(bytearray(end - start))
        self._read_chunk(chunk, whole, None)
        into[lo - at : hi - at] = whole[lo - start : hi - start]

    def _bounds(self, chunk: int) -> tuple[int, int]:
        return chunk * CHUNK_BYTES, min((chunk + 1) * CHUNK_BYTES, self.size_bytes)

    def _read_chunk(self, chunk: int, into: memoryview | None, scratch: memoryview | None) -> None:
        """Read into `into`, or over and over into `scratch`; the digest must match either way."""
        start, end = self._bounds(chunk)
        digest = Digest(self._algorithm)
        for at in range(start, end, _BLOCK_BYTES):
            size = min(_BLOCK_BYTES, end - at)
            if into is not None:
                block = into[at - start : at - start + size]
            else:
                assert scratch is not None
                block = scratch[:size]
            self._read(at, block)
            digest.update(block)
        if digest.hexdigest != self._entry.chunks[chunk]:
            text = f"{self.path}: bytes {start} to {end} do not match their digest"
            raise CheckpointCorrupt(text)

    def _check_whole(self) -> None:
        if self._whole_checked:
            return
        self.check_size()
        try:
            digest = digest_of_file(self.path, like=self._entry.digest)
        except (OSError, ValueError) as error:
            raise CheckpointCorrupt(f"{self.path}: cannot be verified: {error}") from error
        if digest != self._entry.digest:
            raise CheckpointCorrupt(f"{self.path}: the bytes do not match their digest")
        self._whole_checked = True

    def _read(self, at: int, into: memoryview) -> None:
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                while into:
                    got = os.preadv(fd, [into], at)
                    if got == 0:
                        raise CheckpointCorrupt(f"{self.path}: it ends at byte {at}")
                    at, into = at + got, into[got:]
            finally:
                os.close(fd)
        except OSError as error:
            text = f"{self.path}: cannot be read: {error.strerror or error}"
            raise CheckpointCorrupt(text) from error


def in_threads(work: Sequence[Callable[[], None]]) -> None:
    """Do all of it, side by side when it is much; raises the first error."""
    threads = min(_MAX_THREADS, len(os.sched_getaffinity(0)), len(work))
    if threads < 2 or len(work) < _THREADS_FROM:
        for one in work:
            one()
        return
    # In runs, so that every thread reads one stretch of the disk after another.
    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(lambda one: one(), work):
            pass
