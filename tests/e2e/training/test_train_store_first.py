"""Ranks on nodes that share no folder, in mount namespaces of their own, with one object store."""

import json
import os
import random
import shutil
import subprocess
import time
from dataclasses import dataclass
from importlib.util import find_spec

import pytest

from e2e.training.gang import HERE, Gang, killed_at_end
from phalanx.checkpoint import remote
from phalanx.checkpoint.remote_store import open_store
from support.s3 import KEY, SECRET, needs_s3, s3_server

pytest.importorskip("obstore")
namespaces = pytest.mark.skipif(
    shutil.which("unshare") is None
    or subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode != 0,
    reason="needs mount namespaces: run as root",
)
pytestmark = [pytest.mark.e2e, namespaces]


@dataclass
class NodeGang(Gang):
    """A gang of nodes with one rank each, whose folders of checkpoints have the same path."""

    def env(self, rank, port):
        alone = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
        place = {"GROUP_RANK": str(rank), "NODE_RANK": str(rank)}
        return {**super().env(rank, port), **alone, **place}

    def bind(self, rank):
        for path in (self.store, self.disk(rank)):
            path.mkdir(exist_ok=True)
        return str(self.disk(rank)), str(self.store)

    def disk(self, rank):
        return self.root / f"disk{rank}"

    def lose(self, rank):
        """The node comes back with an empty disk."""
        shutil.rmtree(self.disk(rank), ignore_errors=True)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with s3_server(tmp_path_factory.mktemp("s3")) as one:
        yield one


@pytest.fixture
def nodes(nursery, tmp_path):
    """A function that makes gangs of nodes; what still runs at the end is killed."""
    with killed_at_end(nursery) as begun:

        def make(script, *args, name="job", **options):
            return begun(NodeGang(nursery, tmp_path / name, HERE / script, args, **options))

        yield make


def in_store(server, prefix, **more):
    return {
        "AWS_ENDPOINT_URL": server.endpoint,
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": "us-east-1",
        "PHALANX_CHECKPOINT_STORE": f"s3://bucket/{prefix}",
        **more,
    }


def opened(server, prefix):
    return open_store(f"s3://bucket/{prefix}", in_store(server, prefix), _options(server))


def _options(server):
    return {
        "endpoint": server.endpoint,
        "access_key_id": KEY,
        "secret_access_key": SECRET,
        "region": "us-east-1",
    }


def kill_at_random(job, rng, times):
    """Kill ranks and nodes, each a random while behind a start or behind commits of the generation.

    Returns how many generations continued from a checkpoint.
    """
    resumed = 0
    for _ in range(times):
        job.start()
        wanted = rng.choice((0, 1, 1, 1, 2, 3))
        job.wait_for(lambda wanted=wanted: len(job.records(kind="checkpoint")) >= wanted, "commits")
        time.sleep(rng.uniform(0, 0.5))  # the moment of the kill is the point of this test
        victim = rng.randrange(job.world)
        job.kill(victim)
        resumed += bool(job.records(kind="restored"))
        if rng.random() < 0.5:
            job.lose(victim)
        if rng.random() < 0.1:
            for rank in range(job.world):
                job.lose(rank)
    return resumed


def _survives(nodes, reference, server, times, epochs):
    prefix = f"kills{times}-{os.getpid()}"
    args = ("--epochs", str(epochs))
    job = nodes("job.py", *args, every="3 steps", extra=in_store(server, prefix))
    resumed = kill_at_random(job, random.Random(times), times)
    job.start().finish()
    assert job.result["digest"] == reference(*args)["digest"]
    assert job.records(kind="restored")[0]["exact"] is True
    found = remote.scrub(opened(server, prefix))
    assert set(found.values()) == {"valid"}
    print(f"{times} kills, {job.generation + 1} generations, {resumed} resumed, {len(found)} kept")


@needs_s3
@pytest.mark.extras
def test_kills_of_ranks_and_nodes_end_bit_identical(nodes, reference, server):
    _survives(nodes, reference, server, 4, 3)


@needs_s3
@pytest.mark.proof
@pytest.mark.timeout(3000)
def test_sixty_kills_of_ranks_and_nodes_end_bit_identical(nodes, reference, server):
    _survives(nodes, reference, server, 60, 48)


@pytest.mark.extras
def test_without_a_store_the_job_ends_at_once_with_one_message(nodes):
    job = nodes("job.py", world=2).start()
    assert all(job.wait())
    assert "rank 1 does not see the folder of checkpoints of rank 0" in job.output()
    assert "checkpoint.store" in job.output()
    assert not job.records(kind="step")


LAYOUTS = [("fsdp", 2, ()), ("tp", 2, ()), ("pp=2", 2, ("--depth", "4", "--batch", "8"))]


@pytest.mark.extras
@pytest.mark.parametrize(("strategy", "world", "more"), LAYOUTS)
def test_shards_and_stages_resume_from_the_store(nodes, tmp_path, strategy, world, more):
    args = ("--strategy", strategy, *more)
    far = {"PHALANX_CHECKPOINT_STORE": f"file://{tmp_path}/far"}
    whole = nodes("parallel_job.py", *args, name="whole", world=world, extra=far).start().finish()
    far = {"PHALANX_CHECKPOINT_STORE": f"file://{tmp_path}/far2"}
    job = nodes("parallel_job.py", *args, name="killed", world=world, every="3 steps", extra=far)
    job.start().wait_for(lambda: job.records(kind="checkpoint"), "a checkpoint")
    job.kill(0)
    for rank in range(world):
        job.lose(rank)
    job.start().finish()
    assert job.records(kind="restored")[0]["path"].startswith("file://")
    assert [_digests(job, rank) for rank in range(world)] == [
        _digests(whole, rank) for rank in range(world)
    ]


def _digests(job, rank):
    return json.loads((job.root / f"out.r{rank}.json").read_text())["digests"]


def _said(job):
    return [json.loads((job.root / f"out.r{rank}.json").read_text()) for rank in range(job.world)]


@needs_s3
@pytest.mark.extras
def test_folders_that_a_script_saves_are_committed_in_the_store(nodes, server):
    far = in_store(server, f"whole-{os.getpid()}")
    whole = nodes("folder_job.py", name="whole", world=2, extra=far).start().finish()
    far = in_store(server, f"folders-{os.getpid()}")
    job = nodes("folder_job.py", "--pause", "0.2", name="killed", world=2, extra=far)
    for kill in range(3):
        job.start()
        job.wait_for(lambda: len(job.records(kind="checkpoint")) > 1, "two checkpoints")
        job.kill(0)
        job.lose(kill % 2)
    job.start().finish()
    ends, expected = _said(job), _said(whole)
    assert [one["digest"] for one in ends] == [one["digest"] for one in expected]
    assert {one["began"] for one in ends} == {ends[0]["began"]} and ends[0]["began"] >= 18
    store = opened(server, f"folders-{os.getpid()}")
    assert set(remote.scrub(store).values()) == {"valid"}


@needs_s3
@pytest.mark.proof
@pytest.mark.skipif(find_spec("jax") is None, reason="needs JAX: make test-extras installs it")
def test_jax_processes_resume_bit_identical_from_the_store(nodes, server):
    steps, prefix = "--steps=20", f"jax-{os.getpid()}"
    far = in_store(server, f"{prefix}-whole", JAX_PLATFORMS="cpu")
    whole = nodes("jax_job.py", steps, name="whole", world=2, every="3 steps", extra=far)
    whole.start().finish()
    far = in_store(server, prefix, JAX_PLATFORMS="cpu")
    job = nodes("jax_job.py", steps, "--pause=0.2", world=2, every="3 steps", extra=far)
    for victim in (1, 0):
        job.start().wait_for(lambda: job.records(kind="checkpoint"), "a checkpoint")
        job.kill(victim)
        job.lose(victim)  # this node has lost its disk, the other reads its near copy
    job.start().finish()
    restored = job.records(kind="restored")[0]
    assert restored["path"].startswith("s3://") and restored["exact"] is True
    assert (job.root / "out.digest").read_text() == (whole.root / "out.digest").read_text()
    store = opened(server, prefix)
    kept = remote.look(store).good.values()
    assert {len(one.files) for one in kept} == {2}  # a part of each process
    assert set(remote.scrub(store).values()) == {"valid"}
