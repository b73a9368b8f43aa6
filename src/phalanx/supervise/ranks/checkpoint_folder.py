"""Checkpoints of the folder that a script saves its state in (`checkpoint.directory`).

A thread watches the folder, copies it and reads every byte; its records go to the main thread. The folder
is committed when it is quiet: no file has changed for a moment, and no process of the job has one open
for writing.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from phalanx import checkpoint
from phalanx.checkpoint import folders
from phalanx.checkpoint.folders import PreviousCommit, Stat
from phalanx.core.contract import records
from phalanx.core.contract.records import Record
from phalanx.core.reasons import Cause
from phalanx.core.training.checkpoints import Manifest, checkpoint_name
from phalanx.core.training.resumption import StartAction
from phalanx.errors import (
    CheckpointCorrupt,
    CheckpointMissing,
    CheckpointNotFound,
    CheckpointUnavailable,
    PlatformError,
    UserError,
)
from phalanx.kit.clock import Clock
from phalanx.kit.text import random_hex
from phalanx.launch import linux
from phalanx.launch.files import is_out_of_space
from phalanx.supervise.ranks import restore_lock
from phalanx.supervise.ranks.folder_commits import (
    CheckpointFolderConfig,
    FolderCommits,
    commits_of,
)
from phalanx.supervise.ranks.restore_lock import RestoreResult

LOOK_S = 0.1
_PAUSE_FOR_A_LOOK = 10.0
QUIET_S = 0.3
# A folder that is never quiet is committed all the same, between two writes.
RESTLESS_S = 3.0
LONG_LIVED_S = 2.0
SHORT_UPLOAD_S = 0.5
# Appended to for as long as a script runs: a handle on one of these says nothing about a save.
_JOURNALS = (".log", ".txt", ".csv", ".jsonl", ".out", ".err")
_JOURNAL_STEM = "events.out.tfevents"

Report = Callable[[int, Record], None]
"""Takes the time in microseconds UTC, and a record."""
Call = Callable[[], None]
Failed = Callable[[str, Cause], None]


@dataclass(frozen=True, slots=True)
class ScriptProgress:
    """The newest step and metrics that the script has printed."""

    step: int | None
    metrics: Mapping[str, float | str]


@dataclass(frozen=True, slots=True)
class StagedCheckpoint:
    """A verified checkpoint on this node that a job without one of its own begins from."""

    path: Path
    step: int
    why: str  # reason of its save; `folders.WHY`: it is a copy of a script's folder


class CheckpointFolder:
    """The folder during one generation, of a script that has none.

    Every call comes from the main thread and returns at once.
    """

    unsaved: str = ""
    """Why the folder of a script that came to its end is not committed; empty: it is."""

    @property
    def restored_step(self) -> int | None:
        """The step of the commit that was restored; 0: nothing was; None: there is no folder."""
        return None

    begins: StagedCheckpoint | None = None
    """What ranks begin from where the job has committed nothing; set before `open`."""

    @property
    def begins_from(self) -> str | None:
        """The path of that checkpoint; None: there is none."""
        return None if self.begins is None else str(self.begins.path)

    def begin_from(self, staged: StagedCheckpoint) -> None:
        """Have ranks begin from this checkpoint where the job has committed none; before `open`."""
        self.begins = staged

    def open(self, then: Call, failed: Failed) -> None:
        """Restore the last commit, then call `then`, and begin to watch.

        Where that fails, `failed` is called with the reason and the cause instead.
        """
        then()

    def finish(self, then: Call, upload_s: float) -> None:
        """Commit the folder and copy it to the object store, then call `then`: the ranks succeeded.

        The copy may take `upload_s`.
        """
        then()

    def abandon(self, then: Call) -> None:
        """Leave what is not committed alone, then call `then`: the ranks were killed."""
        then()

    def hurry(self) -> None:
        """Do not wait for copies any more."""


@dataclass(slots=True)
class WatchedCheckpointFolder(CheckpointFolder):
    """A folder of checkpoints that a thread watches and commits.

    It is committed only while every rank lives: a rank that died may have left half a file.
    """

    facts: CheckpointFolderConfig  # paths and options
    clock: Clock  # monotonic time and UTC
    outside: Callable[[Call], None]  # runs a call in the main thread
    report: Report  # takes records in the main thread
    progress: Callable[[], ScriptProgress]  # newest printed step
    intact: Callable[[], bool]  # whether every rank lives
    _over: threading.Event = field(default_factory=threading.Event)  # ends the thread
    _trusted: bool = False  # the ranks succeeded
    _upload_s: float = SHORT_UPLOAD_S  # time for the last copies, s
    _commits: FolderCommits = field(init=False)  # where it is committed
    _shared: PreviousCommit = field(default_factory=PreviousCommit)  # files of the last commit
    _known: dict[str, Stat] = field(default_factory=dict)  # last committed files
    _step: int = 0  # last committed step
    _parent: Manifest | None = None  # checkpoint that was restored or committed last
    _restored_step: int = 0  # step that the ranks begin with
    unsaved: str = ""  # why the last state is not committed
    _uncommitted: str = ""  # why the newest state is not committed
    _unread: str = ""  # why the folder could not be read just now
    _hurried: threading.Event = field(default_factory=threading.Event)  # ends waits
    _finished: Call | None = None  # called at the end
    _thread: threading.Thread | None = None  # None: not opened
    _long_lived_pids: tuple[int, ...] = ()  # writers to wait for
    begins: StagedCheckpoint | None = None  # of another job; None: begin with the folder as it is
    _complained: set[str] = field(default_factory=set)  # warnings already sent

    def __post_init__(self) -> None:
        self._commits = commits_of(self.facts, self._report, self.clock)

    @property
    def restored_step(self) -> int | None:
        """See `CheckpointFolder`. Final once `open` has called back."""
        return self._restored_step

    def open(self, then: Call, failed: Failed) -> None:
        """See `CheckpointFolder`."""
        self._thread = threading.Thread(
            target=self._run, args=(then, failed), name="phalanx-folder", daemon=True
        )
        self._thread.start()

    def finish(self, then: Call, upload_s: float) -> None:
        """See `CheckpointFolder`."""
        self._trusted, self._upload_s = True, upload_s
        self.abandon(then)

    def abandon(self, then: Call) -> None:
        """See `CheckpointFolder`. A commit under way comes to its end first."""
        self._finished = then
        self._over.set()
        if self._thread is None:
            then()

    def hurry(self) -> None:
        """See `CheckpointFolder`."""
        self._hurried.set()
        self._commits.hurry()

    # -- the thread --------------------------------------------------------------------------------

    def _run(self, then: Call, failed: Failed) -> None:
        try:
            self._restore()
            self.outside(then)
        except Exception as error:
            why = error if isinstance(error, OSError | PlatformError) else repr(error)
            message = f"{self.facts.folder} could not be restored: {why}"
            away = isinstance(error, CheckpointMissing | CheckpointUnavailable)
            cause = Cause.CHECKPOINT_MISSING if away else Cause.START_FAILED
            cause = Cause.USER_ERROR if isinstance(error, UserError) else cause
            self.outside(lambda: failed(message, cause))
        self._run_safely(self._watch)
        self._over.wait()
        if self._trusted and self.facts.commits:
            self._run_safely(self._commit_at_the_end)
        if self.facts.commits:
            self._run_safely(lambda: self._commits.tier.finish(self._upload_s))
        if self._finished is not None:
            self.outside(self._finished)

    def _run_safely(self, work: Call) -> None:
        """Run `work`, and turn an error into a warning: the generation waits for this thread."""
        try:
            work()
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
            self._complain(f"{self.facts.folder} is not watched any more: {said}")

    def _watch(self) -> None:
        before, quiet_since = self._known, self.clock.monotonic()
        waiting_since: float | None = None
        pause_s = LOOK_S
        while not self._over.wait(pause_s):
            began = self.clock.monotonic()
            found, now = self._look(), self.clock.monotonic()
            # A folder of very many files is looked at less often.
            pause_s = max(LOOK_S, (now - began) * _PAUSE_FOR_A_LOOK)
            if found == self._known:
                before, waiting_since = found, None
                continue
            if waiting_since is None or not self._all_there():
                # A rank that died may have left half a file: wait for what follows.
                before, quiet_since, waiting_since = found, now, now
                self._long_lived_pids = _long_lived_pids()
            elif found != before:
                before, quiet_since = found, now
            due = now - quiet_since >= QUIET_S or now - waiting_since >= RESTLESS_S
            if due and not self._is_written():
                self._commit_if_changed()

    def _look(self) -> dict[str, Stat]:
        try:
            self._unread, found = "", folders.look(self.facts.folder)
            return found
        except OSError as error:
            self._unread = f"{self.facts.folder} cannot be read: {error}"
            self._complain(self._unread)
            return self._known

    def _all_there(self) -> bool:
        return self.intact() and all(linux.holds_files(pid) for pid in self._long_lived_pids)

    def _is_written(self) -> bool:
        return any(_writers(self.facts.folder.resolve()))

    def _commit_at_the_end(self) -> None:
        """Commit the last state, again where that fails, with growing waits."""
        deadline_s, pause_s = self.clock.monotonic() + self.facts.wait_s, 1.0
        while True:
            if self._uncommitted:
                self._known = {}  # committed again, although it has not changed
            self._commit_if_changed()
            left_s = deadline_s - self.clock.monotonic()
            if not self._uncommitted:
                return
            if left_s <= 0 or self._hurried.wait(min(pause_s, left_s)):
                self.unsaved = f"{self.facts.folder} could not be committed: {self._uncommitted}"
                return
            pause_s = min(60.0, 2 * pause_s)

    def _commit_if_changed(self) -> None:
        stats = self._look()
        if self._unread or not stats:
            self._uncommitted = self._unread  # nothing is left to commit in a folder that is empty
        if not self.facts.commits or not stats or stats == self._known:
            return
        try:
            self._uncommitted = "" if self._commit(stats) else "files are being written"
            if not self._uncommitted:
                self._known = stats
        except (OSError, PlatformError) as error:
            self._known = stats  # tried again when it changes, not every moment
            self._uncommitted = str(error)
            self._make_room(error)
            self._complain(f"{self.facts.folder} could not be committed: {error}")

    def _make_room(self, error: Exception) -> None:
        """Delete older checkpoints where the disk is full, except those to keep in any case."""
        if is_out_of_space(error) and self._parent is not None:
            self._commits.make_room(self._parent.name)

    def _commit(self, stats: dict[str, Stat]) -> bool:
        facts, began, told = self.facts, self.clock.monotonic(), self.progress()
        step = self._step + 1 if told.step is None else max(told.step, self._step)
        draft = checkpoint.CheckpointWriter(facts.store, checkpoint_name(step, random_hex(8)))
        try:
            whole = folders.fill(draft, facts.folder, stats, self._shared)
            if not whole or self._is_written() or not (self._trusted or self._all_there()):
                draft.abandon()
                return False
            now, metrics, parent = self.clock.now(), told.metrics, self._parent
            listed = self._commits.listed()
            manifest = folders.manifest_of(draft, listed, step, facts.origin, metrics, now, parent)
            place = self._commits.publish(draft, manifest)
        except BaseException:
            draft.abandon()
            raise
        self._step, self._parent = step, manifest
        took_s = round(self.clock.monotonic() - began, 6)
        self._shared.take(facts.store / manifest.name, stats, manifest.files)
        self._report(
            records.CheckpointRecord(
                path=place,
                name=manifest.name,
                step=step,
                epoch=0,
                position=0,
                commit=manifest.commit,
                bytes=manifest.size_bytes,
                why=folders.WHY,
                metrics=dict(told.metrics),
                save_s=took_s,
            )
        )
        self._commits.committed(manifest, took_s)
        return True

    def _restore(self) -> None:
        """Restore the folder, once in each generation: nodes may share it, and ranks may write already."""
        facts, began = self.facts, self.clock.monotonic()
        if not self._commits.ready(self._over.wait):
            return  # the generation is over
        if facts.lock is None:
            told = self._restore_newest()
        else:
            with restore_lock.turn(facts.lock, facts.generation, self._over.wait) as mine:
                if mine is None:
                    return  # the generation is over
                told = mine.told or self._restore_newest()
                if told is not None and mine.told is None:
                    mine.tell(told)
        if told is None:
            return  # the generation is over
        own = None if told.path is None or told.foreign else Path(told.path).name
        self._commits.chosen(own, self._over.wait)
        self._known, self._step, self._restored_step = told.stats, told.step, told.step
        if told.path is not None and facts.commits:
            parent = checkpoint.read_manifest(Path(told.path))
            begun = facts.origin.beginning if told.foreign else parent.beginning
            self._parent = replace(parent, beginning=begun)
        if facts.commits:
            self._commits.tier.committed()  # what the last start did not get to copy
        else:
            self._commits.tier.leave()
        for path, why in told.bad:
            self._set_aside(Path(path), why)
        if told.path is not None and facts.commits:
            self._report(
                records.RestoredRecord(
                    path=told.path if told.foreign else self._commits.place_of(told.path),
                    name=Path(told.path).name,
                    step=told.step,
                    epoch=0,
                    position=0,
                    exact=False,
                    why="the script restores its own state",
                    restore_s=round(self.clock.monotonic() - began, 6),
                )
            )

    def _restore_newest(self) -> RestoreResult | None:
        """Restore the newest checkpoint that verifies, here or in the object store, if there is one.

        What the job has committed and cannot be read is waited for; None: the generation ended meanwhile.
        Raises CheckpointMissing, OSError.
        """
        facts, search = self.facts, self._commits.search()
        while True:
            decision = search.next(self.clock.monotonic())
            if decision.action is StartAction.WAIT:
                if self._over.wait(search.pause_s):
                    return None
                continue
            bad = [] if facts.commits else search.bad
            if decision.action is not StartAction.RESUME and self.begins is not None:
                return _begin(self.begins, facts.folder, bad)
            if decision.action is not StartAction.RESUME:
                return RestoreResult(None, 0, folders.look(facts.folder), bad)
            path = facts.store / decision.order[0].name
            try:
                manifest = checkpoint.verify(path)
                folders.put_back(path, manifest, facts.folder)
            except (CheckpointNotFound, CheckpointUnavailable) as error:
                search.could_not_read(path.name, error.message)
            except CheckpointCorrupt as error:
                search.reject_copy(path, error.message)
            except OSError as error:
                if not str(error.filename).startswith(f"{facts.store}/"):
                    raise
                search.could_not_read(path.name, str(error))
            else:
                return RestoreResult(str(path), manifest.step, folders.look(facts.folder), bad)

    def _set_aside(self, path: Path, why: str) -> None:
        if self.facts.commits and path.is_dir():
            moved = checkpoint.quarantine(path, random_hex(8))
            self._report(records.QuarantinedRecord(path=str(path), moved_to=str(moved), why=why))

    def _report(self, record: Record) -> None:
        at = self.clock.now()
        self.outside(lambda: self.report(at, record))

    def _complain(self, message: str) -> None:
        if message not in self._complained:
            self._complained.add(message)
            self._report(records.WarningRecord(message))


def _begin(staged: StagedCheckpoint, folder: Path, bad: list[tuple[str, str]]) -> RestoreResult:
    """Restore the folder of another job. Raises UserError, CheckpointCorrupt, OSError."""
    if staged.why != folders.WHY:
        raise UserError(
            f"resume_from: {staged.path} is a checkpoint of phalanx.train and no copy of a folder",
            "leave out checkpoint.directory, or name a checkpoint of a job that has one",
        )
    folders.put_back(staged.path, checkpoint.read_manifest(staged.path), folder)
    return RestoreResult(str(staged.path), staged.step, folders.look(folder), bad, foreign=True)


def _long_lived_pids() -> tuple[int, ...]:
    """Processes below this one that have run for a while; those of MPI are among them."""
    now_s = float(Path("/proc/uptime").read_text().split()[0])
    ticks = os.sysconf("SC_CLK_TCK")
    return tuple(
        one.pid
        for one in linux.below(os.getpid())
        if not one.gone and now_s - one.start_ticks / ticks > LONG_LIVED_S
    )


def _writers(folder: Path) -> Iterator[Path]:
    """Files of the folder that a process below this one has open for writing, journals apart."""
    for one in linux.below(os.getpid()):
        try:
            handles = os.listdir(f"/proc/{one.pid}/fd")
        except OSError:
            continue
        for handle in handles:
            try:
                path = Path(os.readlink(f"/proc/{one.pid}/fd/{handle}"))
                if path.is_relative_to(folder) and not _is_journal(path):
                    info = Path(f"/proc/{one.pid}/fdinfo/{handle}").read_text()
                    if int(info.split("flags:")[1].split()[0], 8) & os.O_ACCMODE:
                        yield path
            except (OSError, ValueError, IndexError):
                continue


def _is_journal(path: Path) -> bool:
    return path.suffix in _JOURNALS or path.name.startswith(_JOURNAL_STEM)
