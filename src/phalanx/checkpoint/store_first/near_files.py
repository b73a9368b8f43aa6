"""Files of a checkpoint in an object store, fetched into a near folder as far as they are read."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from phalanx.checkpoint.digest import CHUNK_BYTES
from phalanx.checkpoint.verified_reads import VerifiedFile
from phalanx.core.training.checkpoints import FileEntry
from phalanx.errors import CheckpointCorrupt, CheckpointUnavailable

Fetch = Callable[[Sequence[tuple[int, int]], Path], None]
"""Copies ranges (first byte, end) of the file in the store to the same places of a near file."""


class NearFile(VerifiedFile):
    """A file that begins empty and is filled by what is read of it.

    What an earlier generation left counts if it matches its digests; what does not is fetched again.
    Raises CheckpointCorrupt only for bytes of the store; `fetch` raises NotFound, CheckpointUnavailable.
    """

    def __init__(self, root: Path, entry: FileEntry, fetch: Fetch) -> None:
        super().__init__(root, entry)
        self._fetch = fetch
        self._sure: set[int] = set()

    def check_size(self) -> None:
        """Make the near file as large as the file in the store, without fetching anything."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                if os.fstat(fd).st_size != self.size_bytes:
                    os.ftruncate(fd, self.size_bytes)
            finally:
                os.close(fd)
        except OSError as error:
            text = f"{self.path}: cannot be written: {error.strerror}"
            raise CheckpointUnavailable(text) from error

    def prepare(self, chunks: Iterable[int]) -> None:
        """Fetch what is missing of these chunks, in one request."""
        self._ensure(set(chunks))

    def check(self, chunk: int) -> None:
        """See `VerifiedFile`."""
        self._with({chunk}, lambda: super(NearFile, self).check(chunk))

    def read_into(self, at: int, into: memoryview) -> None:
        """See `VerifiedFile`."""
        size = into.nbytes
        chunks = self._chunks_of(at, min(at + size, self.size_bytes)) if size else set()
        self._with(chunks, lambda: super(NearFile, self).read_into(at, into))

    def read_scattered(self, wanted: Iterable[tuple[int, memoryview]]) -> None:
        """See `VerifiedFile`."""
        places = list(wanted)
        chunks = {
            chunk
            for at, into in places
            if into.nbytes
            for chunk in self._chunks_of(at, min(at + into.nbytes, self.size_bytes))
        }
        self._with(chunks, lambda: super(NearFile, self).read_scattered(places))

    def _chunks_of(self, at: int, end: int) -> set[int]:
        if not self._in_chunks:
            return {0}
        return set(range(at // CHUNK_BYTES, -(-end // CHUNK_BYTES)))

    def _with(self, chunks: set[int], read: Callable[[], None]) -> None:
        """Fetch what is missing of some chunks, and read; if that fails, fetch all of them anew."""
        fresh = self._ensure(chunks)
        try:
            read()
        except CheckpointCorrupt:
            if not chunks - fresh:
                raise
            with self._locked():
                self._fetch(self._ranges(chunks), self.path)
            read()

    def _ensure(self, chunks: set[int]) -> set[int]:
        """Have all of these chunks in the near file; returns those that were fetched for it."""
        unsure = chunks - self._sure
        if not unsure:
            return set()
        if not self._sure:
            self.check_size()
        missing: set[int] = set()
        if self._missing(unsure):
            with self._locked():  # another rank of this node may have fetched them meanwhile
                missing = self._missing(unsure)
                if missing:
                    self._fetch(self._ranges(missing), self.path)
        self._sure |= unsure
        return missing

    def _missing(self, chunks: set[int]) -> set[int]:
        fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return {chunk for chunk in chunks if _is_unwritten(fd, *self._extent(chunk))}
        finally:
            os.close(fd)

    def _extent(self, chunk: int) -> tuple[int, int]:
        return self._bounds(chunk) if self._in_chunks else (0, self.size_bytes)

    def _ranges(self, chunks: set[int]) -> list[tuple[int, int]]:
        """Neighbouring chunks as one range."""
        extents = [self._extent(chunk) for chunk in sorted(chunks)]
        starts = [0, *(at for at, (a, b) in enumerate(pairwise(extents), 1) if a[1] != b[0])]
        ends = [*starts[1:], len(extents)]
        return [
            (extents[a][0], extents[b - 1][1]) for a, b in zip(starts, ends, strict=True) if extents
        ]

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        try:
            with contextlib.suppress(OSError):  # not every file system has locks
                fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)


def _is_unwritten(fd: int, begin: int, end: int) -> bool:
    """Whether the beginning of a range was never written; its digest tells the rest."""
    if begin >= end:
        return False
    try:
        return os.lseek(fd, begin, os.SEEK_DATA) != begin
    except OSError:
        return True
