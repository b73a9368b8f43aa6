"""The choice of the checkpoint to resume from: rank 0 chooses, all ranks verify and vote."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from phalanx import checkpoint
from phalanx.core.contract.records import WarningRecord
from phalanx.core.training.checkpoints import FileEntry, Manifest, lineages
from phalanx.errors import CheckpointCorrupt, CheckpointNotFound
from phalanx.train.gang.context import RankInfo
from phalanx.train.gang.groups import ControlChannel
from phalanx.train.gang.report import Report
from phalanx.train.state.checkpoint_reader import Restored, read_state, resume_differs
from phalanx.train.state.committer import set_aside
from phalanx.train.state.storage import CheckpointStorage

# How a checkpoint is opened, as rank 0 sends it: whether an older candidate is left.
_FURTHER, _LAST = "+", "."


class ResumeChoice:
    """Tries a job's checkpoints, best first, until all ranks accept one.

    Every rank makes the same calls; only rank 0 lists the directory. `newest_commit` is the highest
    commit number found there.
    """

    def __init__(
        self,
        store: Path,
        info: RankInfo,
        channel: ControlChannel,
        report: Report,
        disk: checkpoint.Disk,
    ) -> None:
        self.newest_commit = 0
        self._store, self._info, self._channel = store, info, channel
        self._report, self._disk = report, disk
        self._untried: list[Path] | None = None

    def kept(self) -> list[Manifest]:
        """Return the manifests of the committed checkpoints."""
        return [one.manifest for one in checkpoint.list_checkpoints(self._store)]

    def open(self, storage: CheckpointStorage) -> Restored | None:
        """Return the newest checkpoint of the head's lineage that was not tried yet.

        Rank 0 chooses. While an older candidate is left, tensors are verified as they are read and
        `accept` decides. The last candidate is verified completely before anything is overwritten.
        Corrupt checkpoints are quarantined and reported.
        """
        if self._untried is None:
            self._untried = self._candidates(storage) if self._info.is_main else []
        while True:
            chosen = _next(self._untried, storage)
            how = _LAST if not self._untried else _FURTHER
            told = self._channel.broadcast(f"{how}{chosen}" if chosen else "")
            if not told:
                return None
            path = Path(told[1:])
            restored, why = self._read(path, told[0], storage)
            if self._agreed(path, why, why or None, storage):
                return restored

    def accept(self, restored: Restored, problem: str, storage: CheckpointStorage) -> bool:
        """Return whether all ranks read their parts, and the bytes that no rank read are valid too.

        Otherwise a corrupt checkpoint is quarantined, and `open` returns an older one. Collective.
        """
        if restored.read is not None and not problem:
            place = (self._info.rank, self._info.world_size)
            try:
                checkpoint.verify_share(restored.path, restored.manifest, place, restored.read)
            except CheckpointCorrupt as error:
                problem = error.message
        if not self._agreed(restored.path, problem, None, storage):
            return False
        self._untried = None
        return True

    def _agreed(
        self, path: Path, problem: str, rot: str | None, storage: CheckpointStorage
    ) -> bool:
        """Return whether no rank has a problem with a checkpoint; else it is rejected.

        `rot` is the corruption that rank 0 found in the files; None: rank 0 verifies them here.
        """
        failed = self._channel.total([1.0 if problem else 0.0])[0]
        if failed and self._info.is_main:
            found = _rot(path) if rot is None else rot
            if found:
                set_aside(path, found, self._report, self._disk)
                if self._untried is not None and storage.tier.has_another(path):
                    self._untried.insert(0, path)
            else:
                message = f"{path}: {failed:.0f} ranks could not read the checkpoint; an older one is tried"
                self._report.write(WarningRecord(f"{message}{problem and ': '}{problem}"))
        return failed == 0

    def _candidates(self, storage: CheckpointStorage) -> list[Path]:
        try:
            listing = checkpoint.scan(self._store)
            checkpoint.clean_debris(self._store, self._disk)
        except OSError as error:
            self._report.write(WarningRecord(f"{self._store}: {error}"))
            return []
        for path, why in listing.bad.items():
            set_aside(path, why, self._report, self._disk)
        known = storage.known(listing, self._report)
        self.newest_commit = max((one.commit for one in known.values()), default=0)
        return [self._store / one.name for one in lineages(known)]

    def _read(
        self, path: Path, how: str, storage: CheckpointStorage
    ) -> tuple[Restored | None, str]:
        try:
            manifest = checkpoint.read_manifest(path)
            place = (self._info.rank, self._info.world_size)
            opener = storage.encryption.opener(manifest)
            read: dict[str, checkpoint.VerifiedFile] | None = None
            if how == _FURTHER and opener is checkpoint.VerifiedFile:
                read = {}
                alone = self._info.local_world_size == 1
                opener = partial(_opened, read, alone)
            else:
                checkpoint.verify_share(path, manifest, place)
            state, rng = read_state(path, manifest, opener)
        except (CheckpointCorrupt, CheckpointNotFound) as error:
            return None, error.message
        return Restored(path, manifest, state, rng, resume_differs(manifest, self._info), read), ""


def _next(candidates: list[Path], storage: CheckpointStorage) -> str:
    """Return the first candidate on disk or in the object store; empty when there is none."""
    while candidates:
        path = candidates.pop(0)
        if storage.tier.bring(path):
            return str(path)
    return ""


def _rot(path: Path) -> str:
    """Return what this process finds corrupt in a checkpoint; empty when it is valid."""
    try:
        checkpoint.verify(path)
    except (CheckpointCorrupt, CheckpointNotFound) as error:
        return error.message
    return ""


def _opened(
    known: dict[str, checkpoint.VerifiedFile], direct: bool, root: Path, entry: FileEntry
) -> checkpoint.VerifiedFile:
    """Open a file and record it, so that the chunks it verified are not verified again."""
    file = known[entry.path] = checkpoint.VerifiedFile(root, entry, direct=direct)
    file.check_size()
    return file
