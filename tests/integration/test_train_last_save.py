"""The end of whole runs: a last save that fails, and epochs that were all done before a kill."""

import errno

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
    said = [one["message"] for one in written(report) if one["k"] == "warn"]
    assert any("j-1 (database 77777777, job 11111111)" in one for one in said), said
    assert left < {one.name for one in folder.iterdir()}
    assert train(folder, **keep, PHALANX_JOB_UID=ours)[0] == 0  # its own
    # With consent, and in runs outside the platform, any checkpoint of the folder is taken.
    other = f"{'9' * 32}-{'3' * 16}"
    assert train(folder, **keep, PHALANX_JOB_UID=other, PHALANX_CHECKPOINT_CONTINUE="1")[0] == 0
    assert train(folder)[0] == 0
