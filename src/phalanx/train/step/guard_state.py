"""Storage of the guard state, which one generation passes to the next, beside the checkpoints.

The file is replaced atomically. Rank 0 writes it after all ranks have agreed; only a rank that runs
out of memory writes it on its own, since it can no longer communicate.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from phalanx import checkpoint
from phalanx.checkpoint.remote_tier import CheckpointTier
from phalanx.checkpoint.store_first.tier import StoreFirstTier
from phalanx.core.contract.records import QuarantinedRecord, WarningRecord
from phalanx.core.gang.failures import RankExit, classify
from phalanx.core.reasons import Cause
from phalanx.core.training.guards import GUARD_STATE_FILE, GuardState, Undo
from phalanx.errors import CheckpointUnavailable, PlatformError
from phalanx.kit.text import random_hex
from phalanx.train.gang.context import RankInfo
from phalanx.train.gang.groups import ControlChannel
from phalanx.train.gang.report import Report


class GuardStateStore:
    """The storage of a run's guard state. Without a checkpoint directory it keeps nothing."""

    keeps = False

    def open(self) -> GuardState:
        """Return the guard state of earlier generations, the same on all ranks. Collective."""
        return GuardState()

    def keep(self, state: GuardState) -> None:
        """Replace the stored guard state. Raises OSError."""


class GuardStateFile(GuardStateStore):
    """The guard state in `guards.json` in the job's checkpoint directory.

    Nodes without a shared folder have it in the object store, too: rank 0 may start on another node.
    """

    keeps = True

    def __init__(
        self,
        store: Path,
        info: RankInfo,
        channel: ControlChannel,
        report: Report,
        tier: CheckpointTier | None = None,
    ) -> None:
        self._path, self._store = store / GUARD_STATE_FILE, store
        self._tier = tier or CheckpointTier()
        self._info, self._channel, self._report = info, channel, report

    def open(self) -> GuardState:
        """Return the guard state of earlier generations on all ranks; empty if it is damaged.

        Checkpoints that it says to undo are quarantined before one is chosen to resume from.
        """
        text = ""
        if self._info.is_main:
            state = self._read()
            if state.undo is not None:
                state = self._undo(state)
            if self._died_silently(state):
                state = self._halve(state)
            text = json.dumps(state.to_json(), separators=(",", ":"))
        return GuardState.from_json(json.loads(self._channel.spread(text)))

    def _read(self) -> GuardState:
        try:
            return GuardState.from_json(json.loads(self._text()))
        except FileNotFoundError:
            return GuardState()
        except OSError as error:
            raise CheckpointUnavailable(f"{self._path} cannot be read: {error}") from error
        except (ValueError, AttributeError, TypeError, RecursionError) as error:
            self._report.write(WarningRecord(f"{self._path} cannot be read: {error}"))
            return GuardState()

    def _text(self) -> str:
        """Return what was stored. Raises FileNotFoundError, OSError, CheckpointUnavailable."""
        if isinstance(self._tier, StoreFirstTier):
            found = self._tier.note(GUARD_STATE_FILE)
            if found is not None:
                return found
        return self._path.read_text()

    def _died_silently(self, state: GuardState) -> bool:
        """Return whether the previous generation ran out of memory without recording it."""
        before = (self._info.attempt, self._info.generation - 1)
        return self._info.restart_cause == Cause.OOM.value and state.halved_in != before

    def _halve(self, state: GuardState) -> GuardState:
        before = (self._info.attempt, self._info.generation - 1)
        return self._kept(replace(state, halvings=state.halvings + 1, halved_in=before))

    def _undo(self, state: GuardState) -> GuardState:
        assert state.undo is not None
        for one in checkpoint.list_checkpoints(self._store):
            manifest = one.manifest
            if not state.undo.covers(manifest.attempt, manifest.generation, manifest.step):
                continue
            try:
                moved = checkpoint.quarantine(one.path, random_hex(8))
            except OSError as error:
                self._report.write(WarningRecord(f"{one.path} cannot be quarantined: {error}"))
                continue
            why = f"the checkpoint holds step {state.undo.step}, which was rolled back"
            self._report.write(QuarantinedRecord(path=str(one.path), moved_to=str(moved), why=why))
        self._undo_copies(state.undo)
        return self._kept(replace(state, undo=None))

    def _undo_copies(self, undo: Undo) -> None:
        """Delete the same checkpoints in the object store, or the run would resume from them.

        Raises CheckpointUnavailable, PermissionDenied.
        """
        names = [
            name
            for name, one in self._tier.manifests().items()
            if undo.covers(one.attempt, one.generation, one.step)
        ]
        if names:
            self._tier.discard(names)
            said = f"deleted in the object store, as step {undo.step} was rolled back: "
            self._report.write(WarningRecord(said + ", ".join(sorted(names))))

    def _kept(self, state: GuardState) -> GuardState:
        """Keep `state`, with a warning where the disk refuses; returns it."""
        try:
            self.keep(state)
        except OSError as error:
            self._report.write(WarningRecord(f"{self._path}: {error}"))
        return state

    def keep(self, state: GuardState) -> None:
        """Replace the file atomically, and what is in the store of nodes without a shared folder.

        Raises OSError.
        """
        if isinstance(self._tier, StoreFirstTier):
            try:
                self._tier.keep_note(GUARD_STATE_FILE, json.dumps(state.to_json()))
            except PlatformError as error:
                raise OSError(error.message) from error
        self._store.mkdir(parents=True, exist_ok=True)
        draft = self._path.with_name(f"{GUARD_STATE_FILE}.{random_hex(8)}")
        try:
            with open(draft, "x") as file:
                json.dump(state.to_json(), file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, self._path)
        finally:
            draft.unlink(missing_ok=True)
        descriptor = os.open(self._store, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an exception is classified as out of memory (`Cause.OOM`)."""
    name, message = type(error).__name__, str(error)
    exit = RankExit(rank=0, at=0, exit_code=1, exception=name, message=message)
    return classify(exit, stepped=True) is Cause.OOM


Hook = Callable[[type[BaseException], BaseException, TracebackType | None], Any]


def install_memory_hook(on_out_of_memory: Callable[[], None]) -> Hook:
    """Install an exception hook that calls `on_out_of_memory`, then the previous hook.

    Returns the hook, so that tests can call it.
    """
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if is_out_of_memory(error):
            try:
                on_out_of_memory()
            except (OSError, MemoryError) as problem:
                message = f"the guard state could not be stored: {problem}"
                print(message, file=sys.stderr)  # noqa: T201 - no report is possible any more
        before(kind, error, trace)

    sys.excepthook = hook
    return hook
