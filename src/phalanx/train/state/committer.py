"""The commit of written files as a checkpoint, for every framework. It does not import torch.

Every rank writes its file with `PartWriter`; rank 0 gathers what they return and commits.
"""

from __future__ import annotations

import errno
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import phalanx
from phalanx import checkpoint
from phalanx.checkpoint import tensorfile
from phalanx.checkpoint.commit import DEBRIS
from phalanx.checkpoint.store_first.tier import StoreFirstTier
from phalanx.core.contract.records import (
    SAVE_FAILED,
    CheckpointRecord,
    PhaseRecord,
    QuarantinedRecord,
    RemovedRecord,
    UploadedRecord,
    WarningRecord,
)
from phalanx.core.training.checkpoints import (
    FileEntry,
    Keep,
    Manifest,
    Position,
    is_checkpoint_name,
    root_after,
    step_of,
)
from phalanx.errors import PlatformError
from phalanx.kit.clock import Clock
from phalanx.kit.text import random_hex
from phalanx.kit.units import format_duration, format_size
from phalanx.train.gang.context import RankInfo
from phalanx.train.gang.report import Report
from phalanx.train.gang.search_turn import Spread
from phalanx.train.state.storage import CheckpointStorage

STATE = "state.tensors"
FINAL, ASKED = "final", "asked"
"""Why a checkpoint is saved: the run is complete, or a user asked for it."""
_COPY_BYTES = 1 << 20
_NEXT_SAVES = 3  # counted on where all checkpoints are kept
_GIVEN_UP = "!"
_LONGEST_PAUSE_S = 60.0


def _code(why: str) -> str:
    """What a failed save is counted as: those of requests and of complete runs are counted elsewhere."""
    return "" if why in (FINAL, ASKED) else SAVE_FAILED


def shard_file(rank: int) -> str:
    """Return where the part of a rank lies inside a checkpoint."""
    return f"shard-{rank:05d}/{STATE}"


class PartWriter:
    """Writes the file of one rank: into the draft's folder, or straight into the object store."""

    def __init__(
        self, store: Path, rank: int, disk: checkpoint.Disk, storage: CheckpointStorage
    ) -> None:
        self._store, self._path, self._rank = store, shard_file(rank), rank
        self._disk, self._storage = disk, storage

    def write(
        self, name: str, tree: Any, blobs: Sequence[tensorfile.TensorBytes]
    ) -> dict[str, Any]:
        """Write a part of checkpoint `name`; returns its entry as JSON values, or `error`."""
        try:
            entry = self._write(name, tree, blobs)
        except (OSError, MemoryError) as error:
            return {"error": f"rank {self._rank}: {error}"}
        except PlatformError as error:
            return {"error": f"rank {self._rank}: {error.message}"}
        row = {"path": entry.path, "size_bytes": entry.size_bytes, "digest": entry.digest}
        return {**row, "chunks": entry.chunks}

    def _write(self, name: str, tree: Any, blobs: Sequence[tensorfile.TensorBytes]) -> FileEntry:
        def pieces() -> Iterable[Any]:
            plain = tensorfile.lay_out(tree, blobs)
            packed = self._storage.compression.wrap(plain)
            return self._storage.encryption.wrap(f"{name}/{self._path}", packed)

        tier = self._storage.store_first
        if tier is not None:
            return tier.put(name, self._path, pieces, sum(blob.size_bytes for blob in blobs))
        return checkpoint.write_shard(
            self._disk, self._store / (name + DEBRIS), self._path, pieces()
        )


class Draft(Protocol):
    """A checkpoint that is being written, in a folder or in an object store."""

    @property
    def name(self) -> str:
        """The checkpoint's name."""
        ...

    @property
    def files(self) -> tuple[FileEntry, ...]:
        """The files that it has so far."""
        ...

    def adopt(self, entry: FileEntry) -> None:
        """Add a file that a rank has written. Raises OSError."""
        ...

    def commit(self, manifest: Manifest) -> Path | str:
        """Publish the checkpoint; returns its folder or URL. Raises OSError."""
        ...

    def abandon(self) -> None:
        """Remove what was written."""
        ...


class StoreDraft:
    """A checkpoint in an object store that is not committed yet. Raises OSError as a folder does."""

    def __init__(self, tier: StoreFirstTier, name: str) -> None:
        self.name = name
        self._tier = tier
        self._files: list[FileEntry] = []

    @property
    def files(self) -> tuple[FileEntry, ...]:
        """What the ranks have uploaded so far, for the manifest."""
        return tuple(self._files)

    def adopt(self, entry: FileEntry) -> None:
        """Add a file that a rank has uploaded; the commit looks for it."""
        self._files.append(entry)

    def add_file(self, path: str, source: Path) -> FileEntry:
        """Upload one file of any size. Raises OSError, CheckpointUnavailable, PermissionDenied."""

        def pieces() -> Iterator[bytes]:
            with source.open("rb") as file:
                while block := file.read(_COPY_BYTES):
                    yield block

        entry = self._tier.put(self.name, path, pieces, source.stat().st_size)
        self.adopt(entry)
        return entry

    def commit(self, manifest: Manifest) -> str:
        """Publish the checkpoint; returns its URL. Raises OSError."""
        try:
            return self._tier.commit(manifest)
        except PlatformError as error:
            raise OSError(error.message) from error

    def abandon(self) -> None:
        """Have what was uploaded deleted."""
        self._tier.abandon(self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedState:
    """What a manifest says about the state in its files."""

    step: int  # optimizer steps done
    why: str  # the reason for the save, such as `every`, `asked`, `stop` or `final`
    #: when the save began, monotonic seconds
    began: float
    strategy: str  # the parallel strategy that wrote it
    mesh: Mapping[str, int]  # number of ranks by mesh dimension
    #: versions of frameworks by name
    versions: Mapping[str, str]
    #: the kind of device that sums depend on
    device: str
    threads: int = 1  # CPU threads of a rank, on which sums depend
    position: Position = field(default_factory=Position)  # in the training data
    global_batch: int | None = None  # samples of a step over all ranks; None: unknown
    metrics: Mapping[str, Any] = field(default_factory=dict)  # the newest logged values by name
    data: Mapping[str, Any] = field(default_factory=dict)  # fingerprint of the data set


def set_aside(path: Path, why: str, report: Report, disk: checkpoint.Disk) -> None:
    """Quarantine a corrupt checkpoint, and report it; where the disk refuses, it stays as it is."""
    try:
        moved = checkpoint.quarantine(path, random_hex(8), disk)
    except OSError as error:
        report.write(WarningRecord(f"{path}: {why}; it cannot be quarantined: {error}"))
        return
    report.write(QuarantinedRecord(path=str(path), moved_to=str(moved), why=why))


def differences(facts: Mapping[str, tuple[Any, Any]]) -> str | None:
    """Return which facts, each (saved, now), make a resume not bit-identical; None without any."""
    found = [f"{name} {was} is now {now}" for name, (was, now) in facts.items() if was != now]
    return "; ".join(found) or None


def _record_of(manifest: Manifest, path: str, took_s: float | None) -> CheckpointRecord:
    return CheckpointRecord(
        path=path,
        name=manifest.name,
        step=manifest.step,
        epoch=manifest.position.total_passes,
        position=manifest.position.consumed,
        commit=manifest.commit,
        bytes=manifest.size_bytes,
        save_s=took_s,
        why=manifest.why,
        metrics=dict(manifest.metrics),
    )


class Committer:
    """Commits the checkpoints of a run on rank 0, numbers them, and deletes what retention lets go."""

    def __init__(
        self,
        store: Path,
        info: RankInfo,
        report: Report,
        clock: Clock,
        disk: checkpoint.Disk,
        storage: CheckpointStorage | None = None,
    ) -> None:
        self.last_why = ""
        """Why the newest commit was made."""
        self._store, self._info, self._report = store, info, report
        self._clock, self._disk = clock, disk
        self._storage = storage or CheckpointStorage()
        self.problem = ""
        """Why the newest save failed; empty: it did not."""
        self.newest: tuple[int, str] = (-1, "")
        """Step and place of the newest checkpoint that this run has committed or continues."""
        self._parent: Manifest | None = None
        self._number = 0
        self._absent_since_s: float | None = None
        self._warned_of_room = False

    def seen(self, number: int) -> None:
        """Count on from a commit number that the directory has."""
        self._number = max(self._number, number)

    def resumed(self, manifest: Manifest) -> None:
        """Continue the lineage of a checkpoint, and report it if its commit was never reported."""
        self._parent = manifest
        self.seen(manifest.commit)
        tier = self._storage.store_first
        folder = str(self._store / manifest.name)
        place = folder if tier is None else tier.url_of(manifest.name)
        self.newest = (manifest.step, place)
        if self._info.is_main and self._is_unreported(manifest):
            self._report.write(_record_of(manifest, place, None))

    def _is_unreported(self, manifest: Manifest) -> bool:
        """Return whether the job's rank was killed between this commit and its record."""
        known = self._info.resume_path
        mine = manifest.job_uid is not None and manifest.job_uid == self._info.job_uid
        newer = known is None or (step_of(known.name) or 0) < manifest.step
        return mine and newer

    def open(self, name: str, step: int, why: str) -> Draft | None:
        """Open a checkpoint for writing; None, with a warning, where the disk refuses."""
        if self._storage.store_first is not None:
            return StoreDraft(self._storage.store_first, name)
        try:
            self._require_folder()
            return checkpoint.CheckpointWriter(self._store, name, self._disk)
        except OSError as error:
            self.warn(step, str(error), _code(why))
            return None

    def _require_folder(self) -> None:
        """Refuse, for as long as checkpoints are waited for, to begin a folder that was there anew.

        What is saved in its place would be hidden once its disk is back. Raises OSError.
        """
        parent = self._parent
        if parent is None or self._holds_any(parent.name):
            self._absent_since_s = None
            return
        now_s = self._clock.monotonic()
        if self._absent_since_s is None:
            self._absent_since_s = now_s
        if now_s - self._absent_since_s < self._info.checkpoint.wait_s:
            said = f"checkpoint {parent.name} is not in {self._store} any more; is its disk away?"
            raise OSError(errno.ENOENT, said)

    def _holds_any(self, name: str) -> bool:
        if checkpoint.is_there(self._store / name):
            return True
        try:
            return any(is_checkpoint_name(one.partition(".")[0]) for one in os.listdir(self._store))
        except OSError:
            return False

    def commit(
        self,
        writer: Draft,
        rows: Iterable[Mapping[str, Any]],
        saved: SavedState,
    ) -> bool:
        """Make it a checkpoint when the part of every rank is there, else remove it with a warning."""
        found = list(rows)
        try:
            if errors := [row["error"] for row in found if "error" in row]:
                raise OSError("; ".join(errors))
            for row in found:
                writer.adopt(FileEntry.from_json(row))
            manifest = self._storage.encryption.stamp(self._manifest(writer, saved))
            self.finish(writer, manifest, saved.began)
        except OSError as error:
            self.warn(saved.step, str(error), _code(saved.why))
            writer.abandon()
            return False
        return True

    def finish(self, writer: Draft, manifest: Manifest, began: float) -> str:
        """Commit a manifest, report it and apply retention; returns where it is. Raises OSError."""
        path = str(writer.commit(manifest))
        took_s = round(self._clock.monotonic() - began, 6)
        self._parent, self._number = manifest, manifest.commit
        self.newest = (manifest.step, path)
        self.last_why, self.problem = manifest.why, ""
        self._report.write(_record_of(manifest, path, took_s))
        if self._storage.store_first is not None:
            uploaded = UploadedRecord(name=manifest.name, bytes=manifest.size_bytes, took_s=took_s)
            self._report.write(uploaded)
            self._storage.store_first.retire(manifest.name)
        else:
            self._storage.tier.committed()
            self._retain(self._info.checkpoint.keep, checkpoint.read_manifest)
            self._measure(manifest.size_bytes)
        return path

    def warn(self, step: int, why: str, code: str = "") -> None:
        """Report that a save failed."""
        self.problem = f"the checkpoint of step {step} could not be saved: {why}"
        self._report.write(WarningRecord(self.problem, code))

    @property
    def saved_step(self) -> int | None:
        """The step of the newest checkpoint that this run has committed or continues."""
        return None if self._parent is None else self._parent.step

    def make_room(self) -> bool:
        """Delete all but the newest checkpoint and those to keep in any case; returns whether any was.

        Only where a save failed for want of room. The newest is verified completely before.
        """
        keep = self._info.checkpoint.keep
        full = any(os.strerror(number) in self.problem for number in (errno.ENOSPC, errno.EDQUOT))
        bounded = keep.last is not None or keep.age_s is not None
        if not full or not bounded or self._parent is None or self._storage.store_first is not None:
            return False
        gone = self._retain(replace(keep, last=1, age_s=None), checkpoint.verify)
        if gone:
            said = f"{self._store} is full: {gone} older checkpoints were deleted to make room"
            self._report.write(WarningRecord(said))
        return gone > 0

    def _measure(self, size_bytes: int) -> None:
        """Warn once that the disk will not hold the checkpoints that are to be kept."""
        keep = self._info.checkpoint.keep
        try:
            free = shutil.disk_usage(self._store).free
            kept = sum(is_checkpoint_name(name) for name in os.listdir(self._store))
        except OSError:
            return
        # One more than is kept: the next one is written before the oldest is deleted.
        missing = max(1, 1 + (keep.last or kept + _NEXT_SAVES) - kept)
        if free >= missing * size_bytes:
            self._warned_of_room = False
        elif not self._warned_of_room:
            self._warned_of_room = True
            self._report.write(
                WarningRecord(
                    f"{self._store} has {format_size(free)} free; {missing} more checkpoints of"
                    f" {format_size(size_bytes)} are to come: free some space, or keep fewer"
                )
            )

    def _manifest(self, writer: Draft, saved: SavedState) -> Manifest:
        info, parent = self._info, self._parent
        python = ".".join(str(part) for part in sys.version_info[:3])
        return Manifest(
            name=writer.name,
            step=saved.step,
            position=saved.position,
            attempt=info.attempt,
            generation=info.generation,
            commit=self._number + 1,
            parent=None if parent is None else parent.name,
            root=root_after(parent, writer.name),
            beginning=info.beginning if parent is None else parent.beginning,
            world_size=info.world_size,
            reference_world=info.reference_world,
            global_batch=saved.global_batch,
            created_at=self._clock.now(),
            why=saved.why,
            files=writer.files,
            job=info.job,
            job_uid=info.job_uid,
            provenance=info.provenance,
            mesh=dict(saved.mesh),
            strategy=saved.strategy,
            code={"script": Path(sys.argv[0]).name},
            versions={"phalanx": phalanx.__version__, **saved.versions, "python": python},
            threads=saved.threads,
            device=saved.device,
            metrics=dict(saved.metrics),
            data=dict(saved.data),
        )

    def _retain(self, keep: Keep, check: Callable[[Path], Manifest]) -> int:
        """Delete what `keep` lets go of; returns how many checkpoints that were."""
        try:
            # The head was synced a moment ago, its digests were taken on the way: reading it all
            # again would double the traffic.
            gone = checkpoint.retain(
                self._store,
                keep,
                self._disk,
                check=check,
                now=self._clock.now(),
                head=None if self._parent is None else self._parent.name,
            )
            for manifest in gone:
                self._report.write(RemovedRecord(str(self._store / manifest.name)))
        except OSError as error:
            self._report.write(WarningRecord(f"old checkpoints could not be deleted: {error}"))
            return 0
        return len(gone)


class LastSave:
    """Repeats the last save of a run while it fails, with growing waits, for `checkpoint.wait`."""

    def __init__(
        self,
        committer: Committer,
        info: RankInfo,
        channel: Spread,
        report: Report,
        clock: Clock,
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        self._committer, self._info, self._channel = committer, info, channel
        self._report, self._clock, self._pause = report, clock, pause
        self._deadline_s: float | None = None
        self._pause_s = 1.0

    def insist(self, save: Callable[[], bool], step: int) -> str:
        """Call `save` until it returns True or the time is over; returns why it failed. Collective."""
        while not save():
            told = self._channel.spread(self._judged(step) if self._info.is_main else "")
            if told:
                return told.removeprefix(_GIVEN_UP)
        return ""

    def _judged(self, step: int) -> str:
        """Return nothing after a wait, to try again; else what `insist` returns."""
        now_s, wait_s = self._clock.monotonic(), self._info.checkpoint.wait_s
        if self._deadline_s is None:
            self._deadline_s = now_s + wait_s
            if wait_s:
                said = f"{self._committer.problem}; trying again for {format_duration(wait_s)}"
                self._report.write(WarningRecord(said))
        if self._committer.make_room():
            return ""
        if now_s >= self._deadline_s:
            # The step may be in a checkpoint that was due at the same step.
            lost = self._committer.saved_step != step
            return f"{_GIVEN_UP}{self._committer.problem if lost else ''}"
        self._report.write(PhaseRecord("saving"))
        self._pause(min(self._pause_s, self._deadline_s - now_s))
        self._pause_s = min(_LONGEST_PAUSE_S, 2 * self._pause_s)
        return ""
