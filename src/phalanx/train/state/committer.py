"""The commit of written files as a checkpoint, for every framework. It does not import torch.

Every rank writes its file with `write_part`; rank 0 gathers what they return and commits.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import phalanx
from phalanx import checkpoint
from phalanx.checkpoint.commit import DEBRIS
from phalanx.core.contract.records import (
    CheckpointRecord,
    QuarantinedRecord,
    RemovedRecord,
    WarningRecord,
)
from phalanx.core.training.checkpoints import FileEntry, Manifest, Position, root_after
from phalanx.kit.clock import Clock
from phalanx.kit.text import random_hex
from phalanx.train.gang.context import RankInfo
from phalanx.train.gang.report import Report
from phalanx.train.state.storage import CheckpointStorage

STATE = "state.tensors"


def shard_file(rank: int) -> str:
    """Return where the part of a rank lies inside a checkpoint."""
    return f"shard-{rank:05d}/{STATE}"


def write_part(
    disk: checkpoint.Disk, store: Path, name: str, rank: int, pieces: Iterable[Any]
) -> dict[str, Any]:
    """Write the file of a rank; returns its entry as JSON values, or `error`."""
    try:
        entry = checkpoint.write_shard(disk, store / (name + DEBRIS), shard_file(rank), pieces)
    except (OSError, MemoryError) as error:
        return {"error": f"rank {rank}: {error}"}
    row = {"path": entry.path, "size_bytes": entry.size_bytes, "digest": entry.digest}
    return {**row, "chunks": entry.chunks}


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
        self._parent: Manifest | None = None
        self._number = 0

    def seen(self, number: int) -> None:
        """Count on from a commit number that the directory has."""
        self._number = max(self._number, number)

    def resumed(self, manifest: Manifest) -> None:
        """Continue the lineage of a checkpoint."""
        self._parent = manifest
        self.seen(manifest.commit)

    def open(self, name: str, step: int) -> checkpoint.CheckpointWriter | None:
        """Open a checkpoint for writing; None, with a warning, where the disk refuses."""
        try:
            return checkpoint.CheckpointWriter(self._store, name, self._disk)
        except OSError as error:
            self.warn(step, str(error))
            return None

    def commit(
        self,
        writer: checkpoint.CheckpointWriter,
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
            self.warn(saved.step, str(error))
            writer.abandon()
            return False
        return True

    def finish(self, writer: checkpoint.CheckpointWriter, manifest: Manifest, began: float) -> Path:
        """Commit a manifest, report it and apply retention; returns the folder. Raises OSError."""
        path = writer.commit(manifest)
        self._parent, self._number = manifest, manifest.commit
        self.last_why = manifest.why
        self._report.write(
            CheckpointRecord(
                path=str(path),
                name=manifest.name,
                step=manifest.step,
                epoch=manifest.position.total_passes,
                position=manifest.position.consumed,
                commit=manifest.commit,
                bytes=manifest.size_bytes,
                save_s=round(self._clock.monotonic() - began, 6),
                why=manifest.why,
                metrics=dict(manifest.metrics),
            )
        )
        self._storage.tier.committed()
        self._retain()
        return path

    def warn(self, step: int, why: str) -> None:
        """Report that a save failed."""
        message = f"the checkpoint of step {step} could not be saved: {why}"
        self._report.write(WarningRecord(message))

    def _manifest(self, writer: checkpoint.CheckpointWriter, saved: SavedState) -> Manifest:
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
            beginning=0 if parent is None else parent.beginning,
            world_size=info.world_size,
            reference_world=info.reference_world,
            global_batch=saved.global_batch,
            created_at=self._clock.now(),
            why=saved.why,
            files=writer.files,
            job=info.job,
            mesh=dict(saved.mesh),
            strategy=saved.strategy,
            code={"script": Path(sys.argv[0]).name},
            versions={"phalanx": phalanx.__version__, **saved.versions, "python": python},
            threads=saved.threads,
            device=saved.device,
            metrics=dict(saved.metrics),
            data=dict(saved.data),
        )

    def _retain(self) -> None:
        try:
            # The head was synced a moment ago, its digests were taken on the way: reading it all
            # again would double the traffic.
            gone = checkpoint.retain(
                self._store,
                self._info.checkpoint.keep,
                self._disk,
                check=checkpoint.read_manifest,
                now=self._clock.now(),
                head=None if self._parent is None else self._parent.name,
            )
            for manifest in gone:
                self._report.write(RemovedRecord(str(self._store / manifest.name)))
        except OSError as error:
            self._report.write(WarningRecord(f"old checkpoints could not be deleted: {error}"))
