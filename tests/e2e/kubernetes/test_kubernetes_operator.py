"""PyTorchJobs that people apply really train: fake API server, process kubelet, control plane, operator."""

import contextlib
import os
import signal
import subprocess
from pathlib import Path

import pytest

from e2e.kubernetes.test_kubernetes_platform import KubernetesPlatform
from e2e.platform.harness import BIN, HERE
from phalanx.executors.kubernetes.client import KubernetesClient, KubernetesRefused
from phalanx.executors.kubernetes.credentials import from_kubeconfig
from phalanx.operator.pytorchjobs import PyTorchJobKind
from support.waiting import wait_until

pytestmark = pytest.mark.e2e
PYTORCHJOB = PyTorchJobKind()
CRD = Path(__file__).parents[2] / "fixtures" / "operator" / "pytorchjobs.yaml"
SPACE = "phalanx-default"


class OperatorPlatform(KubernetesPlatform):
    """A platform with an operator, which a test may kill and start again."""

    operator = None

    def start_operator(self):
        server = self._kept_client()
        words = ["--url", server.url, "--token", (self.home / "token").read_text().strip()]
        kubeconfig = str(self.cluster.kubeconfig)
        words += ["operator", "--kubeconfig", kubeconfig, "--pool", "kube", "--workers", "2"]
        with (self.root / "operator.log").open("ab") as log:
            self.operator = subprocess.Popen(
                [BIN / "phalanx", *words],
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill_operator(self, number=signal.SIGKILL):
        os.kill(self.operator.pid, number)
        return self.operator.wait(30)


@pytest.fixture
def platform(cluster, tmp_path):
    cluster.add_nodes(3)
    cluster.api.add_namespace("kube-system")
    cluster.api.add_custom(CRD)
    namespace = cluster.api.store.get("namespaces", "", SPACE)
    namespace["metadata"]["labels"] = {
        "phalanx.dev/serve": "pytorchjob",
        "phalanx.dev/project": "default",
    }
    cluster.api.store.update("namespaces", "", SPACE, namespace)
    one = OperatorPlatform(tmp_path, cluster)
    one.up()
    one.start_operator()
    yield one
    with contextlib.suppress(ProcessLookupError):
        one.kill_operator()
    one.down()


@pytest.fixture
def kube(cluster):
    client = KubernetesClient(from_kubeconfig(cluster.kubeconfig))
    yield client
    client.close()


# Ranks without torch, which go on until they are stopped: a warm process in each pod costs seconds.
ENDLESS = """
trap 'exit 0' TERM
while :; do
    if [ "$RANK" = 0 ]; then echo step >> "$PROBE_OUT.steps"; fi
    sleep 0.05
done
"""


def pytorchjob(name, out, *command):
    container = {
        "name": "pytorch",
        "image": "phalanx:test",
        "command": list(command),
        "env": [{"name": "PROBE_OUT", "value": str(out)}],
    }
    template = {"spec": {"containers": [container]}}
    role = {"replicas": 1, "restartPolicy": "OnFailure", "template": template}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": name, "namespace": SPACE},
        "spec": {"pytorchReplicaSpecs": {"Master": role, "Worker": role}},
    }


def read(kube, name):
    return kube.get(PYTORCHJOB.path(SPACE, name))


def conditions(kube, name):
    found = read(kube, name).get("status", {}).get("conditions", [])
    return [("" if one["status"] == "True" else "-") + one["type"] for one in found]


def counts(kube, name):
    found = read(kube, name)["status"]["replicaStatuses"]
    return {
        role: {key: count for key, count in one.items() if key != "selector"}
        for role, one in found.items()
    }


def suspend(kube, name, wanted):
    def done():
        one = read(kube, name)
        one["spec"].setdefault("runPolicy", {})["suspend"] = wanted
        with contextlib.suppress(KubernetesRefused):  # its status was written meanwhile
            return kube.call("PUT", PYTORCHJOB.path(SPACE, name), one)

    wait_until(done, "a change of the object")


@pytest.mark.parametrize("cluster", ["fake"], indirect=True)
def test_an_object_trains_and_its_operator_may_be_killed_in_the_middle(
    platform, cluster, kube, tmp_path
):
    short, long = tmp_path / "short", tmp_path / "long"
    train = ["torchrun", str(HERE / "training.py"), "--epochs=1", "--samples=24"]
    kube.call("POST", PYTORCHJOB.path(SPACE), pytorchjob("short", short, *train))
    wait_until(lambda: "Succeeded" in conditions(kube, "short"), "its success")
    assert conditions(kube, "short") == ["Created", "-Running", "Succeeded"]
    assert counts(kube, "short") == {"Master": {"succeeded": 1}, "Worker": {"succeeded": 1}}
    assert short.exists()
    view = platform.jobs()[0]
    assert (view.state, view.world_size, view.project) == ("succeeded", 2, "default")
    one = read(kube, "short")
    assert one["metadata"]["annotations"]["phalanx.dev/job"] == view.url
    wait_until(lambda: cluster.left() == [], "no pods")

    endless = ["sh", "-c", ENDLESS]
    kube.call("POST", PYTORCHJOB.path(SPACE), pytorchjob("long", long, *endless))
    wait_until(lambda: conditions(kube, "long") == ["Created", "Running"], "its ranks")
    assert counts(kube, "long") == {"Master": {"active": 1}, "Worker": {"active": 1}}
    selector = "training.kubeflow.org/job-name=long,training.kubeflow.org/replica-type=worker"

    def workers():
        found = kube.list(f"/api/v1/namespaces/{SPACE}/pods", {"labelSelector": selector}).items
        return [one["metadata"]["labels"]["training.kubeflow.org/replica-index"] for one in found]

    wait_until(lambda: workers() == ["0"], "labels of its pods")
    platform.wait_steps(5, long)
    platform.kill_operator()
    suspend(kube, "long", True)
    platform.start_operator()
    wait_until(lambda: "Suspended" in conditions(kube, "long"), "the other operator")
    wait_until(lambda: platform.jobs()[0].state == "paused", "its pause")
    wait_until(lambda: cluster.left() == [], "no pods")
    suspend(kube, "long", False)
    wait_until(lambda: conditions(kube, "long")[-1] == "Running", "its ranks again")
    assert conditions(kube, "long") == ["Created", "-Suspended", "Running"]
    assert [one.num for one in platform.jobs()] == [2, 1]  # the same job, and no other

    platform.kill_operator()
    kube.call("DELETE", PYTORCHJOB.path(SPACE, "long"), {})
    platform.start_operator()
    wait_until(lambda: platform.jobs()[0].state == "cancelled", "the end of its job")
    wait_until(lambda: cluster.left() == [], "no pods")
    assert platform.kill_operator(signal.SIGTERM) == 0
    told = [one for key, one in cluster.api.store.objects.items() if key[0] == "events"]
    reasons = {one["reason"] for one in told}
    assert reasons >= {
        "PyTorchJobSucceeded",
        "PyTorchJobSuspended",
        "PyTorchJobResumed",
        "SuccessfulCreatePod",
        "ExitedWithCode",
    }
    assert {one["involvedObject"]["kind"] for one in told} == {"PyTorchJob"}
