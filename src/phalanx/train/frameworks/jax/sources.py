"""Where the trees of a JAX run are read from: a folder that all processes see, or an object store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from phalanx import checkpoint
from phalanx.checkpoint import compression, tensorfile
from phalanx.checkpoint.encryption import Opener
from phalanx.checkpoint.search import CheckpointSearch, StartSearch
from phalanx.checkpoint.store_first.candidates import StoreCandidates
from phalanx.checkpoint.store_first.tier import StoreFirstTier
from phalanx.core.training.checkpoints import FileEntry, Manifest
from phalanx.errors import CheckpointCorrupt
from phalanx.train.frameworks.jax import arrays
from phalanx.train.gang.context import RankInfo
from phalanx.train.gang.report import Report
from phalanx.train.gang.search_turn import wait_for
from phalanx.train.state.storage import CheckpointStorage

STRATEGY = "jax"


def _is_of_jax(manifest: Manifest) -> bool:
    return manifest.strategy == STRATEGY


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
    """Checkpoints to resume from. `search` and `reject` are for rank 0."""

    @property
    def search(self) -> StartSearch:
        """Return what finds the checkpoints."""
        ...

    def open(self, name: str) -> SavedTree:
        """Open a checkpoint. Raises CheckpointCorrupt, CheckpointNotFound, NotFound."""
        ...

    def verify(self, saved: SavedTree, place: tuple[int, int], like: Any) -> None:
        """Verify a process's part; `place` is (process, number). Raises CheckpointCorrupt."""
        ...

    def reject(self, name: str, why: str, *, away: bool) -> None:
        """Set aside or report a bad checkpoint, or one that could not be read (`away`)."""
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
        self._store, self._info, self._storage = store, info, storage
        wait = wait_for(info, str(store), _is_of_jax)
        self.search = CheckpointSearch(store, wait, report.write, storage.tier, disk)

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

    def reject(self, name: str, why: str, *, away: bool) -> None:
        """See `TreeSource`."""
        if away:
            self.search.could_not_read(name, why)
        else:
            self.search.reject(self._store / name, why)


class StoreSource:
    """The object store, of which every process fetches what it reads."""

    def __init__(
        self,
        tier: StoreFirstTier,
        store: Path,
        info: RankInfo,
        report: Report,
        storage: CheckpointStorage,
    ) -> None:
        self._tier, self._storage = tier, storage
        wait = wait_for(info, tier.url, _is_of_jax)
        self.search = StoreCandidates(tier, store, report.write, wait)

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

    def reject(self, name: str, why: str, *, away: bool) -> None:
        """See `TreeSource`."""
        if away:
            self.search.could_not_read(name, why)
        else:
            self.search.reject(name, why)
