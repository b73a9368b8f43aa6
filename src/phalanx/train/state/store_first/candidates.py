"""The checkpoints to resume from if the nodes share no folder, on rank 0."""

from __future__ import annotations

from pathlib import Path

from phalanx import checkpoint
from phalanx.checkpoint.store_first.tier import StoreFirstTier
from phalanx.core.contract.records import WarningRecord
from phalanx.core.training.checkpoints import Manifest, lineages
from phalanx.errors import CheckpointCorrupt, CheckpointNotFound
from phalanx.train.gang.report import Report


class StoreCandidates:
    """Checkpoints in the store, and those of rank 0's folder that are not there yet.

    The latter are from a time when one folder was enough, as on a single node, or from a warm start.
    """

    def __init__(self, tier: StoreFirstTier, folder: Path, report: Report) -> None:
        self._tier, self._folder, self._report = tier, folder, report
        self._far: set[str] = set()
        self.known: dict[str, Manifest] = {}

    def find(self) -> list[Manifest]:
        """Return the checkpoints, best first, and begin this generation in the store.

        Raises CheckpointUnavailable, PermissionDenied, NotSupported.
        """
        far = self._tier.claim()
        self._far = set(far)
        self.known = {one.name: one for one in self._near()} | dict(far)
        return lineages(self.known)

    def _near(self) -> list[Manifest]:
        try:
            return [one.manifest for one in checkpoint.scan(self._folder).good]
        except OSError as error:
            self._report.write(WarningRecord(f"{self._folder}: {error}"))
            return []

    def provide(self, name: str) -> bool:
        """Return whether all ranks can read a checkpoint, which is uploaded if only rank 0 has it.

        Raises CheckpointUnavailable, PermissionDenied.
        """
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
        message = f"{self._tier.url_of(name)}: {why}; an older checkpoint is tried"
        self._report.write(WarningRecord(message))
