"""What the process beside a rank does with the parts of a checkpoint in an object store.

A generation that starts leaves a mark in the store. One that finds a newer mark does not commit and deletes
nothing: its ranks may run on after the platform gave them up.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import IO

from phalanx.checkpoint.remote import (
    RemoteListing,
    check_arrived,
    commit_manifest,
    look,
    manifest_of,
    remove,
)
from phalanx.checkpoint.remote_store import ObjectStore
from phalanx.core.training.checkpoints import Keep, expired
from phalanx.errors import CheckpointCorrupt, CheckpointUnavailable, Conflict, NotSupported

MARKS = "generations"
RANGE_BYTES = 16 << 20
"""Most bytes of one request when a file is fetched."""
_THREADS = 4
_TRIES = 5
FRAME = struct.Struct("<I")
ABORTED = 0xFFFFFFFF

Order = tuple[int, int]
"""(attempt, generation)."""


def _mark(order: Order) -> str:
    return f"{MARKS}/{order[0]:08d}-{order[1]:08d}"


def claim(store: ObjectStore, order: Order, near: Callable[[str], bool]) -> RemoteListing:
    """Mark the beginning of a generation, and delete what earlier ones left incomplete.

    `near`: whether a checkpoint of that name is committed in the local folder, and may be uploaded yet.
    Raises CheckpointUnavailable, PermissionDenied.
    """
    store.create(_mark(order), b"begun\n")
    listing = look(store)
    if not _superseded(store, order):
        for name in listing.debris:
            if not near(name):
                remove(store, name, listing.objects[name])
    return listing


def _superseded(store: ObjectStore, order: Order) -> bool:
    return any(found.name > _mark(order) for found in store.objects(MARKS))


def _require_newest(store: ObjectStore, order: Order) -> None:
    if _superseded(store, order):
        raise Conflict("a newer generation of this job has started")


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
    store: ObjectStore, place: str, blocks: Iterator[bytearray], size_bytes: int, near: Path | None
) -> None:
    """Make an object of blocks, and a copy at `near` if the disk takes it.

    `size_bytes` is about how large it will be. All blocks are taken, also after an error. Raises
    CheckpointUnavailable, PermissionDenied.
    """
    with contextlib.ExitStack() as stack:
        copy = _Copy(near)
        stack.callback(copy.close)
        source = copy.of(blocks)
        # The rank waits until its last block is taken.
        stack.callback(lambda: [None for _ in source])
        store.put_stream(place, source, size_bytes)


class _Copy:
    """A near copy of what is uploaded. It is a cache: where the disk refuses, there is none."""

    def __init__(self, path: Path | None) -> None:
        self._file: IO[bytes] | None = None
        if path is not None:
            with contextlib.suppress(OSError):
                path.parent.mkdir(parents=True, exist_ok=True)
                self._file = path.open("wb", buffering=0)

    def of(self, blocks: Iterator[bytearray]) -> Iterator[bytearray]:
        for block in blocks:
            if self._file is not None:
                try:
                    self._file.write(block)
                except OSError:
                    self.close()
            yield block

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):
                file.close()


def commit(store: ObjectStore, name: str, data: bytes, order: Order) -> None:
    """Commit a checkpoint by its manifest when all its files are there.

    Raises Conflict when a newer generation has started or another process has committed it;
    CheckpointUnavailable, PermissionDenied.
    """
    manifest = manifest_of(data, name)
    _require_newest(store, order)
    check_arrived(manifest, {found.name: found for found in store.objects(name)})
    try:
        commit_manifest(store, name, data)
    except CheckpointCorrupt as error:
        raise Conflict(error.message) from error


def abandon(store: ObjectStore, name: str) -> None:
    """Delete the parts of a checkpoint that is not committed."""
    remove(store, name, [found.name.partition("/")[2] for found in store.objects(name)])


def retire(
    store: ObjectStore, known: RemoteListing, order: Order, keep: Keep, now: int, head: str
) -> tuple[str, ...]:
    """Delete what `keep` does not retain; returns the names. `now`: microseconds UTC.

    `head` is the checkpoint from which training continues; without it nothing is deleted.
    """
    gone = expired(known.good, keep, now, head) if head in known.good else []
    if gone:
        _require_newest(store, order)
    for manifest in gone:
        remove(store, manifest.name, known.objects[manifest.name])
    return tuple(manifest.name for manifest in gone)


def fetch_ranges(
    store: ObjectStore, place: str, ranges: Sequence[Sequence[int]], into: Path
) -> None:
    """Copy ranges (first byte, end) of an object to the same places of an existing file of its size.

    All of it is copied where the ranges make up the object, or the server does not serve ranges. Raises
    NotFound, CheckpointCorrupt when the object is shorter, CheckpointUnavailable, PermissionDenied.
    """
    fd = os.open(into, os.O_WRONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(fd).st_size
        wanted = sum(end - begin for begin, end in ranges)
        if store.serves_ranges and (wanted < size or size > RANGE_BYTES):
            try:
                _fetch_parts(store, place, fd, ranges)
                return
            except NotSupported:
                pass
        _fetch_whole(store, place, fd, size)
    except OSError as error:
        text = f"the folder of checkpoints cannot be written: {error.strerror}"
        raise CheckpointUnavailable(text) from error
    finally:
        os.close(fd)


def _fetch_parts(store: ObjectStore, place: str, fd: int, ranges: Sequence[Sequence[int]]) -> None:
    cuts = [
        (at, min(at + RANGE_BYTES, end))
        for begin, end in ranges
        for at in range(begin, end, RANGE_BYTES)
    ]
    # The first alone: a server that does not serve ranges sends the whole object each time.
    for batch in (cuts[:1], cuts[1:]):
        work = [partial(_fetch_part, store, place, fd, *cut) for cut in batch]
        with ThreadPoolExecutor(min(_THREADS, max(1, len(work)))) as pool:
            for _ in pool.map(lambda one: one(), work):
                pass


def _fetch_part(store: ObjectStore, place: str, fd: int, begin: int, end: int) -> None:
    data = memoryview(store.get_range(place, begin, end))
    if data.nbytes != end - begin:
        raise CheckpointCorrupt(f"{place}: the object ends before byte {end}")
    _write_at(fd, data, begin)


def _fetch_whole(store: ObjectStore, place: str, fd: int, size: int) -> None:
    for tried in range(1, _TRIES + 1):
        at = 0
        try:
            for piece in store.stream(place):
                _write_at(fd, memoryview(piece)[: size - at], at)
                at += memoryview(piece).nbytes
            break
        except CheckpointUnavailable:
            if tried == _TRIES:
                raise
    if at != size:
        raise CheckpointCorrupt(f"{place}: {at} bytes, the manifest says {size}")


def _write_at(fd: int, data: memoryview, at: int) -> None:
    while data:
        size = os.pwrite(fd, data, at)
        at, data = at + size, data[size:]
