"""Where the trees of a JAX run are read from: a folder that all processes see, or an object store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from phalanx import checkpoint
from phalanx.checkpoint import compression, tensorfile
from phalanx.checkpoint.encryption import Opener
from phalanx.checkpoint.store_first.tier import StoreFirstTier
from phalanx.core.training.checkpoints import FileEntry, Manifest, lineages
from phalanx.errors import CheckpointCorrupt
from phalanx.train.frameworks.jax import arrays
from phalanx.train.gang.context import RankInfo
from phalanx.train.gang.report import Report
from phalanx.train.state.committer import set_aside
from phalanx.train.state.storage import CheckpointStorage
from phalanx.train.state.store_first.candidates import StoreCandidates


@dataclass(frozen=True, slots=True)
class SavedTree:
    """A checkpoint with its files open: the rows of its leaves, and its arrays by number.

    `place` is the folder or URL where it is committed.
    """

    place: str
    manifest: Manifest
    rows: arrays.Rows
    stored: Mapping[int, arrays.StoredArray]

    @classmethod
    def read(cls, place: str, root: Path, manifest: Manifest, opener: Opener) -> SavedTree:
        """Read the headers of its files. Raises CheckpointCorrupt."""
        files: list[tuple[tensorfile.ByteSource, Sequence[tensorfile.TensorEntry]]] = []
        leaves = None
        for entry in manifest.files:
            where = f"{place}/{entry.path}"
            source = compression.decompressed(opener(root, entry), where)
            head, placed = tensorfile.read_header(source, where)
            files.append((source, placed))
            leaves = head.get("leaves", leaves)
        if leaves is None:
            raise CheckpointCorrupt(f"{place}: the checkpoint does not describe its arrays")
        return cls(place, manifest, leaves, arrays.stored_arrays(leaves, files, place))

    def put_back(self, like: Any) -> Any:
        """Return the tree, structured and sharded like `like`.

        Raises RestoreMismatch, CheckpointCorrupt.
        """
        where = f"checkpoint {self.manifest.name}"
        return arrays.put_back(like, self.rows, self.stored, where)


class TreeSource(Protocol):
    """Checkpoints to resume from. `find`, `provide` and `reject` are for rank 0."""

    def find(self) -> list[Manifest]:
        """Return the checkpoints, best first. Raises CheckpointUnavailable, PermissionDenied."""
        ...

    def provide(self, name: str) -> bool:
        """Return whether a checkpoint can be read, after it was copied to where that is possible."""
        ...

    def open(self, name: str) -> SavedTree:
        """Open a checkpoint. Raises CheckpointCorrupt, CheckpointNotFound, NotFound."""
        ...

    def verify(self, saved: SavedTree, place: tuple[int, int], like: Any) -> None:
        """Verify a process's part; `place` is (process, number). Raises CheckpointCorrupt."""
        ...

    def reject(self, name: str, why: str) -> bool:
        """Set aside or report a bad checkpoint; returns whether there is another copy of it."""
        ...


class FolderSource:
    """The job's folder, and the copies in the object store that rank 0 brings there."""

    def __init__(
        self,
        store: Path,
        info: RankInfo,
        report: Report,
        disk: checkpoint.Disk,
        storage: CheckpointStorage,
    ) -> None:
        self._store, self._info, self._report = store, info, report
        self._disk, self._storage = disk, storage

    def find(self) -> list[Manifest]:
        """See `TreeSource`."""
        listing = checkpoint.scan(self._store)
        checkpoint.clean_debris(self._store, self._disk)
        for path, why in listing.bad.items():
            set_aside(path, why, self._report, self._disk)
        return lineages(self._storage.known(listing, self._report))

    def provide(self, name: str) -> bool:
        """See `TreeSource`."""
        return self._storage.tier.bring(self._store / name)

    def open(self, name: str) -> SavedTree:
        """See `TreeSource`."""
        path = self._store / name
        manifest = checkpoint.read_manifest(path)
        opener = self._storage.encryption.opener(manifest)
        place = (self._info.rank, self._info.world_size)
        checkpoint.verify_share(path, manifest, place)
        return SavedTree.read(str(path), path, manifest, opener)

    def verify(self, saved: SavedTree, place: tuple[int, int], like: Any) -> None:
        """Nothing is left: `open` has verified this process's share of all bytes."""

    def reject(self, name: str, why: str) -> bool:
        """See `TreeSource`."""
        path = self._store / name
        if path.is_dir():
            set_aside(path, why, self._report, self._disk)
        return self._storage.tier.has_another(path)


class StoreSource:
    """The object store, of which every process fetches what it reads."""

    def __init__(
        self, tier: StoreFirstTier, store: Path, report: Report, storage: CheckpointStorage
    ) -> None:
        self._tier, self._storage = tier, storage
        self._candidates = StoreCandidates(tier, store, report)

    def find(self) -> list[Manifest]:
        """See `TreeSource`."""
        return self._candidates.find()

    def provide(self, name: str) -> bool:
        """See `TreeSource`."""
        return self._candidates.provide(name)

    def open(self, name: str) -> SavedTree:
        """See `TreeSource`."""
        manifest = self._tier.manifest(name)

        def opened(_root: Path, entry: FileEntry) -> tensorfile.ByteSource:
            return self._tier.open_file(name, entry)

        opener = self._storage.encryption.opener(manifest, opened)
        return SavedTree.read(self._tier.url_of(name), self._tier.near(name), manifest, opener)

    def verify(self, saved: SavedTree, place: tuple[int, int], like: Any) -> None:
        """Read what this process needs; see `TreeSource`."""
        where = f"checkpoint {saved.manifest.name}"
        arrays.read_local(like, saved.rows, saved.stored, where)

    def reject(self, name: str, why: str) -> bool:
        """See `TreeSource`."""
        self._candidates.reject(name, why)
        return False
