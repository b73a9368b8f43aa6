"""Compressed gradients resume exactly: what a method remembers comes back by the parameter's name."""

import itertools
import json
import random

import pytest

from e2e.training.gang import HERE

pytestmark = pytest.mark.e2e

# Four buckets: the smallest that DDP makes holds one tensor.
SEVERAL = ("--epochs", "2", "--bucket-mb", "0.001")
AT_ONCE = {"PHALANX_CHECKPOINT_ASYNC": "0"}


def told(**training):
    return {"PHALANX_TRAINING": json.dumps(training)}


def survives(gang, args, extra, world, kills, seed, every="4 steps"):
    whole = gang(*args, name="whole", world=world, extra=extra).start().finish()
    killed = gang(*args, name="killed", world=world, every=every, extra={**extra, **AT_ONCE})
    rng = random.Random(seed)
    killed.start()
    for step in kills:
        killed.wait_for_step(step, rank=rng.randrange(world))
        killed.kill(rng.randrange(world))
        killed.start()
    killed.finish()
    assert killed.result["digest"] == whole.result["digest"]
    assert killed.records(kind="restored")[0]["exact"] is True
    assert whole.result["buckets"] == 4
    return whole


@pytest.mark.parametrize(
    ("method", "accumulate", "world"),
    [
        ("powersgd", 3, 3),
        pytest.param({"method": "topk", "fraction": 0.1}, 1, 3, marks=pytest.mark.extras),
        pytest.param(
            {"method": "randomk", "fraction": 0.1, "start_step": 6}, 1, 4, marks=pytest.mark.proof
        ),
        pytest.param("bf16", 1, 3, marks=pytest.mark.proof),
    ],
)
def test_killed_and_resumed_the_weights_are_bit_identical(gang, method, accumulate, world):
    args = (*SEVERAL, "--accumulate", str(accumulate))
    kills = (5, 9) if accumulate == 3 else (9, 23)
    survives(gang, args, told(compression=method), world, kills, seed=4)


@pytest.mark.proof
@pytest.mark.parametrize(
    ("method", "precision", "accumulate", "world"),
    [
        (method, precision, accumulate, world)
        for method, precision, accumulate, world in itertools.product(
            ["fp16", "bf16", "powersgd", "topk", "randomk"],
            ["fp32", "bf16", "fp16"],
            [1, 3],
            [3, 4],
        )
    ],
)
def test_matrix_of_methods(gang, method, precision, accumulate, world):
    args = ("--accumulate", str(accumulate), *SEVERAL)
    rng = random.Random(f"{method}{precision}{accumulate}{world}")
    kills = sorted(rng.sample(range(1, 20 if accumulate == 1 else 9), 3))
    extra = told(compression={"method": method, "fraction": 0.05, "rank": 2}, precision=precision)
    survives(gang, args, extra, world, kills, seed=1, every=f"{rng.randrange(1, 5)} steps")


def test_without_what_is_owed_a_resumed_run_would_differ(gang):
    """The negative control: the residuals are left out of the checkpoint."""
    args = (*SEVERAL, "--break-cure", "residuals")
    extra = told(compression="powersgd")
    with pytest.raises(AssertionError):
        survives(gang, args, extra, 3, (9, 23), seed=4)


@pytest.mark.proof
def test_at_another_world_size_every_rank_owes_its_share(gang):
    extra = {**told(compression="powersgd"), **AT_ONCE}
    whole = gang(*SEVERAL, name="whole", extra=extra).start().finish()
    moved = gang(*SEVERAL, name="moved", reference=3, extra=extra)
    moved.start().wait_for_step(15)
    moved.kill(1)
    moved.world = 2
    moved.start().finish()
    assert moved.seen() == whole.seen()
    assert moved.result["step"] == whole.result["step"]


def test_auto_decides_once_and_a_resumed_run_keeps_to_it(gang):
    extra = {**told(compression="auto"), **AT_ONCE}
    job = gang("--epochs", "12", extra=extra, every="10 steps").start()
    job.wait_for(lambda: job.records(kind="compression"), "the decision")
    decided = job.records(kind="compression")[0]
    assert decided["method"] in ("none", "bf16", "powersgd")
    assert set(decided["median_s"]) == {"none", "bf16", "powersgd"}
    # Decided, saved, and on the way again.
    job.wait_for_step(decided["step"] + 12)
    job.kill(1)
    job.start().finish()
    assert job.records(kind="compression") == []


def test_what_each_method_promises(gang):
    job = gang()
    job.script = HERE / "codec_checks.py"
    job.start().finish()
    assert job.output().count("all checked") == job.world
