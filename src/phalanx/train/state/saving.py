"""Saving and restoring of a run: every rank writes its part, rank 0 commits, all ranks agree.

For a save in the background, a rank copies its part (`staging`), and a thread writes the copy and
communicates over its own process group. At most one save is in progress.
"""

from __future__ import annotations

import enum
import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from phalanx import checkpoint
from phalanx.checkpoint import tensorfile
from phalanx.core.training.checkpoints import (
    Position,
    best_of,
    checkpoint_name,
)
from phalanx.errors import CheckpointUnavailable, TrainingError
from phalanx.kit.clock import Clock
from phalanx.kit.text import random_hex
from phalanx.train.gang.context import RankInfo
from phalanx.train.gang.groups import ControlChannel
from phalanx.train.gang.report import Report
from phalanx.train.gang.search_turn import Pause
from phalanx.train.state import sharding, tree
from phalanx.train.state.checkpoint_reader import Restored, device_text
from phalanx.train.state.committer import FINAL, Committer, Draft, LastSave, PartWriter, SavedState
from phalanx.train.state.resume_choice import ResumeChoice
from phalanx.train.state.staging import NoStaging, Staging
from phalanx.train.state.storage import CheckpointStorage
from phalanx.train.state.store_first.choice import StoreFirstChoice

# Training ends after these, so a copy would save no time.
_AWAITED = frozenset({FINAL, "stop"})


@dataclass(frozen=True, slots=True)
class SaveRequest:
    """What is saved with the state: position, reason, metrics and this rank's random generators."""

    step: int
    position: Position
    why: str
    rng: bytes
    global_batch: int | None = None
    metrics: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)


class Saver:
    """Saves and restores the state of a run. Every rank makes the same calls.

    This one is for a run without a checkpoint directory: it saves nothing.
    """

    saves = False
    """Whether saves are kept."""
    storage = CheckpointStorage()
    """The layers below the checkpoint files."""
    problem = ""
    """Why the last save of the run failed, the same on all ranks; empty: it did not."""

    @property
    def estimate_s(self) -> float:
        """Return the estimated seconds of the next save."""
        return 0.0

    def watch(
        self,
        models: Sequence[nn.Module],
        optimizers: Sequence[Optimizer],
        strategy: str,
        place: tuple[int, int] | None = None,
    ) -> None:
        """Set what the run trains and how its ranks share it; both lists may still grow.

        `place` is (rank, number) among the ranks that hold the same layers: all, if not given.
        Replicated tensors are divided over them.
        """

    def share_as(self, strategy: str) -> None:
        """Replace the strategy that `watch` received."""

    def ready(self) -> None:
        """Wait for the checkpoints that the job has committed. Collective."""

    def open(self) -> Restored | None:
        """Return the newest untried checkpoint, the same on all ranks; it may be partly corrupt."""
        return None

    def accept(self, restored: Restored, problem: str) -> bool:
        """Return whether all ranks read the checkpoint without a problem. Collective."""
        return True

    def warm(self, state: Callable[[], Any]) -> None:
        """Prepare saves of such a state after the first step. Never fails."""

    def save(self, state: Callable[[], Any], request: SaveRequest) -> bool:
        """Save, or begin to; returns False on failure, the same on all ranks."""
        return False

    def wait(self) -> bool:
        """Wait for the save in progress; returns whether the last save was committed."""
        return False

    def path_of(self, step: int) -> str:
        """Return the place of the newest checkpoint, if it is of this step (rank 0); else nothing."""
        return ""

    def close(self) -> None:
        """Wait for the save in progress and release resources."""

    def best_known(self) -> float | None:
        """Return the best value of the kept metric so far (rank 0)."""
        return None


class SaveOutcome(enum.Enum):
    """How a save ended, the same on all ranks."""

    COMMITTED = "committed"
    FAILED = "failed"
    DISAGREED = "the ranks hold parts that do not fit together"


@dataclass(frozen=True, slots=True)
class RankSnapshot:
    """This rank's part of the state at one request; `head` is the header of its file."""

    request: SaveRequest
    metrics: Mapping[str, Any]
    head: Mapping[str, Any]
    blobs: Sequence[tensorfile.TensorBytes]
    signature: str
    began: float


class CheckpointDirectory(Saver):
    """A job's directory of checkpoints.

    Only the writer thread may use `channel`.
    """

    saves = True

    def __init__(  # noqa: PLR0913 - each is a means of its own
        self,
        store: Path,
        info: RankInfo,
        channel: ControlChannel,
        report: Report,
        clock: Clock,
        disk: checkpoint.Disk,
        staging: NoStaging | Staging,
        storage: CheckpointStorage | None = None,
        pause: Pause = time.sleep,
    ) -> None:
        """`pause` waits between two looks for checkpoints that are away."""
        self._store, self._info, self._channel = store, info, channel
        self._report, self._clock, self._disk = report, clock, disk
        self._staging, self._direct = staging, NoStaging()
        self._models: Sequence[nn.Module] = ()
        self._optimizers: Sequence[Optimizer] = ()
        self._strategy = "single"
        self._place = (info.rank, info.world_size)
        self._whole = False
        self._thread: threading.Thread | None = None
        self._warming: threading.Thread | None = None
        self._outcome = SaveOutcome.FAILED
        self._durations: list[float] = []
        self.storage = storage or CheckpointStorage()
        self._choice: ResumeChoice | StoreFirstChoice = ResumeChoice(
            store, info, channel, report, disk, clock, pause
        )
        if self.storage.store_first is not None:
            self._choice = StoreFirstChoice(
                self.storage.store_first, store, info, channel, report, clock, pause
            )
        self._committer = Committer(store, info, report, clock, disk, self.storage)
        self._part = PartWriter(store, info.rank, disk, self.storage)

    @property
    def estimate_s(self) -> float:
        """Return 1.5 times the longest of the last saves plus 0.2 s; more during a save."""
        usual = 1.5 * max(self._durations[-3:], default=1.0)
        under_way = self._thread is not None and self._thread.is_alive()
        return 0.2 + (2 * usual if under_way else usual)

    def watch(
        self,
        models: Sequence[nn.Module],
        optimizers: Sequence[Optimizer],
        strategy: str,
        place: tuple[int, int] | None = None,
    ) -> None:
        """See `Saver`."""
        self._models, self._optimizers, self._strategy = models, optimizers, strategy
        self._place = place or self._place

    def share_as(self, strategy: str) -> None:
        """Replace the strategy that the manifest names."""
        self._strategy = strategy

    def best_known(self) -> float | None:
        """Return the best value of the kept metric among the checkpoints."""
        best = self._info.checkpoint.keep.best
        if best is None:
            return None
        try:
            found = best_of(self._choice.kept(), best)
        except CheckpointUnavailable:
            return None  # the next better value is saved, and compared with what can be read then
        return float(found[0].metrics[best.metric]) if found else None

    def path_of(self, step: int) -> str:
        """See `Saver`."""
        saved, place = self._committer.newest
        return place if saved == step else ""

    def ready(self) -> None:
        """See `Saver`. Raises CheckpointMissing."""
        self._choice.ready(self.storage)

    def open(self) -> Restored | None:
        """Return the next checkpoint to try; see `resume_choice`."""
        restored = self._choice.open(self.storage)
        self._committer.seen(self._choice.newest_commit)
        return restored

    def accept(self, restored: Restored, problem: str) -> bool:
        """Continue the checkpoint's lineage if every rank could read its part. Collective."""
        if not self._choice.accept(restored, problem, self.storage):
            return False
        self._committer.resumed(restored.manifest)
        self.storage.tier.committed()
        return True

    def warm(self, state: Callable[[], Any]) -> None:
        """Allocate the memory for background saves, in a thread."""
        if isinstance(self._staging, NoStaging):
            return
        try:
            pieces = self._pieces(state())[1]
        except TrainingError:
            return  # the first save reports it
        self._warming = threading.Thread(
            target=self._staging.warm, args=(pieces,), name="phalanx-staging", daemon=True
        )
        self._warming.start()

    def save(self, state: Callable[[], Any], request: SaveRequest) -> bool:
        """Copy this rank's part of the state and write it; without a copy when training ends.

        A disk error is reported as a warning and does not end training. The last save is tried again.
        """
        self.wait()
        if request.why == FINAL:
            last = LastSave(self._committer, self._info, self._channel, self._report, self._clock)
            self.problem = last.insist(lambda: self._save_now(state, request), request.step)
            return self._outcome is SaveOutcome.COMMITTED
        if request.why in _AWAITED or isinstance(self._staging, NoStaging):
            return self._save_now(state, request)
        self._warmed()
        image = self._take(state(), request, self._staging)
        self._thread = threading.Thread(
            target=self._write_behind, args=(image,), name="phalanx-checkpoint", daemon=True
        )
        self._thread.start()
        return True

    def _save_now(self, state: Callable[[], Any], request: SaveRequest) -> bool:
        self._outcome = self._write(self._take(state(), request, self._direct))
        if self._outcome is SaveOutcome.DISAGREED:
            self._outcome = self._write(self._take(state(), request, self._direct))
        return self._outcome is SaveOutcome.COMMITTED

    def wait(self) -> bool:
        """Wait for the save in progress; returns whether the last one was committed."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        return self._outcome is SaveOutcome.COMMITTED

    def _warmed(self) -> None:
        if self._warming is not None:
            self._warming.join()
            self._warming = None

    def close(self) -> None:
        """Wait for saves and uploads, then release what the group's threads hold."""
        self.wait()
        self._warmed()
        self.storage.finish(self._committer.last_why, self._info.grace_s)
        self._channel.settle()

    def _pieces(self, state: Mapping[str, Any]) -> tuple[Any, Sequence[sharding.TensorPart], str]:
        """Return the state as a tree, the parts that this rank writes, and their signature."""
        body, leaves = tree.collect(state)
        common: frozenset[int] = frozenset()
        if not self._whole:
            common = sharding.replicated(self._models, self._optimizers)
        pieces = sharding.pieces_of(leaves, common, self._place)
        if self._place[1] < self._info.world_size:
            trained = {key: state[key] for key in ("models", "optimizers")}
            return body, pieces, sharding.outline(tree.collect(trained)[1])
        if any(leaf.is_meta for leaf in leaves):
            hint = 'make the model outside of torch.device("meta")'
            raise TrainingError("a tensor on the meta device cannot be saved", hint)
        return body, pieces, sharding.signature(leaves, common)

    def _take(
        self, state: Mapping[str, Any], request: SaveRequest, into: NoStaging | Staging
    ) -> RankSnapshot:
        began = self._clock.monotonic()
        body, pieces, signature = self._pieces(state)
        head: dict[str, Any] = {"rng": request.rng.hex()}
        if self._info.is_main:
            head["state"] = body
        return RankSnapshot(
            request, dict(request.metrics), head, into.take(pieces), signature, began
        )

    def _write_behind(self, image: RankSnapshot) -> None:
        self._outcome = self._write(image)

    def _write(self, image: RankSnapshot) -> SaveOutcome:
        try:
            outcome = self._write_together(image)
        except RuntimeError as error:  # the other ranks are gone
            outcome = SaveOutcome.FAILED
            self._committer.warn(image.request.step, str(error))
        if outcome is SaveOutcome.DISAGREED:
            self._whole = True
            self._committer.warn(
                image.request.step, f"{outcome.value}; rank 0 writes everything from now on"
            )
        return outcome

    def _write_together(self, image: RankSnapshot) -> SaveOutcome:
        """Compare the signatures, write the parts, gather their digests, commit. Collective."""
        signatures = self._channel.gather(image.signature.encode())
        writer = self._open(image, signatures) if self._info.is_main else None
        if self._info.is_main:
            verdict = SaveOutcome.DISAGREED.name if len(set(signatures)) > 1 else ""
            name = self._channel.broadcast(writer.name if writer is not None else verdict)
        else:
            name = self._channel.broadcast("")
        if name in ("", SaveOutcome.DISAGREED.name):
            return SaveOutcome.DISAGREED if name else SaveOutcome.FAILED
        row = self._part.write(name, image.head, image.blobs)
        rows = self._channel.gather(json.dumps(row).encode())
        done = writer is not None and self._commit_all(writer, image, rows)
        committed = self._channel.broadcast("yes" if done else "") == "yes"
        if self.storage.store_first is not None:
            self.storage.store_first.keep_near(name, committed)
        return SaveOutcome.COMMITTED if committed else SaveOutcome.FAILED

    def _open(self, image: RankSnapshot, signatures: Sequence[bytes]) -> Draft | None:
        if len(set(signatures)) > 1:
            return None
        step = image.request.step
        name = checkpoint_name(step, random_hex(8))
        return self._committer.open(name, step, image.request.why)

    def _commit_all(self, writer: Draft, image: RankSnapshot, rows: Iterable[bytes]) -> bool:
        """Commit the checkpoint if every rank wrote its part, else remove it (rank 0)."""
        request, world_size = image.request, self._info.world_size
        saved = SavedState(
            step=request.step,
            why=request.why,
            began=image.began,
            position=request.position,
            global_batch=request.global_batch,
            metrics=image.metrics,
            data=request.data,
            strategy=self._strategy if world_size > 1 else "single",
            mesh=_mesh(self._strategy, world_size),
            versions={"torch": torch.__version__},
            threads=torch.get_num_threads(),
            device=device_text(),
        )
        if not self._committer.commit(writer, [json.loads(row) for row in rows], saved):
            self._committer.make_room()
            return False
        self._durations.append(self._clock.monotonic() - image.began)
        return True


def _mesh(strategy: str, world_size: int) -> dict[str, int]:
    """Return the number of ranks by mesh dimension, for the manifest."""
    if "=" in strategy:
        pairs = (part.split("=") for part in strategy.split(","))
        return {name: int(size) for name, size in pairs}
    return {"shard" if strategy == "fsdp" else "replicate": world_size}
