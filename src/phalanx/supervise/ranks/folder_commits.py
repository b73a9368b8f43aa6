"""The places where a script's folder is committed, and where a start looks for it.

On one node that is the local folder of checkpoints, of which the object store gets copies later. If a job
has several nodes and an object store, a folder is committed in the store, and the local folders are caches.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from phalanx import checkpoint
from phalanx.checkpoint import folders
from phalanx.checkpoint.folders import FolderOrigin
from phalanx.checkpoint.remote_tier import CheckpointTier, RemoteTier
from phalanx.checkpoint.search import CheckpointSearch
from phalanx.checkpoint.store_first.candidates import StoreFolders
from phalanx.checkpoint.store_first.tier import StoreFirstTier
from phalanx.core.contract import records
from phalanx.core.contract.records import Record
from phalanx.core.training.checkpoints import FileEntry, Keep, Manifest
from phalanx.core.training.resumption import DEFAULT_WAIT_S, StartWait
from phalanx.errors import CheckpointMissing, CheckpointUnavailable, PlatformError
from phalanx.kit.clock import Clock

CHOICE = "folder.json"
"""The name in the store of what node rank 0 restored; see `StoreFirstCommits`."""
_BLOCK_BYTES = 4 << 20
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 2.0

Say = Callable[[Record], object]
Over = Callable[[float], bool]
"""Waits for so many seconds; returns True where the generation is over."""


@dataclass(slots=True)
class CheckpointFolderConfig:
    """Path, job and store of a folder."""

    folder: Path  # the script writes its checkpoints there
    store: Path  # local folder of checkpoints
    origin: FolderOrigin  # job, attempt and generation
    keep: Keep  # retention
    commits: bool  # one node of a gang commits
    far: str | None  # object store
    env: Mapping[str, str]  # credentials of the object store
    meeting: str  # rendezvous address of this generation, the same on all nodes
    lock: Path | None  # nodes that share the folder take turns; None: there is one node
    newest: str | None = None  # the newest checkpoint that the control plane knows
    wait_s: float = DEFAULT_WAIT_S  # how long a start waits for it
    job_uid: str | None = None  # the job that checkpoints have to be of; None: of any

    @property
    def generation(self) -> Sequence[Any]:
        """What identifies this generation on all its nodes."""
        return self.origin.job, self.origin.attempt, self.origin.generation, self.meeting


def commits_of(facts: CheckpointFolderConfig, say: Say, clock: Clock) -> FolderCommits:
    """The place for a folder. Whether several nodes share it is not known: the store is right either way.

    `say` takes records, from other threads too.
    """
    if facts.far is not None and facts.lock is not None:
        return StoreFirstCommits(facts, facts.far, say, clock)
    return FolderCommits(facts, say, clock)


class FolderCommits:
    """Commits in the local folder of checkpoints; an object store gets copies later."""

    def __init__(self, facts: CheckpointFolderConfig, say: Say, clock: Clock) -> None:
        self._facts, self._say, self._clock = facts, say, clock
        self.tier = self._tier()
        """What talks to the object store."""

    def _tier(self) -> CheckpointTier:
        facts = self._facts
        if facts.far is None:
            return CheckpointTier()
        return RemoteTier(facts.far, facts.store, facts.keep, self._tell, facts.env, facts.job_uid)

    def _tell(self, kind: str, fields: Mapping[str, Any]) -> None:
        self._say(records.make(kind, fields))

    def hurry(self) -> None:
        """Wait for the object store no more."""
        self.tier.leave()

    # -- a commit ----------------------------------------------------------------------------------

    def listed(self) -> list[Manifest]:
        """The manifests of all that is committed. Raises OSError, PlatformError."""
        return [one.manifest for one in checkpoint.list_checkpoints(self._facts.store)]

    def publish(self, draft: checkpoint.CheckpointWriter, manifest: Manifest) -> str:
        """Commit a draft; returns where. Raises OSError, PlatformError."""
        return str(draft.commit(manifest))

    def committed(self, manifest: Manifest, _took_s: float) -> None:
        """Copy a new checkpoint, and delete what retention does not keep."""
        facts, keep = self._facts, self._facts.keep
        self.tier.committed()
        now, read = manifest.created_at, checkpoint.read_manifest
        for gone in checkpoint.retain(facts.store, keep, check=read, now=now, head=manifest.name):
            self._say(records.RemovedRecord(str(facts.store / gone.name)))

    def make_room(self, head: str) -> None:
        """Delete all but the newest checkpoint and those that `best` and `every` keep."""
        facts = self._facts
        if facts.keep.last is None and facts.keep.age_s is None:
            return
        strict = replace(facts.keep, last=1, age_s=None)
        with contextlib.suppress(OSError):
            for gone in checkpoint.retain(facts.store, strict, head=head):
                self._say(records.RemovedRecord(str(facts.store / gone.name)))

    # -- a start -----------------------------------------------------------------------------------

    def ready(self, _over: Over) -> bool:
        """Return when this node can search; False: the generation is over."""
        return True

    def search(self) -> CheckpointSearch | StoreFolders:
        """A new search for the checkpoint to restore."""
        facts = self._facts
        wait = self._wait(str(facts.store), facts.newest, _is_of_a_folder)
        return CheckpointSearch(facts.store, wait, self._say, self.tier, quarantines=facts.commits)

    def _wait(self, place: str, newest: str | None, suits: Callable[[Manifest], bool]) -> StartWait:
        facts = self._facts
        return StartWait(place, newest, facts.wait_s, facts.origin.beginning, suits, facts.job_uid)

    def chosen(self, _name: str | None, _over: Over) -> None:
        """Tell the other nodes what this node, which commits, has restored; None: nothing."""

    def place_of(self, path: str) -> str:
        """Where the checkpoint with a local path is committed: a path or a URL."""
        return path


class StoreFirstCommits(FolderCommits):
    """Commits in the object store, unless a newer generation of the job has begun there.

    Node rank 0 searches first, and leaves the name of what it restored in the store. The other nodes wait
    for it and restore the same: what each finds by itself could differ, as a store may be away for one.
    """

    def __init__(self, facts: CheckpointFolderConfig, url: str, say: Say, clock: Clock) -> None:
        order = (facts.origin.attempt, facts.origin.generation)
        self._first = StoreFirstTier(url, facts.store, facts.keep, self._tell, order, env=facts.env)
        super().__init__(facts, say, clock)
        self._hurried = threading.Event()
        self._named: str | None = None  # what node rank 0 restored
        self._listed: frozenset[str] = frozenset()  # names in the store at the last look

    def _tier(self) -> CheckpointTier:
        return self._first

    def hurry(self) -> None:
        """See `FolderCommits`: an upload under way is given up."""
        self._hurried.set()
        super().hurry()

    def listed(self) -> list[Manifest]:
        """See `FolderCommits`."""
        found = self._first.manifests()
        self._listed = frozenset(found)
        return list(found.values())

    def publish(self, draft: checkpoint.CheckpointWriter, manifest: Manifest) -> str:
        """Upload a draft, commit it in the store, and keep it here as a copy; returns its URL."""
        name = manifest.name
        try:
            for entry in draft.files:
                self._upload(name, draft.root / entry.path, entry)
            url = self._first.commit(manifest)
        except BaseException:
            if not self._hurried.is_set():  # else the next start deletes it
                self._first.abandon(name)
            raise
        finally:
            self._first.keep_near(name, committed=False)  # the draft is the copy of this node
        try:
            draft.commit(manifest)
        except OSError as error:
            draft.abandon()
            said = (
                f"{name} is committed in the object store; its copy here could not be kept: {error}"
            )
            self._say(records.WarningRecord(said))
        return url

    def _upload(self, name: str, source: Path, entry: FileEntry) -> None:
        sent = self._first.put(name, entry.path, lambda: self._blocks(source), entry.size_bytes)
        if sent.digest != entry.digest:
            raise OSError(f"{source}: the file has changed on the disk while it was uploaded")

    def _blocks(self, source: Path) -> Iterator[bytes]:
        with source.open("rb") as file:
            while block := file.read(_BLOCK_BYTES):
                if self._hurried.is_set():
                    raise OSError("there was no time left to upload it")
                yield block

    def committed(self, manifest: Manifest, took_s: float) -> None:
        """Apply retention in the store, and keep the newest copy here alone."""
        name = manifest.name
        size = manifest.size_bytes
        self._say(records.UploadedRecord(name=name, bytes=size, took_s=took_s))
        self._first.retire(name)
        if (self._facts.store / name).is_dir():
            for one in checkpoint.list_checkpoints(self._facts.store):
                if one.manifest.name != name and one.manifest.name in self._listed:
                    checkpoint.remove(one.path)

    def make_room(self, head: str) -> None:
        """See `FolderCommits`: there is one copy here already."""

    def ready(self, over: Over) -> bool:
        """Wait for what node rank 0 has restored. Raises CheckpointMissing, PermissionDenied."""
        if self._facts.commits:
            return True
        pause_s, away_since_s = _FIRST_PAUSE_S, None
        while True:
            try:
                found, away_since_s = self._choice(), None
                if found is not None:
                    self._named = found["name"]
                    return True
            except CheckpointUnavailable as error:
                away_since_s = self._still_away(away_since_s, error)
            if over(pause_s):
                return False
            pause_s = min(_LONGEST_PAUSE_S, 2 * pause_s)

    def _choice(self) -> Mapping[str, Any] | None:
        """What node rank 0 of this generation has left in the store; None: nothing yet."""
        text = self._first.note(CHOICE)
        with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
            found = json.loads(text or "null")
            if found["generation"] == list(self._facts.generation):
                named = found["name"]
                return {"name": named if isinstance(named, str) else None}
        return None

    def _still_away(self, since_s: float | None, error: PlatformError) -> float:
        now_s = self._clock.monotonic()
        since_s = now_s if since_s is None else since_s
        if now_s - since_s >= self._facts.wait_s:
            raise CheckpointMissing(error.message, error.hint) from error
        return since_s

    def search(self) -> StoreFolders:
        """See `FolderCommits`; other nodes than node rank 0 take what that one has restored."""
        facts, tier = self._facts, self._first
        if facts.commits:
            wait = self._wait(tier.url, facts.newest, _is_of_a_folder)
            return StoreFolders(tier, facts.store, self._say, wait, tier.claim)
        named = self._named
        wait = self._wait(tier.url, named, lambda one: one.name == named)
        return StoreFolders(tier, facts.store, self._say, wait, None)

    def chosen(self, name: str | None, over: Over) -> None:
        """See `FolderCommits`. Raises Conflict, CheckpointMissing, PermissionDenied."""
        if not self._facts.commits:
            return
        text = json.dumps({"generation": self._facts.generation, "name": name})
        pause_s, away_since_s = _FIRST_PAUSE_S, None
        while True:
            try:
                self._first.keep_note(CHOICE, text)
                return
            except CheckpointUnavailable as error:
                away_since_s = self._still_away(away_since_s, error)
            if over(pause_s):
                return
            pause_s = min(_LONGEST_PAUSE_S, 2 * pause_s)

    def place_of(self, path: str) -> str:
        """See `FolderCommits`."""
        return self._first.url_of(Path(path).name)


def _is_of_a_folder(manifest: Manifest) -> bool:
    return manifest.why == folders.WHY
