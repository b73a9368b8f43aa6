"""Exactly once for every kind of loader; data that changed; shares in proportion to speed."""

import json
import random

import pytest

from e2e.training.gang import HERE, Gang

pytestmark = pytest.mark.e2e

SAMPLES, EPOCHS = 150, 2
AT_ONCE = {"PHALANX_CHECKPOINT_ASYNC": "0"}
CELLS = ("map", "stream", "resumable", "sampler", "batches")


@pytest.fixture
def data_gang(nursery, tmp_path):
    made = []

    def make(*args, name="job", **options):
        options.setdefault("extra", AT_ONCE)
        job = Gang(nursery, tmp_path / name, HERE / "data_job.py", args, **options)
        job.root.mkdir()
        made.append(job)
        return job

    yield make
    for job in made:
        if job.pids and not all(pid in nursery.poll() for pid in job.pids):
            job.kill()


def disturbed(job, worlds, steps, rng):
    """Kill the gang once it has come to each step; go on with the next world size."""
    widest = max([job.world, *worlds])
    job.start()
    for world, step in zip(worlds, steps, strict=True):
        job.wait_for_step(step, rank=rng.randrange(job.world))
        job.kill(rng.randrange(job.world))
        job.world = world
        job.start()
    job.finish()
    job.world = widest  # whose reports there may be
    return job


def exactly_once(job, whole):
    summary = job.ledger(SAMPLES, (EPOCHS, 0))
    assert (summary.missed, summary.duplicated) == (0, 0)
    assert summary.consumed == SAMPLES * EPOCHS
    assert job.seen() == whole.seen()
    return summary


@pytest.mark.parametrize(
    ("kind", "workers"), [("resumable", 2), pytest.param("batches", 0, marks=pytest.mark.extras)]
)
def test_kills_and_resizes_lose_and_repeat_nothing(data_gang, kind, workers):
    args = ("--kind", kind, "--workers", str(workers))
    whole = data_gang(*args, name="whole").start().finish()
    job = data_gang(*args, name="job", reference=3, every="3 steps")
    disturbed(job, (2, 3), (5, 15), random.Random(1))
    assert exactly_once(job, whole).redone > 0


@pytest.mark.proof
@pytest.mark.parametrize("kind", CELLS)
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_matrix_of_random_kills_and_resizes(data_gang, kind, workers, accumulate):
    args = ("--kind", kind, "--workers", str(workers), "--accumulate", str(accumulate))
    whole = data_gang(*args, name="whole").start().finish()
    rng = random.Random(f"{kind}{workers}{accumulate}")
    steps = sorted(rng.sample(range(2, whole.result["step"]), 5))
    worlds = [rng.randrange(1, 5) for _ in steps]
    job = data_gang(*args, name="job", reference=3, every=f"{rng.randrange(1, 5)} steps")
    disturbed(job, worlds, steps, rng)
    summary = exactly_once(job, whole)
    print(f"{kind}, {workers} workers, accumulation {accumulate}: worlds 3 {worlds}, {summary}")


@pytest.mark.proof
@pytest.mark.parametrize("kind", ["stream", "resumable", "sampler", "batches"])
def test_at_the_same_world_size_the_weights_are_bit_identical(data_gang, kind):
    args = ("--kind", kind, "--workers", "2")
    whole = data_gang(*args, name="whole").start().finish()
    job = data_gang(*args, name="job", every="4 steps")
    disturbed(job, (3, 3), (7, 16), random.Random(kind))
    assert job.result["digest"] == whole.result["digest"]


def test_a_resume_on_other_data_is_refused_unless_it_is_allowed(data_gang):
    job = data_gang("--fingerprint", "mine:1", "--epochs", "1", every="2 steps").start()
    job.wait_for(lambda: job.records(kind="checkpoint"), "a checkpoint")
    job.kill(0)
    manifest = json.loads(next(job.store.glob("step-*/MANIFEST.json")).read_text())
    assert manifest["data"] == {"num_samples": SAMPLES, "fingerprint": "mine:1"}
    job.args = ("--fingerprint", "mine:2", "--epochs", "1")
    assert job.start().wait() == [1, 1, 1]
    output = job.output()
    assert "fingerprint mine:2, the checkpoint has mine:1" in output
    assert "data_changed: allow" in output
    job.extra = {**job.extra, "PHALANX_TRAINING": json.dumps({"data_changed": "allow"})}
    job.start().finish()
    (warning,) = [r for r in job.records(kind="warn") if "other data" in r["message"]]
    assert "as allowed" in warning["message"] and job.records(kind="restored")


def shares_of(job, rank):
    return json.loads((job.root / f"out.r{rank}.json").read_text())


def test_a_slow_rank_gets_less_and_the_weights_stay_what_they_are(data_gang):
    """With doubles: the sums of the gradients differ in their last bits only."""
    args = ("--kind", "map", "--slow-rank", "1", "--batch-size", "8", "--epochs", "3", "--double")
    even = data_gang(*args, name="even").start().finish()
    wish = {"batch_shares": "auto", "straggler_window": 3}
    extra = {**AT_ONCE, "PHALANX_TRAINING": json.dumps(wish)}
    job = data_gang(*args, name="auto", extra=extra).start().finish()
    told = job.records(kind="shares")
    assert told and told[-1]["shares"][1] < 0.8 / 3
    first, last = shares_of(job, 1)["sizes"][:7], shares_of(job, 1)["sizes"][-7:-1]
    assert set(first[:-1]) == {8} and max(last) < 8
    summary = job.ledger(SAMPLES, (3, 0))
    assert (summary.missed, summary.duplicated) == (0, 0)
    assert job.seen() == even.seen()
    pairs = zip(shares_of(job, 0)["weights"], shares_of(even, 0)["weights"], strict=True)
    assert max(abs(a - b) for a, b in pairs) < 1e-6


def test_declared_shares_are_kept_and_must_be_one_for_each_rank(data_gang):
    extra = {**AT_ONCE, "PHALANX_TRAINING": json.dumps({"batch_shares": [2, 1, 1]})}
    job = data_gang("--epochs", "1", "--batch-size", "8", extra=extra).start().finish()
    assert [shares_of(job, rank)["sizes"][0] for rank in range(3)] == [12, 6, 6]
    job = data_gang("--epochs", "1", name="wrong", world=2, extra=extra)
    assert job.start().wait() == [1, 1]
    assert "has 3 shares, but the gang has 2 ranks" in job.output()
