"""Checkpoints of a JAX run: processes write their parts in threads and commit them later."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from phalanx import checkpoint
from phalanx.checkpoint.commit import DEBRIS
from phalanx.core.contract.records import RestoredRecord
from phalanx.core.training.checkpoints import Manifest, checkpoint_name
from phalanx.errors import (
    CheckpointCorrupt,
    CheckpointNotFound,
    CheckpointUnavailable,
    NotFound,
)
from phalanx.kit.clock import Clock
from phalanx.kit.text import random_hex
from phalanx.train.frameworks.jax import arrays
from phalanx.train.frameworks.jax.processes import Processes
from phalanx.train.frameworks.jax.sources import (
    STRATEGY,
    FolderSource,
    SavedTree,
    StoreSource,
    TreeSource,
)
from phalanx.train.gang.context import RankInfo
from phalanx.train.gang.report import Report
from phalanx.train.gang.search_turn import Pause, SearchTurn
from phalanx.train.state.committer import (
    Committer,
    LastSave,
    PartWriter,
    SavedState,
    differences,
)
from phalanx.train.state.storage import CheckpointStorage

# What a process says of a checkpoint, before the reason: it is bad, or could not be read. The first counts.
_BAD, _AWAY = "!", "~"


class _Rows:
    """Rank 0's text on every process."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes

    def spread(self, text: str) -> str:
        """See `ControlChannel`."""
        return self._processes.gather(text.encode())[0].decode()


class JaxSaver:
    """Saves and restores the trees of a run. Every process makes the same calls.

    This one is for a run without a checkpoint directory: it saves nothing.
    """

    saves = False
    """Whether saves are kept."""
    committed_step: int | None = None
    """The step of the save that was committed last, the same on every process."""

    @property
    def estimate_s(self) -> float:
        """Return the estimated seconds of the next save."""
        return 0.0

    @property
    def written(self) -> bool:
        """Return whether this process has nothing more to write."""
        return True

    @property
    def under_way(self) -> bool:
        """Return whether a save was begun and not committed."""
        return False

    def restore(self, like: Any) -> tuple[Any, Manifest] | None:
        """Return the newest valid tree, structured and sharded like `like`; None without any."""
        return None

    def begin(self, tree: Any, step: int, why: str, metrics: Mapping[str, Any]) -> None:
        """Copy this process's part and write it in a thread."""

    def commit(self) -> bool:
        """Wait for the pending save and commit it; returns the same on every process."""
        return False

    def insist(self, save: Callable[[], bool], step: int) -> str:
        """Call `save` until it returns True or `checkpoint.wait` is over; returns why it failed."""
        return ""

    def close(self) -> None:
        """Wait for uploads, as long as the end of the run allows."""


@dataclass(frozen=True, slots=True)
class PendingSave:
    """A save in progress on one process: its thread puts the file's entry into `row`."""

    name: str
    step: int
    why: str
    metrics: Mapping[str, Any]
    began: float
    thread: threading.Thread
    row: dict[str, Any]


class JaxCheckpoints(JaxSaver):
    """A job's checkpoint directory. At most one save is in progress."""

    saves = True

    def __init__(  # noqa: PLR0913 - each is a means of its own
        self,
        store: Path,
        info: RankInfo,
        processes: Processes,
        report: Report,
        clock: Clock,
        disk: checkpoint.Disk,
        storage: CheckpointStorage | None = None,
        pause: Pause = time.sleep,
    ) -> None:
        """`pause` waits between two looks for checkpoints that are away."""
        self._store, self._info, self._processes = store, info, processes
        self._report, self._clock, self._disk = report, clock, disk
        self._draft: PendingSave | None = None
        self._storage = storage or CheckpointStorage()
        self._committer = Committer(store, info, report, clock, disk, self._storage)
        self._part = PartWriter(store, info.rank, disk, self._storage)
        self._source: TreeSource = FolderSource(store, info, report, disk, self._storage)
        if self._storage.store_first is not None:
            self._source = StoreSource(
                self._storage.store_first, store, info, report, self._storage
            )
        self._pause = pause
        self._took_s = 1.0

    @property
    def estimate_s(self) -> float:
        """Return 1.5 times the last save plus 0.2 s."""
        return 0.2 + 1.5 * self._took_s

    @property
    def written(self) -> bool:
        """Return whether this process has nothing more to write."""
        return self._draft is None or not self._draft.thread.is_alive()

    @property
    def under_way(self) -> bool:
        """Return whether a save was begun and not committed."""
        return self._draft is not None

    # -- saving ------------------------------------------------------------------------------------

    def begin(self, tree: Any, step: int, why: str, metrics: Mapping[str, Any]) -> None:
        """See `JaxSaver`. Raises TrainingError for leaves that cannot be saved."""
        if self.under_way:
            self.commit()
        suffix = self._processes.gather(random_hex(8).encode())[0].decode()
        name, began, row = checkpoint_name(step, suffix), self._clock.monotonic(), {}
        rows, blobs = arrays.taken(tree, self._info.rank)
        head = {"leaves": rows} if self._info.is_main else {}

        def write() -> None:
            row.update(self._part.write(name, head, blobs))

        thread = threading.Thread(target=write, name="phalanx-checkpoint", daemon=True)
        self._draft = PendingSave(name, step, why, dict(metrics), began, thread, row)
        thread.start()

    def commit(self) -> bool:
        """See `JaxSaver`. A disk error is reported as a warning and does not end training."""
        draft, self._draft = self._draft, None
        if draft is None:
            return False
        draft.thread.join()
        rows = [json.loads(row) for row in self._processes.gather(json.dumps(draft.row).encode())]
        done = self._info.is_main and self._commit_all(draft, rows)
        committed = self._processes.numbers([int(done)])[0][0] == 1
        if self._storage.store_first is not None:
            self._storage.store_first.keep_near(draft.name, committed)
        self._took_s = self._clock.monotonic() - draft.began
        if committed:
            self.committed_step = draft.step
        return committed

    def insist(self, save: Callable[[], bool], step: int) -> str:
        """See `JaxSaver`."""
        rows = _Rows(self._processes)
        last = LastSave(self._committer, self._info, rows, self._report, self._clock)
        return last.insist(save, step)

    def _commit_all(self, draft: PendingSave, rows: Sequence[Mapping[str, Any]]) -> bool:
        writer = self._committer.open(draft.name, draft.step, draft.why)
        if writer is None:
            self._disk.remove_tree(self._store / (draft.name + DEBRIS))
            return False
        saved = SavedState(
            step=draft.step,
            why=draft.why,
            began=draft.began,
            strategy=STRATEGY,
            mesh={"process": self._info.world_size},
            versions={"jax": jax.__version__},
            device=_device(),
            metrics=draft.metrics,
        )
        return self._committer.commit(writer, rows, saved)

    # -- restoring ---------------------------------------------------------------------------------

    def restore(self, like: Any) -> tuple[Any, Manifest] | None:
        """See `JaxSaver`. Rank 0 chooses, all verify a part, corrupt ones are set aside.

        Raises RestoreMismatch if the tree has another structure; CheckpointUnavailable, PermissionDenied.
        """
        turn = SearchTurn(
            self._source.search,
            self._info.is_main,
            _Rows(self._processes),
            self._clock,
            self._pause,
        )
        while (found := turn.next()) is not None:
            began, why = self._clock.monotonic(), ""
            saved: SavedTree | None = None
            try:
                saved = self._source.open(found.name)
                place = (self._info.rank, self._info.world_size)
                self._source.verify(saved, place, like)
            except (CheckpointCorrupt, NotFound) as error:
                why = f"{_BAD}{error.message}"
            except (CheckpointNotFound, CheckpointUnavailable) as error:
                why = f"{_AWAY}{error.message}"
            self._committer.seen(self._source.search.newest_commit)
            said = [row.decode() for row in self._processes.gather(why.encode())]
            problem = min((one for one in said if one), default="")
            if not problem and saved is not None:
                return self._accept(saved, like, began)
            if self._info.is_main:
                self._source.reject(found.name, problem[1:], away=problem[:1] == _AWAY)
        self._committer.seen(self._source.search.newest_commit)
        return None

    def _accept(self, saved: SavedTree, like: Any, began: float) -> tuple[Any, Manifest]:
        manifest = saved.manifest
        tree = saved.put_back(like)
        self._committer.resumed(manifest)
        self._storage.tier.committed()
        if self._storage.store_first is not None:
            self._storage.store_first.keep_near(manifest.name)
        if self._info.is_main:
            differs = _differs(manifest, self._info)
            self._report.write(
                RestoredRecord(
                    path=saved.place,
                    name=manifest.name,
                    step=manifest.step,
                    epoch=0,
                    position=0,
                    exact=differs is None,
                    why=differs,
                    restore_s=round(self._clock.monotonic() - began, 6),
                )
            )
        return tree, manifest

    def close(self) -> None:
        """See `JaxSaver`."""
        self._storage.finish(self._committer.last_why, self._info.grace_s)


def _device() -> str:
    one = jax.local_devices()[0]
    return f"{one.platform}:{one.device_kind}"


def _differs(manifest: Manifest, info: RankInfo) -> str | None:
    """Return the differences that make a resume here not bit-identical; None without any."""
    facts = {
        "world size": (manifest.world_size, info.world_size),
        "jax": (manifest.versions.get("jax"), jax.__version__),
        "device": (manifest.device, _device()),
    }
    return differences(facts)
