"""Copies of committed checkpoints in an object store: upload, list, fetch, verify, delete.

Objects are stored under `<prefix>/<checkpoint>/<path>`. Checkpoint names are never reused, so no
object is overwritten; the manifest is written last, if there is none yet, and read back. A remote
checkpoint is a manifest and all of its files at their full size: all other objects are debris.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

from phalanx.checkpoint.catalog import parse_manifest, read_manifest
from phalanx.checkpoint.commit import DEBRIS
from phalanx.checkpoint.digest import running
from phalanx.checkpoint.disk import Disk
from phalanx.checkpoint.remote_store import ObjectInfo, ObjectStore
from phalanx.checkpoint.tensorfile import write_pieces
from phalanx.core.training.checkpoints import (
    MANIFEST,
    FileEntry,
    Keep,
    Manifest,
    expired,
    is_checkpoint_name,
)
from phalanx.errors import CheckpointCorrupt, CheckpointUnavailable, NotFound

DEBRIS_AGE_S = 86_400.0
_BLOCK_BYTES = 1 << 20
_TRIES = 5


@dataclass(frozen=True, slots=True)
class RemoteListing:
    """The checkpoints of a prefix, by condition.

    `good` by name, `bad` maps names to the reason, `debris` maps names without a manifest to the time of
    their last addition (seconds since 1970).
    """

    good: Mapping[str, Manifest]
    bad: Mapping[str, str]
    debris: Mapping[str, float]
    objects: Mapping[str, Mapping[str, ObjectInfo]]


def look(store: ObjectStore, known: Mapping[str, Manifest] | None = None) -> RemoteListing:
    """List a prefix. Manifests in `known` are not read again: they never change.

    Raises CheckpointUnavailable, PermissionDenied.
    """
    objects: dict[str, dict[str, ObjectInfo]] = {}
    for found in store.objects():
        name, _, path = found.name.partition("/")
        if path and is_checkpoint_name(name):
            objects.setdefault(name, {})[path] = found
    good: dict[str, Manifest] = {}
    bad: dict[str, str] = {}
    debris: dict[str, float] = {}
    for name, files in objects.items():
        if MANIFEST not in files:
            debris[name] = max(found.changed_at_s for found in files.values())
            continue
        try:
            manifest = (known or {}).get(name) or manifest_of(store.get(_at(name, MANIFEST)), name)
            _check_sizes(manifest, files)
            good[name] = manifest
        except (CheckpointCorrupt, NotFound) as error:
            bad[name] = error.message
    return RemoteListing(good, bad, debris, objects)


def _at(name: str, path: str) -> str:
    return f"{name}/{path}"


def manifest_of(data: bytes, name: str) -> Manifest:
    """The manifest in an object's bytes. Raises CheckpointCorrupt, also for paths that lead outside."""
    try:
        return parse_manifest(data, name)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointCorrupt(f"{name}/{MANIFEST}: {error}") from error


def _check_sizes(manifest: Manifest, files: Mapping[str, ObjectInfo]) -> None:
    for entry in manifest.files:
        found = files.get(entry.path)
        if found is None:
            raise CheckpointCorrupt(f"{manifest.name}/{entry.path}: the file is missing")
        if found.size_bytes != entry.size_bytes:
            text = f"{found.size_bytes} bytes, the manifest says {entry.size_bytes}"
            raise CheckpointCorrupt(f"{manifest.name}/{entry.path}: {text}")


class CheckpointUpload:
    """A committed checkpoint with all its files open: retention may delete it meanwhile."""

    def __init__(self, path: Path) -> None:
        """Raises CheckpointNotFound, CheckpointCorrupt; OSError when it is being deleted."""
        self.manifest = read_manifest(path)
        self._files: dict[str, IO[bytes]] = {}
        try:
            for name in (MANIFEST, *(entry.path for entry in self.manifest.files)):
                self._files[name] = (path / name).open("rb", buffering=0)
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()

    def send(self, store: ObjectStore, there: Mapping[str, ObjectInfo]) -> int:
        """Copy what is not there yet, then commit; returns the bytes that were sent.

        `there` are the objects that an interrupted upload left: they are whole, or they would not be.
        Raises CheckpointCorrupt when a local file does not match its digest, and no object of it
        appears; CheckpointUnavailable, PermissionDenied.
        """
        name, sent = self.manifest.name, 0
        for entry in self.manifest.files:
            left = there.get(entry.path)
            if left is not None and left.size_bytes == entry.size_bytes:
                continue
            pieces = partial(self._pieces, entry)
            store.put(_at(name, entry.path), pieces, entry.size_bytes)
            sent += entry.size_bytes
        objects = {found.name: found for found in store.objects()}
        check_arrived(self.manifest, objects)
        file = self._files[MANIFEST]
        file.seek(0)
        commit_manifest(store, name, file.read())
        return sent

    def _pieces(self, entry: FileEntry) -> Iterator[bytes]:
        """The file's bytes; the last block only goes out when the digest of all is right."""
        file, digest, held = self._files[entry.path], running(entry.digest), b""
        file.seek(0)
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
            if held:
                yield held
            held = block
        if digest.text != entry.digest:
            where = f"{self.manifest.name}/{entry.path}"
            raise CheckpointCorrupt(f"{where}: the local bytes do not match their digest")
        if held:
            yield held


def commit_manifest(store: ObjectStore, name: str, data: bytes) -> None:
    """Write a manifest if there is none, and read it back. Raises CheckpointCorrupt if it is another."""
    place = _at(name, MANIFEST)
    store.create(place, data)
    # An earlier try may have succeeded unanswered, and a server without conditional writes
    # accepts both writers: only the content that is read back counts.
    if store.get(place) != data:
        raise CheckpointCorrupt(f"{place}: another process has written it")


def check_arrived(manifest: Manifest, objects: Mapping[str, ObjectInfo]) -> None:
    """Raise CheckpointUnavailable unless every file is there at its full size."""
    try:
        mine = {
            entry.path: objects[_at(manifest.name, entry.path)]
            for entry in manifest.files
            if _at(manifest.name, entry.path) in objects
        }
        _check_sizes(manifest, mine)
    except CheckpointCorrupt as error:
        raise CheckpointUnavailable(f"after the upload: {error.message}") from error


def fetch(store: ObjectStore, name: str, into: Path, suffix: str, disk: Disk | None = None) -> Path:
    """Copy a far checkpoint into a local folder; there it is absent or whole, as after a save.

    Every byte is compared with its digest on the way. Raises NotFound, CheckpointCorrupt,
    CheckpointUnavailable, PermissionDenied, OSError.
    """
    disk = disk or Disk()
    data = store.get(_at(name, MANIFEST))
    manifest = manifest_of(data, name)
    root = into / f"{name}.{suffix}{DEBRIS}"
    try:
        folders = {root}
        for entry in manifest.files:
            folder = (root / entry.path).parent
            disk.make_dir(folder)
            folders.add(folder)
            _fetch_file(store, name, entry, root, disk)
        write_pieces(disk, root, MANIFEST, [data])
        for folder in sorted(folders):
            disk.sync_dir(folder)
        disk.rename(root, into / name)
        disk.sync_dir(into)
    except BaseException:
        with contextlib.suppress(OSError):
            disk.remove_tree(root)
        raise
    return into / name


def _fetch_file(store: ObjectStore, name: str, entry: FileEntry, root: Path, disk: Disk) -> None:
    fd = disk.create(root / entry.path)
    try:
        for tried in range(1, _TRIES + 1):
            try:
                for piece in _checked(store, name, entry):
                    disk.write(fd, piece)
                break
            except CheckpointUnavailable:
                if tried == _TRIES:
                    raise
                os.ftruncate(fd, 0)
                os.lseek(fd, 0, os.SEEK_SET)
        disk.sync(fd)
    finally:
        disk.close(fd)


def _checked(store: ObjectStore, name: str, entry: FileEntry) -> Iterator[Any]:
    """A far file's bytes. Raises CheckpointCorrupt at the end when they are not what was saved."""
    digest, size = running(entry.digest), 0
    for piece in store.stream(_at(name, entry.path)):
        digest.update(piece)
        size += memoryview(piece).nbytes
        if size > entry.size_bytes:
            break
        yield piece
    if size != entry.size_bytes or digest.text != entry.digest:
        raise CheckpointCorrupt(f"{name}/{entry.path}: the bytes do not match their digest")


def scrub(store: ObjectStore) -> dict[str, str]:
    """Read every byte of every far checkpoint; maps names to `valid` or to what is wrong.

    Raises CheckpointUnavailable, PermissionDenied.
    """
    listing = look(store)
    verdicts = dict(listing.bad)
    for name, manifest in listing.good.items():
        verdicts[name] = audit(store, manifest)
    return dict(sorted(verdicts.items()))


def audit(store: ObjectStore, manifest: Manifest) -> str:
    """Read every byte of one far checkpoint: `valid`, or what is wrong.

    Raises CheckpointUnavailable, PermissionDenied.
    """
    for entry in manifest.files:
        try:
            for _ in _checked(store, manifest.name, entry):
                pass
        except (CheckpointCorrupt, NotFound) as error:
            return error.message
    return "valid"


def remove(store: ObjectStore, name: str, files: Iterable[str]) -> None:
    """Delete a remote checkpoint: first its manifest, then its files."""
    store.delete([_at(name, MANIFEST)])
    store.delete([_at(name, path) for path in files if path != MANIFEST])


def retain(
    store: ObjectStore,
    listing: RemoteListing,
    keep: Keep,
    now: int,
    *,
    busy: Callable[[str], bool],
    pinned: Collection[str] = (),
) -> list[str]:
    """Delete checkpoints that `keep` does not retain, and debris unchanged for a day.

    `busy`: whether an upload may be running. Those that are `pinned` stay. Returns the deleted names.
    `now`: microseconds UTC.
    """
    gone = [manifest.name for manifest in expired(listing.good, keep, now, pinned=pinned)]
    # The store's clock may differ from ours: a day leaves a large margin.
    old = [
        name
        for name, changed_at_s in listing.debris.items()
        if now / 1e6 - changed_at_s > DEBRIS_AGE_S and not busy(name)
    ]
    for name in (*gone, *old):
        remove(store, name, listing.objects[name])
    return [*gone, *old]
