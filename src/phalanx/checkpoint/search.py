"""The search for the checkpoint to resume from: one process looks, and waits where something is missing.

The rules are in `core.training.resumption`. Rank 0 of a gang uses it, and the supervisor that restores a
script's folder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from phalanx.checkpoint import catalog
from phalanx.checkpoint.disk import Disk
from phalanx.checkpoint.remote_tier import CheckpointTier
from phalanx.core.contract.records import PhaseRecord, QuarantinedRecord, Record, WarningRecord
from phalanx.core.training.checkpoints import Manifest
from phalanx.core.training.resumption import (
    AWAITING,
    FoundCheckpoints,
    StartAction,
    StartDecision,
    StartWait,
)
from phalanx.errors import (
    CheckpointMissing,
    CheckpointUnavailable,
    NotSupported,
    PermissionDenied,
    PlatformError,
)
from phalanx.kit.text import random_hex

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 10.0
_HINT = (
    "mount or repair the folder; to start without its checkpoints, pause the job while it waits, then: "
    "phalanx resume JOB --begin-anew"
)


class StartSearch:
    """Looks for checkpoints until a start can go on; `say` takes warnings, phases and quarantines.

    A subclass looks (`_look`) and makes the first choice readable (`_bring`).
    """

    def __init__(self, wait: StartWait, say: Callable[[Record], object]) -> None:
        self.newest_commit = 0
        """The highest commit number found."""
        self.bad: list[tuple[str, str]] = []
        """Path and reason of corrupt checkpoints in the folder, in the order in which they were found."""
        self._wait, self._say = wait, say
        self._rejected: set[str] = set()
        self._said: set[str] = set()
        self._pause_s = FIRST_PAUSE_S
        self._waited = False

    @property
    def pause_s(self) -> float:
        """The seconds to wait before the next look, which grow."""
        pause_s, self._pause_s = self._pause_s, min(LONGEST_PAUSE_S, 2 * self._pause_s)
        return pause_s

    def next(self, now_s: float) -> StartDecision:
        """Look at all places and decide; the first checkpoint of a RESUME can be read.

        Raises CheckpointMissing when the wait is over; PermissionDenied, NotSupported.
        """
        while True:
            decision = self._wait.decide(self._look(), now_s)
            if decision.action is StartAction.RESUME and not self._brought(decision):
                continue
            self._tell(decision)
            if decision.action is StartAction.FAIL:
                raise CheckpointMissing(decision.message, _HINT)
            return decision

    def could_not_read(self, name: str, why: str) -> None:
        """Record that a checkpoint was not readable just now: it is tried again."""
        self._wait.could_not_read(name, why)

    def _look(self) -> FoundCheckpoints:
        return FoundCheckpoints()

    def _bring(self, name: str) -> bool:
        return True

    def _count(self, known: Mapping[str, Manifest]) -> dict[str, Manifest]:
        """The checkpoints that were not rejected; their commit numbers are taken, too."""
        commits = (one.commit for one in known.values())
        self.newest_commit = max((self.newest_commit, *commits))
        return {name: one for name, one in known.items() if name not in self._rejected}

    def _brought(self, decision: StartDecision) -> bool:
        """Make the first checkpoint of the order readable; False: it is not to be had now."""
        name = decision.order[0].name
        try:
            if self._bring(name):
                return True
            self._rejected.add(name)
        except CheckpointUnavailable as error:
            self._wait.could_not_read(name, error.message)
        except OSError as error:
            self._wait.could_not_read(name, str(error))
        return False

    def _tell(self, decision: StartDecision) -> None:
        if decision.action is StartAction.WAIT:
            self._waited = True
            self._say(PhaseRecord(AWAITING))
        elif self._waited:
            self._waited = False
            self._say(PhaseRecord("restoring"))
        if decision.message and decision.action is not StartAction.FAIL:
            self._warn(decision.message)
        if decision.passed_over:
            self._warn(decision.passed_over)

    def _warn(self, message: str) -> None:
        if message not in self._said:
            self._said.add(message)
            self._say(WarningRecord(message))


class CheckpointSearch(StartSearch):
    """Finds the checkpoints of a job in its folder and in its object store, best first.

    Only a process that `quarantines` changes the folder.
    """

    def __init__(
        self,
        store: Path,
        wait: StartWait,
        say: Callable[[Record], object],
        tier: CheckpointTier | None = None,
        disk: Disk | None = None,
        *,
        quarantines: bool = True,
    ) -> None:
        super().__init__(wait, say)
        self._store = store
        self._tier, self._disk = tier or CheckpointTier(), disk or Disk()
        self._quarantines = quarantines
        self._cleaned = False

    def reject_copy(self, path: Path, why: str) -> None:
        """See `reject`: a checkpoint in the folder is the checkpoint itself."""
        self.reject(path, why)

    def reject(self, path: Path, why: str) -> None:
        """Set a corrupt checkpoint aside, unless a copy of it can be fetched, and do not try it again."""
        self.bad.append((str(path), why))
        if self._quarantines:
            try:
                moved = catalog.quarantine(path, random_hex(8), self._disk)
            except OSError as error:
                said = f"{path}: {why}; it cannot be quarantined: {error}"
                self._say(WarningRecord(said))
            else:
                record = QuarantinedRecord(path=str(path), moved_to=str(moved), why=why)
                self._say(record)
                if self._tier.has_another(path):
                    return
        self._rejected.add(path.name)

    def _look(self) -> FoundCheckpoints:
        unread: list[str] = []
        listing = catalog.CheckpointListing()
        try:
            listing = catalog.scan(self._store)
        except CheckpointUnavailable as error:
            unread.append(error.message)
        unread += listing.unread.values()
        self._clean(listing)
        for path, said in listing.bad.items():
            if path.name in self._rejected:
                continue
            # Looked at twice: a disk that goes away in between makes files seem to be missing.
            if why := catalog.is_bad(path):
                self.reject(path, why)
            else:
                unread.append(said)
        near = {one.manifest.name: one.manifest for one in listing.good}
        store_error = ""
        try:
            far = dict(self._tier.manifests())
        except PlatformError as error:
            if isinstance(error, PermissionDenied | NotSupported) and not near:
                raise
            store_error, far = error.message, {}
            if near:
                self._warn(error.message)
        known = self._count({**far, **near})
        damaged = {catalog.is_quarantined_as(path) for path in listing.quarantined}
        damaged |= self._rejected
        return FoundCheckpoints(
            known,
            frozenset(damaged - near.keys() | self._rejected),
            tuple(unread),
            store_error,
        )

    def _clean(self, listing: catalog.CheckpointListing) -> None:
        """Remove what earlier generations did not finish, once."""
        if self._quarantines and not self._cleaned and listing != catalog.CheckpointListing():
            self._cleaned = True
            for path in listing.debris:
                self._disk.remove_tree(path)

    def _bring(self, name: str) -> bool:
        return self._tier.bring(self._store / name)
