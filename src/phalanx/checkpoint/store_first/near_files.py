"""Files of a checkpoint in an object store, fetched as far as they are read."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Protocol

from phalanx.checkpoint.digest import CHUNK_BYTES, Digest
from phalanx.checkpoint.verified_reads import (
    Descriptors,
    Places,
    VerifiedFile,
    in_blocks,
    in_threads,
)
from phalanx.core.training.checkpoints import FileEntry
from phalanx.errors import CheckpointCorrupt, CheckpointUnavailable

Ranges = Sequence[tuple[int, int]]
Fill = Callable[[Sequence[memoryview]], None]
"""Fills memory with the next bytes of a chunk."""
_AHEAD_CHUNKS = 16


class ObjectReader(Protocol):
    """How a file is fetched. Both raise NotFound, CheckpointCorrupt, CheckpointUnavailable."""

    def fetch_near(self, ranges: Ranges, near: Path) -> None:
        """Copy ranges (first byte, end) of the file to the same places of a near file."""
        ...

    def read(self, ranges: Ranges, near: Path, arrive: Callable[[int, Fill], None]) -> None:
        """Call `arrive` with the first byte of each chunk of ranges, which must fill memory for all of it.

        A chunk may come twice. It is written near, too, as far as the disk takes it in time.
        """
        ...


class NearFile(VerifiedFile):
    """A file that is read from its near copy as far as that is there and right, and else fetched.

    Raises CheckpointCorrupt only for bytes of the store; all reads raise NotFound, CheckpointUnavailable.
    With `shared` the ranks of this node read the near copy: it is filled first, by one at a time. Without,
    much at a time goes from the store into memory.
    """

    def __init__(
        self, root: Path, entry: FileEntry, reader: ObjectReader, *, shared: bool = False
    ) -> None:
        super().__init__(root, entry)
        self._reader, self._shared = reader, shared
        self._sure: set[int] = set()
        self._behind = -1

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
        """See `VerifiedFile`. What is read in order is fetched ahead."""
        size = into.nbytes
        chunks = self._chunks_of(at, min(at + size, self.size_bytes)) if size else set()
        if chunks:
            ahead = range(max(chunks) + 1, min(max(chunks) + _AHEAD_CHUNKS, self.num_chunks))
            in_order = self._behind in (min(chunks), min(chunks) - 1)
            self._behind = max(chunks)
            if in_order and chunks - self._sure:
                self._ensure({*chunks, *ahead})
        self._with(chunks, lambda: super(NearFile, self).read_into(at, into))

    def read_scattered(self, wanted: Iterable[tuple[int, memoryview]]) -> None:
        """See `VerifiedFile`."""
        if not self._in_chunks:
            whole = list(wanted)
            self._with({0}, lambda: super(NearFile, self).read_scattered(whole))
            return
        places = self._by_chunk(wanted)
        if self._shared:
            self._with(set(places), lambda: self._scatter_all(places))
            return
        absent = self._absent(set(places))
        absent |= self._not_near({one: places[one] for one in places.keys() - absent})
        if absent and (wrong := self._from_store({one: places[one] for one in absent})):
            wrong = self._from_store({one: places[one] for one in wrong})
            if wrong:
                raise self._mismatch(min(wrong))

    def _absent(self, chunks: set[int]) -> set[int]:
        """The chunks that were never written near; all of them where the near file cannot be made."""
        try:
            self.check_size()
            return self._missing(chunks)
        except (CheckpointUnavailable, OSError):
            return chunks

    def _not_near(self, places: Mapping[int, Places]) -> set[int]:
        """Read from the near file; returns the chunks that are not there as they were saved."""
        wrong: set[int] = set()

        def scatter(file: Descriptors, chunk: int) -> None:
            try:
                self._scatter(file, chunk, places[chunk])
            except (CheckpointCorrupt, CheckpointUnavailable):
                wrong.add(chunk)

        if places:
            try:
                with self._opened() as file:
                    in_threads([partial(scatter, file, chunk) for chunk in places])
            except (CheckpointCorrupt, CheckpointUnavailable):
                return set(places)
        return wrong

    def _from_store(self, places: Mapping[int, Places]) -> set[int]:
        """Read chunks from the store; returns those that are not what was saved."""
        arrived: dict[int, bool] = {}

        def arrive(begin: int, fill: Fill) -> None:
            chunk = begin // CHUNK_BYTES
            digest = Digest(self._algorithm)
            for _, block in in_blocks(places.get(chunk, ()), *self._bounds(chunk)):
                fill(block)
                for view in block:
                    digest.update(view)
            arrived[chunk] = self._matches(chunk, digest)

        self._reader.read(self._ranges(set(places)), self.path, arrive)
        return {chunk for chunk in places if not arrived.get(chunk)}

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
                self._reader.fetch_near(self._ranges(chunks), self.path)
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
                    self._reader.fetch_near(self._ranges(missing), self.path)
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

    def _ranges(self, chunks: set[int]) -> Ranges:
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
