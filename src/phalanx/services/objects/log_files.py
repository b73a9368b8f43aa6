"""Files of packed output: in the home, or in the object store of the platform. They are never changed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from phalanx.checkpoint.compression import zstd
from phalanx.core.logs.packs import MAX_BYTES, LogPack, decode, encode
from phalanx.errors import DataUnavailable, NotFound, PlatformError, StoreCorrupt
from phalanx.kit.text import job_label
from phalanx.launch.files import write_file

if TYPE_CHECKING:
    from phalanx.checkpoint.remote_store import ObjectStore

FOLDER = "logs"
"""The folder of packed output below the prefix of the object store."""
# Level 1 takes two thirds of the time of level 3, and output with many numbers gets no smaller with that.
_LEVEL = 1


@dataclass
class LogFiles:
    """The packs of all jobs. New ones go to the object store where there is one; both are read."""

    root: Path
    url: str | None = None
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)
    _store: ObjectStore | None = None

    def write(self, job: int, name: str, data: bytes) -> None:
        """Store the bytes of a pack. Raises DataUnavailable."""
        with _told(f"output of {job_label(job)} cannot be packed into {self.url or self.root}"):
            if self.url is not None:
                self._opened().put(_object(job, name), lambda: [data], len(data))
                return
            path = self.path(job, name)
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_file(path, data)

    def read(self, job: int, name: str) -> LogPack:
        """One pack. Raises NotFound where it was deleted, DataUnavailable, and StoreCorrupt."""
        with _told(f"output of {job_label(job)} in pack {name} cannot be read"):
            data = self._bytes(job, name)
        try:
            return decode(unpacked(data))
        except ValueError as error:
            said = f"output of {job_label(job)} in pack {name} is damaged: {error}"
            raise StoreCorrupt(said, "restore the file from a backup") from error

    def remove(self, job: int, names: Iterable[str]) -> None:
        """Delete packs; those that are gone are fine. Raises DataUnavailable."""
        every = list(names)
        with _told(f"packed output of {job_label(job)} cannot be deleted"):
            for name in every:
                path = self.path(job, name)
                path.unlink(missing_ok=True)
                # What a process left that was killed while it wrote the file.
                for part in path.parent.glob(f"{name}.*.tmp"):
                    part.unlink(missing_ok=True)
            if self.url is not None and every:
                self._opened().delete([_object(job, name) for name in every])
        with contextlib.suppress(OSError):  # others are in it
            self.path(job, "").rmdir()

    def path(self, job: int, name: str) -> Path:
        """The file of a pack in the home."""
        return self.root / job_label(job) / name

    def _bytes(self, job: int, name: str) -> bytes:
        try:
            return self.path(job, name).read_bytes()
        except FileNotFoundError:
            if self.url is None:
                raise NotFound(f"pack {name} of {job_label(job)} was deleted") from None
        return self._opened().get(_object(job, name))

    def _opened(self) -> ObjectStore:
        from phalanx.checkpoint.remote_store import open_store

        if self._store is None:
            assert self.url is not None
            self._store = open_store(self.url, self.environ)
        return self._store


def compressed(pack: LogPack) -> bytes:
    """The file of a pack, with a checksum."""
    module = zstd()
    options = module.CompressionParameter
    data: bytes = module.compress(
        encode(pack), options={options.compression_level: _LEVEL, options.checksum_flag: 1}
    )
    return data


def unpacked(data: bytes) -> bytes:
    """The bytes of a pack in a file, at most `MAX_BYTES`. Raises ValueError."""
    module = zstd()
    reader = module.ZstdDecompressor()
    try:
        found: bytes = reader.decompress(data, max_length=MAX_BYTES)
    except module.ZstdError as error:
        raise ValueError(str(error)) from error
    if not reader.eof:
        raise ValueError("it is cut, or larger than a pack may be")
    return found


def _object(job: int, name: str) -> str:
    return f"{FOLDER}/{job_label(job)}/{name}"


@contextlib.contextmanager
def _told(said: str) -> Iterator[None]:
    """Say what could not be done, in one error that every caller handles."""
    try:
        yield
    except (NotFound, DataUnavailable):
        raise
    except (PlatformError, OSError) as error:
        text = error.message if isinstance(error, PlatformError) else str(error)
        raise DataUnavailable(f"{said}: {text}") from error
