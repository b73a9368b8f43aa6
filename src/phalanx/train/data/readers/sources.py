"""Sources of files: a directory, or an object store behind a node's cache."""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from phalanx.errors import (
    DataCorrupt,
    DataUnavailable,
    NotFound,
    NotSupported,
    PermissionDenied,
    UserError,
)
from phalanx.train.data.readers.cache import NodeCache, OpenFile
from phalanx.train.data.readers.remote import RemoteStore

_TRIES = 3


class DataSource(Protocol):
    """A source of files by name. Names are relative, with `/` between their parts."""

    @property
    def where(self) -> str:
        """Return the name of this location for messages."""
        ...

    def listing(self) -> list[tuple[str, int]]:
        """List (name, size) of every file, sorted by name, without hidden files."""
        ...

    def may_hold(self, max_open: int, largest_bytes: int) -> int:
        """Return how many files one process may hold open, at most `max_open`."""
        ...

    def open(
        self, name: str, size: int, digest: str | None, make_room: Callable[[], None]
    ) -> OpenFile:
        """Open the file. Raises DataCorrupt when it is not `size` long or does not match."""
        ...

    def read(self, name: str, size: int | None = None, digest: str | None = None) -> Any:
        """Read the whole file as a buffer. Raises NotFound, DataCorrupt."""
        ...

    def write(self, name: str, data: bytes) -> None:
        """Replace a file atomically."""
        ...


class LocalSource:
    """A source in a directory of this machine."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(os.path.abspath(root))
        if not self.root.is_dir():
            raise NotFound(f"there is no directory {self.root}")

    @property
    def where(self) -> str:
        """Return the directory."""
        return str(self.root)

    def listing(self) -> list[tuple[str, int]]:
        """List (name, size) of every file, sorted by name, without hidden files."""
        return sorted(_walk(str(self.root), ""))

    def may_hold(self, max_open: int, largest_bytes: int) -> int:
        """Return `max_open`."""
        return max_open

    def open(
        self, name: str, size: int, digest: str | None, make_room: Callable[[], None]
    ) -> OpenFile:
        """Open the file; the caller checks its digest."""
        path = self.root / name
        with self._explained(name):
            file = OpenFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC), path, verified=False)
        if file.size != size:
            found = file.size
            file.close()
            raise DataCorrupt(f"{path} has {found} bytes, but its index says {size}")
        return file

    def read(self, name: str, size: int | None = None, digest: str | None = None) -> Any:
        """Read the file's bytes; large files are mapped."""
        with self._explained(name), open(self.root / name, "rb", buffering=0) as file:
            length = os.fstat(file.fileno()).st_size
            if length > 1 << 16:
                return mmap.mmap(file.fileno(), length, access=mmap.ACCESS_READ)
            return file.read()

    def write(self, name: str, data: bytes) -> None:
        """Write a temporary file, sync it and rename it."""
        try:
            fd, temporary = tempfile.mkstemp(dir=self.root, prefix=f".{name}.")
            try:
                with os.fdopen(fd, "wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                os.chmod(temporary, 0o644)
                os.rename(temporary, self.root / name)
            except BaseException:
                os.unlink(temporary)
                raise
        except PermissionError as error:
            raise PermissionDenied(f"{self.root} cannot be written to") from error
        except OSError as error:
            raise DataUnavailable(
                f"{self.root / name} cannot be written: {error.strerror}"
            ) from error

    @contextlib.contextmanager
    def _explained(self, name: str) -> Iterator[None]:
        try:
            yield
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
            raise NotFound(f"there is no file {self.root / name}") from error
        except PermissionError as error:
            raise PermissionDenied(f"{self.root / name} cannot be read") from error
        except OSError as error:
            raise DataUnavailable(f"{self.root / name} cannot be read: {error.strerror}") from error


class ObjectSource:
    """A prefix of an object store (`s3://bucket/prefix`), kept on the node by `cache`.

    `options` go to the store's client (`endpoint`, `region`, …). May be pickled and forked.
    """

    def __init__(
        self, url: str, cache: NodeCache, options: Mapping[str, Any] | None = None
    ) -> None:
        self.store = RemoteStore(url, options)
        self.cache = cache
        self._versions: dict[str, str] = {}

    @property
    def where(self) -> str:
        """Return the URL."""
        return self.store.url

    def listing(self) -> list[tuple[str, int]]:
        """List (name, size) of every object below the prefix, sorted by name."""
        rows = self.store.list()
        self._versions = {name: version for name, _, version in rows}
        return [(name, size) for name, size, _ in rows if not _hidden(name)]

    def version(self, name: str) -> str:
        """Return what the store says changes with the object's content; as of the last listing."""
        return self._versions.get(name, "")

    def may_hold(self, max_open: int, largest_bytes: int) -> int:
        """Return at least one file, and at most an eighth of the cache."""
        return max(1, min(max_open, self.cache.max_bytes // (8 * max(1, largest_bytes))))

    def open(
        self, name: str, size: int, digest: str | None, make_room: Callable[[], None]
    ) -> OpenFile:
        """Open the object in the cache, fetched and checked first when it is missing."""
        key = f"{self.where}\n{name}\n{size}\n{digest or self._versions.get(name, '')}"
        return self.cache.open(
            key, size, lambda path: self.fetch(name, size, digest, path), make_room
        )

    def read(self, name: str, size: int | None = None, digest: str | None = None) -> Any:
        """Read the object's bytes; through the cache when its size is given."""
        if size is not None:
            file = self.open(name, size, digest, lambda: None)
            try:
                return file.read_at(0, file.size)
            finally:
                file.close()
        with tempfile.NamedTemporaryFile() as temporary:
            self.store.fetch(name, Path(temporary.name))
            return temporary.read()

    def write(self, name: str, data: bytes) -> None:
        """Upload an object."""
        with tempfile.NamedTemporaryFile() as file:
            file.write(data)
            file.flush()
            self.store.store(name, Path(file.name))

    def fetch(self, name: str, size: int, digest: str | None, path: Path) -> None:
        """Fetch an object into a file; damaged data are fetched again before an error is raised."""
        algorithm = digest.partition(":")[0] if digest else None
        problem: DataCorrupt | DataUnavailable | None = None
        for _ in range(_TRIES):
            try:
                found_size, found = self.store.fetch(name, path, algorithm)
            except DataUnavailable as error:
                problem = error
                continue
            if found_size != size:
                problem = DataCorrupt(
                    f"{self.where}/{name} has {found_size} bytes, not {size} as indexed"
                )
            elif digest is not None and found != digest:
                problem = DataCorrupt(
                    f"{self.where}/{name} does not match its index: {found}, not {digest}"
                )
            else:
                return
        assert problem is not None
        raise problem


def open_source(root: str | Path | DataSource, cache: NodeCache | None = None) -> DataSource:
    """Return the source for a path or a URL; a source is returned unchanged.

    Raises NotFound for a directory that is not there, UserError for a URL without a cache.
    """
    if not isinstance(root, str | Path):
        return root
    text = str(root)
    if "://" not in text:
        return LocalSource(text)
    scheme = text.partition("://")[0]
    if scheme == "file":
        return LocalSource(text.partition("://")[2])
    if scheme not in ("s3", "s3a", "gs", "az", "abfs", "abfss", "memory", "http", "https"):
        raise NotSupported(
            f"{text}: unknown kind of storage {scheme!r}", "use s3, gs, az, http or file"
        )
    if cache is None:
        raise UserError(
            f"{text} is object storage, which is read through a cache on the node",
            "pass cache=NodeCache('/local/disk/cache', '100GB')",
        )
    return ObjectSource(text, cache)


def _hidden(name: str) -> bool:
    return name.startswith(".") or "/." in name


def _walk(directory: str, prefix: str) -> Iterator[tuple[str, int]]:
    with os.scandir(directory) as listing:
        for item in listing:
            if item.name.startswith("."):
                continue
            if item.is_dir():
                yield from _walk(item.path, f"{prefix}{item.name}/")
            elif item.is_file():
                yield prefix + item.name, item.stat().st_size
