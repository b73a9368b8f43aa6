"""Jobs through the whole platform on a Kubernetes cluster of three nodes, and what may happen to them."""

import re
import signal
import socket
import subprocess
from pathlib import Path

import pytest
import yaml

from e2e.platform.harness import BIN, Platform, kill, probe_spec
from phalanx.kit.text import parse_job_label
from phalanx.testing.kubernetes.kubelet import image_id
from support.waiting import wait_until

pytestmark = pytest.mark.e2e


class KubernetesPlatform(Platform):
    """`phalanx up --slots 0 --pool FILE` in front of an API server and its kubelet."""

    def __init__(self, root, cluster):
        super().__init__(root)
        self.cluster = cluster
        self.file = root / "pool.yaml"
        self.shared = root / "shared"
        self.shared.mkdir()

    def up(self, num_nodes=3, **keys):
        """`keys`: further ones of the pool."""
        pool = {
            "name": "kube",
            "executor": "kubernetes",
            "kubeconfig": str(self.cluster.kubeconfig),
            "image": "phalanx:test",
            "checkpoints": str(self.shared),
            **keys,
        }
        self.file.write_text(yaml.safe_dump({"schema": 1, "pools": [pool]}))
        with (self.root / "up.log").open("ab") as log:
            self.process = subprocess.Popen(
                [BIN / "phalanx", "up", "--slots", "0", "--pool", self.file],
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        wait_until(self._answers, "the control plane")
        wait_until(lambda: len(self._kept_client().nodes()) == num_nodes, "nodes")


@pytest.fixture
def platform(cluster, tmp_path):
    cluster.add_nodes(3)
    one = KubernetesPlatform(tmp_path, cluster)
    one.up()
    yield one
    one.down()
    wait_until(lambda: cluster.left() == [], "an empty cluster")


def on_kubernetes(out, *flags, nodes=3):
    resources = {"nodes": nodes, "slots_per_node": 1}
    return probe_spec(out, *flags, resources=resources, pool="kube")


def pods_of(client):
    return client.list("/api/v1/namespaces/phalanx-default/pods").items


def succeeded(platform, job, guard_s=240.0):
    view = wait_until(lambda: (v := platform.show(job)).is_terminal and v, "its end", guard_s)
    assert view.state == "succeeded", (view.failure, platform.run("logs", job, check=False).stdout)
    return view


def test_a_killed_rank_costs_no_pod_and_a_killed_pod_no_sample(platform, cluster, tmp_path):
    """That the weights are those of an undisturbed run is an extra, over unequal pods."""
    out, go = tmp_path / "hit", tmp_path / "go"
    flags = ["--epochs=3", "--samples=240", "--step-s=0.1", f"--until={go}"]
    job = platform.submit(on_kubernetes(out, *flags, nodes=2))
    platform.wait_steps(5, out)
    pods = dict(cluster.kubelet.starts)
    assert sorted(pods.values()) == [1, 1]
    kill(platform.rank_pids(job)[1])
    platform.wait_steps(len(Path(f"{out}.steps").read_text().splitlines()) + 3, out)
    assert cluster.kubelet.starts == pods  # a new generation in the same pods
    assert platform.show(job).attempts == 1
    cluster.kubelet.kill(next(name for name in pods if name.endswith("n1")))
    go.touch()
    view = succeeded(platform, job)
    assert view.attempts == 2
    assert (view.lineage.missed, view.lineage.duplicated) == (0, 0)
    assert view.lineage.consumed == 3 * 240
    assert all(number == 1 for number in cluster.kubelet.starts.values())


@pytest.mark.extras
def test_a_lost_node_is_replaced_after_its_restart_and_a_stop_leaves_nothing(
    platform, cluster, tmp_path
):
    out = tmp_path / "probe"
    job = platform.submit(on_kubernetes(out, "--epochs=200", "--step-s=0.05"))
    platform.wait_steps(5, out)
    cluster.kubelet.lose("node-1")
    cluster.kubelet.bring_back("node-1", restarted=True)
    wait_until(lambda: platform.show(job).attempts == 2, "another attempt")
    platform.wait_steps(30, out)
    platform.run("stop", job, "--grace", "1s")
    wait_until(lambda: platform.show(job).is_terminal, "its end")
    wait_until(lambda: cluster.left() == [], "an empty cluster")


@pytest.mark.extras
def test_a_job_with_an_image_volumes_and_containers_beside_its_ranks(platform, cluster, tmp_path):
    client = cluster.kubelet.client
    path = "/api/v1/namespaces/phalanx-default/persistentvolumeclaims"
    for name, mode in (("corpus", "ReadWriteMany"), ("own", "ReadWriteOnce")):
        storage = {"requests": {"storage": "1Gi"}}
        body = {"metadata": {"name": name}, "spec": {"accessModes": [mode], "resources": storage}}
        client.call("POST", path, body)
    out = tmp_path / "probe"
    spec = on_kubernetes(out, "--epochs=1", "--samples=24", "--step-s=0.01")
    spec["resources"] |= {"shm": "64MB"}
    spec |= {"image": "team/train:7", "mounts": ["pvc:corpus:/corpus"]}
    touch = {"name": "unpack", "image": "tools:1", "command": ["touch", "/corpus/mark"]}
    side = {"name": "metrics", "image": "exporter:1", "command": ["sleep", "600"], "cpus": 0.5}
    spec["kubernetes"] = {"init": [touch], "sidecars": [side], "labels": {"team": "vision"}}
    job = platform.submit(spec)
    pods = wait_until(lambda: len(found := pods_of(client)) == 3 and found, "three pods")
    succeeded(platform, job)
    (image,) = platform._kept_client().provenance(parse_job_label(job)).images
    assert image.image == image_id("team/train:7") and len(image.nodes) == 3
    assert len(list(cluster.root.glob("pods/*/volumes/*/mark"))) == 3
    assert {one["spec"]["containers"][0]["image"] for one in pods} == {"team/train:7"}
    assert {one["metadata"]["labels"]["team"] for one in pods} == {"vision"}
    spec["mounts"] = ["pvc:own:/own"]
    with pytest.raises(AssertionError, match="pods on 3 nodes need ReadWriteMany"):
        platform.submit(spec)
    cluster.restrict("phalanx-default")
    with pytest.raises(AssertionError, match="Pod Security level restricted:latest"):
        platform.submit(on_kubernetes(out, "--epochs=1"))


@pytest.mark.proof
def test_one_world_over_unequal_pods_recovers_exactly(platform, cluster, tmp_path):
    """A pod with two ranks and one with one: a rank is killed, then a pod, and each has its own image."""
    flags = ["--epochs=5", "--samples=240"]

    def one_world(out, *more):
        spec = probe_spec(out, *flags, *more, pool="kube", image="team/train:7")
        run = spec.pop("run")
        del spec["resources"]
        worker = {"run": run, "world": "shared", "slots": 1, "image": "team/log:1"}
        return {**spec, "roles": {"master": {"run": run, "slots": 2}, "worker": worker}}

    out, go = tmp_path / "hit", tmp_path / "go"
    job = platform.submit(one_world(out, "--step-s=0.5", f"--until={go}"))
    platform.wait_steps(4, out)
    images = {
        one.name[-2:]: one.spec["containers"][0]["image"]
        for one in cluster.kubelet.running.values()
    }
    assert images == {"n0": "team/train:7", "n1": "team/log:1"}
    starts = dict(cluster.kubelet.starts)
    kill(platform.rank_pids(job)[2])
    platform.wait_steps(len(Path(f"{out}.steps").read_text().splitlines()) + 3, out)
    assert cluster.kubelet.starts == starts  # a new generation in the same pods
    cluster.kubelet.kill(next(name for name in starts if name.endswith("n1")))
    go.touch()
    view = succeeded(platform, job)
    assert (view.attempts, view.world_size) == (2, 3)
    assert (view.lineage.missed, view.lineage.duplicated) == (0, 0)
    assert view.lineage.consumed == 5 * 240
    calm = tmp_path / "calm"
    succeeded(platform, platform.submit(one_world(calm)))
    assert out.read_text() == calm.read_text()


def test_a_command_and_a_port_in_a_pod_are_reached_through_its_supervisor(
    platform, cluster, tmp_path
):
    """The control plane has no right to `pods/exec` and `pods/portforward`."""
    script = (
        "import os, socket, time\n"
        "if os.environ['RANK'] == '1':\n"
        "    s = socket.create_server(('127.0.0.1', 0)); print('PORT', s.getsockname()[1], flush=True)\n"
        "    while True:\n"
        "        c, _ = s.accept(); c.sendall(c.recv(100)[::-1]); c.close()\n"
        "time.sleep(600)\n"
    )
    job = platform.submit(
        {
            "run": ["python", "-c", script],
            "framework": "none",
            "pool": "kube",
            "resources": {"nodes": 2, "slots_per_node": 1},
            "env": {"COLOR": "blue"},
        }
    )
    platform.wait_state(job, "running")
    text = "echo $RANK $COLOR; cat; exit 7"
    done = subprocess.run(
        [BIN / "phalanx", "exec", job, "--rank", "1", "--", "sh", "-c", text],
        env=platform.env,
        cwd=platform.root,
        input=b"x" * 100_000,
        capture_output=True,
        timeout=200,
    )
    assert done.returncode == 7, done.stderr
    assert done.stdout == b"1 blue\n" + b"x" * 100_000
    found = wait_until(lambda: re.search(r"PORT (\d+)", platform.run("logs", job).stdout))
    with subprocess.Popen(
        [BIN / "phalanx", "port-forward", job, "--rank", "1", f"0:{found[1]}"],
        env=platform.env,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        local = int(re.search(r"127\.0\.0\.1:(\d+)", process.stderr.readline())[1])
        with socket.create_connection(("127.0.0.1", local), 60) as connection:
            connection.sendall(b"hello")
            assert connection.recv(100) == b"olleh"
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    platform.run("stop", job, "--grace", "0s")


JOBSET = """
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata: {name: multislice}
spec:
  replicatedJobs:
  - name: slice
    replicas: %(slices)d
    template:
      spec:
        parallelism: 2
        completions: 2
        template:
          spec:
            restartPolicy: Never
            nodeSelector: {cloud.google.com/gke-tpu-topology: 2x4}
            containers:
            - name: jax
              image: phalanx:test
              command: [sh, -c, "env > %(out)s/$RANK"]
              resources: {limits: {google.com/tpu: 4}}
"""


@pytest.fixture
def tpu_platform(cluster, tmp_path):
    """Slices a, b and c of two hosts, of which b lacks one; nodes have labels with their names."""
    for name in ("a-0", "a-1", "b-0", "c-0", "c-1"):
        labels = {
            "cloud.google.com/gke-nodepool": name[0],
            "cloud.google.com/gke-tpu-topology": "2x4",
            "kubernetes.io/hostname": name,
        }
        cluster.kubelet.add_node(name, labels, **{"google.com/tpu": "4"})
    one = KubernetesPlatform(tmp_path, cluster)
    one.up(num_nodes=5)
    yield one
    one.down()
    wait_until(lambda: cluster.left() == [], "an empty cluster")


@pytest.mark.extras
def test_a_jobset_of_two_tpu_slices_runs_on_two_whole_ones(tpu_platform, tmp_path):
    out, file = tmp_path / "env", tmp_path / "jobset.yaml"
    out.mkdir()
    file.write_text(JOBSET % {"slices": 3, "out": out})
    refused = tpu_platform.run("submit", file, check=False)
    assert (
        refused.returncode and "of the level slice, 2 have 2 nodes with 4 slots" in refused.stderr
    )
    file.write_text(JOBSET % {"slices": 2, "out": out})
    tpu_platform.run("submit", file)
    succeeded(tpu_platform, "j-1")
    # A node for each pod, by the number of the pod.
    nodes = {one.name[-1]: one.node for one in tpu_platform.cluster.kubelet.running.values()}
    assert [nodes[rank][0] for rank in "0123"] == ["a", "a", "c", "c"]
    told = [
        dict(line.partition("=")[::2] for line in (out / str(rank)).read_text().splitlines())
        for rank in range(4)
    ]
    assert [one["MEGASCALE_SLICE_ID"] for one in told] == ["0", "0", "1", "1"]
    assert [one["TPU_WORKER_ID"] for one in told] == ["0", "1", "0", "1"]
    assert len({one["TPU_WORKER_HOSTNAMES"] for one in told}) == 2
    assert {one["MEGASCALE_COORDINATOR_ADDRESS"] for one in told} == {
        told[0]["TPU_WORKER_HOSTNAMES"].split(",")[0]
    }
