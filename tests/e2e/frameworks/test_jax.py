"""JAX under the platform: processes that meet, sharded trees, exact resume, stops that save first."""

import signal
from pathlib import Path

import pytest

from e2e.frameworks.foreign import committed, example, metric, needs
from e2e.platform.harness import kill
from support.waiting import wait_until

pytestmark = [pytest.mark.extras, pytest.mark.e2e, needs("jax", "make test-extras installs it")]
SLOW = "--pause=0.2"


def submitted(platform, *flags, every="5 steps", **spec):
    checkpoint = {"every": every, "keep": {"last": 3}}
    return platform.submit(example("jax", *flags, checkpoint=checkpoint, **spec))


def steps_of(platform, job):
    return platform.show(job).progress.high_water_step or 0


def begun(platform, job):
    said = platform.run("logs", job).stdout.splitlines()
    return [int(line.split("begins at step")[1]) for line in said if "begins at step" in line]


@pytest.fixture(scope="module")
def calm(platform, tmp_path_factory):
    """An undisturbed run of 40 steps: its job, and the digest of its parameters."""
    file = tmp_path_factory.mktemp("jax") / "calm"
    job = submitted(platform, "--steps=40", f"--digest={file}")
    platform.wait_state(job, "succeeded")
    return job, file.read_text()


@pytest.mark.proof
def test_processes_on_unequal_nodes_are_one_world(platform, tmp_path, calm):
    """Two processes on one node and one on another, and one of them is killed."""
    file = tmp_path / "unequal"
    checkpoint = {"every": "5 steps", "keep": {"last": 3}}
    spec = example("jax", "--steps=40", SLOW, f"--digest={file}", checkpoint=checkpoint)
    run = spec.pop("run")
    del spec["resources"]
    roles = {"large": {"run": run, "slots": 2}, "small": {"run": run, "world": "shared"}}
    job = platform.submit({**spec, "roles": roles})
    wait_until(lambda: steps_of(platform, job) >= 8, "step 8")
    kill(platform.rank_pids(job)[2], signal.SIGKILL)
    view = platform.wait_state(job, "succeeded")
    assert (view.restarts, view.world_size) == (1, 3)
    assert {one.node_rank for one in view.nodes} <= {0, 1}
    assert file.read_text() == calm[1]


def test_two_kills_end_bit_identical(platform, tmp_path, calm):
    job = submitted(platform, "--steps=40", SLOW, f"--digest={tmp_path / 'hit'}")
    for at, rank in ((8, 2), (22, 0)):
        wait_until(lambda at=at: steps_of(platform, job) >= at, f"step {at}")
        kill(platform.rank_pids(job)[rank], signal.SIGKILL)
        wait_until(lambda at=at: platform.show(job).restarts >= (1 if at == 8 else 2), "its end")
        wait_until(lambda: platform.show(job).state == "running", "ranks")
    view = platform.wait_state(job, "succeeded")
    assert (view.attempts, view.restarts) == (1, 2)
    found = begun(platform, job)
    assert len(found) == 9 and sorted(found)[3] >= 5 and sorted(found)[6] >= 20
    assert (tmp_path / "hit").read_text() == calm[1]
    # Metrics and checkpoints in the registry.
    losses = metric(platform, job, "loss")
    assert sorted(losses) == list(range(1, 41)) and losses == metric(platform, calm[0], "loss")
    kept = committed(view)
    assert kept[0].manifest.step == view.progress.checkpoint_step == 40 and len(kept) <= 3
    assert (kept[0].manifest.strategy, kept[0].manifest.world_size) == ("jax", 3)
    # Each process has written the shards it holds.
    assert len({entry.path.split("/")[0] for entry in kept[0].manifest.files}) == 3
    assert view.lineage is None or view.lineage.exact in (True, None)


@pytest.mark.proof
def test_a_pause_saves_first_and_nothing_is_done_twice(platform, tmp_path, calm):
    job = submitted(platform, "--steps=40", SLOW, f"--digest={tmp_path / 'hit'}", every="1h")
    wait_until(lambda: steps_of(platform, job) >= 6, "some steps")
    platform.run("pause", job)
    view = platform.wait_state(job, "paused")
    stopped_at = view.progress.checkpoint_step
    assert stopped_at is not None and stopped_at == view.progress.high_water_step
    platform.run("resume", job)
    view = platform.wait_state(job, "succeeded")
    assert begun(platform, job)[3:] == [stopped_at] * 3
    assert (tmp_path / "hit").read_text() == calm[1]


@pytest.mark.proof
def test_rot_is_noticed_and_the_one_before_is_taken(platform, tmp_path, calm):
    job = submitted(platform, "--steps=40", SLOW, f"--digest={tmp_path / 'hit'}")
    wait_until(lambda: len(committed_soon(platform, job)) >= 3, "three checkpoints")
    platform.run("pause", job)
    view = platform.wait_state(job, "paused")
    found = committed(view)
    file = max(found[0].path.rglob("state.tensors"), key=lambda path: path.stat().st_size)
    data = bytearray(file.read_bytes())
    data[-70] ^= 1
    file.write_bytes(data)
    platform.run("resume", job)
    platform.wait_state(job, "succeeded")
    assert begun(platform, job)[3:] == [found[1].manifest.step] * 3
    assert (tmp_path / "hit").read_text() == calm[1]


def committed_soon(platform, job):
    folder = Path(platform.show(job).checkpoint_dir)
    return [one for one in folder.glob("step-*") if one.suffix != ".tmp"]


def test_a_plain_script_finds_its_place_without_the_library(platform, tmp_path):
    script = tmp_path / "plain.py"
    script.write_text(
        "import jax\n"
        "jax.distributed.initialize()\n"
        "import jax.numpy as jnp\n"
        "from jax.experimental import multihost_utils as m\n"
        "found = m.process_allgather(jnp.array(jax.process_index()))\n"
        "print('step 1 sum', int(found.sum()), 'of', jax.process_count(), flush=True)\n"
    )
    spec = {
        "name": "plain",
        "framework": "jax",
        "run": "python plain.py",
        "workdir": str(tmp_path),
        "resources": {"slots_per_node": 3},
        "metrics": "step {step} sum {sum} of {count}",
    }
    job = platform.submit(spec)
    view = platform.wait_state(job, "succeeded")
    assert view.progress.last_metrics["sum"] == 3 and view.progress.last_metrics["count"] == 3
