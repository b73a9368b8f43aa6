"""The head of the cluster goes away and comes back, with and without what it knew."""

import time

import pytest

from e2e.platform.harness import probe_spec
from e2e.ray.raylets import Raylets
from e2e.ray.rayplatform import RayPlatform, step_times
from support.waiting import wait_until

pytest.importorskip("ray")
pytestmark = [pytest.mark.extras, pytest.mark.e2e]


def platform_of(tmp_path, system_config):
    raylets = Raylets(1, 1, system_config=system_config)
    one = RayPlatform(tmp_path, raylets)
    one.up()
    return one


def restart_head(raylets, away_s=1.0):
    head = raylets.cluster.head_node
    head.kill_gcs_server()
    time.sleep(away_s)  # the fault itself: the head is away for this long
    head.start_gcs_server()


def begin(platform, tmp_path, epochs, *flags):
    out = tmp_path / "probe"
    job = platform.submit(
        probe_spec(
            out,
            f"--epochs={epochs}",
            "--step-s=0.05",
            *flags,
            pool="ray",
            resources={"nodes": 2, "slots_per_node": 1},
        )
    )
    platform.wait_steps(12, out)
    return job, out


def test_with_external_storage_the_job_does_not_notice(tmp_path):
    store = tmp_path / "gcs"
    store.mkdir()
    platform = platform_of(tmp_path, {"gcs_storage": "rocksdb", "gcs_storage_path": str(store)})
    try:
        job, out = begin(platform, tmp_path, 6)
        restart_head(platform.raylets)
        steps = len(step_times(out))
        wait_until(lambda: len(step_times(out)) > steps + 3, "steps")
        view = platform.wait_state(job, "succeeded")
        assert (view.attempts, view.restarts) == (1, 0)
        wait_until(lambda: platform.in_ray() == [[], []], "nothing in Ray")
    finally:
        platform.down()
        platform.raylets.close()


@pytest.mark.proof
def test_without_it_the_job_recovers_on_the_cluster_that_comes_back(tmp_path):
    platform = platform_of(tmp_path, None)
    try:
        lost = tmp_path / "lost"
        job, _ = begin(platform, tmp_path, 8, f"--until={lost}", "--step-s=0.4")
        restart_head(platform.raylets)
        # A head that has forgotten everything sends its raylets away; a cluster gets new ones.
        for node in list(platform.raylets.nodes):
            wait_until(lambda node=node: raylet_ended(node), "its end")
        lost.touch()  # until now the job could not end
        port = int(platform.raylets.address.split(":")[1])
        platform.raylets.close()
        platform.raylets = Raylets(1, 1, port=port)
        view = platform.wait_state(job, "succeeded")
        assert view.attempts == 2
        assert (view.lineage.missed, view.lineage.duplicated) == (0, 0)
        assert "loss" in platform.run("metrics", job).stdout
    finally:
        platform.down()
        platform.raylets.close()


def raylet_ended(node):
    return node.all_processes["raylet"][0].process.poll() is not None
