"""Tensor parallel layers, alone and inside shards or replicas: exact resume, and any layout loads any."""

import itertools
import json
import random

import pytest

from e2e.training.gang import HERE

pytestmark = pytest.mark.e2e

AT_ONCE = {"PHALANX_CHECKPOINT_ASYNC": "0"}
SAMPLES = 96


@pytest.fixture
def parallel(gang):
    def make(strategy, *args, **options):
        job = gang("--strategy", strategy, *args, **options)
        job.script = HERE / "parallel_job.py"
        return job

    return make


def result_of(job):
    """All ranks' results in one: every rank has the tensors that it holds."""
    rows = [json.loads((job.root / f"out.r{rank}.json").read_text()) for rank in range(job.world)]
    merged = {"held": max(row["held"] for row in rows), "rows": rows, "weights": {}, "digests": {}}
    for row in rows:
        for key in ("weights", "digests"):
            for name, value in row[key].items():
                assert merged[key].setdefault(name, value) == value, f"ranks differ in {name}"
    return merged


def survives(parallel, strategy, args, world, kills, epochs=2):
    args = (*args, "--epochs", str(epochs))
    whole = parallel(strategy, *args, name="whole", world=world).start().finish()
    job = parallel(strategy, *args, name="killed", world=world, every="3 steps", extra=AT_ONCE)
    rng = random.Random(2)
    job.start()
    for step in kills:
        job.wait_for_step(step, rank=rng.randrange(world))
        job.kill(rng.randrange(world))
        job.start()
    job.finish()
    assert result_of(job)["digests"] == result_of(whole)["digests"]
    assert job.records(kind="restored")[0]["exact"] is True
    summary = job.ledger(SAMPLES, (epochs, 0))
    assert (summary.missed, summary.duplicated) == (0, 0)
    return whole


def close(one, two):
    for name, values in one["weights"].items():
        assert values == pytest.approx(two["weights"][name], rel=1e-3, abs=2e-5), name


@pytest.mark.extras
@pytest.mark.parametrize(
    ("strategy", "world", "args"),
    [
        ("fsdp=2,tp=2", 4, ("--device", "meta")),
        ("tp", 4, ("--accumulate", "2", "--plan", "sequence")),
    ],
)
def test_killed_and_resumed_the_weights_are_bit_identical(parallel, strategy, world, args):
    survives(parallel, strategy, args, world, (3, 5) if "--accumulate" in args else (5, 9))


@pytest.mark.proof
@pytest.mark.parametrize(
    ("strategy", "world", "accumulate", "precision", "plan"),
    [
        (*layout, accumulate, precision, plan)
        for layout, accumulate, precision, plan in itertools.product(
            [("tp", 3), ("tp", 4), ("fsdp=2,tp=2", 4), ("dp=2,tp=2", 4), ("dp=2,fsdp=2", 4)],
            [1, 3],
            ["fp32", "bf16", "fp16"],
            ["plain", "sequence"],
        )
        if plan == "plain" or layout not in (("dp=2,fsdp=2", 4), ("tp", 3))
    ],
)
def test_matrix_of_layouts(parallel, strategy, world, accumulate, precision, plan):
    args = ("--accumulate", str(accumulate), "--precision", precision, "--plan", plan)
    # The first kill comes before anything is saved, the second after the save of step 3. Where all four
    # ranks read and accumulate, an epoch has two steps.
    survives(parallel, strategy, args, world, (2, 5), epochs=4)


@pytest.mark.extras
def test_every_layout_trains_the_same_weights_and_loads_the_others(parallel):
    args = ("--dropout", "0")
    plain = parallel("ddp", *args, name="plain", world=2).start().finish()
    grid = parallel("fsdp=2,tp=2", *args, name="grid", world=4, reference=4).start().finish()
    close(result_of(grid), result_of(plain))
    assert result_of(grid)["held"] < 0.4 * result_of(plain)["held"]
    moved = parallel("tp=2", *args, name="moved", world=2, reference=4, extra=AT_ONCE)
    moved.every = "3 steps"
    moved.start().wait_for_step(7)
    moved.kill(0)
    moved.args = ("--strategy", "fsdp", *args)
    moved.world, moved.reference = 2, 2
    moved.start().finish()
    close(result_of(moved), result_of(plain))


def test_a_plan_that_fits_nothing_is_named(parallel):
    job = parallel("tp", "--plan", "none", world=2).start()
    assert job.wait() == [1, 1]
    assert "tp_plan: is required with tp" in job.output()
