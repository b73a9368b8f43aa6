"""The checkpoints to resume from if the nodes share no folder, on rank 0."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from phalanx import checkpoint
from phalanx.checkpoint.search import StartSearch
from phalanx.checkpoint.store_first.tier import StoreFirstTier
from phalanx.core.contract.records import WarningRecord
from phalanx.core.training.checkpoints import Manifest
from phalanx.core.training.resumption import FoundCheckpoints, StartWait
from phalanx.errors import CheckpointCorrupt, CheckpointNotFound, CheckpointUnavailable
from phalanx.train.gang.report import Report


class StoreCandidates(StartSearch):
    """Checkpoints in the store, and those of rank 0's folder that are not there yet.

    The latter are from a time when one folder was enough, as on a single node, or from a warm start. A look
    begins this generation in the store.
    """

    def __init__(self, tier: StoreFirstTier, folder: Path, report: Report, wait: StartWait) -> None:
        super().__init__(wait, report.write)
        self._tier, self._folder, self._report = tier, folder, report
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
            return [one.manifest for one in checkpoint.scan(self._folder).good]
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
            self._report.write(WarningRecord(f"{self._folder / name}: {error.message}"))
            return False
        self._far.add(name)
        return True

    def reject(self, name: str, why: str) -> None:
        """Report a checkpoint that the ranks could not use; it stays in the store."""
        self._rejected.add(name)
        message = f"{self._tier.url_of(name)}: {why}; an older checkpoint is tried"
        self._report.write(WarningRecord(message))
