"""PyTorchJobs that people apply really train: API server, process kubelet, control plane, operator.

On a real API server the kind is that of its project, and the operator has the rights of
`deploy/kubernetes/operator/rbac.yaml` alone.
"""

import contextlib
import os
import signal
import subprocess

import pytest

from e2e.kubernetes.test_kubernetes_platform import KubernetesPlatform
from e2e.platform.harness import BIN, HERE
from phalanx.executors.kubernetes.client import MERGE_PATCH, KubernetesClient, KubernetesRefused
from phalanx.executors.kubernetes.credentials import from_kubeconfig
from phalanx.operator.kinds import SERVE_LABEL
from phalanx.operator.pytorchjobs import PyTorchJobKind
from support.waiting import wait_until

pytestmark = pytest.mark.e2e
PYTORCHJOB = PyTorchJobKind()
SPACE = "phalanx-default"


class OperatorPlatform(KubernetesPlatform):
    """A platform with an operator, which a test may kill and start again."""

    operator = None

    def start_operator(self):
        server = self._kept_client()
        words = ["--url", server.url, "--token", (self.home / "token").read_text().strip()]
        kubeconfig = str(self.cluster.operator)
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
    for plural in ("pytorchjobs", "jobsets"):
        cluster.serve(plural)
    cluster.label(SPACE, {SERVE_LABEL: "pytorchjob", "phalanx.dev/project": "default"})
    one = OperatorPlatform(tmp_path, cluster)
    one.up()
    one.start_operator()
    yield one
    with contextlib.suppress(ProcessLookupError):
        one.kill_operator()
    one.down()


@pytest.fixture
def kube(cluster):
    client = KubernetesClient(from_kubeconfig(cluster.admin))
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


def told(kube):
    """The reasons of the events about PyTorchJobs."""
    found = kube.list(f"/api/v1/namespaces/{SPACE}/events").items
    return {one["reason"] for one in found if one["involvedObject"]["kind"] == "PyTorchJob"}


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
    body = pytorchjob("long", long, *endless)
    # Of another program: the object is there, with a deletion time, until it is removed.
    body["metadata"]["finalizers"] = ["tests.invalid/kept"]
    kube.call("POST", PYTORCHJOB.path(SPACE), body)
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
    assert sorted(conditions(kube, "long")) == ["-Suspended", "Created", "Running"]
    assert [one.num for one in platform.jobs()] == [2, 1]  # the same job, and no other

    platform.kill_operator()
    kube.call("DELETE", PYTORCHJOB.path(SPACE, "long"), {})
    assert read(kube, "long")["metadata"]["deletionTimestamp"]
    platform.start_operator()
    wait_until(lambda: platform.jobs()[0].state == "cancelled", "the end of its job")
    wait_until(lambda: cluster.left() == [], "no pods")
    kept = {"metadata": {"finalizers": None}}
    kube.call("PATCH", PYTORCHJOB.path(SPACE, "long"), kept, kind=MERGE_PATCH)
    wait_until(lambda: read(kube, "long") is None, "its end")
    assert platform.kill_operator(signal.SIGTERM) == 0
    assert told(kube) >= {
        "PyTorchJobSucceeded",
        "PyTorchJobSuspended",
        "PyTorchJobResumed",
        "SuccessfulCreatePod",
        "ExitedWithCode",
    }
