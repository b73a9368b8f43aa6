"""SIGTERM at random moments: nobody hangs, all leave at one step, with one checkpoint of it."""

import random
import time
from collections import Counter

import pytest

from phalanx import checkpoint

pytestmark = pytest.mark.e2e

GRACE_S = 60.0


def stop_somewhere(gang, seed, strategy="ddp", world=3):
    """One round: where the signal lands, in which rank and when, is drawn from the seed."""
    rng = random.Random(seed)
    args = (
        "--epochs",
        "400",
        "--workers",
        str(rng.choice([0, 0, 2])),
        "--accumulate",
        str(rng.choice([1, 3])),
        "--note-signals",
    )
    extra = rng.choice([{}, {"PHALANX_CONTROL_FILE": ""}, {"PHALANX_CHECKPOINT_ASYNC": "0"}])
    extra = {**extra, "PHALANX_STRATEGY": strategy}
    job = gang(
        *args,
        name=f"stop{seed}",
        every=f"{rng.choice([1, 3, 1000])} steps",
        extra=extra,
        world=world,
    )
    job.start()
    # From here on every rank has the signal in its hands; many have not met the others yet.
    job.wait_for(lambda: all(reports(job, rank) for rank in range(job.world)), "the report files")
    if rng.random() < 0.75:
        job.wait_for_step(rng.randrange(1, 40), rank=rng.randrange(job.world))
        moment = time.perf_counter() + rng.random() * 0.02
        while time.perf_counter() < moment:  # the phase of a step is part of what is drawn
            pass
    told = rng.sample(range(job.world), rng.randrange(1, job.world + 1))
    began = time.monotonic()
    job.terminate(*told)
    codes = job.wait()
    assert time.monotonic() - began < GRACE_S
    assert codes == [0] * job.world, f"{seed}: {codes}\n{job.output()}"
    stopped = [job.records(rank, kind="stopped")[0] for rank in range(job.world)]
    assert len({one["step"] for one in stopped}) == 1, f"{seed}: {stopped}"
    assert all(one["saved"] for one in stopped), f"{seed}: {stopped}"
    newest = checkpoint.newest_valid(job.store)
    assert newest is not None and newest.manifest.step == stopped[0]["step"]
    same = [
        one
        for one in checkpoint.list_checkpoints(job.store)
        if one.manifest.step == stopped[0]["step"]
    ]
    assert len(same) == 1
    assert not checkpoint.scan(job.store).debris
    noted = job.root / "out.phases"
    phases = noted.read_text().split() if noted.exists() else []
    # Ranks that had not come to write it down yet were still meeting the others.
    return stopped[0]["step"], phases + ["start"] * (len(told) - len(phases))


def reports(job, rank):
    return (job.here() / f"r{rank}.report").exists()


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(one, marks=pytest.mark.extras) for one in (2, 3))]
)
def test_a_stop_at_a_random_moment(gang, seed):
    stop_somewhere(gang, seed)


# (strategy, ranks) of each twentieth part of two hundred stops.
PARTS = [("ddp", 3)] * 4 + [("fsdp", 3)] * 3 + [("ddp", 4)] * 2 + [("fsdp", 4)]


@pytest.mark.proof
@pytest.mark.parametrize("part", range(10))
def test_two_hundred_stops_at_random_moments(gang, part):
    strategy, world = PARTS[part]
    rounds = [stop_somewhere(gang, 1000 + part * 20 + at, strategy, world) for at in range(20)]
    assert len({step for step, _ in rounds}) > 5
    landed = Counter(phase for _, phases in rounds for phase in phases)
    print(f"{strategy} at {world} ranks, signals by phase: {dict(sorted(landed.items()))}")
