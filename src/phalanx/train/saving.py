"""Saving and restoring a run: rank 0 writes, everybody reads, all agree on what is read."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch

import phalanx
from phalanx import checkpoint
from phalanx.checkpoint import tensorfile
from phalanx.core.checkpoints import Keep, Manifest, Position, best_of, checkpoint_name
from phalanx.errors import CheckpointCorrupt, CheckpointNotFound
from phalanx.kit.clock import Clock
from phalanx.kit.ids import random_hex
from phalanx.train import tree
from phalanx.train.context import RankInfo
from phalanx.train.groups import Channel
from phalanx.train.report import Report

STATE_FILE = "shard-00000/state.tensors"


@dataclass(frozen=True, slots=True)
class Moment:
    """What is saved beside the state: where training is, why now, and this rank's generators."""

    step: int
    position: Position
    why: str
    rng: bytes
    global_batch: int | None = None
    metrics: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Restored:
    """A verified checkpoint in memory. Whoever loads from `state` must clone."""

    path: Path
    manifest: Manifest
    state: Mapping[str, Any]
    rng: tuple[bytes, ...]
    differs: str | None

    def rng_of(self, rank: int) -> bytes | None:
        """The generators of this rank, if there was such a rank."""
        return self.rng[rank] if rank < len(self.rng) else None


class Saver(Protocol):
    """Where a run's state goes and comes from. Every rank makes the same calls."""

    @property
    def saves(self) -> bool:
        """Whether anything is kept at all."""
        ...

    @property
    def estimate_s(self) -> float:
        """Seconds that the next save is likely to take."""
        ...

    def open(self) -> Restored | None:
        """The newest valid checkpoint, agreed on by all ranks."""
        ...

    def save(self, state: Callable[[], Any], moment: Moment) -> bool:
        """Save; on rank 0 says whether it was committed."""
        ...

    def best_known(self) -> float | None:
        """The best value of the kept metric so far (rank 0)."""
        ...


class NoCheckpoints:
    """Nothing is kept."""

    saves = False
    estimate_s = 0.0

    def open(self) -> Restored | None:
        """Nothing."""
        return None

    def save(self, state: Callable[[], Any], moment: Moment) -> bool:
        """Nothing."""
        return False

    def best_known(self) -> float | None:
        """Nothing."""
        return None


class CheckpointDirectory:
    """A job's directory of checkpoints."""

    saves = True

    def __init__(
        self, store: Path, info: RankInfo, channel: Channel, report: Report, clock: Clock,
        disk: checkpoint.Disk,
    ) -> None:  # fmt: skip
        self._store, self._info, self._channel = store, info, channel
        self._report, self._clock, self._disk = report, clock, disk
        self._parent: str | None = None
        self._commit = 0
        self._durations: list[float] = []

    @property
    def estimate_s(self) -> float:
        """Half as long again as the longest of the last saves, and never less than 0.2 s."""
        return 0.2 + 1.5 * max(self._durations[-3:], default=1.0)

    def best_known(self) -> float | None:
        """The best value of the kept metric among the checkpoints that lie here."""
        best = self._info.keep.best
        if best is None:
            return None
        found = best_of([one.manifest for one in checkpoint.list_checkpoints(self._store)], best)
        return float(found[0].metrics[best.metric]) if found else None

    def open(self) -> Restored | None:
        """The newest valid checkpoint of the head's lineage; bad ones are set aside and reported.

        Rank 0 chooses, everybody reads and verifies, and all must have succeeded.
        """
        candidates = self._candidates() if self._info.is_main else []
        while True:
            path = self._channel.broadcast(str(candidates.pop(0)) if candidates else "")
            if not path:
                return None
            restored, why = self._read(Path(path))
            failed = self._channel.total([0.0 if restored else 1.0])[0]
            if restored is not None and failed == 0:
                self._parent = restored.manifest.name
                self._commit = max(self._commit, restored.manifest.commit)
                return restored
            if not self._info.is_main:
                continue
            if restored is None:
                self._set_aside(Path(path), why)
            else:
                message = f"{path}: {failed:.0f} ranks could not read it; an older one is tried"
                self._report.write("warn", message=message)

    def _candidates(self) -> list[Path]:
        try:
            listing = checkpoint.scan(self._store)
            checkpoint.clean_debris(self._store, self._disk)
        except OSError as error:
            self._report.write("warn", message=f"{self._store}: {error}")
            return []
        for path, why in listing.bad.items():
            self._set_aside(path, why)
        self._commit = max((one.manifest.commit for one in listing.good), default=0)
        return [one.path for one in checkpoint.resume_order(listing)]

    def _set_aside(self, path: Path, why: str) -> None:
        try:
            moved = checkpoint.quarantine(path, random_hex(8), self._disk)
        except OSError:
            moved = path
        self._report.write("quarantined", path=str(moved), why=why)

    def _read(self, path: Path) -> tuple[Restored | None, str]:
        try:
            manifest = checkpoint.read_manifest(path)
            entries = {entry.path: entry for entry in manifest.files}
            if STATE_FILE not in entries:
                raise CheckpointCorrupt(f"{path}: there is no {STATE_FILE} in its manifest")
            data = tensorfile.read_verified(path, entries[STATE_FILE])
            body, blobs = tensorfile.parse(data, str(path / STATE_FILE))
            state = tree.unflatten(body, blobs, str(path / STATE_FILE))
            rng = tuple(one.numpy().tobytes() for one in state["rng"])
        except (CheckpointCorrupt, CheckpointNotFound) as error:
            return None, error.message
        except (KeyError, TypeError, AttributeError) as error:
            return None, f"{path}: not a state this library wrote: {error}"
        return Restored(path, manifest, state, rng, self._differs(manifest)), ""

    def _differs(self, manifest: Manifest) -> str | None:
        """What makes a resume on this machine not bit-identical, if anything."""
        mine = {
            "world size": (manifest.world_size, self._info.world_size),
            "torch": (manifest.versions.get("torch"), torch.__version__),
            "threads": (manifest.threads, torch.get_num_threads()),
            "device": (manifest.device, device_text()),
        }
        found = [f"{name} {was} is now {now}" for name, (was, now) in mine.items() if was != now]
        return "; ".join(found) or None

    def save(self, state: Callable[[], Any], moment: Moment) -> bool:
        """Gather what differs between ranks, then rank 0 writes while the others go on.

        A disk that refuses costs a warning in the report, never the training.
        """
        rng = self._channel.gather(moment.rng)
        if not self._info.is_main:
            return True
        began = self._clock.monotonic()
        try:
            path, manifest = self._write(state, moment, rng)
        except OSError as error:
            message = f"the checkpoint of step {moment.step} could not be saved: {error}"
            self._report.write("warn", message=message)
            return False
        took = self._clock.monotonic() - began
        self._durations.append(took)
        self._report.write(
            "checkpoint", path=str(path), name=manifest.name, step=moment.step,
            epoch=moment.position.total_passes, position=moment.position.consumed,
            commit=manifest.commit, bytes=manifest.size_bytes, save_s=round(took, 6),
            why=moment.why, metrics=dict(moment.metrics),
        )  # fmt: skip
        self._let_go(self._info.keep)
        return True

    def _write(
        self, state: Callable[[], Any], moment: Moment, rng: list[bytes]
    ) -> tuple[Path, Manifest]:
        body = dict(state())
        body["rng"] = [torch.frombuffer(bytearray(one), dtype=torch.uint8) for one in rng]
        values, blobs = tree.flatten(body)
        name = checkpoint_name(moment.step, random_hex(8))
        draft = checkpoint.Draft(self._store, name, self._disk)
        try:
            draft.add_tensors(STATE_FILE, values, blobs)
            manifest = self._manifest(name, draft, moment)
            path = draft.commit(manifest)
        except OSError:
            draft.abandon()
            raise
        self._parent, self._commit = manifest.name, manifest.commit
        return path, manifest

    def _manifest(self, name: str, draft: checkpoint.Draft, moment: Moment) -> Manifest:
        info = self._info
        return Manifest(
            name=name,
            step=moment.step,
            position=moment.position,
            attempt=info.attempt,
            generation=info.generation,
            commit=self._commit + 1,
            parent=self._parent,
            world_size=info.world_size,
            reference_world=info.reference_world,
            global_batch=moment.global_batch,
            created_at=self._clock.now(),
            why=moment.why,
            files=draft.files,
            job=info.job,
            mesh={"replicate": info.world_size},
            strategy="ddp" if info.world_size > 1 else "single",
            code={"script": Path(sys.argv[0]).name},
            versions={
                "phalanx": phalanx.__version__,
                "torch": torch.__version__,
                "python": ".".join(str(part) for part in sys.version_info[:3]),
            },
            threads=torch.get_num_threads(),
            device=device_text(),
            metrics=dict(moment.metrics),
        )

    def _let_go(self, keep: Keep) -> None:
        try:
            # The head was synced a moment ago, its digests were taken on the way: reading it all
            # again would double the traffic.
            checkpoint.retain(self._store, keep, self._disk, check=checkpoint.read_manifest)
        except OSError as error:
            message = f"old checkpoints could not be deleted: {error}"
            self._report.write("warn", message=message)


def device_text() -> str:
    """The kind of device that sums depend on, for example `cpu:AVX512`."""
    if torch.cuda.is_available():
        return f"cuda:{torch.cuda.get_device_name()}"
    return f"cpu:{torch.backends.cpu.get_cpu_capability()}"
