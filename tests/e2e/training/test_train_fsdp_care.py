"""Precision, clipping, guards and accumulation on sharded parameters: equal to replicas, and exact."""

import json
import random

import pytest

from e2e.training.gang import HERE
from e2e.training.test_train_care import ended, memory

pytestmark = pytest.mark.e2e

FLAT = ("--epochs", "1", "--norm", "layer", "--dropout", "0")
BATCH = ("--epochs", "1", "--dropout", "0")
TOKENS = ("--backward", "tokens")
SCALED = ("--backward", "run")
# What to compute, the script's arguments, and how close to replicas its losses must stay: Adam makes
# visible steps of weights whose gradient is all rounding, such as biases before a batch norm.
CELLS = {
    "clip": ({"clip": 0.5}, FLAT, 1e-4),
    "guard": ({"on_non_finite": "skip"}, (*FLAT, "--poison", "17"), 1e-4),
    "norm": ({"sync_batchnorm": True}, BATCH, 1e-3),
    "tokens": ({}, (*FLAT, *TOKENS), 1e-4),
    "recomputed": ({"activation_checkpointing": True, "clip": 1.0}, FLAT, 1e-4),
    "bf16": ({"precision": "bf16", "sync_batchnorm": True, "clip": 1.0}, BATCH, 2e-2),
    "fp16": ({"precision": "fp16", "clip": 1.0}, (*FLAT, *SCALED), 2e-2),
    "all": (
        {
            "precision": "bf16",
            "clip": 1.0,
            "on_non_finite": "skip",
            "sync_batchnorm": True,
            "activation_checkpointing": ["Block"],
            "max_micro_batch": 3,
        },
        (*BATCH, *TOKENS),
        2e-2,
    ),
}


@pytest.fixture
def care(gang):
    """A function that makes jobs of `care_job.py`."""

    def make(init, *args, name, **options):
        job = gang("--init", json.dumps(init), *args, name=name, **options)
        job.script = HERE / "care_job.py"
        return job

    return make


def shards_equal_replicas_and_resume(care, cell, accumulate, kills):
    init, args, close = CELLS[cell]
    init = {**init, "accumulate": accumulate}
    replicas = care(init, *args, name="replicas").start().finish().result
    init = {**init, "strategy": "fsdp"}
    whole = care(init, *args, name="whole").start().finish()
    assert whole.result["step"] == replicas["step"]
    if init.get("precision") != "fp16" or accumulate == 1:
        # Weights of micro-batches enter shards before the backward pass: other steps overflow.
        near = pytest.approx(replicas["losses"], rel=close, nan_ok=True)
        assert whole.result["losses"] == near
        assert whole.result["scale"] == replicas["scale"]
    job = care(init, *args, name="killed", every="2 steps").start()
    for step in kills:
        job.wait_for_step(step)
        job.kill(random.Random(step).randrange(job.world))
        job.start()
    job.finish()
    assert job.records(kind="restored")[0]["exact"] is True
    same = ("digest", "step", "lr", "scale")
    assert {key: job.result[key] for key in same} == {key: whole.result[key] for key in same}
    return whole


@pytest.mark.extras
@pytest.mark.parametrize(("cell", "accumulate"), [("all", 3)])
def test_sharded_training_equals_replicas_and_resumes_exactly(care, cell, accumulate):
    shards_equal_replicas_and_resume(care, cell, accumulate, (4,))


@pytest.mark.proof
@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("cell", CELLS)
def test_matrix_of_sharded_cells(care, cell, accumulate):
    whole = shards_equal_replicas_and_resume(care, cell, accumulate, (2, 4))
    if cell == "guard":
        (found,) = whole.records(kind="guard")
        assert (found["origin"], found["action"]) == ("data", "skip")


@pytest.mark.proof
def test_one_step_left_out_is_not_that_close(care):
    """The control of the matrix: its tolerances see a difference of one step."""
    init = {"precision": "bf16", "strategy": "fsdp"}
    whole = care(init, *FLAT, name="whole").start().finish()
    other = care(init, *FLAT, "--leave-out", "3", name="other").start().finish()
    near = pytest.approx(whole.result["losses"][3:11], rel=2e-2)
    assert other.result["losses"][2:10] != near


@pytest.mark.proof
def test_without_the_guard_shards_are_lost_too(care):
    init = {"strategy": "fsdp"}
    job = care(init, *FLAT, "--poison", "17", name="off").start().finish()
    assert str(job.result["losses"][-1]) == "nan"


@pytest.mark.proof
def test_a_spike_on_shards_is_rolled_back(care):
    init = {"strategy": "fsdp", "on_spike": "rollback"}
    args = ("--epochs", "3", "--norm", "layer", "--spike", "7")
    job = care(init, *args, name="spike", every="2 steps").start()
    ended(job)
    job.start()
    while not memory(job)["skips"]:
        ended(job)
        job.start()
    job.finish()
    (skip,) = memory(job)["skips"]
    left = ("--epochs", "3", "--norm", "layer", "--leave-out", str(skip["step"]))
    left_out = care({"strategy": "fsdp"}, *left, name="left").start().finish()
    assert job.result["digest"] == left_out.result["digest"]
