"""Jobs through the whole platform on a Ray cluster of three raylets, and what may happen to it."""

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import yaml

from e2e.platform.harness import kill, probe_spec
from e2e.ray.raylets import Raylets
from e2e.ray.rayplatform import RayPlatform, step_times
from support.waiting import wait_until

pytest.importorskip("ray")
pytestmark = [pytest.mark.extras, pytest.mark.e2e]
ROOT = Path(__file__).resolve().parents[3]
NEXT_STEP_S = 15.0
KILLS = int(os.environ.get("RAY_KILLS", "20"))


@pytest.fixture(scope="module")
def platform(tmp_path_factory):
    raylets = Raylets(2, 2, 2)
    one = RayPlatform(tmp_path_factory.mktemp("ray"), raylets)
    one.up()
    yield one
    one.down()
    raylets.close()


def on_ray(out, *flags, nodes=2, **spec):
    return probe_spec(
        out, *flags, resources={"nodes": nodes, "slots_per_node": 1}, pool="ray", **spec
    )


def example(platform, name, *changes):
    """Submit an example, with other words in its command."""
    spec = yaml.safe_load((ROOT / "examples" / "ray" / name).read_text())
    spec["workdir"] = str((ROOT / "examples" / "ray" / spec["workdir"]).resolve())
    spec["run"] = " ".join([spec["run"].split(" --")[0], *changes])
    return platform.submit(spec)


def test_digits_on_two_raylets(platform):
    job = example(platform, "digits.yaml", "--epochs 2")
    view = platform.wait_state(job, "succeeded")
    assert len({node.node for node in view.nodes} or {1, 2}) == 2
    assert view.progress.last_metrics["val_acc"] > 0.3
    assert "val_acc" in platform.run("metrics", job).stdout
    assert platform.in_ray() == [[], []]


@pytest.mark.proof
def test_chargpt_on_three_raylets(platform):
    job = example(platform, "chargpt.yaml", "--epochs 1")
    view = platform.wait_state(job, "succeeded")
    assert view.progress.high_water_step > 0
    assert platform.in_ray() == [[], []]


def lose_raylets(platform, tmp_path, count, hold_s):
    """SIGKILL the raylet of a random node rank, `count` times; returns the waits for the next step."""
    flags = [f"--epochs={2 * count + 2}", "--samples=480", f"--step-s={hold_s}"]
    out = tmp_path / "hit"
    job = platform.submit(on_ray(out, *flags))
    waits = []
    for number in range(count):
        before = len(step_times(out))
        platform.wait_steps(before + 12, out)
        node = platform.raylet_of(job, number % 2)
        at = time.time()
        platform.raylets.sigkill(node)
        later = wait_until(lambda at=at: [t for t in step_times(out) if t > at + 1.5], "a step")
        waits.append(min(later) - at)
        platform.raylets.forget(node)
        platform.raylets.add(2)
        platform.wait_nodes(3)
    print("seconds to the next step:", " ".join(f"{one:.1f}" for one in sorted(waits)))
    view = wait_until(lambda: (v := platform.show(job)).is_terminal and v, "its end", guard_s=600)
    assert view.state == "succeeded"
    calm = tmp_path / "calm"
    other = platform.submit(on_ray(calm, *flags))
    wait_until(lambda: platform.show(other).state == "succeeded", "the calm run", guard_s=600)
    assert out.read_text() == calm.read_text()
    assert (view.lineage.missed, view.lineage.duplicated) == (0, 0)
    assert view.attempts == count + 1
    assert platform.in_ray() == [[], []]
    return waits


def test_a_killed_raylet_costs_seconds_and_no_sample(platform, tmp_path):
    lose_raylets(platform, tmp_path, 1, 0.05)


@pytest.mark.proof
def test_twenty_killed_raylets(platform, tmp_path):
    waits = lose_raylets(platform, tmp_path, KILLS, 0.05)
    assert max(waits) <= NEXT_STEP_S


@pytest.mark.proof
def test_one_world_over_unequal_nodes_recovers_exactly(platform, tmp_path):
    """Two ranks on one raylet and one on each of two others; a rank is killed, a command is run in two."""

    def one_world(out, *flags):
        spec = probe_spec(out, "--epochs=3", "--samples=320", *flags, pool="ray")
        run = spec.pop("run")
        del spec["resources"]
        worker = {"run": run, "world": "shared", "nodes": 2, "slots": 1}
        return platform.submit({**spec, "roles": {"master": {"run": run, "slots": 2}, "b": worker}})

    hit, calm, go = tmp_path / "hit", tmp_path / "calm", tmp_path / "go"
    job = one_world(hit, "--step-s=0.5", f"--until={go}")
    platform.wait_steps(5, hit)
    for rank in (0, 3):
        entered = platform.run(
            "exec", job, "--rank", rank, "--", "sh", "-c", "echo $RANK of $WORLD_SIZE"
        )
        assert entered.stdout == f"{rank} of 4\n"
    kill(platform.rank_pids(job)[3])
    go.touch()
    view = platform.wait_state(job, "succeeded")
    assert (view.attempts, view.restarts, view.world_size) == (1, 1, 4)
    assert (view.lineage.missed, view.lineage.duplicated) == (0, 0)
    platform.wait_state(one_world(calm), "succeeded")
    assert hit.read_text() == calm.read_text()
    assert platform.in_ray() == [[], []]


@pytest.mark.proof
def test_a_killed_control_plane_finds_its_gang_again(platform, tmp_path):
    out = tmp_path / "probe"
    job = platform.submit(on_ray(out, "--epochs=6", "--step-s=0.05"))
    platform.wait_steps(10, out)
    kill(platform.server_pid())
    platform.process.wait(30)
    steps = len(step_times(out))
    wait_until(lambda: len(step_times(out)) > steps + 5, "steps without a control plane")
    platform.up()
    view = platform.wait_state(job, "succeeded")
    assert (view.attempts, view.restarts) == (1, 0)
    assert platform.in_ray() == [[], []]


def test_a_drained_node_is_left_with_a_checkpoint(platform, tmp_path):
    out = tmp_path / "probe"
    job = platform.submit(
        on_ray(out, "--epochs=6", "--step-s=0.05", checkpoint={"every": "1h"}, grace="20s")
    )
    platform.wait_steps(12, out)
    node = platform.raylet_of(job, 1)
    drain(platform, node)
    view = wait_until(lambda: (v := platform.show(job)).attempts == 2 and v, "another attempt")
    view = platform.wait_state(job, "succeeded")
    assert view.attempts == 2
    assert view.lineage.redone == 0  # it saved before it left
    assert "is being removed by the cluster" in platform.run("show", job, "--json").stdout or (
        "being removed" in platform.run("show", job).stdout
    )
    platform.raylets.sigkill(node)
    platform.raylets.forget(node)
    platform.raylets.add(2)
    platform.wait_nodes(3)


def test_packages_reach_the_nodes_and_are_built_once_on_each(platform, tmp_path):
    from tinywheel import make_wheel

    wheel = make_wheel(tmp_path / "wheels", "tinypkg")
    root = Path(platform.pool["root"])

    def run(name):
        job = platform.submit(
            {
                "name": "packages",
                "run": "python packages_job.py",
                "warm": False,
                "pool": "ray",
                "resources": {"nodes": 2, "slots_per_node": 1},
                "env": {"PROBE_OUT": str(tmp_path / name)},
                "python": {
                    "packages": ["tinypkg"],
                    "installer": "pip",
                    "index_url": "none",
                    "find_links": [str(wheel.parent)],
                },
            }
        )
        platform.wait_state(job, "succeeded")
        found = [json.loads((tmp_path / f"{name}.{rank}").read_text()) for rank in (0, 1)]
        assert {one["version"] for one in found} == {"1.0"}
        assert all(Path(one["prefix"]).is_relative_to(root) for one in found)
        return platform.run("logs", job).stdout.count("building environment")

    # The raylets of this machine share one root: two nodes, one build.
    assert [run("one"), run("two")] == [1, 0]


FILL = """
import json, sys
import numpy, ray
from ray._private.internal_api import node_stats
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

ray.init(address=sys.argv[1], log_to_driver=False, logging_level="error")


@ray.remote(num_cpus=0)
class Hoard:
    def __init__(self):
        self.kept = []

    def take(self):
        # A view that is held can be neither spilled nor evicted.
        ref = ray.put(numpy.zeros(2 << 20, numpy.uint8))
        self.kept.append((ref, ray.get(ref)))


def share(node):
    stats = node_stats(node["NodeManagerAddress"], node["NodeManagerPort"]).store_stats
    return stats.object_store_bytes_used / stats.object_store_bytes_avail


nodes = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("slot")]
hoards = []
for node in nodes:
    pinned = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
    hoards.append(Hoard.options(scheduling_strategy=pinned).remote())
for hoard, node in zip(hoards, nodes):
    for _ in range(200):
        if share(node) > 0.97:
            break
        ray.get(hoard.take.remote())
print(json.dumps([share(node) for node in nodes]), flush=True)
sys.stdin.read()
"""


@pytest.mark.proof
def test_full_object_stores_are_not_noticed(platform, tmp_path):
    out = tmp_path / "probe"
    job = platform.submit(on_ray(out, "--epochs=6", "--step-s=0.05"))
    platform.wait_steps(5, out)
    filler = subprocess.Popen(
        [sys.executable, "-c", FILL, platform.raylets.address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd="/",
    )
    try:
        shares = json.loads(filler.stdout.readline())
        print("object stores of the raylets, part in use:", shares)
        assert len(shares) == 3
        assert min(shares) > 0.95
        platform.wait_steps(len(step_times(out)) + 5, out)
        # A new job starts as well: nothing of it goes through the store.
        other = platform.submit(on_ray(tmp_path / "other", "--epochs=1"))
        for one in (job, other):
            view = platform.wait_state(one, "succeeded")
            assert (view.attempts, view.restarts) == (1, 0)
    finally:
        filler.stdin.close()
        filler.wait(60)
    assert platform.in_ray()[0] == []


def drain(platform, node):
    """What a cloud's notice of a reclaim becomes in Ray."""
    words = [
        sys.executable,
        "-m",
        "ray.scripts.scripts",
        "drain-node",
        "--address",
        platform.raylets.address,
        "--node-id",
        node.node_id,
        "--reason",
        "DRAIN_NODE_REASON_PREEMPTION",
        "--reason-message",
        "spot reclaim",
        "--deadline-remaining-seconds",
        "60",
    ]
    subprocess.run(words, check=True, capture_output=True, cwd="/")


TRIAL = """
import phalanx.train as pt

run = pt.init()
for epoch in range(2):
    run.report(epoch=epoch, val_loss=run.params["x"] + 1 - epoch)
"""


def test_trials_on_a_ray_pool_start_without_a_template_of_their_study(platform, tmp_path):
    (tmp_path / "trial.py").write_text(TRIAL)
    text = {
        "schema": 1, "kind": "study", "name": "lines", "objective": {"metric": "val_loss"},
        "search": {"method": "grid"}, "space": {"x": {"values": [0, 1, 2]}},
        "trials": {"parallel": 1},
        "job": {"run": "python trial.py", "framework": "none", "pool": "ray", "workdir": str(tmp_path),
                "resources": {"nodes": 1, "slots_per_node": 1}},
    }  # fmt: skip
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(text))
    platform.run("sweep", str(tmp_path / "study.yaml"), "-d")
    templates: list[list[str]] = []

    def is_over() -> bool:
        for process in psutil.Process(platform.server_pid()).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                words = process.cmdline()
                templates.extend([words] if "--template" in words else [])
        with platform.client() as client:
            return client.studies.get(1).ended_at is not None

    wait_until(is_over, "the end of the study")
    with platform.client() as client:
        found = client.studies.trials(1).trials
    assert sorted((one.params["x"], one.value, one.status) for one in found) == [
        (x, float(x), "completed") for x in range(3)
    ]
    assert templates == []
