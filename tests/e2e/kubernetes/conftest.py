"""A cluster for the tests of this folder: a fake API server, and a real one where its programs are."""

import contextlib
import threading
from pathlib import Path

import pytest
import yaml

from phalanx.executors.kubernetes.client import MERGE_PATCH, KubernetesRefused
from phalanx.testing.kubernetes.api import FakeKubernetes
from phalanx.testing.kubernetes.autoscaler import GROUP, REQUESTS
from phalanx.testing.kubernetes.kubelet import ProcessKubelet
from phalanx.testing.kubernetes.queues import FakeKueue
from support import kubernetes_server
from support.kubernetes_server import OPERATOR_USER, SHIPPED_USER, KubernetesServer
from support.pod_webhook import CONFIGURATIONS, PodWebhook
from support.waiting import wait_until

NAMESPACES = ("phalanx-default", "phalanx-tests")
DEPLOY = Path(__file__).parents[3] / "deploy" / "kubernetes"
RIGHTS, OPERATOR_RIGHTS = DEPLOY / "base" / "rbac.yaml", DEPLOY / "operator" / "rbac.yaml"
# Kinds of other projects that are served: their own definition, and one with their fields for the fake.
SERVED = {
    "pytorchjobs": "training-operator-v1/kubeflow.org_pytorchjobs.yaml",
    "jobsets": "jobset/jobset.x-k8s.io_jobsets.yaml",
}
FIXTURES = Path(__file__).parents[2] / "fixtures" / "operator"
_KINDS = ("pods", "secrets", "configmaps")


class KubernetesCluster:
    """An API server with a process kubelet.

    `kubeconfig` is the access of the control plane, `operator` that of `phalanx operator`, `admin` that of
    people who may do everything.
    """

    def __init__(self, root, kubeconfig, operator, admin):
        self.root = root
        self.kubeconfig, self.operator, self.admin = kubeconfig, operator, admin
        self.kubelet = ProcessKubelet(admin, root)
        self.kueue = None

    def add_nodes(self, count):
        for number in range(count):
            self.kubelet.add_node(f"node-{number}")

    def label(self, namespace, labels):
        """Set labels of a namespace; None removes one."""
        path = f"/api/v1/namespaces/{namespace}"
        self.kubelet.client.call("PATCH", path, {"metadata": {"labels": labels}}, kind=MERGE_PATCH)

    def start_kueue(self):
        """Let the cluster have Kueue, as `kueue`: its kind of objects, its webhook, its controller."""
        self.kueue = FakeKueue(self.admin)

    def objects(self, plural):
        """The names of all objects of a kind, in all namespaces."""
        found = self.kubelet.client.list(f"/api/v1/{plural}").items
        return [
            (plural, one["metadata"]["namespace"], one["metadata"]["name"])
            for one in found
            if one["metadata"]["namespace"] in NAMESPACES
        ]

    def left(self):
        """Objects of ours that the cluster still has."""
        return [key for plural in _KINDS for key in self.objects(plural)]


class FakeCluster(KubernetesCluster):
    """The fake API server, which also has faults that no real one has at will."""

    def __init__(self, root):
        self.api = FakeKubernetes()
        path = self.api.kubeconfig(root / "kubeconfig")
        super().__init__(root, path, path, path)
        for name in (*NAMESPACES, "kube-system"):
            self.api.add_namespace(name)

    def serve(self, plural):
        """Let the cluster have a kind of another project."""
        self.api.add_custom(FIXTURES / f"{plural}.yaml")

    def start_kueue(self):
        super().start_kueue()
        self.api.webhook = lambda pod: self.kueue.hold(pod)

    def away(self):
        """Switch the API server off; its history is lost."""
        self.api.away = True
        self.api.store.compact()

    def back(self):
        """End `away`."""
        self.api.away = False

    def limit_quota(self, namespace, **hard):
        """Give a namespace the quota `team`."""
        self.api.admission.quotas[namespace] = (
            "team",
            {name.replace("_", "."): most for name, most in hard.items()},
        )

    def restrict(self, namespace):
        """Let a namespace enforce the Pod Security profile restricted."""
        self.api.admission.restricted.add(namespace)

    def serve_provisioning_requests(self):
        """Let the cluster have the kind ProvisioningRequest."""
        self.api.groups[GROUP] = (REQUESTS,)

    def close(self):
        if self.kueue is not None:
            self.kueue.close()
        self.kubelet.close()
        self.api.close()


class ServerCluster(KubernetesCluster):
    """A real API server. The control plane has the rights of the manifest, and no others."""

    def __init__(self, root, server):
        self.server = server
        self._changed = []
        own = server.kubeconfig(root / "kubeconfig", SHIPPED_USER)
        operator = server.kubeconfig(root / "operator-kubeconfig", OPERATOR_USER)
        super().__init__(root, own, operator, server.root / "admin")
        self._closed = threading.Event()
        self._garbage = threading.Thread(target=self._collect, daemon=True)
        self._garbage.start()

    def away(self):
        """Kill the API server; etcd forgets its history."""
        self.server.compact()
        self.server.kill()

    def back(self):
        """End `away`."""
        self.server.start_api()

    def limit_quota(self, namespace, **hard):
        """Give a namespace the quota `team`."""
        hard = {name.replace("_", "."): most for name, most in hard.items()}
        path, client = f"/api/v1/namespaces/{namespace}/resourcequotas", self.kubelet.client
        client.call("POST", path, {"metadata": {"name": "team"}, "spec": {"hard": hard}})
        self._changed.append(lambda: self.kubelet.client.call("DELETE", f"{path}/team"))
        # What the controller of quotas does.
        status = {"status": {"hard": hard, "used": dict.fromkeys(hard, "0")}}
        client.call("PATCH", f"{path}/team/status", status, kind=MERGE_PATCH)

    def restrict(self, namespace):
        """Let a namespace enforce the Pod Security profile restricted."""
        self.label(namespace, {"pod-security.kubernetes.io/enforce": "restricted"})

    def label(self, namespace, labels):
        """See `KubernetesCluster`. The labels are as before when the cluster is closed."""
        path = f"/api/v1/namespaces/{namespace}"
        known = self.kubelet.client.call("GET", path)["metadata"].get("labels") or {}
        before = {name: known.get(name) for name in labels}
        super().label(namespace, labels)
        self._changed.append(lambda: KubernetesCluster.label(self, namespace, before))

    def serve(self, plural):
        """Let the cluster have a kind of another project, as that project defines it."""
        self._install(kubernetes_server.definition(SERVED[plural]))

    def start_kueue(self):
        self._install(kubernetes_server.definition("kueue/kueue.x-k8s.io_workloads.yaml"))
        super().start_kueue()
        self._changed.append(self.kueue.close)
        webhook = PodWebhook(self.root, lambda pod: self.kueue.hold(pod))
        self._changed.append(webhook.close)
        client, body = self.kubelet.client, webhook.configuration(NAMESPACES)
        client.call("POST", CONFIGURATIONS, body)
        own = f"{CONFIGURATIONS}/{body['metadata']['name']}"
        self._changed.append(lambda: self.kubelet.client.call("DELETE", own))
        labels = {"kueue.x-k8s.io/queue-name": "team"}
        pod = {"metadata": {"name": "tried", "labels": labels}}
        pod["spec"] = {"containers": [{"name": "main", "image": "phalanx:test"}]}
        path = f"/api/v1/namespaces/{NAMESPACES[0]}/pods"
        # The API server asks it a moment later.
        wait_until(
            lambda: client.call("POST", path, pod, query={"dryRun": "All"})["spec"].get(
                "schedulingGates"
            ),
            "the webhook",
        )

    def serve_provisioning_requests(self):
        """Let the cluster have the kind ProvisioningRequest."""
        group, version = GROUP.split("/")
        names = {"plural": REQUESTS, "singular": REQUESTS[:-1], "kind": "ProvisioningRequest"}
        schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        body = {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {
                "name": f"{REQUESTS}.{group}",
                # Groups of Kubernetes itself are protected: a definition says where it was agreed on.
                "annotations": {"api-approved.kubernetes.io": "unapproved, a test"},
            },
            "spec": {
                "group": group,
                "scope": "Namespaced",
                "names": {**names, "listKind": "ProvisioningRequestList"},
                "versions": [
                    {
                        "name": version,
                        "served": True,
                        "storage": True,
                        "schema": {"openAPIV3Schema": schema},
                    }
                ],
            },
        }
        self._install(body)

    def close(self):
        self._closed.set()
        self._garbage.join(60)
        self.kubelet.close()
        self.kubelet = ProcessKubelet(self.server.root / "admin", self.root / "last")
        try:
            for undo in reversed(self._changed):
                undo()
            self._empty()
        finally:
            self.kubelet.close()

    def _install(self, body):
        kubernetes_server.install(self.kubelet.client, body)
        name = body["metadata"]["name"]
        self._changed.append(lambda: kubernetes_server.remove_definition(self.kubelet.client, name))

    def _collect(self):
        while not self._closed.wait(0.5):
            for namespace in NAMESPACES:
                # Also while the API server is away.
                with contextlib.suppress(Exception):
                    kubernetes_server.collect_garbage(self.kubelet.client, namespace)

    def _empty(self):
        """Remove what a test left, whether it failed or not."""
        client = self.kubelet.client
        for plural in (*_KINDS, "services", "persistentvolumeclaims", "events"):
            for _, namespace, name in self.objects(plural):
                path = f"/api/v1/namespaces/{namespace}/{plural}/{name}"
                with contextlib.suppress(KubernetesRefused):
                    body = {"metadata": {"finalizers": None}}
                    client.call("PATCH", path, body, kind=MERGE_PATCH)
                    client.call("DELETE", path, {"gracePeriodSeconds": 0})
        for one in client.list("/api/v1/nodes").items:
            client.call("DELETE", f"/api/v1/nodes/{one['metadata']['name']}")


@pytest.fixture(scope="session")
def api_server(tmp_path_factory):
    """One real API server for all tests, with the shipped rights in two namespaces."""
    if lacking := kubernetes_server.missing():
        pytest.skip(lacking)
    with contextlib.closing(KubernetesServer(tmp_path_factory.mktemp("kubernetes"))) as server:
        rights = RIGHTS.read_text()
        own = [
            one
            for one in yaml.safe_load_all(rights)
            if one["metadata"].get("namespace") == NAMESPACES[0] or one["kind"] == "Namespace"
        ]
        server.apply(rights)
        server.apply(OPERATOR_RIGHTS.read_text())
        server.apply(yaml.safe_dump_all(own).replace(*NAMESPACES))
        yield server


CLUSTERS = ("fake", pytest.param("server", marks=pytest.mark.extras))
"""The fake API server, and a real one."""


def cluster_of(request, root):
    """The cluster of a fixture with the parameters `CLUSTERS`."""
    if request.param == "fake":
        return FakeCluster(root)
    return ServerCluster(root, request.getfixturevalue("api_server"))


@pytest.fixture(params=CLUSTERS)
def cluster(request, tmp_path):
    """One cluster after the other."""
    made = cluster_of(request, tmp_path)
    yield made
    made.close()
