"""Copy checkpoints, code archives, packed output and traces of a home into an object store, each verified.

A copy that was interrupted goes on where it stopped: `import-objects.jsonl` in the home has a line for
each file that has been read back and compared. Nothing in the home is deleted.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from phalanx.checkpoint import remote
from phalanx.checkpoint.remote_store import ObjectStore, open_store
from phalanx.errors import CheckpointCorrupt, CheckpointNotFound, StoreCorrupt
from phalanx.schemas.home import HomeLayout
from phalanx.services.objects.code_archives import CodeArchives

_BLOCK_BYTES = 1 << 20
CHECKPOINTS, CODE, PROFILES, LOGS = "checkpoints", "code", "profiles", "logs"
Say = Callable[[str], None]


@dataclass(slots=True)
class CopiedKind:
    """What was copied of one kind; `known` was verified by an earlier call, `bad` is not readable here."""

    kind: str
    files: int = 0
    size_bytes: int = 0
    known: int = 0
    bad: int = 0


@dataclass(frozen=True, slots=True)
class ComparedFile:
    """One file or checkpoint that the store has, with all of its bytes compared."""

    name: str
    size_bytes: int
    changed_at_ns: int


class ObjectImport:
    """The copy of one home into one prefix."""

    def __init__(self, home: HomeLayout, url: str, environ: Mapping[str, str], say: Say) -> None:
        self._home, self._url, self._environ, self._say = home, url.rstrip("/"), environ, say
        self._journal = home.root / "import-objects.jsonl"
        self._known = set(_lines(self._journal, self._url))

    def run(self) -> list[CopiedKind]:
        """Copy everything. Raises StoreCorrupt where what is read back differs, and what a store raises."""
        return [self._checkpoints(), self._code(), self._profiles(), self._logs()]

    def _checkpoints(self) -> CopiedKind:
        done = CopiedKind(CHECKPOINTS)
        root = self._home.checkpoints_dir
        for path in sorted(one.parent for one in root.glob("*/*/**/step-*/MANIFEST.json")):
            folder = path.relative_to(root).parent
            if path.suffix == ".tmp":
                continue
            store = self._opened(f"{CHECKPOINTS}/{folder}")
            self._one(done, path, lambda path=path, store=store: _checkpoint(path, store))  # type: ignore[misc]
        return done

    def _code(self) -> CopiedKind:
        done, archives = CopiedKind(CODE), CodeArchives(self._url, self._environ)

        def copy(path: Path) -> int:
            if _digest(path) != path.stem:
                raise CheckpointCorrupt(f"{path.name} does not match its digest")
            archives.keep(path.stem, path)
            if archives.digest_of(path.stem) != path.stem:
                raise StoreCorrupt(f"{path.name} was read back with other bytes")
            return path.stat().st_size

        for path in sorted(self._home.code_dir.glob("*.tar")):
            self._one(done, path, lambda path=path: copy(path))  # type: ignore[misc]
        return done

    def _profiles(self) -> CopiedKind:
        done, store = CopiedKind(PROFILES), self._opened(PROFILES)
        root = self._home.checkpoints_dir
        for path in sorted(root.glob("*/*/**/profiles/*.trace.json.gz")):
            name = path.relative_to(root).as_posix()
            self._one(done, path, lambda path=path, name=name: _plain(path, store, name))  # type: ignore[misc]
        return done

    def _logs(self) -> CopiedKind:
        done, store = CopiedKind(LOGS), self._opened(LOGS)
        for path in sorted(self._home.logs_dir.glob("*/*")):
            name = f"{path.parent.name}/{path.name}"
            self._one(done, path, lambda path=path, name=name: _plain(path, store, name))  # type: ignore[misc]
        return done

    def _one(self, done: CopiedKind, path: Path, copy: Callable[[], int]) -> None:
        """Copy one file or checkpoint unless the journal has it; one that is bad here is told and left."""
        name = path.relative_to(self._home.root).as_posix()
        state = path.stat()
        known = ComparedFile(name, state.st_size, state.st_mtime_ns)
        if known in self._known:
            done.known += 1
            return
        try:
            done.size_bytes += copy()
        except (CheckpointCorrupt, CheckpointNotFound) as error:
            done.bad += 1
            self._say(f"left in the home: {name}: {error.message}")
            return
        done.files += 1
        with self._journal.open("a") as file:
            file.write(json.dumps({"url": self._url, **asdict(known)}) + "\n")

    def _opened(self, below: str) -> ObjectStore:
        return open_store(f"{self._url}/{below}", self._environ)


def _lines(journal: Path, url: str) -> Iterator[ComparedFile]:
    """What an earlier copy into this prefix has verified; a line that was cut is none."""
    if not journal.exists():
        return
    for line in journal.read_text().splitlines():
        try:
            said = json.loads(line)
            if said.pop("url") == url:
                yield ComparedFile(**said)
        except (ValueError, KeyError, TypeError):
            continue


def _checkpoint(path: Path, store: ObjectStore) -> int:
    """Copy one committed checkpoint, its manifest last, and read every byte back."""
    upload = remote.CheckpointUpload(path)
    try:
        name = upload.manifest.name
        there = {
            one.name.removeprefix(f"{name}/"): one
            for one in store.objects()
            if one.name.startswith(f"{name}/")
        }
        upload.send(store, there)
        verdict = remote.audit(store, upload.manifest)
        if verdict != "valid":
            raise StoreCorrupt(f"{name} was read back with other bytes: {verdict}")
        return sum(entry.size_bytes for entry in upload.manifest.files)
    finally:
        upload.close()


def _plain(path: Path, store: ObjectStore, name: str) -> int:
    """Copy one file, and compare what is read back."""
    size, wanted = path.stat().st_size, _digest(path)

    def blocks() -> Iterator[bytes]:
        with path.open("rb") as file:
            while block := file.read(_BLOCK_BYTES):
                yield block

    store.put(name, blocks, size)
    found = hashlib.sha256()
    for piece in store.stream(name):
        found.update(piece)
    if found.hexdigest() != wanted:
        raise StoreCorrupt(f"{name} was read back with other bytes")
    return size


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
