"""Ranks on nodes of their own under mixed faults: every checkpoint is that of an undisturbed run.

Several supervisors differ from one in three ways that a rank sees: there is no shared page for requests,
the other ranks of a dead one go on until their own supervisor hears of it, and a signal comes to some ranks
only. `-m proof` runs FAULTS faults (200) from SEED (0); the files of a job that differs stay.
"""

import os
import random
import shutil
import signal
import time
from collections import Counter

import pytest

from e2e.training.gang import HERE, Gang, killed_at_end
from phalanx import checkpoint
from phalanx.checkpoint.digest import digest_of
from phalanx.train.state.checkpoint_reader import read_state
from phalanx.train.state.tree import flatten, mapped, read_now

pytestmark = pytest.mark.e2e
EPOCHS, SAMPLES = 6, 200
ARGS = ("--epochs", str(EPOCHS), "--samples", str(SAMPLES))
KEEP_ALL = {"last": 1000}
KINDS = (
    "rank",
    "gang",
    "survivors",
    "overlap",
    "start",
    "stop",
    "stop-some",
    "cut-short",
    "freeze",
)


class Nodes(Gang):
    """A gang with one rank on each node."""

    def env(self, rank, port):
        one = {
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
            "GROUP_RANK": str(rank),
            "NODE_RANK": str(rank),
            "PHALANX_CONTROL_FILE": str(self.here() / f"control-{rank}"),
        }
        return {**super().env(rank, port), **one}

    def living(self):
        ended = self.nursery.poll()
        return [pid for pid in self.pids if pid not in ended]

    def left(self):
        """Whether all ranks ended well, and before the end of the training."""
        return all(self.nursery.poll().get(pid) == 0 for pid in self.pids) and not self.over

    @property
    def over(self):
        return (self.root / "out.json").exists()


@pytest.fixture
def nodes(nursery, tmp_path):
    with killed_at_end(nursery) as begun:

        def make(name, every, *args):
            root, script = tmp_path / name, HERE / "job.py"
            return begun(Nodes(nursery, root, script, (*ARGS, *args), every=every, keep=KEEP_ALL))

        yield make


def states(job):
    """The digest of each part of the state, by (step, name of the checkpoint)."""
    found = {}
    for one in checkpoint.list_checkpoints(job.store):
        state, generators = read_state(one.path, one.manifest)
        parts = {"position": one.manifest.position, "generators": digest_of(b"".join(generators))}
        for name, value in state.items():
            body, blobs = flatten(mapped(value, _read))
            data = b"".join(bytes(blob.data) for blob in blobs)
            parts[name] = digest_of(repr(body).encode() + data)
        found[one.manifest.step, one.manifest.name] = parts
    return found


def _read(value):
    return read_now(value) if hasattr(value, "read_region") else value


def differences(job, calm):
    """(step, checkpoint, parts) of all checkpoints that an undisturbed run has not, oldest first."""
    right = {step: parts for (step, _), parts in calm.items()}
    return [
        (step, name, sorted(key for key in parts if parts[key] != right[step].get(key)))
        for (step, name), parts in sorted(states(job).items())
        if parts != right[step]
    ]


def signal_to(pids, number=signal.SIGKILL):
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def cause(job, kind, dice):
    """One fault, and the next generation or attempt where the ranks have ended."""
    living = job.living()
    if not living:
        return
    if kind == "freeze":
        pid = dice.choice(living)
        signal_to([pid], signal.SIGSTOP)
        time.sleep(dice.uniform(0, 0.5))
        signal_to([pid], signal.SIGCONT)
        return
    if kind in ("stop", "stop-some", "cut-short"):
        told = living if kind == "stop" else dice.sample(living, dice.randrange(1, len(living) + 1))
        signal_to(told, signal.SIGTERM)
        if kind == "cut-short":
            time.sleep(dice.uniform(0, 0.3))
            signal_to(job.living())
        job.wait()
        if not job.over:
            job.attempt += 1
            job.start()
        return
    hit = living if kind == "gang" else [dice.choice(living)]
    signal_to(hit)
    if kind == "survivors":
        time.sleep(dice.uniform(0, 0.5))
    others = job.living()
    if kind == "overlap":  # the others end only when the next generation has begun
        job.start()
        time.sleep(dice.uniform(0, 0.5))
        signal_to(others)
        return
    signal_to(others)
    job.wait()
    job.start()


def run_under_faults(job, dice, count):
    """Cause up to `count` faults, then let the job end; returns how many of each kind."""
    done = Counter()
    job.start()
    while not job.over:
        if done.total() < count:
            kind = dice.choice(KINDS)
            if kind == "start":
                time.sleep(dice.uniform(0, 1.5))
            else:
                before, steps = job.generation, dice.randrange(1, 25)
                seen = len(job.records(kind="step"))
                while (
                    job.living()
                    and job.generation == before
                    and len(job.records(kind="step")) < seen + steps
                ):
                    time.sleep(0.005)
            done[kind] += bool(job.living())
            cause(job, kind, dice)
        else:
            job.wait()
        if not job.living() and not job.over:
            assert job.left() or done, job.output()
            job.attempt += job.left()
            job.start()
    job.wait()
    return done


@pytest.mark.proof
@pytest.mark.timeout(7200)
def test_faults_of_several_nodes_leave_every_checkpoint_as_it_should_be(nodes, capsys):
    faults, seed = int(os.environ.get("FAULTS", "200")), int(os.environ.get("SEED", "0"))
    dice, done, jobs, compared = random.Random(seed), Counter(), 0, 0
    reference = nodes("calm", "1 steps").start().finish()
    calm = states(reference)
    while done.total() < faults:
        every = dice.choice(["50ms", "200ms", "3 steps", "7 steps"])
        job = nodes(f"job-{jobs}", every)
        done += run_under_faults(job, dice, min(dice.randrange(4, 14), faults - done.total()))
        found = differences(job, calm)
        said = f"{job.root}: seed {seed}, job {jobs}, {dict(done)}"
        assert not found, f"{said}: first {found[0]} of {len(found)}"
        assert job.result["digest"] == reference.result["digest"], said
        jobs, compared = jobs + 1, compared + len(states(job))
        shutil.rmtree(job.root)
        with capsys.disabled():
            print(
                f"{jobs} jobs, {compared} checkpoints, {done.total()} faults {dict(done)}",
                flush=True,
            )


@pytest.mark.extras
def test_the_first_checkpoint_that_differs_is_found(nodes):
    """The comparison of the proof sees a resume that does not restore the generators."""
    calm = states(nodes("calm", "1 steps").start().finish())
    job = nodes("broken", "4 steps", "--break-cure", "rng-after-fetch").start()
    job.wait_for_step(10)
    job.kill(1)
    resumed = max(step for step, _ in states(job))
    job.start().finish()
    step, _, parts = differences(job, calm)[0]
    assert step > resumed
    assert {"generators", "models"} <= set(parts) and "position" not in parts
