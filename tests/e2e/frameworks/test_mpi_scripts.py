"""MPI scripts, unmodified: Open MPI's mpirun spread over the gang without ssh, killed and recovered."""

import shutil
import sys

import numpy as np
import psutil
import pytest

from e2e.frameworks.foreign import committed, example, metric, needs, wait_committed
from e2e.platform.harness import family, kill, survivors
from support.waiting import wait_until

pytestmark = [
    needs("mpi4py", "make test-extras installs it"),
    pytest.mark.extras,
    pytest.mark.e2e,
    pytest.mark.skipif(shutil.which("mpirun") is None, reason="needs Open MPI: openmpi-bin"),
]


def mpi_ranks(platform, job):
    """The MPI processes by rank. Open MPI's daemons are no children of the ranks that we know."""
    found = {}
    view = platform.show(job)
    assert not view.is_terminal, f"{job} is {view.state}: too late for its ranks"
    for node in view.nodes:
        for process in below(node.pid):
            try:
                words = process.cmdline()
                if len(words) > 1 and words[1].endswith("/train.py"):
                    found[int(process.environ()["OMPI_COMM_WORLD_RANK"])] = process
            except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
                continue
    return found


def below(pid):
    try:
        return family(pid) if pid else []
    except psutil.NoSuchProcess:
        return []


def test_killed_and_recovered_on_two_nodes(platform):
    calm = platform.submit(example("mpi", "--steps=12"))
    usual = platform.wait_state(calm, "succeeded")
    job = platform.submit(example("mpi", "--steps=12", "--pause=1"))
    ranks = wait_until(lambda: (r := mpi_ranks(platform, job)) and len(r) == 4 and r, "MPI ranks")
    # Two of the four run on the second node, below its own supervisor.
    second = platform.show(job).nodes[1].pid
    assert {rank for rank, one in ranks.items() if second in map(pid, one.parents())} == {2, 3}
    wait_committed(platform, job)
    kill(ranks[3].pid)
    view = platform.wait_state(job, "succeeded")
    assert (view.attempts, view.restarts) == (1, 1)
    said = platform.run("logs", job).stdout
    begun = [line.split("begins at step")[1] for line in said.splitlines() if "begins at" in line]
    assert len(begun) == 8 and len(set(begun)) == 2
    assert not survivors(list(ranks.values()))
    losses = metric(platform, job, "loss")
    assert sorted(losses) == list(range(12))
    assert losses == pytest.approx(metric(platform, calm, "loss"))
    found = committed(view)
    assert found[0].manifest.step == 11 and "loss" in found[0].manifest.metrics
    here, there = (np.load(one.path / "state.npz") for one in (found[0], committed(usual)[0]))
    assert np.allclose(here["weights"], there["weights"], rtol=0, atol=1e-12)


def pid(process):
    return process.pid


def test_stopped_politely_and_nothing_is_left(platform):
    job = platform.submit(example("mpi", "--steps=1000", "--pause=0.1"))
    wait_until(lambda: len(mpi_ranks(platform, job)) == 4, "MPI ranks")
    tree = [one for node in platform.show(job).nodes for one in family(node.pid)]
    platform.run("stop", job, "--grace", "20s")
    platform.wait_state(job, "cancelled")
    assert not survivors(tree)


def test_without_mpirun_it_says_what_to_install(platform, tmp_path):
    spec = example("mpi", "--steps=5", recovery={"rank_crash": 0}, env={"PATH": str(tmp_path)})
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    job = platform.submit(spec)
    platform.wait_state(job, "failed")
    assert "install Open MPI" in platform.run("logs", job, "--stream", "err").stdout
