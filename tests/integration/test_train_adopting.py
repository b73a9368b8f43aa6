"""A job that begins with a checkpoint of another one."""

import os
import shutil
from dataclasses import replace

import pytest

from integration.thread_gang import ThreadGang
from phalanx import checkpoint
from phalanx.core.contract.trial import ForkSource
from phalanx.core.training.checkpoints import lineages
from phalanx.errors import CheckpointMissing, UserError
from phalanx.train.gang.context import RankInfo
from phalanx.train.state import warm_start

pytestmark = pytest.mark.integration


@pytest.fixture
def theirs(tmp_path):
    """Another job's folder, with two checkpoints."""
    gang = ThreadGang(tmp_path / "j-1", 2, lambda rank: checkpoint.Disk())
    for step in (1, 2):
        gang.set(step)
        gang.save(step)
        assert all(gang.wait())
    return tmp_path / "j-1"


@pytest.fixture
def info(tmp_path):
    return RankInfo(checkpoint_dir=tmp_path / "j-2")


def refuses(*args):
    raise OSError("no links on this disk")


def adopt(where, info):
    warm_start.adopt(where, info, checkpoint.Disk())
    return checkpoint.list_checkpoints(info.checkpoint_dir)


@pytest.mark.parametrize("linked", [True, False])
def test_the_newest_of_a_job_is_the_first_of_another(theirs, info, monkeypatch, linked):
    if not linked:
        monkeypatch.setattr(os, "link", refuses)
    (one,) = adopt("j-1", info)  # beside ours
    assert one.manifest.step == 2 and checkpoint.verify(one.path) == one.manifest
    assert (one.manifest.attempt, one.manifest.parent) == (0, None)
    files = [path for path in one.path.rglob("*.tensors")]
    assert files and all((path.stat().st_nlink > 1) is linked for path in files)
    # Whatever this job commits is newer, even where that one was in its third attempt.
    own = replace(one.manifest, name="step-00000003-0000000a", attempt=1, commit=0)
    assert lineages({one.manifest.name: one.manifest, own.name: own})[0] is own


def test_own_checkpoints_stand_over_it_and_other_ranks_leave_it_alone(theirs, info):
    warm_start.adopt(theirs, replace(info, rank=1, world_size=2), checkpoint.Disk())
    assert not info.checkpoint_dir.exists()
    older = min(checkpoint.list_checkpoints(theirs), key=lambda one: one.manifest.step)
    assert [one.manifest.step for one in adopt(older.path, info)] == [1]
    assert [one.manifest.step for one in adopt(theirs, info)] == [1]


def test_what_is_cut_off_half_way_is_made_again(theirs, info, monkeypatch):
    def broken(*args):
        raise OSError("the disk is full")

    with monkeypatch.context() as inside:
        inside.setattr(checkpoint.CheckpointWriter, "commit", broken)
        with pytest.raises(OSError, match="full"):
            adopt(theirs, info)
    assert len(adopt(theirs, info)) == 1


def test_nothing_begins_anew_in_silence(theirs, info, tmp_path):
    with pytest.raises(UserError, match=r"resume_from: .*away: there is no committed checkpoint"):
        adopt(tmp_path / "away", info)
    (one, *_) = checkpoint.list_checkpoints(theirs)
    file = next(one.path.rglob("*.tensors"))
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(UserError, match=r"resume_from: .*bytes"):
        adopt(theirs, info)
    assert not checkpoint.list_checkpoints(info.checkpoint_dir)
    with pytest.raises(UserError, match="needs a folder"):
        warm_start.adopt(theirs, RankInfo(), checkpoint.Disk())


def test_a_fork_fetches_the_checkpoint_of_a_trial_on_another_node(theirs, info, tmp_path):
    newest = max(checkpoint.list_checkpoints(theirs), key=lambda one: one.manifest.step)
    fork = ForkSource(1, str(newest.path))
    far = replace(info.checkpoint, store=f"file://{tmp_path}/far/j-2", wait_s=0.0)
    info = replace(info, checkpoint=far)
    theirs.rename(tmp_path / "lost")
    with pytest.raises(CheckpointMissing, match="j-1/step-00000002"):
        warm_start.adopt_parent(fork, info, checkpoint.Disk())
    shutil.copytree(tmp_path / "lost", tmp_path / "far" / "j-1", dirs_exist_ok=True)
    for _ in range(2):
        warm_start.adopt_parent(fork, info, checkpoint.Disk())
    (one,) = checkpoint.list_checkpoints(info.checkpoint_dir)
    assert (one.manifest.step, checkpoint.verify(one.path)) == (2, one.manifest)
    assert not list(tmp_path.glob(".fork-*"))
