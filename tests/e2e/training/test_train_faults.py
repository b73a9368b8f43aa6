"""Stops, bad disks, bad checkpoints, failing ranks, and no platform at all."""

import json
import os

import pytest

from phalanx import checkpoint

pytestmark = pytest.mark.e2e

NO_PLATFORM = {
    key: ""
    for key in (
        "PHALANX_JOB",
        "PHALANX_CHECKPOINT_DIR",
        "PHALANX_REPORT_FILE",
        "PHALANX_CONTROL_FILE",
        "PHALANX_CHECKPOINT_EVERY",
        "PHALANX_CHECKPOINT_KEEP",
        "PHALANX_REFERENCE_WORLD",
        "PHALANX_GRACE_S",
        "TORCHELASTIC_ERROR_FILE",
    )
}


@pytest.mark.parametrize(
    "extra", [{}, {"PHALANX_CONTROL_FILE": ""}], ids=["shared page", "delayed reduction"]
)
def test_a_stop_sent_to_one_rank_saves_at_one_step_on_all_and_loses_nothing(gang, reference, extra):
    job = gang("--workers", "2", every="1000 steps", extra=extra).start()
    job.wait_for_step(12)
    job.terminate(1)
    job.finish()
    stopped = [job.records(rank, kind="stopped")[0] for rank in range(3)]
    assert len({one["step"] for one in stopped}) == 1
    assert all(one["saved"] for one in stopped)
    assert not (job.root / "out.json").exists()
    job.start().finish()
    assert job.records(kind="restored")[0]["step"] == stopped[0]["step"]
    assert job.result["digest"] == reference("--workers", "2")["digest"]
    summary = job.ledger(200, (3, 0))
    assert (summary.missed, summary.duplicated, summary.redone) == (0, 0, 0)


@pytest.mark.parametrize("told", [0, 2])
def test_a_save_that_would_not_fit_the_grace_is_not_begun(gang, told):
    job = gang(every="10 steps", extra={"PHALANX_GRACE_S": "0.1"}).start()
    job.wait_for_step(12)
    job.terminate(told)
    job.finish()
    assert [job.records(rank, kind="stopped")[0]["saved"] for rank in range(3)] == [False] * 3
    assert not [r for r in job.records(kind="checkpoint") if r["why"] == "stop"]
    assert checkpoint.newest_valid(job.store) is not None


def test_a_corrupt_checkpoint_is_set_aside_and_its_parent_taken(gang, reference):
    job = gang(every="10 steps", extra={"PHALANX_CHECKPOINT_ASYNC": "0"}).start()
    job.wait_for_step(25)
    job.kill(0)
    newest, older = checkpoint.list_checkpoints(job.store)[:2]
    shard = newest.path / newest.manifest.files[0].path
    broken = bytearray(shard.read_bytes())
    broken[len(broken) // 2] ^= 4
    shard.write_bytes(broken)
    job.start().finish()
    assert job.records(kind="restored")[0]["name"] == older.manifest.name
    (set_aside,) = job.records(kind="quarantined")
    assert "digest" in set_aside["why"] and os.path.isdir(set_aside["moved_to"])
    assert job.result["digest"] == reference()["digest"]


def test_where_nothing_can_be_saved_training_goes_on_and_says_so(gang, reference):
    # The kernel makes no folders there, not even for root.
    job = gang(every="10 steps", extra={"PHALANX_CHECKPOINT_DIR": "/sys/phalanx/checkpoints"})
    job.start().finish()
    warnings = job.records(kind="warn")
    assert len(warnings) >= 5 and "could not be saved" in warnings[0]["message"]
    assert job.result["digest"] == reference()["digest"]


def test_a_file_where_the_checkpoints_should_be_is_not_taken_for_none(gang):
    job = gang()
    job.store.write_text("a file where the directory should be")
    assert job.start().wait() == [1, 1, 1]
    assert "Not a directory" in job.output() and "CheckpointMissing" in job.output()


def test_a_normal_run_reports_everything_and_prints_nothing(gang):
    job = gang(every="10 steps", keep={"last": 2}).start().finish()
    assert job.output() == ""
    kinds = [record["k"] for record in job.records()]
    assert kinds[:3] == ["seed", "phase", "data"] and kinds[-1] == "done"
    logged = [one for one in job.records(kind="metric") if "loss" in one["values"]]
    assert kinds.count("step") == kinds.count("ledger") == len(logged) == 51
    found = checkpoint.list_checkpoints(job.store)
    assert [one.manifest.why for one in found] == ["final", "every"]
    assert [one.manifest.commit for one in found] == [6, 5]
    assert found[0].manifest.parent == found[1].manifest.name
    assert found[0].manifest.global_batch == 12
    for one in found:
        checkpoint.verify(one.path)


def test_a_script_that_raises_leaves_its_cause_and_does_not_hang(gang):
    job = gang("--raise-at", "7").start()
    job.wait_for(lambda: job.pids[1] in job.nursery.poll(), "rank 1 ends")
    assert job.nursery.ended[job.pids[1]] == 1
    message = json.loads((job.here() / "r1.error.json").read_text())["message"]
    assert message["message"] == "ValueError: this rank had enough"
    assert "job.py" in message["extraInfo"]["py_callstack"]
    job.kill()


def test_another_model_is_refused_with_what_does_not_fit(gang):
    job = gang(every="10 steps").start().finish()
    job.args = ("--width", "32")
    codes = job.start().wait()
    assert codes == [1, 1, 1]
    assert "RestoreMismatch" in job.output()
    assert "layers.0.weight has shape [32, 16], the checkpoint has [64, 16]" in job.output()


def test_under_plain_torchrun_there_are_ranks_and_no_files(gang, reference):
    job = gang(extra=NO_PLATFORM).start().finish()
    assert job.result["digest"] == reference()["digest"]
    assert job.output() == ""
    assert sorted(p.name for p in job.here().iterdir()) == ["r0.out", "r1.out", "r2.out"]
    assert not job.store.exists()


def test_outside_a_launcher_it_is_one_process(gang):
    nothing = {key: "" for key in ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE")}
    job = gang(world=1, extra={**NO_PLATFORM, **nothing}).start().finish()
    assert job.result["step"] == 150 and job.output() == ""
