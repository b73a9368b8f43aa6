"""The last save of a run on a disk that is full, read-only or away: repeated, then said, or a failure."""

import errno
import shutil

import pytest

from phalanx.core.contract.checkpointing import CheckpointPolicy
from phalanx.core.contract.records import RemovedRecord, WarningRecord
from phalanx.core.training.checkpoints import Keep
from phalanx.kit.clock import ManualClock
from phalanx.train.gang.context import RankInfo
from phalanx.train.gang.groups import LocalChannel
from phalanx.train.state.committer import Committer, LastSave, PartWriter, SavedState
from phalanx.train.state.storage import CheckpointStorage
from support.faulty_files import FaultyFiles
from unit.checkpoint.test_catalog import checkpoint_name

pytestmark = pytest.mark.unit

WAIT_S = 600.0


class Job:
    """One rank that commits checkpoints of a step, as every framework does."""

    def __init__(self, store, keep=3):
        from phalanx import checkpoint

        self.store, self.said, self.number = store, [], 0
        self.clock, self.pauses = ManualClock(), []
        policy = CheckpointPolicy(keep=Keep(keep), wait_s=WAIT_S)
        self.info = RankInfo(checkpoint_dir=store, checkpoint=policy)
        self.disk = checkpoint.Disk()
        self.committer = Committer(store, self.info, self, self.clock, self.disk)
        self.part = PartWriter(store, 0, self.disk, CheckpointStorage())
        self.on_pause = lambda: None

    def write(self, record):
        self.said.append(record)

    def save(self, step, why="every"):
        self.number += 1
        name = checkpoint_name(step, f"{self.number:08x}")
        writer = self.committer.open(name, step, why)
        if writer is None:
            return False
        row = self.part.write(name, {"state": {}, "rng": ""}, [])
        saved = SavedState(
            step=step, why=why, began=0.0, strategy="single", mesh={}, versions={}, device="cpu"
        )
        done = self.committer.commit(writer, [row], saved)
        if not done:
            self.committer.make_room()
        return done

    def pause(self, seconds):
        self.pauses.append(seconds)
        self.clock.advance(seconds)
        self.on_pause()

    def last(self, step):
        one = LastSave(self.committer, self.info, LocalChannel(), self, self.clock, self.pause)
        return one.insist(lambda: self.save(step, "final"), step)

    def steps(self):
        from phalanx import checkpoint

        return sorted(one.manifest.step for one in checkpoint.list_checkpoints(self.store))

    def warnings(self):
        return [one.message for one in self.said if isinstance(one, WarningRecord)]


@pytest.fixture
def job(tmp_path):
    made = Job(tmp_path / "j-1")
    for step in (3, 6, 9):
        assert made.save(step)
    return made


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EIO])
def test_a_disk_that_recovers_in_time_gets_the_last_checkpoint(job, monkeypatch, number):
    faults = FaultyFiles(job.store, monkeypatch)
    faults.writing = number
    job.on_pause = lambda: faults.heal() if len(job.pauses) == 5 else None
    assert job.last(45) == ""
    assert job.steps()[-1] == 45
    assert job.pauses == [1.0, 2.0, 4.0, 8.0, 16.0]
    assert any("trying again for" in one for one in job.warnings())


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_a_disk_that_does_not_is_named_after_the_wait(job, monkeypatch, number):
    FaultyFiles(job.store, monkeypatch).writing = number
    problem = job.last(45)
    assert "step 45" in problem
    assert sum(job.pauses) == WAIT_S
    assert job.steps() == [3, 6, 9]


def test_a_full_disk_is_freed_by_retention_before_giving_up(job, monkeypatch):
    real = type(job.disk).create

    def create(disk, path):
        if len(job.steps()) > 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(disk, path)

    monkeypatch.setattr(type(job.disk), "create", create)
    assert job.last(45) == ""
    assert job.steps() == [9, 45]
    gone = [one for one in job.said if isinstance(one, RemovedRecord)]
    assert len(gone) == 2
    assert any("make room" in one for one in job.warnings())


def test_a_full_disk_never_costs_the_newest_checkpoint_or_another_line(tmp_path, monkeypatch):
    old = Job(tmp_path)
    for step in (9, 12, 14):
        old.save(step)
    new = Job(tmp_path)
    new.number = 100
    for step in (1, 2):
        new.save(step)
    monkeypatch.setattr(
        type(new.disk),
        "create",
        lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left on device")),
    )
    assert new.last(3) != ""
    assert new.steps() == [2, 9, 12, 14]


def test_a_step_that_is_saved_already_is_not_lost(job, monkeypatch):
    job.save(45)
    FaultyFiles(job.store, monkeypatch).writing = errno.EROFS
    assert job.last(45) == ""


def test_a_folder_that_went_away_is_not_made_anew_in_its_place(job):
    away = job.store.with_name("away")
    job.store.rename(away)
    assert not job.save(12)
    assert not job.store.exists()
    assert any("is its disk away?" in one for one in job.warnings())
    away.rename(job.store)
    assert job.save(15)
    shutil.rmtree(job.store)
    assert not job.save(18)
    job.clock.advance(WAIT_S)
    assert job.save(21)


def test_a_disk_that_will_not_hold_what_is_kept_is_named_early(job, monkeypatch):
    free = [10**12]
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: type("U", (), {"free": free[0]}))
    job.save(12)
    assert job.warnings() == []
    free[0] = 1
    job.save(15)
    job.save(18)
    (warning,) = job.warnings()
    assert str(job.store) in warning
    assert "free some space" in warning
