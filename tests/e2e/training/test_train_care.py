"""Precision, batch size and guards, with real ranks: equal digests, and controls without the guard."""

import json
import random
import time

import pytest

from e2e.training.gang import HANG_GUARD_S, HERE
from phalanx.core.training.guards import GUARD_STATE_FILE

pytestmark = pytest.mark.e2e

ONE = ("--epochs", "1")
SMOOTH = (*ONE, "--norm", "layer", "--dropout", "0")
SYNC_SAVES = {"PHALANX_CHECKPOINT_ASYNC": "0"}
CELLS = {
    "bf16": ({"precision": "bf16", "clip": 0.5, "activation_checkpointing": True}, ()),
    "fp16": ({"precision": "fp16", "accumulate": 2, "clip": 1.0}, ("--backward", "tokens")),
    "norm": ({"sync_batchnorm": True, "precision": "bf16", "on_non_finite": "skip"}, ()),
    "pieces": ({"max_micro_batch": 3, "deterministic": True}, ("--norm", "layer")),
}


@pytest.fixture
def care(gang):
    """A function that makes jobs of `care_job.py`."""

    def make(*args, init=None, name="job", **options):
        job = gang("--init", json.dumps(init or {}), *args, name=name, **options)
        job.script = HERE / "care_job.py"
        return job

    return make


def ended(job):
    """Wait until a rank has failed, then end the others, as a supervisor does."""
    deadline = time.monotonic() + HANG_GUARD_S
    while not any(pid in job.nursery.poll() for pid in job.pids):
        assert time.monotonic() < deadline, f"nobody failed\n{job.output()}"
        time.sleep(0.005)
    first = [job.nursery.ended[pid] for pid in job.pids if pid in job.nursery.ended]
    job.kill()
    assert first[0] == 1, job.output()


def memory(job):
    return json.loads((job.store / GUARD_STATE_FILE).read_text())


def said(job, rank):
    path = job.here() / f"r{rank}.error.json"
    return json.loads(path.read_text())["message"]["message"] if path.exists() else ""


def resumed(care, cell, world, kills):
    init, args = CELLS[cell]
    whole = care(*args, init=init, name="whole", world=world).start().finish()
    job = care(*args, init=init, name="killed", world=world, every="3 steps").start()
    for step in kills:
        job.wait_for_step(step)
        job.kill(random.Random(step).randrange(world))
        job.start()
    job.finish()
    assert job.records(kind="restored")[0]["exact"] is True
    same = ("digest", "step", "lr", "scale")
    assert {key: job.result[key] for key in same} == {key: whole.result[key] for key in same}
    return whole


@pytest.mark.parametrize(
    ("cell", "world"), [("fp16", 3), pytest.param("norm", 4, marks=pytest.mark.extras)]
)
def test_a_resume_is_bit_identical_with(care, cell, world):
    whole = resumed(care, cell, world, (5, 11))
    if cell == "fp16":
        assert whole.result["scale"]["scale"] < 65536.0


@pytest.mark.proof
@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("world", [3, 4])
def test_matrix_of_random_kills(care, cell, world):
    rng = random.Random(f"{cell}{world}")
    resumed(care, cell, world, sorted(rng.sample(range(1, 13), 5)))


def test_fp16_without_the_scaled_backward_is_refused_in_words(care):
    job = care(*ONE, init={"precision": "fp16"}, world=1).start()
    assert job.wait() == [1]
    assert "run.backward(loss)" in said(job, 0)


def test_recomputed_activations_change_no_bit(care):
    plain = care(*ONE, name="plain").start().finish()
    again = care(*ONE, init={"activation_checkpointing": ["Block"]}, name="again").start().finish()
    assert again.result["digest"] == plain.result["digest"]


def test_pieces_accumulation_tokens_and_world_sizes_come_to_the_same_gradients(care):
    """One global batch, cut in every way there is: the weights agree to rounding."""
    plain = care(*SMOOTH, name="plain").start().finish()
    cuts = [
        {"init": {"max_micro_batch": 1}, "world": 3},
        {"init": {"max_micro_batch": 5}, "world": 1, "reference": 3},
        {"init": {"on_resize": "keep_batch"}, "world": 4, "reference": 3, "extra_args": "tokens"},
    ]
    for at, options in enumerate(cuts):
        args = ("--backward", options.pop("extra_args", "own"))
        job = care(*SMOOTH, *args, name=f"cut{at}", **options).start().finish()
        assert job.result["step"] == plain.result["step"]
        assert job.result["weights"] == pytest.approx(plain.result["weights"], rel=1e-4)
    wrong = care(*SMOOTH, "--backward", "sum", name="wrong", world=1, reference=3).start().finish()
    assert wrong.result["weights"] != pytest.approx(plain.result["weights"], rel=1e-4)


def test_where_the_batch_follows_the_world_the_rate_follows_the_batch(care):
    args, init = SMOOTH, {"on_resize": "scale_batch", "warmup_steps": 4}
    job = care(*args, init=init, world=2, reference=4, every="100 steps").start().finish()
    assert job.result["step"] == 25
    assert job.result["rates"][:5] == pytest.approx([1.0, 0.875, 0.75, 0.625, 0.5])
    kept = care(*args, name="kept", world=2, reference=4).start().finish()
    assert kept.result["step"] == 13 and set(kept.result["rates"]) == {1.0}


# -- the guard -------------------------------------------------------------------------------------


@pytest.mark.parametrize("extra", [{}, {"PHALANX_CONTROL_FILE": ""}], ids=["page", "reduction"])
def test_a_poisoned_batch_is_skipped_as_if_it_had_never_been(care, extra):
    args = (*ONE, "--poison", "17")
    job = care(*args, init={"on_non_finite": "skip"}, extra=extra).start().finish()
    (found,) = job.records(kind="guard")
    assert found["origin"] == "data" and found["action"] == "skip"
    assert len(found["ranks"]) == 1  # whose batch it was
    left_out = care(*ONE, "--leave-out", str(found["step"]), name="left").start().finish()
    assert job.result["digest"] == left_out.result["digest"]
    assert job.result["lr"] == left_out.result["lr"]
    assert "data or model" in job.records(kind="warn")[0]["message"]
    summary = job.ledger(200, (1, 0))
    assert (summary.missed, summary.duplicated) == (0, 0)


def test_without_the_guard_one_poisoned_sample_is_the_end(care):
    job = care(*ONE, "--poison", "17").start().finish()
    assert str(job.result["losses"][-1]) == "nan" and not job.records(kind="guard")


def test_a_fault_that_does_not_come_again_is_the_machines_and_costs_nothing(care):
    init = {"on_non_finite": "skip"}
    plain = care(*ONE, init=init, name="plain").start().finish()
    job = care(*ONE, "--glitch-at", "7", init=init).start().finish()
    (found,) = job.records(kind="guard")
    assert (found["step"], found["origin"], found["action"]) == (7, "hardware", "applied")
    assert found["ranks"] == [1]
    assert "hardware, rank 1" in job.records(kind="warn")[0]["message"]
    assert job.result["digest"] == plain.result["digest"]
    assert job.result["calls"] == plain.result["calls"] + 1


def test_rolling_back_skips_the_batch_in_the_next_generation(care):
    init = {"on_non_finite": "rollback", "accumulate": 2}
    job = care(*ONE, "--poison", "17", init=init, every="2 steps").start()
    ended(job)
    assert said(job, 0).startswith("Diverged: ")
    (skip,) = memory(job)["skips"]
    job.start().finish()
    assert not job.records(kind="guard")
    skipped = care(*ONE, "--poison", "17", init={**init, "on_non_finite": "skip"}, name="skipped")
    skipped.start().finish()
    assert skipped.records(kind="guard")[0]["step"] == skip["step"]
    assert job.result["digest"] == skipped.result["digest"]


@pytest.mark.proof
def test_wrong_bits_that_change_are_the_machines_and_the_batch_is_not_passed_over(care):
    init = {"on_non_finite": "rollback"}
    plain = care(*ONE, init=init, name="plain").start().finish()
    job = care(*ONE, "--glitch-at", "7", "--glitches", "2", init=init, every="2 steps").start()
    ended(job)
    (found,) = job.records(kind="guard")
    assert (found["origin"], found["ranks"]) == ("hardware", [1])
    assert "computes this batch again" in said(job, 0)
    job.start().finish()
    assert not (job.store / GUARD_STATE_FILE).exists()
    assert job.result["digest"] == plain.result["digest"]


@pytest.mark.proof
def test_a_jump_that_does_not_come_again_is_the_machines_and_nothing_is_passed_over(care):
    args = ("--epochs", "3")
    init = {"on_spike": "rollback"}
    job = care(*args, "--jump-at", "40", init=init, every="2 steps", extra=SYNC_SAVES).start()
    ended(job)
    assert "computes the step again" in said(job, 0)
    assert memory(job)["suspect"]["step"] == 40 and not memory(job)["skips"]
    job.start().finish()
    (found,) = job.records(kind="guard")
    assert (found["step"], found["what"], found["origin"]) == (40, "spike", "hardware")
    assert (found["ranks"], found["action"]) == ([1], "applied")
    assert memory(job)["suspect"] is None and not memory(job)["skips"]
    plain = care(*args, init=init, name="plain").start().finish()
    assert job.result["digest"] == plain.result["digest"]
    # The control: without the guard the wrong step is trained on.
    off = care(*args, "--jump-at", "40", name="off").start().finish()
    assert off.result["digest"] != plain.result["digest"]


@pytest.mark.extras
def test_a_loss_that_jumps_again_is_passed_over_and_its_checkpoints_set_aside(care):
    args = ("--epochs", "3", "--spike", "7")
    init = {"on_spike": "rollback"}
    job = care(*args, init=init, every="2 steps", extra=SYNC_SAVES).start()
    ended(job)
    assert "the loss jumped" in said(job, 0)
    ended(job.start())
    (found,) = job.records(kind="guard")
    assert (found["what"], found["origin"], found["action"]) == ("spike", "data", "rollback")
    assert len(found["ranks"]) == 1
    job.start().finish()
    (skip,) = memory(job)["skips"]
    assert skip["step"] > 34 and memory(job)["undo"] is None
    assert job.records(kind="restored")[0]["step"] == (skip["step"] - 1) // 2 * 2
    assert {record["why"] for record in job.records(kind="quarantined")} == {
        f"the checkpoint holds step {skip['step']}, which was rolled back"
    }
    left_out = care("--epochs", "3", "--leave-out", str(skip["step"]), name="left").start().finish()
    assert job.result["digest"] == left_out.result["digest"]
    # The control: without the guard the jump is trained on.
    off = care(*args, name="off").start().finish()
    assert off.result["digest"] != left_out.result["digest"]


def test_stopping_for_good_names_the_step_and_leaves_the_last_checkpoint(care):
    job = care(*ONE, "--poison", "17", init={"on_non_finite": "stop"}, every="5 steps").start()
    ended(job)
    assert "DivergedForGood: step " in said(job, 0) and not (job.store / GUARD_STATE_FILE).exists()


# -- memory ----------------------------------------------------------------------------------------


def test_out_of_memory_on_one_rank_halves_the_micro_batch_of_all(care):
    """A real limit on one rank: 12 samples of 64 MB each do not fit, 6 do."""
    args = (*SMOOTH, "--batch-size", "12", "--memory-at", "4")
    options = {"every": "2 steps", "extra": SYNC_SAVES}
    job = care(*args, "--memory-mb", "576", **options).start()
    ended(job)
    assert "can't allocate memory" in said(job, 1)
    assert memory(job)["halvings"] == 1
    job.start().finish()
    assert job.records(kind="restored")[0]["step"] == 2
    switched = care(*args, "--raise-at", "4", name="switched", **options).start()
    ended(switched)
    switched.args = ("--init", "{}", *args)
    switched.extra = {**SYNC_SAVES, "PHALANX_TRAINING": json.dumps({"max_micro_batch": 6})}
    switched.start().finish()
    assert switched.records(kind="restored")[0]["step"] == 2
    assert job.result["digest"] == switched.result["digest"]
    # The control: without the memory of it, the next generation would fail in the same place.
    (job.store / GUARD_STATE_FILE).unlink()
    again = care(*args, "--memory-mb", "576", name="again", extra={"PHALANX_CHECKPOINT_DIR": ""})
    ended(again.start())
    ended(again.start())
    assert "can't allocate memory" in said(again, 1)


# -- watching --------------------------------------------------------------------------------------


def test_a_rank_that_computes_slowly_is_named(care):
    args = (*SMOOTH, "--samples", "120", "--slow-ms", "150")
    job = care(*args, init={"straggler_window": 3}).start().finish()
    rows = job.records(kind="stragglers")
    # A machine that is busy with other work can slow another rank as well; never more than this one.
    assert len(rows) == 3 and 2 in rows[-1]["ranks"]
    assert rows[-1]["scores"][2] == min(rows[-1]["scores"]) < 0.75
    assert any("rank 2" in one["message"] for one in job.records(kind="warn"))
