"""The choice of the checkpoint to resume from: rank 0 chooses, all ranks verify and vote."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

from phalanx import checkpoint
from phalanx.checkpoint.search import CheckpointSearch
from phalanx.core.training.checkpoints import FileEntry, Manifest, is_of_job
from phalanx.errors import (
    CheckpointCorrupt,
    CheckpointNotFound,
    CheckpointUnavailable,
)
from phalanx.kit.clock import Clock
from phalanx.train.gang.context import RankInfo
from phalanx.train.gang.groups import ControlChannel
from phalanx.train.gang.report import Report
from phalanx.train.gang.search_turn import Pause, SearchTurn, own_uid, wait_for
from phalanx.train.state.checkpoint_reader import Restored, read_state, resume_differs
from phalanx.train.state.storage import CheckpointStorage


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
        clock: Clock,
        pause: Pause = time.sleep,
    ) -> None:
        self._store, self._info, self._channel = store, info, channel
        self._report, self._disk, self._clock, self._pause = report, disk, clock, pause
        self._search = CheckpointSearch(store, wait_for(info, str(store)), report.write)
        self._turn: SearchTurn | None = None

    @property
    def newest_commit(self) -> int:
        """Return the highest commit number found."""
        return self._search.newest_commit

    def ready(self, storage: CheckpointStorage) -> None:
        """Return when the checkpoints that the job has committed are there, after a wait. Collective.

        Raises CheckpointMissing.
        """
        wanted, there = self._info.resume_path, ""
        if self._info.is_main and wanted is not None:
            there = "there" if checkpoint.is_there(self._store / wanted.name) else ""
        if not self._channel.broadcast(there):
            self._taking_turns(storage).next()

    def _taking_turns(self, storage: CheckpointStorage) -> SearchTurn:
        if self._turn is None:
            info, wait = self._info, wait_for(self._info, str(self._store))
            self._search = CheckpointSearch(
                self._store, wait, self._report.write, storage.tier, self._disk
            )
            self._turn = SearchTurn(
                self._search, info.is_main, self._channel, self._clock, self._pause
            )
        return self._turn

    def kept(self) -> list[Manifest]:
        """Return the manifests of the job's committed checkpoints."""
        here = [one.manifest for one in checkpoint.list_checkpoints(self._store)]
        return [one for one in here if is_of_job(one, own_uid(self._info))]

    def open(self, storage: CheckpointStorage) -> Restored | None:
        """Return the newest checkpoint of the head's lineage that was not tried yet.

        Rank 0 chooses. While an older candidate is left, tensors are verified as they are read and
        `accept` decides. The last candidate is verified completely before anything is overwritten.
        Corrupt checkpoints are quarantined and reported; what cannot be read is waited for.
        """
        turn = self._taking_turns(storage)
        while (found := turn.next()) is not None:
            path = self._store / found.name
            restored, why, away = self._read(path, storage, is_last=found.is_last)
            if self._agreed(path, why, None if away else why or None, storage):
                return restored
        return None

    def accept(self, restored: Restored, problem: str, storage: CheckpointStorage) -> bool:
        """Return whether all ranks read their parts, and the bytes that no rank read are valid too.

        Otherwise a corrupt checkpoint is quarantined, and `open` returns an older one. Collective.
        """
        if restored.read is not None and not problem:
            place = (self._info.rank, self._info.world_size)
            try:
                checkpoint.verify_share(restored.path, restored.manifest, place, restored.read)
            except (CheckpointCorrupt, CheckpointUnavailable) as error:
                problem = error.message
        return self._agreed(restored.path, problem, None, storage)

    def _agreed(
        self, path: Path, problem: str, rot: str | None, storage: CheckpointStorage
    ) -> bool:
        """Return whether no rank has a problem with a checkpoint; else it is rejected.

        `rot` is the corruption that rank 0 found in the files; None: rank 0 verifies them here. What no
        rank finds corrupt, but some rank cannot read, is tried again.
        """
        failed = self._channel.total([1.0 if problem else 0.0])[0]
        if failed and self._info.is_main:
            search = self._search
            if found := _rot(path) if rot is None else rot:
                search.reject(path, found)
            else:
                said = f"{path}: {failed:.0f} ranks could not read the checkpoint"
                search.could_not_read(path.name, f"{said}{problem and ': '}{problem}")
        return failed == 0

    def _read(
        self, path: Path, storage: CheckpointStorage, *, is_last: bool
    ) -> tuple[Restored | None, str, bool]:
        """Return the opened checkpoint, or what is wrong and whether it only could not be read."""
        try:
            manifest = checkpoint.read_manifest(path)
            place = (self._info.rank, self._info.world_size)
            opener = storage.encryption.opener(manifest)
            read: dict[str, checkpoint.VerifiedFile] | None = None
            if not is_last and opener is checkpoint.VerifiedFile:
                read = {}
                alone = self._info.local_world_size == 1
                opener = partial(_opened, read, alone)
            else:
                checkpoint.verify_share(path, manifest, place)
            state, rng = read_state(path, manifest, opener)
        except (CheckpointNotFound, CheckpointUnavailable) as error:
            return None, error.message, True
        except CheckpointCorrupt as error:
            return None, error.message, False
        restored = Restored(path, manifest, state, rng, resume_differs(manifest, self._info), read)
        return restored, "", False


def _rot(path: Path) -> str:
    """Return what this process finds corrupt in a checkpoint; empty when it is valid, or away."""
    try:
        checkpoint.verify(path)
    except CheckpointCorrupt as error:
        return error.message
    except CheckpointNotFound:
        return checkpoint.is_bad(path)
    except CheckpointUnavailable:
        return ""
    return ""


def _opened(
    known: dict[str, checkpoint.VerifiedFile], direct: bool, root: Path, entry: FileEntry
) -> checkpoint.VerifiedFile:
    """Open a file and record it, so that the chunks it verified are not verified again."""
    file = known[entry.path] = checkpoint.VerifiedFile(root, entry, direct=direct)
    file.check_size()
    return file
