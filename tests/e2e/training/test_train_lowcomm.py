"""Ranks that train on their own: killed in the middle of a round, stopped, resized."""

import itertools
import json
import random

import pytest

from e2e.training.gang import HERE

pytestmark = pytest.mark.e2e

AT_ONCE = {"PHALANX_CHECKPOINT_ASYNC": "0"}
SHORT = ("--epochs", "2")
DILOCO = {"method": "diloco", "every": 7, "fragments": 2, "quantize": "int8"}


def told(sync, **training):
    return {"PHALANX_TRAINING": json.dumps({"sync": sync, **training}), **AT_ONCE}


def survives(gang, args, extra, kills, world=3, every="4 steps", seed=4):
    whole = gang(*args, name="whole", world=world, extra=extra).start().finish()
    killed = gang(*args, name="killed", world=world, every=every, extra=extra)
    rng = random.Random(seed)
    killed.start()
    for step in kills:
        killed.wait_for_step(step, rank=rng.randrange(world))
        killed.kill(rng.randrange(world))
        killed.start()
    killed.finish()
    assert killed.records(kind="restored")[0]["exact"] is True
    assert killed.result["digest"] == whole.result["digest"]
    assert killed.seen() == whole.seen()
    return whole


def test_killed_in_the_middle_of_a_round_and_resumed_bit_for_bit(gang):
    whole = survives(gang, SHORT, told(DILOCO), kills=(9, 23))
    exchanged = [(one["step"], one["fragment"]) for one in whole.records(kind="sync")]
    last = whole.result["step"]
    due = [
        (step, at)
        for step in range(1, last + 1)
        for at, off in ((0, 0), (1, 3))
        if (step - off) % 7 == 0
    ]
    assert exchanged[: len(due)] == due
    assert all(step == last for step, _ in exchanged[len(due) :])


def test_without_the_ranks_own_weights_a_resumed_run_would_differ(gang):
    """The negative control: every rank goes on from the weights of the last exchange."""
    args = (*SHORT, "--break-cure", "own-weights")
    with pytest.raises(AssertionError):
        survives(gang, args, told(DILOCO), kills=(9, 23))


@pytest.mark.proof
def test_after_a_world_change_every_sample_is_used_once(gang):
    extra = told({"method": "diloco", "every": 5})
    whole = gang(*SHORT, name="whole", extra=extra).start().finish()
    moved = gang(*SHORT, name="moved", reference=3, extra=extra)
    moved.start().wait_for_step(15)
    moved.kill(1)
    moved.world = 2
    moved.start().finish()
    assert moved.seen() == whole.seen()
    assert moved.result["step"] == whole.result["step"]


def test_a_stop_in_the_middle_of_a_round_is_agreed_on_and_saved(gang):
    extra = told({"method": "local_sgd", "every": 10, "control_every": 3})
    job = gang("--epochs", "4", every="1000 steps", extra=extra).start()
    job.wait_for_step(12)
    job.terminate(2)
    assert job.wait() == [0, 0, 0]
    stopped = [job.records(rank, kind="stopped")[0] for rank in range(3)]
    assert len({one["step"] for one in stopped}) == 1 and all(one["saved"] for one in stopped)
    whole = gang("--epochs", "4", name="whole", every="1000 steps", extra=extra).start().finish()
    job.start().finish()
    assert job.result["digest"] == whole.result["digest"]


def test_what_each_exchange_promises(gang):
    job = gang()
    job.script = HERE / "exchange_checks.py"
    job.start().finish()
    assert job.output().count("all checked") == job.world


@pytest.mark.proof
@pytest.mark.parametrize(
    ("method", "quantize", "fragments", "accumulate", "world"),
    [
        cell
        for cell in itertools.product(
            ["local_sgd", "diloco"], ["none", "int8", "int4"], [1, 3], [1, 3], [3, 4]
        )
    ],
)
def test_matrix(gang, method, quantize, fragments, accumulate, world):
    rng = random.Random(f"{method}{quantize}{fragments}{accumulate}{world}")
    sync = {"method": method, "quantize": quantize, "fragments": fragments, "every": 5}
    args = (*SHORT, "--accumulate", str(accumulate))
    kills = sorted(rng.sample(range(1, 20 if accumulate == 1 else 9), 3))
    survives(gang, args, told(sync), kills, world, f"{rng.randrange(1, 5)} steps", seed=1)


@pytest.mark.proof
@pytest.mark.parametrize(
    "training", [{"precision": "fp16"}, {"precision": "bf16"}, {"on_non_finite": "skip"}]
)
def test_with_precision_and_guards(gang, training):
    survives(gang, SHORT, told(DILOCO, **training), kills=(9, 23))


@pytest.mark.proof
@pytest.mark.parametrize(("before", "after"), [(DILOCO, "none"), ("none", DILOCO)])
def test_resumed_in_the_other_way(gang, before, after):
    whole = gang(*SHORT, name="whole").start().finish()
    flags = (*SHORT, "--print-digest")
    job = gang(*flags, name="job", extra=told(before), every="4 steps").start()
    job.wait_for_step(11)
    job.kill(1)
    job.extra = told(after)
    job.start().finish()
    assert job.seen() == whole.seen()
    digests = {line for line in job.output().splitlines() if line.startswith("digest ")}
    assert len(digests) == 1, "ranks end with different weights"


@pytest.mark.proof
def test_a_batch_that_is_not_a_number_is_skipped_by_all_ranks(gang):
    init = {"sync": {"method": "diloco", "every": 6}, "on_non_finite": "skip"}
    job = gang("--init", json.dumps(init), "--poison", "17")
    job.script = HERE / "care_job.py"
    job.start().finish()
    refused = job.records(kind="guard")
    assert refused and all(one["action"] == "skip" for one in refused)
    assert {one["origin"] for one in refused} == {"data"}
    steps = {len(job.records(rank, kind="step")) for rank in range(3)}
    assert len(steps) == 1


# -- the parameter server ----------------------------------------------------------------------------

SERVED = {"method": "server", "servers": 1, "every": 2, "outer": {"momentum": 0.5}}


def test_a_gang_with_a_server_survives_the_death_of_each_role(gang):
    """Three workers in step and a server: rank 3. Workers and server are killed in turn."""
    extra = told(SERVED)
    whole = gang(*SHORT, name="whole", world=4, extra=extra).start().finish()
    assert whole.records(rank=3, kind="step") == []
    assert whole.records(rank=3, kind="done")
    job = gang(*SHORT, name="killed", world=4, every="3 steps", extra=extra)
    for step, victim in ((8, 3), (20, 1)):
        job.start().wait_for_step(step)
        job.kill(victim)
    job.start().finish()
    assert job.records(kind="restored")[0]["exact"] is True
    assert job.result["digest"] == whole.result["digest"]
    assert job.seen() == whole.seen()


@pytest.mark.proof
@pytest.mark.parametrize("staleness", [1, 4])
def test_workers_that_do_not_wait_for_all_others(gang, staleness):
    """Not exact, but every sample once, and equal weights in the end."""
    extra = told({"method": "server", "servers": 2, "staleness": staleness})
    job = gang(*SHORT, "--print-digest", world=5, every="4 steps", extra=extra)
    for step in (9, 23):
        job.start().wait_for_step(step)
        job.kill(random.Random(step).randrange(5))
    job.start().finish()
    restored = job.records(kind="restored")[0]
    assert restored["exact"] is False and "staleness" in restored["why"]
    whole = gang(*SHORT, name="whole").start().finish()
    assert job.seen() == whole.seen()
    digests = {line for line in job.output(job.generation).splitlines() if "digest" in line}
    assert len(digests) == 1, "workers end with different weights"


@pytest.mark.proof
@pytest.mark.parametrize("told_to_stop", [0, 3])
def test_a_stop_that_only_one_rank_hears_of_reaches_all_workers(gang, told_to_stop):
    extra = told({**SERVED, "staleness": 2})
    job = gang("--epochs", "4", world=4, every="1000 steps", extra=extra).start()
    job.wait_for_step(12)
    job.terminate(told_to_stop)
    assert job.wait() == [0, 0, 0, 0]
    stopped = [job.records(rank, kind="stopped")[0] for rank in range(3)]
    assert len({one["step"] for one in stopped}) == 1 and all(one["saved"] for one in stopped)
    job.start().finish()


@pytest.mark.proof
def test_with_fewer_workers_all_go_on_from_what_the_server_held(gang):
    extra = told(SERVED)
    whole = gang(*SHORT, name="whole", world=4, extra=extra).start().finish()
    moved = gang(*SHORT, name="moved", world=4, reference=4, extra=extra)
    moved.start().wait_for_step(15)
    moved.kill(1)
    moved.world = 3
    moved.start().finish()
    assert moved.seen() == whole.seen()
