"""Sharded saves in the background: exact, found again under any number of ranks and any strategy."""

import itertools
import json
import random

import pytest

from phalanx import checkpoint

pytestmark = pytest.mark.e2e

DDP, FSDP = {}, {"PHALANX_STRATEGY": "fsdp"}
SYNC = {"PHALANX_CHECKPOINT_ASYNC": "0"}


def strategy(name):
    return dict(FSDP if name == "fsdp" else DDP)


def trained(gang, *args, name="whole", **options):
    return gang(*args, name=name, every="1000 steps", **options).start().finish()


def wait_for_checkpoint(job, step):
    def there():
        return [one for one in job.records(kind="checkpoint") if one["step"] >= step]

    return job.wait_for(there, f"a checkpoint of step {step}")


def loaded(job):
    lines = (job.root / "out.loaded").read_text().splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize(
    ("name", "compress"),
    [("ddp", "none"), pytest.param("fsdp", "zstd", marks=pytest.mark.extras)],
)
def test_killed_between_and_in_saves_the_weights_are_bit_identical(gang, name, compress):
    extra = {**strategy(name), "PHALANX_CHECKPOINT_COMPRESS": compress}
    whole = trained(gang, extra=extra)
    job = gang(every="4 steps", extra=extra).start()
    for step in (4, 16):
        wait_for_checkpoint(job, step)
        job.kill(1)
        job.start()
    job.finish()
    assert job.records(kind="restored")[0]["exact"] is True
    assert job.result["digest"] == whole.result["digest"]
    newest = checkpoint.newest_valid(job.store)
    assert [entry.path for entry in newest.manifest.files] == [
        f"shard-{rank:05d}/state.tensors" for rank in range(3)
    ]
    sizes = [entry.size_bytes for entry in newest.manifest.files]
    assert max(sizes) < 0.6 * sum(sizes)
    assert newest.manifest.strategy == name


@pytest.mark.proof
@pytest.mark.parametrize(
    ("name", "world", "accumulate", "workers", "precision", "saves"),
    list(itertools.product(("ddp", "fsdp"), (3, 4), (1, 3), (0, 2), ("fp32", "bf16"), ("1", "0"))),
)
def test_matrix_of_random_kills(gang, name, world, accumulate, workers, precision, saves):
    args = ("--accumulate", accumulate, "--workers", workers, "--precision", precision)
    args = tuple(str(one) for one in args)
    extra = {**strategy(name), "PHALANX_CHECKPOINT_ASYNC": saves}
    whole = trained(gang, *args, world=world, extra=extra)
    rng = random.Random(f"{name}{world}{args}{saves}")
    kills = sorted(rng.sample(range(1, whole.result["step"]), 3))
    job = gang(*args, world=world, every=f"{rng.randrange(1, 6)} steps", extra=extra).start()
    for step in kills:
        job.wait_for_step(step, rank=rng.randrange(world))
        job.kill(rng.randrange(world))
        job.start()
    job.finish()
    assert job.result["digest"] == whole.result["digest"]


def saved_then_moved(gang, first, second, *, steps=8):
    """Train under (strategy, world) `first`, kill, go on under `second`; returns the job."""
    (name, world), (other, later) = first, second
    job = gang(
        "--norm",
        "0",
        name=f"{name}{world}{other}{later}",
        world=world,
        reference=2,
        every=f"{steps} steps",
        extra=strategy(name),
    )
    job.start()
    wait_for_checkpoint(job, steps)
    job.kill(0)
    job.world, job.extra, job.every = later, strategy(other), "1000 steps"
    job.start().finish()
    return job


def same_state_and_curve(job, whole):
    (restored,) = job.records(kind="restored")
    was = {step: value for step, value in whole.result["losses"]}
    manifest = json.loads(next(job.store.glob(f"{restored['name']}/MANIFEST.json")).read_text())
    assert manifest["step"] == restored["step"]
    now = job.result["losses"]
    assert now and all(abs(value - was[step]) <= 1e-6 * abs(was[step]) for step, value in now)
    return restored


PLACES = [(name, world) for name in ("ddp", "fsdp") for world in (1, 2, 3, 4)]
PAIRS = [
    (("fsdp", 3), ("ddp", 2)),
    pytest.param(("ddp", 2), ("fsdp", 4), marks=pytest.mark.extras),
]


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_saved_under_one_strategy_and_size_and_loaded_under_another(gang, first, second):
    whole = trained(gang, "--norm", "0", world=2)
    job = saved_then_moved(gang, first, second)
    same_state_and_curve(job, whole)
    assert loaded(job)[-1]["digest"] == saved_digest(gang, job, first)


def saved_digest(gang, job, first):
    """What the ranks that saved it see when they load it again themselves."""
    name = job.records(kind="restored")[0]["name"]
    again = gang(
        "--norm",
        "0",
        "--epochs",
        "0",
        name=f"again-{job.root.name}",
        world=first[1],
        reference=2,
        extra=strategy(first[0]),
    )
    again.store.mkdir()
    (job.store / name).rename(again.store / name)
    again.start().finish()
    return loaded(again)[-1]["digest"]


@pytest.mark.proof
@pytest.mark.parametrize("first", PLACES)
def test_matrix_of_saving_and_loading(gang, first):
    whole = trained(gang, "--norm", "0", world=2)
    for second in PLACES:
        job = saved_then_moved(gang, first, second)
        same_state_and_curve(job, whole)
        assert loaded(job)[-1]["digest"] == saved_digest(gang, job, first)


def test_with_every_shard_put_at_the_beginning_loading_would_fail(gang):
    """The negative control of resharding: parts without their places do not add up."""
    job = gang("--norm", "0", "--break-cure", "offsets", world=2, every="8 steps", extra=FSDP)
    job.start().finish()
    assert job.start().wait() != [0, 0]
    assert "parts of a tensor are missing or overlap" in job.output()
