"""A job of one rank whose checkpoint disk goes away, fails, fills up and comes back, in virtual time.

The savers, searches, retention and uploads are the real ones; training, clock, mount and object store are
this module's. Every deletion is judged at once, from what is left on the disk.
"""

import errno
import itertools
import math
import os
import random
import shutil
from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from obstore.store import MemoryStore

from phalanx import checkpoint
from phalanx.checkpoint import remote_mirror
from phalanx.checkpoint.remote_store import ObjectStore
from phalanx.checkpoint.remote_tier import CheckpointTier, RemoteTier
from phalanx.core.contract.checkpointing import CheckpointPolicy
from phalanx.core.contract.records import (
    CheckpointRecord,
    PhaseRecord,
    QuarantinedRecord,
    RemovedRecord,
    WarningRecord,
)
from phalanx.core.training.checkpoints import (
    MANIFEST,
    Best,
    Keep,
    Position,
    is_checkpoint_name,
    line_of,
    step_of,
)
from phalanx.core.training.resumption import AWAITING
from phalanx.errors import CheckpointMissing, CheckpointUnavailable, PlatformError
from phalanx.kit.clock import ManualClock
from phalanx.train.gang.context import RankInfo
from phalanx.train.gang.groups import LocalChannel
from phalanx.train.state import saving
from phalanx.train.state.resuming import Resumption
from phalanx.train.state.saving import CheckpointDirectory, SaveRequest
from phalanx.train.state.staging import NoStaging
from phalanx.train.state.storage import CheckpointStorage
from support.faulty_files import FaultyFiles

STEPS, EVERY, STEP_S, WAIT_S = 21, 3, 10.0, 120.0
MOST_STARTS = 12
_rename = os.rename

AWAY, AWAY_EMPTY = "mount away", "mount away, empty folder in its place"
EIO, ESTALE, MANIFEST_EIO = "EIO", "ESTALE", "EIO of manifests"
READ_ONLY, FULL, STORE_DOWN = "read-only", "disk full", "object store down"
KILL, KILL_IN_SAVE, AWAY_IN_SAVE, EIO_IN_SAVE = (
    "kill",
    "kill during a save",
    "mount away during a save",
    "EIO during a save",
)
KINDS = (
    *(AWAY, AWAY_EMPTY, EIO, ESTALE, MANIFEST_EIO, READ_ONLY, FULL, STORE_DOWN),
    *(KILL, KILL_IN_SAVE, AWAY_IN_SAVE, EIO_IN_SAVE),
)
DURATIONS_S = (5.0, 20.0, 60.0, 150.0, 400.0)
SCORE = "score"
KEEPS = (
    *(Keep(1), Keep(2), Keep(3)),
    *(Keep(1, every=6), Keep(1, Best(SCORE)), Keep(2, Best(SCORE, "min", 2), every=9)),
    *(Keep(age_s=70.0), Keep(1, Best(SCORE), age_s=100.0)),
)
OWNERS = ("leaves it", "repairs", "begins anew")


class Killed(BaseException):
    """The process of the rank is gone: nothing of it runs any more."""


@dataclass(frozen=True)
class Fault:
    """From a time on, for a while.

    `at_operation` counts the operations of the disk until a fault during a save. With `kills` the process
    is killed, too, as by a node that restarts and comes up before its mount.
    """

    kind: str
    at_s: float
    lasts_s: float = 0.0
    at_operation: int = 1
    kills: bool = False


@dataclass(frozen=True)
class Sequence:
    """What happens to a job."""

    faults: tuple[Fault, ...]
    keep: Keep = Keep(2)
    far: bool = False
    owner: str = "leaves it"


def drawn(seed):
    """The sequence of a seed."""
    rng = random.Random(seed)
    faults = tuple(
        Fault(
            rng.choice(KINDS),
            float(rng.randrange(0, 240, 5)),
            rng.choice(DURATIONS_S),
            rng.randrange(1, 16),
            rng.random() < 0.5,
        )
        for _ in range(rng.randrange(1, 8))
    )
    return Sequence(faults, rng.choice(KEEPS), rng.random() < 0.5, rng.choice(OWNERS))


def trained(weights, step):
    """The weights after one more step."""
    return weights * 0.97 + torch.sin(torch.arange(4, dtype=torch.float64) + 0.37 * step)


def score(step):
    """The metric of a step, which goes up and down."""
    return round(math.sin(1.7 * step), 6)


def undisturbed():
    """The weights of a run to which nothing happens."""
    weights = torch.zeros(4, dtype=torch.float64)
    for step in range(1, STEPS + 1):
        weights = trained(weights, step)
    return weights


class Mount:
    """A disk at a path. What is written to the path while the disk is away is hidden when it is back."""

    def __init__(self, path):
        self.path, self.away = path, False
        self.kept, self.hidden = path.with_name("disk"), path.with_name("hidden")

    def go(self, empty):
        if not self.away:
            self.away = True
            _move(self.path, self.kept)
            _move(self.hidden, self.path)
            if empty:
                os.makedirs(self.path, exist_ok=True)

    def come(self):
        if self.away:
            self.away = False
            _move(self.path, self.hidden)
            _move(self.kept, self.path)

    def holds(self, name):
        """Whether a sound checkpoint of this name is on the disk or hidden below it."""
        for folder in (self.path, self.kept, self.hidden):
            if (folder / name).is_dir():
                checkpoint.verify(folder / name)
                return True
        return False


def _move(source, target):
    try:
        _rename(source, target)
    except FileNotFoundError:
        return


class Client:
    """An object store's client that can be unreachable, and tells of manifests that are deleted."""

    def __init__(self, deleted):
        self.down = False
        self._client, self._deleted = MemoryStore(), deleted

    def __getattr__(self, name):
        def call(*args, **options):
            if self.down:
                raise ConnectionError("connection refused")
            result = getattr(self._client, name)(*args, **options)
            if name == "delete" and args[0].endswith("/" + MANIFEST):
                self._deleted(args[0].partition("/")[0])
            return result

        return call


class TierHere(RemoteTier):
    """A tier whose process of its own is this one: requests are answered at once."""

    def __init__(self, local, keep, tell):
        super().__init__("memory:///far", local, keep, tell)
        self._program = remote_mirror.Program(self._opening, None, self._hear)

    def _send(self, request):
        if request["op"] != "mirror":
            self._program._answer(request)
            return
        try:
            while self._program._mirror.step():
                pass
        except Exception as error:  # as in `Program.run`: the uploads wait
            self._program._warn(str(error))

    def finish(self, limit_s):
        self._send({"op": "mirror"})


class JobDisk(checkpoint.Disk):
    """The job's disk: full at times, and told of every operation and of every deletion."""

    def __init__(self, job):
        self._job = job

    def make_dir(self, path):
        self._job.before(grows=True)
        super().make_dir(path)

    def create(self, path):
        self._job.before(grows=True)
        return super().create(path)

    def write(self, fd, data):
        self._job.before(grows=True)
        super().write(fd, data)

    def sync(self, fd):
        self._job.before()
        super().sync(fd)

    def sync_dir(self, path):
        self._job.before()
        super().sync_dir(path)

    def rename(self, source, target):
        self._job.before()
        deletes = is_checkpoint_name(source.name) and target.name == source.name + ".tmp"
        doomed = self._job.sound(source) if deletes else None
        super().rename(source, target)
        if doomed is not None:
            self._job.deleted_near(doomed)

    def remove_tree(self, path):
        try:
            self._job.before()
        except OSError:
            return  # it leaves what it cannot delete
        super().remove_tree(path)


class MountedJob:
    """One job from its submission to its end; `run` returns nothing, the attributes say what happened.

    `hands_over`: the control plane's record of the last committed checkpoint reaches the starts.
    """

    def __init__(self, root, sequence, patch, *, hands_over=True):
        self.sequence, self.hands_over = sequence, hands_over
        self.mount = Mount(root / "j-1")
        self.clock = ManualClock(0)
        self.records, self.failures = [], []
        self.wrong, self.silent = [], []
        """Good checkpoints that were deleted wrongly, and starts that left steps behind in silence."""
        self.counts = Counter()
        self.weights, self.problem, self.finished = None, "", False
        self._recorded = None
        self._attempt, self._generation, self._beginning = 1, 0, 0
        self._manifests, self._gone = {}, set()
        self._dead, self._armed, self._full = False, [], False
        self._left = sorted(sequence.faults, key=lambda one: one.at_s)
        self._active = []
        self._patch(patch)
        self.far = Client(self._deleted_far)
        store = ObjectStore(self.far, attempts=1)
        patch.setattr(remote_mirror, "open_store", lambda *_: store)
        self._files = FaultyFiles(self.mount.path, patch)

    def _patch(self, patch):
        names = itertools.count(1)
        patch.setattr(os, "fsync", lambda _fd: None)
        patch.setattr(saving, "random_hex", lambda _digits: f"{next(names):08x}")
        patch.setattr(saving, "LastSave", partial(saving.LastSave, pause=self._pause))
        patch.setattr(remote_mirror, "SystemClock", lambda: self.clock)

    # -- what happens ----------------------------------------------------------------------------

    def _pause(self, seconds):
        self.counts["pauses"] += 1
        self._advance(seconds)

    def _advance(self, seconds):
        self.clock.advance(seconds)
        now_s = self.clock.monotonic()
        while self._left and self._left[0].at_s <= now_s:
            fault = self._left.pop(0)
            self.counts[f"fault: {fault.kind}"] += 1
            in_save = fault.kind in (KILL_IN_SAVE, AWAY_IN_SAVE, EIO_IN_SAVE)
            if fault.kind == KILL or (fault.kills and not in_save):
                self._dead = True
                self.counts["kills between saves"] += 1
            if in_save:
                self._armed.append([fault.at_operation, fault])
            elif fault.kind != KILL:
                self._active.append(fault)
        self._active = [one for one in self._active if one.at_s + one.lasts_s > now_s]
        self._apply()
        if self._dead:
            raise Killed

    def _apply(self):
        kinds = {one.kind for one in self._active}
        files = self._files
        files.heal()
        if kinds & {AWAY, AWAY_EMPTY, AWAY_IN_SAVE}:
            self.mount.go(AWAY_EMPTY in kinds)
        else:
            self.mount.come()
        number = errno.ESTALE if ESTALE in kinds else errno.EIO if EIO in kinds else 0
        files.reading = files.writing = number
        if not number and MANIFEST_EIO in kinds:
            files.reading, files.only = errno.EIO, MANIFEST
        elif not number and READ_ONLY in kinds:
            files.writing = errno.EROFS
        self._full = FULL in kinds
        self.far.down = STORE_DOWN in kinds

    def clear(self):
        """End all faults that are under way."""
        self._active.clear()
        self._armed.clear()
        self._apply()

    def before(self, *, grows=False):
        """Called before every operation of the disk."""
        if self._dead:
            raise Killed
        for one in list(self._armed):
            one[0] -= 1
            if one[0] <= 0:
                self._armed.remove(one)
                self._happens(one[1])
        if grows and self._full and len(self._names()) > 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _happens(self, fault):
        if fault.kind == KILL_IN_SAVE:
            self._dead = True
            raise Killed
        if fault.kind == EIO_IN_SAVE:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        now_s = self.clock.monotonic()
        self._active.append(Fault(AWAY_IN_SAVE, now_s, fault.lasts_s))
        self._apply()

    # -- the judge -------------------------------------------------------------------------------

    def _names(self):
        try:
            return [one for one in os.listdir(self.mount.path) if is_checkpoint_name(one)]
        except OSError:
            return []

    def sound(self, path):
        """The manifest of a checkpoint of which every byte is right; None for others."""
        files = self._files
        held = files.reading, files.writing, files.only
        files.heal()
        try:
            return checkpoint.verify(path)
        except PlatformError:
            return None
        finally:
            files.reading, files.writing, files.only = held

    def deleted_near(self, doomed):
        """Judge a deletion on the disk; where it was full, one good checkpoint has to be left."""
        path = self.mount.path
        left = [found for name in self._names() if (found := self.sound(path / name))]
        self._gone.add(doomed.name)
        self.counts["deletions near"] += 1
        keep = self.sequence.keep
        # A full disk keeps but the newest, and those of `best` and `every`.
        self._judge("near", doomed, left, replace(keep, last=1, age_s=None) if self._full else keep)
        if self._full:
            self.counts["of them to make room on a full disk"] += 1

    def _deleted_far(self, name):
        listing = remote_mirror.look(ObjectStore(self.far, attempts=1))
        self.counts["deletions far"] += 1
        self._judge("far", self._manifests[name], listing.good.values(), self.sequence.keep)

    def _judge(self, where, doomed, left, keep):
        """Right if the step is left in another copy, or no rule keeps it and later steps are left.

        There are as many of those as `last` says, and one at least.
        """
        known = {**self._manifests, doomed.name: doomed, **{one.name: one for one in left}}
        line = line_of(doomed, known)
        mine = [one for one in left if line_of(one, known) == line]
        steps = {one.step for one in mine}
        later = sum(step > doomed.step for step in steps)
        if doomed.step not in steps and (
            later < (keep.last or 1) or self._rules(keep, doomed, mine)
        ):
            kept = sorted(one.name for one in left)
            self.wrong.append(f"{where}: {doomed.name} with {kept} left, keep {keep}")

    def _rules(self, keep, doomed, left):
        """Whether a rule other than `last` keeps a checkpoint."""
        if keep.every is not None and doomed.step % keep.every == 0:
            return True
        if keep.age_s is not None and doomed.created_at >= self.clock.now() - keep.age_s * 1e6:
            return True
        if keep.best is None:
            return False
        better = [one for one in left if keep.best.better(_score(one), _score(doomed))]
        return len({one.step for one in better}) < keep.best.count

    def write(self, record):
        """Take a record, as the control plane does."""
        self.records.append(record)
        if isinstance(record, CheckpointRecord):
            self._recorded = record.path
            found = self.sound(self.mount.path / record.name)
            if found is not None:
                self._manifests[record.name] = found
            self.counts["commits"] += 1
        elif record == PhaseRecord(AWAITING):
            self.counts["starts that waited"] += self._was_waiting is False
            self._was_waiting = True

    _was_waiting = False

    def said(self, text):
        """Whether a warning of this start has a text."""
        mine = self.records[self._first :]
        return any(isinstance(one, WarningRecord) and text in one.message for one in mine)

    @property
    def quarantined(self):
        return [one for one in self.records if isinstance(one, QuarantinedRecord)]

    @property
    def removed(self):
        return {Path(one.path).name for one in self.records if isinstance(one, RemovedRecord)}

    def lost(self):
        """Committed checkpoints that are neither there nor deleted by retention, after all faults."""
        return [
            name
            for name in self._manifests
            if name not in self._gone and not self.mount.holds(name)
        ]

    def committed_last(self):
        """Whether a checkpoint of the last step is sound, on a disk or in the object store.

        A process that is killed after its commit has not reported it.
        """
        far = remote_mirror.look(ObjectStore(self.far, attempts=1)).good
        mount = self.mount
        near = {
            name
            for folder in (mount.path, mount.kept, mount.hidden)
            if folder.is_dir()
            for name in os.listdir(folder)
        }
        found = [name for name in (*near, *far) if step_of(name) == STEPS]
        return any(name in far or mount.holds(name) for name in found)

    # -- the job ---------------------------------------------------------------------------------

    def run(self):
        """Start the job again after every end that was not its own, until it ends."""
        for _ in range(MOST_STARTS):
            self._dead, self._was_waiting = False, False
            self._armed.clear()
            self._first = len(self.records)
            self.counts["starts"] += 1
            try:
                self._start()
                self.finished = True
                break
            except Killed:
                self._generation += 1
                self._go_on(5.0)
            except CheckpointMissing as error:
                self.failures.append(error)
                self.counts["failures as checkpoint_missing"] += 1
                if not self._owner_goes_on():
                    break
            except CheckpointUnavailable as error:
                self.failures.append(error)
                self.counts["failures as unavailable"] += 1
                self._generation += 1
                self._go_on(30.0)
        self.clear()

    def _go_on(self, seconds):
        try:
            self._advance(seconds)
        except Killed:  # there is no process
            self._dead = False

    def _owner_goes_on(self):
        owner = self.sequence.owner
        if owner == "leaves it":
            return False
        if owner == "begins anew":
            self.counts["begun anew by the owner"] += 1
            self._recorded, self._beginning = None, self._attempt
        else:
            self.clear()
        self._attempt, self._generation = self._attempt + 1, 0
        return True

    def _start(self):
        path, keep = self.mount.path, self.sequence.keep
        handed = self._recorded if self.hands_over else None
        info = RankInfo(
            checkpoint_dir=path,
            checkpoint=CheckpointPolicy(keep=keep, wait_s=WAIT_S),
            attempt=self._attempt,
            generation=self._generation,
            beginning=self._beginning,
            resume_path=None if handed is None else Path(handed),
        )
        tier = TierHere(path, keep, self._tell) if self.sequence.far else CheckpointTier()
        saver = CheckpointDirectory(
            *(path, info, LocalChannel(), self, self.clock, JobDisk(self), NoStaging()),
            CheckpointStorage(tier),
            self._pause,
        )
        held = {"weights": torch.zeros(4, dtype=torch.float64)}
        resumption = Resumption(saver)
        resumption.ready()
        resumption.open()
        resumption.put(
            lambda one: held.update(weights=one.state["models"][0]["weights"].read().clone())
        )
        resumption.settle()
        restored = resumption.restored
        self._began(None if restored is None else restored.manifest)
        self._train(saver, held, 0 if restored is None else restored.manifest.step)

    def _tell(self, kind, said):
        if kind == "warn":
            self.write(WarningRecord(said["message"]))

    def _began(self, manifest):
        wanted = -1 if self._recorded is None else step_of(Path(self._recorded).name)
        step = -1 if manifest is None else manifest.step
        if step < wanted:
            self.counts["starts from an older checkpoint, said"] += 1
            if manifest is None or not self.said("training goes on from step"):
                self.silent.append(f"from step {step}, with {self._recorded} committed")

    def _train(self, saver, held, step):
        while step < STEPS:
            self._advance(STEP_S)
            step += 1
            self.counts["steps"] += 1
            held["weights"] = trained(held["weights"], step)
            if step % EVERY == 0 and step < STEPS:
                self._save(saver, held, step, "every")
        if self._recorded is None or saver._committer.saved_step != STEPS:
            self._save(saver, held, step, saving.FINAL)
        self.problem = saver.problem
        saver.close()
        self.weights = held["weights"]

    def _save(self, saver, held, step, why):
        state = {"models": [dict(held)], "optimizers": [], "state": {}, "tracked": {}}
        saver.save(
            lambda: state,
            SaveRequest(
                step=step, position=Position(), why=why, rng=b"", metrics={SCORE: score(step)}
            ),
        )


def _score(manifest):
    return manifest.metrics[SCORE]


def play(root, sequence, patch, **options):
    """Run a job through a sequence in a fresh folder; returns the job."""
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    job = MountedJob(root, sequence, patch, **options)
    job.run()
    return job
