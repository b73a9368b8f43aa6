"""The end of whole runs: a last save that fails, and epochs that were all done before a kill."""

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from phalanx.core.contract import records
from phalanx.errors import CheckpointMissing, FinalCheckpointNotSaved
from phalanx.train.settings import RunOptions
from phalanx.train.start import start
from support.faulty_files import FaultyFiles

pytestmark = pytest.mark.integration


def train(folder, report=None, epochs=2, before_the_end=lambda: None, **variables):
    environ = {
        "PHALANX_CHECKPOINT_DIR": str(folder),
        "PHALANX_CHECKPOINT_ASYNC": "0",
        "PHALANX_CHECKPOINT_WAIT": "0s",
        **({"PHALANX_REPORT_FILE": str(report)} if report else {}),
        **variables,
    }
    run = start(RunOptions(), environ=environ)
    try:
        model = nn.Linear(2, 1)
        data = DataLoader(TensorDataset(torch.ones(8, 2)), batch_size=4)
        model, opt, data = run.prepare(model, torch.optim.SGD(model.parameters(), 0.1), data)
        seen = 0
        for epoch in run.epochs(epochs):
            for (x,) in data:
                loss = model(x).mean()
                loss.backward()
                opt.step()
                opt.zero_grad()
                run.log(loss=1.0 / (1 + run.step))
                seen += 1
            if epoch == epochs - 1:
                before_the_end()
        return seen, run.metrics
    finally:
        run._close()


def written(report):
    data = report.read_bytes()
    size = records.committed_length(data)
    chunk = data[records.HEADER_BYTES : records.HEADER_BYTES + size]
    return [body for _, body in records.decode(chunk)]


def said_in(report):
    return [one["message"] for one in written(report) if one["k"] == "warn"]


def test_a_run_whose_epochs_were_all_done_still_has_its_last_metrics(tmp_path):
    seen, metrics = train(tmp_path / "c")
    assert (seen, set(metrics)) == (4, {"loss"})
    assert train(tmp_path / "c") == (0, metrics)


@pytest.mark.leaves("the file of stacks stays open until the process ends")
def test_a_last_save_that_fails_is_said_or_fails_the_run(tmp_path, monkeypatch):
    folder, report = tmp_path / "c", tmp_path / "report"
    faults = FaultyFiles(folder, monkeypatch)

    def full():
        faults.writing = errno.ENOSPC

    train(folder, report, before_the_end=full)
    done = next(one for one in written(report) if one["k"] == "done")
    assert "No space left on device" in done["unsaved"]
    faults.heal()
    with pytest.raises(FinalCheckpointNotSaved, match="No space left on device"):
        train(
            tmp_path / "c",
            before_the_end=full,
            PHALANX_CHECKPOINT_ON_FINAL_FAILURE="fail",
        )


FULL_DISK = """
import os, pathlib, threading, time
from integration.test_train_last_save import train
folder, report = pathlib.Path("c"), pathlib.Path("report")
ballast = folder / "ballast"

def fill():
    with open(ballast, "wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass
    threading.Thread(target=make_room, daemon=True).start()

def make_room():
    while b"trying again" not in report.read_bytes():
        time.sleep(0.01)
    ballast.unlink()

train(folder, report, before_the_end=fill, PHALANX_CHECKPOINT_WAIT="10m")
print(*sorted(path.name for path in folder.glob("step-*")))
"""
NAMESPACE = ["unshare", "-rm", "bash", "-c"]


@pytest.mark.extras
@pytest.mark.skipif(
    shutil.which("unshare") is None
    or subprocess.run([*NAMESPACE, "mount -t tmpfs none /mnt"], capture_output=True).returncode,
    reason="needs a mount namespace of its own: install util-linux, allow user namespaces",
)
def test_a_disk_that_is_full_gets_the_last_checkpoint_when_there_is_room_again(tmp_path):
    (tmp_path / "c").mkdir()
    (tmp_path / "full.py").write_text(FULL_DISK)
    script = f"mount -t tmpfs -o size=256k none c && exec {sys.executable} full.py"
    done = subprocess.run(
        [*NAMESPACE, script],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1].startswith("step-00000004-")
    assert any("No space left on device" in one for one in said_in(tmp_path / "report"))


def test_a_run_that_was_committed_never_begins_in_an_empty_folder(tmp_path):
    folder, away = tmp_path / "c", tmp_path / "away"
    train(folder)
    newest = max(path for path in folder.iterdir() if path.name.startswith("step-"))
    folder.rename(away)
    with pytest.raises(CheckpointMissing, match=newest.name):
        train(folder, epochs=3, PHALANX_RESUME_PATH=str(newest))
    assert not folder.exists()
    away.rename(folder)
    assert train(folder, epochs=3, PHALANX_RESUME_PATH=str(newest))[0] == 2


@pytest.mark.leaves("the file of stacks stays open until the process ends")
def test_a_job_of_another_database_with_the_same_number_takes_nothing_without_consent(tmp_path):
    folder, report = tmp_path / "j-1", tmp_path / "report"
    keep = {"PHALANX_JOB": "j-1", "PHALANX_CHECKPOINT_KEEP": '{"last": 1}'}
    theirs, ours = f"{'7' * 32}-{'1' * 16}", f"{'5' * 32}-{'2' * 16}"
    train(folder, **keep, PHALANX_JOB_UID=theirs)
    left = {one.name for one in folder.iterdir()}
    seen, _ = train(folder, report, **keep, PHALANX_JOB_UID=ours)
    assert seen == 4
    said = said_in(report)
    assert any("j-1 (database 77777777, job 11111111)" in one for one in said), said
    assert left < {one.name for one in folder.iterdir()}
    # With consent any checkpoint of the folder is taken.
    other = f"{'9' * 32}-{'3' * 16}"
    assert train(folder, **keep, PHALANX_JOB_UID=other, PHALANX_CHECKPOINT_CONTINUE="1")[0] == 0
