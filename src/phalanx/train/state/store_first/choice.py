"""The choice of the checkpoint to resume from in an object store: rank 0 chooses, all ranks vote.

Every rank fetches the bytes that it reads, and compares them with their digests. Bytes that no rank reads
stay in the store.
"""

from __future__ import annotations

import time
from pathlib import Path

from phalanx import checkpoint
from phalanx.checkpoint.store_first.candidates import StoreCandidates
from phalanx.checkpoint.store_first.near_files import NearFile
from phalanx.checkpoint.store_first.tier import StoreFirstTier
from phalanx.core.training.checkpoints import FileEntry, Manifest, is_of_job
from phalanx.errors import CheckpointCorrupt, CheckpointUnavailable, NotFound
from phalanx.kit.clock import Clock
from phalanx.train.gang.context import RankInfo
from phalanx.train.gang.groups import ControlChannel
from phalanx.train.gang.report import Report
from phalanx.train.gang.search_turn import Pause, SearchTurn, own_uid, wait_for
from phalanx.train.state.checkpoint_reader import Restored, read_state, resume_differs
from phalanx.train.state.storage import CheckpointStorage

# What a rank says of a checkpoint, before the reason: it is bad, or could not be read. The first counts.
_BAD, _AWAY = "!", "~"


class StoreFirstChoice:
    """Tries a job's checkpoints in the store, best first, until all ranks accept one.

    Every rank makes the same calls; only rank 0 lists the store. `newest_commit` is the highest commit
    number found there.
    """

    def __init__(
        self,
        tier: StoreFirstTier,
        store: Path,
        info: RankInfo,
        channel: ControlChannel,
        report: Report,
        clock: Clock,
        pause: Pause = time.sleep,
    ) -> None:
        self._tier, self._info, self._channel = tier, info, channel
        wait = wait_for(info, tier.url)
        self._candidates = StoreCandidates(tier, store, report.write, wait)
        self._turn = SearchTurn(self._candidates, info.is_main, channel, clock, pause)

    @property
    def newest_commit(self) -> int:
        """Return the highest commit number found."""
        return self._candidates.newest_commit

    def ready(self, storage: CheckpointStorage) -> None:
        """Return when the checkpoints that the job has committed are there. Collective.

        Raises CheckpointMissing.
        """
        self._turn.next()

    def kept(self) -> list[Manifest]:
        """Return the manifests of the job's committed checkpoints, as `open` found them (rank 0)."""
        uid = own_uid(self._info)
        return [one for one in self._candidates.known.values() if is_of_job(one, uid)]

    def open(self, storage: CheckpointStorage) -> Restored | None:
        """Return the newest checkpoint that was not tried yet.

        The last one is verified completely before anything is overwritten. Collective. Raises
        CheckpointMissing, PermissionDenied.
        """
        while (found := self._turn.next()) is not None:
            restored, problem = self._read(found.name, storage, is_last=found.is_last)
            if self._agreed(found.name, problem):
                return restored
        return None

    def accept(self, restored: Restored, problem: str, storage: CheckpointStorage) -> bool:
        """Return whether all ranks read their parts. Collective."""
        name = restored.manifest.name
        if not self._agreed(name, problem and self._cause(name) + problem):
            return False
        self._tier.keep_near(name)
        return True

    def _cause(self, name: str) -> str:
        """Return whether a checkpoint is bad, or its store does not answer just now."""
        try:
            self._tier.manifest(name)
        except CheckpointUnavailable:
            return _AWAY
        except (CheckpointCorrupt, NotFound):
            return _BAD
        return _BAD

    def _agreed(self, name: str, problem: str) -> bool:
        """Return whether no rank has a problem; else rank 0 passes over what any finds bad.

        What some rank only could not read is tried again, for as long as checkpoints are waited for.
        """
        rows = self._channel.gather(problem.encode()[:1000])
        said = [row.decode(errors="replace") for row in rows if row]
        if self._channel.broadcast("bad" if said else ""):
            if self._info.is_main:
                worst = min(said)
                if worst.startswith(_BAD):
                    self._candidates.reject(name, worst[1:])
                else:
                    self._candidates.could_not_read(name, worst[1:])
            return False
        return True

    def _read(
        self, name: str, storage: CheckpointStorage, *, is_last: bool
    ) -> tuple[Restored | None, str]:
        read: dict[str, checkpoint.VerifiedFile] = {}

        def opened(_root: Path, entry: FileEntry) -> NearFile:
            file = read[entry.path] = self._tier.open_file(name, entry)
            return file

        try:
            manifest = self._tier.manifest(name)
            where = self._tier.near(name)
            opener = storage.encryption.opener(manifest, opened)
            if is_last:
                files = {entry.path: self._tier.open_file(name, entry) for entry in manifest.files}
                place = (self._info.rank, self._info.world_size)
                checkpoint.verify_share(where, manifest, place, files)
            state, rng = read_state(where, manifest, opener)
        except (CheckpointCorrupt, NotFound) as error:
            return None, f"{_BAD}{error.message}"
        except CheckpointUnavailable as error:
            return None, f"{_AWAY}{error.message}"
        differs = resume_differs(manifest, self._info)
        url = self._tier.url_of(name)
        return Restored(where, manifest, state, rng, differs, read, url), ""
