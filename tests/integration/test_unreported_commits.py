"""A rank that is killed between the commit of a checkpoint and its record."""

import os
import signal

import pytest
import torch

from integration.thread_gang import ThreadGang
from phalanx import checkpoint
from phalanx.checkpoint import remote
from phalanx.checkpoint.remote_store import open_store
from phalanx.checkpoint.store_first.tier import StoreFirstTier
from phalanx.core.contract.records import CheckpointRecord
from phalanx.core.training.checkpoints import Keep
from phalanx.train.state.staging import NoStaging
from phalanx.train.state.storage import CheckpointStorage

pytestmark = pytest.mark.integration
KEEP = Keep(last=2)


class Job:
    """A job of one rank, in a folder or, with `url`, in a store."""

    def __init__(self, tmp_path, url):
        self.folder, self.url, self.tiers = tmp_path / "checkpoints", url, []

    def gang(self, generation, resume_path=None):
        storage = None
        if self.url is not None:
            order = (1, generation)
            tier = StoreFirstTier(self.url, self.folder, KEEP, lambda _k, _s: None, order)
            self.tiers.append(tier)
            storage = CheckpointStorage(tier, store_first=tier)
        place = {"attempt": 1, "generation": generation, "job": "j-1", "job_uid": "database-uid"}
        place["resume_path"] = resume_path
        disk = checkpoint.Disk()
        return ThreadGang(
            self.folder, 1, lambda _rank: disk, KEEP, NoStaging, storage=storage, **place
        )

    def killed_behind_commit(self, step):
        """Save steps 3 and 6 and `step`, and die behind the last commit."""
        gang = self.gang(0)
        report = gang.reports[0]
        written = report.write

        def write(record):
            if isinstance(record, CheckpointRecord) and record.step == step:
                os.kill(os.getpid(), signal.SIGKILL)
            written(record)

        report.write = write
        gang.open()
        for one in (3, 6, step):
            gang.set(float(one))
            gang.save(one)

    def names(self):
        if self.url is None:
            return {one.manifest.step: one.path for one in checkpoint.list_checkpoints(self.folder)}
        found = remote.look(open_store(self.url, {})).good.values()
        return {one.step: self.folder / one.name for one in found}


@pytest.fixture(params=["folder", pytest.param("store", marks=pytest.mark.extras)])
def job(request, tmp_path):
    if request.param == "store":
        pytest.importorskip("obstore")
    one = Job(tmp_path, f"file://{tmp_path}/far" if request.param == "store" else None)
    yield one
    for tier in one.tiers:
        tier.leave()


def _recorded(gang):
    return [one["step"] for one in gang.reports[0].records if one["k"] == "checkpoint"]


def test_the_next_start_takes_it_reports_it_and_keeps_it(job):
    pid = os.fork()
    if pid == 0:
        try:
            torch.set_num_threads(1)  # the parent's other threads are not here
            job.killed_behind_commit(9)
        finally:
            os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    there = job.names()
    assert 9 in there
    gang = job.gang(1, resume_path=there[6])  # the newest that the control plane knows
    assert [one.manifest.step for one in gang.open()] == [9]
    assert _recorded(gang) == [9]
    gang.save(12)
    if job.tiers:
        job.tiers[-1].finish(60.0)
    assert sorted(job.names()) == [9, 12]
    again = job.gang(2, resume_path=job.names()[12])
    assert [one.manifest.step for one in again.open()] == [12]
    assert _recorded(again) == []
