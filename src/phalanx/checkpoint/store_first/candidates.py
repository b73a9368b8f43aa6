"""The search for the checkpoint to resume from if the nodes share no folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from phalanx.checkpoint import catalog
from phalanx.checkpoint.search import StartSearch
from phalanx.checkpoint.store_first.tier import StoreFirstTier
from phalanx.core.contract.records import Record, WarningRecord
from phalanx.core.training.checkpoints import Manifest, is_checkpoint_name
from phalanx.core.training.resumption import FoundCheckpoints, StartWait
from phalanx.errors import CheckpointCorrupt, CheckpointNotFound, CheckpointUnavailable


class StoreCandidates(StartSearch):
    """Checkpoints in the store, and those of rank 0's folder that are not there yet.

    The latter are from a time when one folder was enough, as on a single node, or from a warm start. A look
    begins this generation in the store.
    """

    def __init__(
        self,
        tier: StoreFirstTier,
        folder: Path,
        say: Callable[[Record], object],
        wait: StartWait,
    ) -> None:
        super().__init__(wait, say)
        self._tier, self._folder = tier, folder
        self._far: set[str] = set()
        self.known: dict[str, Manifest] = {}

    def _look(self) -> FoundCheckpoints:
        try:
            far = self._tier.claim()
        except CheckpointUnavailable as error:
            return FoundCheckpoints(store_error=error.message)
        return self._found(self._near(), far)

    def _found(self, near: list[Manifest], far: Mapping[str, Manifest]) -> FoundCheckpoints:
        self._far = set(far)
        self.known = {one.name: one for one in near} | dict(far)
        return FoundCheckpoints(self._count(self.known), frozenset(self._rejected))

    def _near(self) -> list[Manifest]:
        """Return the checkpoints of the folder; they are copies, which may be missing."""
        try:
            return [one.manifest for one in catalog.scan(self._folder).good]
        except CheckpointUnavailable as error:
            self._warn(error.message)
            return []

    def _bring(self, name: str) -> bool:
        """Return whether all ranks can read a checkpoint, which is uploaded if only rank 0 has it."""
        if name in self._far:
            return True
        try:
            self._tier.send(name)
        except (CheckpointCorrupt, CheckpointNotFound) as error:
            self._say(WarningRecord(f"{self._folder / name}: {error.message}"))
            return False
        self._far.add(name)
        return True

    def reject(self, name: str, why: str) -> None:
        """Report a checkpoint that the ranks could not use; it stays in the store."""
        self._rejected.add(name)
        message = f"{self._tier.url_of(name)}: {why}; an older checkpoint is tried"
        self._say(WarningRecord(message))


class StoreFolders(StoreCandidates):
    """Finds the newest folder in the store, and has it here as a whole. Every node or rank has one.

    `begin` begins this generation in the store, and returns what is there unless it did so before; others
    than the process that commits have none.
    """

    def __init__(
        self,
        tier: StoreFirstTier,
        folder: Path,
        say: Callable[[Record], object],
        wait: StartWait,
        begin: Callable[[], Mapping[str, Manifest] | None] | None,
    ) -> None:
        super().__init__(tier, folder, say, wait)
        self._begin = begin
        self._damaged: set[str] = set()

    def _look(self) -> FoundCheckpoints:
        try:
            far = None if self._begin is None else self._begin()
            far = self._tier.manifests() if far is None else far
        except CheckpointUnavailable as error:
            return FoundCheckpoints(store_error=error.message)
        near = [] if self._begin is None else self._near()
        return self._found(near, far)

    def _bring(self, name: str) -> bool:
        if not super()._bring(name) or not self._tier.bring(self._folder / name):
            return False
        self.forget_earlier(name)
        return True

    def forget_earlier(self, name: str) -> None:
        """Delete the local copies of other checkpoints than `name` that are in the store."""
        for one in catalog.scan(self._folder).good:
            if one.manifest.name != name and one.manifest.name in self._far:
                catalog.remove(one.path)

    def reject_copy(self, path: Path, why: str) -> None:
        """Delete a damaged copy, so that it is fetched again; the second time pass it over."""
        if path.name in self._damaged or not is_checkpoint_name(path.name):
            self.reject(path.name, why)
            return
        self._damaged.add(path.name)
        self._say(WarningRecord(f"{path}: {why}; it is fetched again"))
        catalog.remove(path)
