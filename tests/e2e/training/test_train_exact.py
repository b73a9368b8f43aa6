"""Bit-identical after any interruption: real ranks, real gloo groups, real kills."""

import random
import time

import pytest

pytestmark = pytest.mark.e2e

SAMPLES, EPOCHS = 200, 3
STUCK_S = 4.0
NO_SAVES = {"PHALANX_CHECKPOINT_DIR": ""}
# A save in the background may not be there yet when the kill comes.
AT_ONCE = {"PHALANX_CHECKPOINT_ASYNC": "0"}


def kill_at(job, steps, rng):
    job.start()
    for step in steps:
        job.wait_for_step(step, rank=rng.randrange(job.world))
        job.kill(rng.randrange(job.world))
        job.start()
    return job.finish()


def exactly_once(job):
    summary = job.ledger(SAMPLES, (EPOCHS, 0))
    assert (summary.missed, summary.duplicated) == (0, 0)
    return summary


@pytest.mark.parametrize(
    ("args", "world", "every", "kills"),
    [
        ((), 3, "10 steps", (2, 18, 33)),
        (("--workers", "2", "--accumulate", "3"), 3, "4 steps", (3, 9, 14)),
        pytest.param((), 4, "1 epoch", (5, 20, 30), marks=pytest.mark.extras),
    ],
)
def test_killed_at_random_moments_the_weights_are_bit_identical(
    gang, reference, args, world, every, kills
):
    job = kill_at(gang(*args, world=world, every=every), kills, random.Random(1))
    expected = reference(*args, world=world)
    assert job.result["digest"] == expected["digest"]
    assert job.result["state"] == expected["state"]
    assert job.result["lr"] == expected["lr"]
    assert job.result["tally"] == expected["tally"]
    assert job.records(kind="restored")[0]["exact"] is True
    assert exactly_once(job).redone > 0


@pytest.mark.proof
@pytest.mark.parametrize("world", [3, 4])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("pattern", ["after", "before"])
def test_matrix_of_five_random_kills(gang, reference, world, workers, accumulate, pattern):
    args = ("--workers", str(workers), "--accumulate", str(accumulate), "--pattern", pattern)
    expected = reference(*args, world=world)
    rng = random.Random(f"{world}{workers}{accumulate}{pattern}")
    kills = sorted(rng.sample(range(1, expected["step"]), 5))
    job = kill_at(gang(*args, world=world, every=f"{rng.randrange(1, 9)} steps"), kills, rng)
    assert job.result["digest"] == expected["digest"]
    exactly_once(job)


@pytest.mark.parametrize(
    "cure",
    [
        pytest.param("buckets", marks=pytest.mark.extras),
        pytest.param("sample-seeds", marks=pytest.mark.extras),
        "rng-after-fetch",
    ],
)
def test_without_this_cure_a_restart_would_show(gang, cure):
    """Negative controls: the same kill, with one cure taken out of the library."""
    args = ("--break-cure", cure, "--epochs", "2")
    whole = gang(*args, name="whole").start().finish()
    killed = kill_at(gang(*args, name="killed", extra=AT_ONCE), [15], random.Random(1))
    assert killed.result["digest"] != whole.result["digest"]
    assert killed.result["step"] == whole.result["step"]


def test_the_checkpoint_channel_never_disturbs_the_gradients(gang, reference):
    job = gang("--chatter", extra=NO_SAVES).start().finish()
    assert job.result["digest"] == reference()["digest"]


def test_on_the_gradients_group_it_would(gang):
    """The negative control: ranks take one another's messages, and fail or wait for ever."""
    args = ("--chatter", "--break-cure", "own-group", "--epochs", "40")
    job = gang(*args, extra=NO_SAVES).start()
    last, since = -1, time.monotonic()
    while not any(pid in job.nursery.poll() for pid in job.pids):
        steps = [record["step"] for record in job.records(kind="step")]
        now = time.monotonic()
        if steps and steps[-1] != last:
            last, since = steps[-1], now
        if now - since > STUCK_S:
            break
        time.sleep(0.05)
    job.kill()
    assert not (job.root / "out.json").exists()


def test_another_world_size_sees_the_same_global_batches_in_the_same_order(gang):
    whole = gang(name="whole").start().finish()
    moved = gang(name="moved", reference=3, extra=AT_ONCE)
    moved.start().wait_for_step(15)
    moved.kill(1)
    moved.world = 2
    moved.start().wait_for(lambda: moved.records(kind="checkpoint"), "a checkpoint of two ranks")
    moved.kill(0)
    moved.world = 4
    moved.start().finish()
    assert moved.seen() == whole.seen()
    restored = moved.records(kind="restored")[0]
    assert restored["exact"] is False and "world size 2 is now 4" in restored["why"]
    moved.world = 4
    exactly_once(moved)


def test_a_checkpoint_asked_for_in_mid_epoch_is_taken_up(gang, reference):
    job = gang("--ask-at", "23", every="1000 steps").start()
    job.wait_for(lambda: job.records(kind="checkpoint"), "the checkpoint")
    job.kill(2)
    job.start().finish()
    assert job.records(kind="restored")[0]["step"] == 23
    assert job.result["digest"] == reference()["digest"]
    assert job.records(0, 0, "checkpoint")[0]["why"] == "asked"
