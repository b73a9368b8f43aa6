"""The commit protocol: a checkpoint is absent or complete, even if processes are killed.

Write into `<name>.tmp/`, sync every file, write and sync the manifest, sync the directories, rename,
sync the parent, and read the manifest back under its final name: on a network file system a rename can
be confirmed without taking effect. Before the rename there is only debris; after it, a complete
checkpoint. A name is never used twice.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from phalanx.checkpoint import tensorfile
from phalanx.checkpoint.digest import canonical, digest_of
from phalanx.checkpoint.disk import Disk
from phalanx.core.training.checkpoints import MANIFEST, FileEntry, Manifest

DEBRIS = ".tmp"
_COPY_BYTES = 1 << 20


class CheckpointWriter:
    """A checkpoint being written. `commit` publishes it; `abandon` removes it."""

    def __init__(self, store: Path, name: str, disk: Disk | None = None) -> None:
        """Make the draft's directory. Raises OSError."""
        self.name = name
        self.store = store
        self.disk: Disk = disk or Disk()
        self.root = store / (name + DEBRIS)
        self._files: list[FileEntry] = []
        self._dirs: set[Path] = set()
        self.disk.make_dir(self.root)

    @property
    def files(self) -> tuple[FileEntry, ...]:
        """What has been written so far, for the manifest."""
        return tuple(self._files)

    def add_tensors(
        self, path: str, tree: Any, blobs: Sequence[tensorfile.TensorBytes]
    ) -> FileEntry:
        """Write one tensor file. Raises OSError."""
        return self._add(path, tensorfile.lay_out(tree, blobs))

    def add_bytes(self, path: str, data: bytes) -> FileEntry:
        """Write one file of any content. Raises OSError."""
        return self._add(path, [data])

    def add_file(self, path: str, source: Path) -> FileEntry:
        """Copy a file of any size. Raises OSError."""
        with source.open("rb") as file:
            return self._add(path, iter(lambda: file.read(_COPY_BYTES), b""))

    def add_link(self, source: Path, entry: FileEntry) -> None:
        """Share a file of an earlier checkpoint, on the same disk, with this one. Raises OSError."""
        os.link(source, self._made_room_for(entry.path))
        self.adopt(entry)

    def adopt(self, entry: FileEntry) -> None:
        """Add a file that another process wrote and synced with `write_shard`.

        Raises OSError when this process cannot see it, as on disks that are not shared.
        """
        size = (self.root / entry.path).stat().st_size
        if size != entry.size_bytes:
            raise OSError(errno.EIO, f"{entry.path}: {size} bytes, expected {entry.size_bytes}")
        self._files.append(entry)

    def _add(self, path: str, pieces: Any) -> FileEntry:
        self._made_room_for(path)
        entry = tensorfile.write_pieces(self.disk, self.root, path, pieces)
        self._files.append(entry)
        return entry

    def _made_room_for(self, path: str) -> Path:
        """The place of a file, in a directory that exists."""
        place = self.root / path
        if place.parent != self.root:
            self.disk.make_dir(place.parent)
            self._dirs.add(place.parent)
        return place

    def commit(self, manifest: Manifest) -> Path:
        """Publish the checkpoint; returns its final directory.

        Raises OSError, also when the committed files cannot be read back.
        """
        content = sealed(manifest)
        tensorfile.write_pieces(self.disk, self.root, MANIFEST, [content])
        for directory in sorted(self._dirs):
            self.disk.sync_dir(directory)
        self.disk.sync_dir(self.root)
        final = self.store / self.name
        self.disk.rename(self.root, final)
        self.disk.sync_dir(self.store)
        self._see(content)
        return final

    def _see(self, content: bytes) -> None:
        """The manifest and the sizes of all files, looked up anew from the directory above."""
        store = os.open(self.store, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fd = os.open(f"{self.name}/{MANIFEST}", os.O_RDONLY | os.O_CLOEXEC, dir_fd=store)
            with os.fdopen(fd, "rb") as file:
                if file.read() != content:
                    raise OSError(errno.EIO, f"{self.name}: the manifest does not read as written")
            for entry in self._files:
                size = os.stat(f"{self.name}/{entry.path}", dir_fd=store).st_size
                if size != entry.size_bytes:
                    text = f"{self.name}/{entry.path}: {size} bytes, expected {entry.size_bytes}"
                    raise OSError(errno.EIO, text)
        finally:
            os.close(store)

    def abandon(self) -> None:
        """Remove what was written."""
        self.disk.remove_tree(self.root)


def write_shard(disk: Disk, draft: Path, path: str, pieces: Iterable[Any]) -> FileEntry:
    """Write one file into a draft of another process, and have it and its name on stable storage.

    `draft` is the draft's `root`. Raises OSError.
    """
    folder = (draft / path).parent
    disk.make_dir(folder)
    entry = tensorfile.write_pieces(disk, draft, path, pieces)
    disk.sync_dir(folder)
    return entry


def sealed(manifest: Manifest) -> bytes:
    """A manifest's file: its JSON with a digest of itself, so that its corruption is found too."""
    body = manifest.to_json()
    body["digest"] = digest_of(canonical(body))
    return canonical(body) + b"\n"
