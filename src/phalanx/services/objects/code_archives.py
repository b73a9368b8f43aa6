"""Code archives in an object store, so that every control plane serves them, with the home as a cache."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from phalanx.errors import DataUnavailable, NotFound, PlatformError
from phalanx.kit.text import random_hex

if TYPE_CHECKING:
    from phalanx.checkpoint.remote_store import ObjectStore

FOLDER = "code"
"""The folder of code archives below the prefix."""
_BLOCK_BYTES = 1 << 20


@dataclass
class CodeArchives:
    """The archives below a prefix of an object store, by their SHA-256.

    Every byte that is read is compared with the digest in the name. `environ` has the credentials.
    """

    url: str
    environ: Mapping[str, str]
    _store: ObjectStore | None = None

    def keep(self, digest: str, path: Path) -> None:
        """Copy a verified archive into the store, unless it is there. Raises DataUnavailable."""
        with _told(f"code {digest[:12]}… cannot be written to {self.url}"):
            store, name = self._opened(), _name(digest)
            size = path.stat().st_size
            there = [one for one in store.objects(f"{FOLDER}/{digest[:2]}") if one.name == name]
            if not there or there[0].size_bytes != size:
                store.put(name, lambda: _blocks(path), size)

    def bring(self, digest: str, path: Path) -> bool:
        """Copy an archive to `path`, whole or not at all; False: the store has none of this digest.

        Raises DataUnavailable where the store does not answer, or has other bytes.
        """
        partial = path.with_name(f".{path.name}.{random_hex(8)}.tmp")
        try:
            with _told(f"code {digest[:12]}… cannot be read from {self.url}"):
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                if self._written(digest, partial) != digest:
                    said = f"code {digest[:12]}… in {self.url} does not match its digest"
                    raise DataUnavailable(said)
                os.rename(partial, path)
        except NotFound:
            return False
        finally:
            partial.unlink(missing_ok=True)
        return True

    def remove(self, digest: str) -> None:
        """Delete an archive; one that is gone is fine. Raises DataUnavailable."""
        with _told(f"code {digest[:12]}… cannot be deleted from {self.url}"):
            self._opened().delete([_name(digest)])

    def digest_of(self, digest: str) -> str:
        """The SHA-256 of what the store has under a digest. Raises NotFound, DataUnavailable."""
        with _told(f"code {digest[:12]}… cannot be read from {self.url}"):
            found = hashlib.sha256()
            for piece in self._opened().stream(_name(digest)):
                found.update(piece)
            return found.hexdigest()

    def _written(self, digest: str, partial: Path) -> str:
        found = hashlib.sha256()
        opened = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(opened, "wb") as file:
            for piece in self._opened().stream(_name(digest)):
                found.update(piece)
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        return found.hexdigest()

    def _opened(self) -> ObjectStore:
        from phalanx.checkpoint.remote_store import open_store

        if self._store is None:
            self._store = open_store(self.url, self.environ)
        return self._store


def _name(digest: str) -> str:
    return f"{FOLDER}/{digest[:2]}/{digest}.tar"


def _blocks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            yield block


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
