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
from phalanx.operator.managed_jobs import MANAGER, BatchJobKind, JobSetKind
from phalanx.operator.pytorchjobs import PyTorchJobKind
from support.waiting import wait_until

pytestmark = pytest.mark.e2e
PYTORCHJOB, JOBSET, JOB = PyTorchJobKind(), JobSetKind(), BatchJobKind()
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


def container(out, *command):
    return {
        "name": "pytorch",
        "image": "phalanx:test",
        "command": list(command),
        "env": [{"name": "PROBE_OUT", "value": str(out)}],
    }


def pytorchjob(name, out, *command):
    template = {"spec": {"containers": [container(out, *command)]}}
    role = {"replicas": 1, "restartPolicy": "OnFailure", "template": template}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": name, "namespace": SPACE},
        "spec": {"pytorchReplicaSpecs": {"Master": role, "Worker": role}},
    }


def job(name, out, *command, **more):
    pod = {"restartPolicy": "Never", "containers": [container(out, *command)]}
    spec = {"parallelism": 2, "completions": 2, "template": {"spec": pod}, **more}
    meta = {"name": name, "namespace": SPACE}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": spec}


def jobset(name, out, *command):
    template = {"spec": job(name, out, *command)["spec"]}
    return {
        "apiVersion": JOBSET.api_version,
        "kind": "JobSet",
        "metadata": {"name": name, "namespace": SPACE},
        "spec": {
            "managedBy": MANAGER,
            "replicatedJobs": [{"name": "workers", "replicas": 1, "template": template}],
        },
    }


def read(kube, name, kind=PYTORCHJOB):
    return kube.get(kind.path(SPACE, name))


def conditions(kube, name, kind=PYTORCHJOB):
    found = read(kube, name, kind).get("status", {}).get("conditions", [])
    return [("" if one["status"] == "True" else "-") + one["type"] for one in found]


def counts(kube, name):
    found = read(kube, name)["status"]["replicaStatuses"]
    return {
        role: {key: count for key, count in one.items() if key != "selector"}
        for role, one in found.items()
    }


def suspend(kube, name, wanted, kind=PYTORCHJOB):
    def done():
        one = read(kube, name, kind)
        place = one["spec"]
        if kind is PYTORCHJOB:
            place = place.setdefault("runPolicy", {})
        place["suspend"] = wanted
        with contextlib.suppress(KubernetesRefused):  # its status was written meanwhile
            return kube.call("PUT", kind.path(SPACE, name), one)

    wait_until(done, "a change of the object")


def active(kube, name):
    return read(kube, name, JOB).get("status", {}).get("active")


def told(kube, kind):
    """The reasons of the events about objects of a kind."""
    found = kube.list(f"/api/v1/namespaces/{SPACE}/events").items
    return {one["reason"] for one in found if one["involvedObject"]["kind"] == kind.kind}


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
    assert told(kube, PYTORCHJOB) >= {
        "PyTorchJobSucceeded",
        "PyTorchJobSuspended",
        "PyTorchJobResumed",
        "SuccessfulCreatePod",
        "ExitedWithCode",
    }


@pytest.mark.extras
def test_a_jobset_and_a_job_with_our_manager_train_and_others_are_left_alone(
    platform, cluster, kube, tmp_path
):
    """The API server itself checks each step of the status of a Job."""
    kube.call("POST", JOB.path(SPACE), job("theirs", tmp_path / "theirs", "true"))
    kube.call("POST", JOBSET.path(SPACE), jobset("set", tmp_path / "set", "true"))
    wait_until(lambda: "Completed" in conditions(kube, "set", JOBSET), "its success")
    status = read(kube, "set", JOBSET)["status"]
    assert status["terminalState"] == "Completed"
    assert [one["succeeded"] for one in status["replicatedJobsStatus"]] == [1]
    long = job("long", tmp_path / "long", "sh", "-c", ENDLESS, managedBy=MANAGER)
    kube.call("POST", JOB.path(SPACE), long)
    wait_until(lambda: active(kube, "long") == 2, "its ranks")
    suspend(kube, "long", True, JOB)
    wait_until(lambda: "Suspended" in conditions(kube, "long", JOB), "its pause")
    wait_until(lambda: platform.jobs()[0].state == "paused", "its pause")
    suspend(kube, "long", False, JOB)
    wait_until(lambda: active(kube, "long") == 2, "its ranks again")
    wait_until(lambda: platform.jobs()[0].state == "running", "its job")
    kube.call("DELETE", JOB.path(SPACE, "long"), {"propagationPolicy": "Background"})
    wait_until(lambda: platform.jobs()[0].state == "cancelled", "the end of its job")
    done = job("done", tmp_path / "done", "true", managedBy=MANAGER)
    kube.call("POST", JOB.path(SPACE), done)
    wait_until(lambda: "Complete" in conditions(kube, "done", JOB), "its success")
    assert conditions(kube, "done", JOB) == ["SuccessCriteriaMet", "Complete"]
    assert read(kube, "done", JOB)["status"]["succeeded"] == 2
    wait_until(lambda: cluster.left() == [], "no pods")
    assert [one.name for one in platform.jobs()] == ["done", "long", "set"]
    assert not read(kube, "theirs", JOB).get("status")
    for name in ("theirs", "done"):
        kube.call("DELETE", JOB.path(SPACE, name), {"propagationPolicy": "Background"})
