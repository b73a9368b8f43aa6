"""A bounded cache of objects on the node's disk, shared by all ranks and workers of the node.

Everything is decided by `flock`, which the kernel gives back when a process dies, however it dies:

* an object is `<hash>.data`; its readers hold a shared lock on it, and it is not evicted while locked;
* while it is fetched it is `<hash>.part`, locked by the fetching process; a part without a lock is debris;
* room is made and reserved under `lock`: a part has its full length from the start, so what is on its
  way counts as used.

Least recently opened objects go first. The directory must be local to the node.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from phalanx.checkpoint.digest import digest_of
from phalanx.errors import DataUnavailable
from phalanx.kit.clock import backoff_s
from phalanx.kit.units import format_size, parse_size

_DATA, _PART = ".data", ".part"


class OpenFile:
    """A file open for reading. `verified`: its digest was checked when it was fetched."""

    __slots__ = ("fd", "path", "size", "verified")

    def __init__(self, fd: int, path: Path, *, verified: bool) -> None:
        self.fd = fd
        self.path = path
        self.size = os.fstat(fd).st_size
        self.verified = verified

    def read_at(self, at: int, num_bytes: int) -> bytes:
        """Read these bytes, or fewer at the end of the file, without moving a file position."""
        data = os.pread(self.fd, num_bytes, at)
        while len(data) < num_bytes and (
            more := os.pread(self.fd, num_bytes - len(data), at + len(data))
        ):
            data += more
        return data

    def chunks(self, chunk_bytes: int = 1 << 22) -> Iterator[bytes]:
        """Read the whole file in pieces."""
        at = 0
        while data := os.pread(self.fd, chunk_bytes, at):
            yield data
            at += len(data)

    def close(self) -> None:
        """Close the file; the cache may evict it from then on. A second call does nothing."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        if getattr(self, "fd", -1) >= 0:
            self.close()


@dataclass(frozen=True, slots=True)
class _Entry:
    path: Path
    used_at_ns: int
    num_bytes: int


class NodeCache:
    """A directory of fetched objects with at most `max_bytes` in it (`20GB` is understood).

    `wait_s` is how long to wait for room when everything is in use. May be pickled and forked.
    Raises ValueError for a size that is none.
    """

    def __init__(
        self, directory: str | Path, max_bytes: int | str = "20GB", *, wait_s: float = 120.0
    ) -> None:
        self.directory = Path(directory)
        self.max_bytes = parse_size(max_bytes)
        self.wait_s = wait_s

    def open(
        self,
        key: str,
        num_bytes: int,
        fill: Callable[[Path], None],
        make_room: Callable[[], None] = lambda: None,
    ) -> OpenFile:
        """Open the object `key`; `fill` fetches it unless it is cached.

        `fill` writes over the `num_bytes` bytes of the file it is given, without making it shorter (its
        length is what keeps the room), checks them, and raises when they are not right: then nothing is
        kept. `make_room` is called when everything is in use, so that the
        caller can close what it does not need just now.
        Raises DataUnavailable when there is no room; what `fill` raises goes through.
        """
        if num_bytes > self.max_bytes:
            raise DataUnavailable(
                f"an object of {format_size(num_bytes)} does not fit the cache {self.directory}, "
                f"which holds {format_size(self.max_bytes)}",
                "raise max_bytes of the NodeCache, or write smaller shards",
            )
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        stem = digest_of(key.encode()).partition(":")[2]
        data = self.directory / (stem + _DATA)
        found = _open_shared(data)
        while found is None:
            self._fetch(stem, num_bytes, fill, make_room)
            found = _open_shared(data)
        return found

    def used_bytes(self) -> int:
        """Return the bytes of objects and parts, as the bound counts them."""
        with self._locked():
            return sum(entry.num_bytes for entry in self._entries(_DATA, _PART))

    def _fetch(
        self, stem: str, num_bytes: int, fill: Callable[[Path], None], make_room: Callable[[], None]
    ) -> None:
        part, data = self.directory / (stem + _PART), self.directory / (stem + _DATA)
        fd = os.open(part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if not _take_turn(fd, make_room) or not _is_at(fd, part):
                return
            if data.exists():
                part.unlink()
                return
            try:
                self._wait_for_room(fd, num_bytes, make_room)
                fill(part)
                if os.fstat(fd).st_size != num_bytes:
                    raise DataUnavailable(
                        f"an object was fetched with {os.fstat(fd).st_size} bytes, expected {num_bytes}"
                    )
                os.fsync(fd)
                with self._locked():  # else a process that counts just now would see neither name
                    part.rename(data)
            except BaseException:
                part.unlink(missing_ok=True)
                raise
        finally:
            _let_go(fd)

    def _wait_for_room(self, fd: int, num_bytes: int, make_room: Callable[[], None]) -> None:
        waited_s, tries = 0.0, 0
        while not self._reserve(fd, num_bytes):
            make_room()
            if self._reserve(fd, num_bytes):
                return
            if waited_s >= self.wait_s:
                raise DataUnavailable(
                    f"no room for {format_size(num_bytes)} in the cache {self.directory}: all of "
                    f"its {format_size(self.max_bytes)} are in use",
                    "raise max_bytes of the NodeCache: it must hold at least one shard for each process",
                )
            tries += 1
            pause_s = backoff_s(tries, first_s=0.01, max_s=0.5)
            time.sleep(pause_s)
            waited_s += pause_s

    def _reserve(self, fd: int, num_bytes: int) -> bool:
        """Evict until the bytes fit, and give the part its full length."""
        with self._locked():
            os.ftruncate(fd, 0)
            self._remove_debris()
            used = sum(entry.num_bytes for entry in self._entries(_DATA, _PART))
            for entry in sorted(self._entries(_DATA), key=lambda entry: entry.used_at_ns):
                if used + num_bytes <= self.max_bytes:
                    break
                if _remove_unless_locked(entry.path):
                    used -= entry.num_bytes
            if used + num_bytes > self.max_bytes:
                return False
            os.ftruncate(fd, num_bytes)
            return True

    def _remove_debris(self) -> None:
        for entry in self._entries(_PART):
            _remove_unless_locked(entry.path)

    def _entries(self, *suffixes: str) -> list[_Entry]:
        entries = []
        with os.scandir(self.directory) as listing:
            for item in listing:
                if item.name.endswith(suffixes):
                    with contextlib.suppress(FileNotFoundError):
                        stat = item.stat(follow_symlinks=False)
                        entries.append(_Entry(Path(item.path), stat.st_mtime_ns, stat.st_size))
        return entries

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        fd = os.open(self.directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            _let_go(fd)


def _let_go(fd: int) -> None:
    """Unlock, then close: a forked process has the file open too, and must not keep the lock."""
    fcntl.flock(fd, fcntl.LOCK_UN)
    os.close(fd)


def _take_turn(fd: int, make_room: Callable[[], None]) -> bool:
    """Return whether this process must fetch the part; if not, wait for the process that does.

    The wait is for a shared lock: once fetched, the same file is locked so by all readers. While
    waiting the caller keeps no files open, since the other may need their room.
    """
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        make_room()
        fcntl.flock(fd, fcntl.LOCK_SH)
        return False
    return True


def _is_at(fd: int, path: Path) -> bool:
    """Return whether this open file still has that name."""
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False


def _open_shared(path: Path) -> OpenFile | None:
    """Open the object with a shared lock; None when it is not cached."""
    while True:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        fcntl.flock(fd, fcntl.LOCK_SH)
        if _is_at(fd, path):
            os.utime(fd)
            return OpenFile(fd, path, verified=True)
        os.close(fd)


def _remove_unless_locked(path: Path) -> bool:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink(missing_ok=True)
    except BlockingIOError:
        return False
    else:
        return True
    finally:
        os.close(fd)
