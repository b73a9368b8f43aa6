"""Objects in a fake API server, a control plane in this process, and the operator between them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from integration.rig import Rig
from phalanx.core.contract.pods import CONTAINERS_LABEL
from phalanx.core.gang.placement import Node
from phalanx.executors.kubernetes.client import KubernetesClient
from phalanx.executors.kubernetes.credentials import from_kubeconfig
from phalanx.operator.cluster import ServedCluster
from phalanx.operator.control_plane import ObjectJobs
from phalanx.operator.kinds import ObjectKey
from phalanx.operator.reconciler import Reconciler
from phalanx.operator.submission import KINDS, SubmissionTarget
from phalanx.testing.kubernetes.api import FakeKubernetes
from support.waiting import wait_until

FIXTURES = Path(__file__).parents[1] / "fixtures" / "operator"
SERVED = {"phalanx.dev/serve": "pytorchjob", "phalanx.dev/project": "vision"}
Object = dict[str, Any]


def pytorchjob(
    name: str = "llm", *, workers: int = 1, policy: str = "OnFailure", **run: Any
) -> Object:
    """A PyTorchJob with a master and workers."""

    def role(count: int) -> Object:
        container = {"name": "pytorch", "image": "team/llm:3", "command": ["python", "train.py"]}
        template = {"spec": {"containers": [container]}}
        return {"replicas": count, "restartPolicy": policy, "template": template}

    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": name, "namespace": "team", "labels": {"paper": "one"}},
        "spec": {
            "runPolicy": run,
            "pytorchReplicaSpecs": {"Master": role(1), "Worker": role(workers)},
        },
    }


class ServedObjects:
    """One cluster with one namespace that is served, and the reconciler of an operator."""

    def __init__(self, rig: Rig, root: Path) -> None:
        self.rig = rig
        nodes = rig.executor.nodes
        rig.executor.nodes = tuple(replace(one, labels=(CONTAINERS_LABEL,)) for one in nodes)
        self.api = FakeKubernetes()
        for name in ("pytorchjobs", "jobsets"):
            self.api.add_custom(FIXTURES / f"{name}.yaml")
        self.api.add_namespace("kube-system")
        self.api.add_namespace("other")
        body = {"metadata": {"name": "team", "labels": dict(SERVED)}}
        self.api.store.create("namespaces", "", body)
        self.kubeconfig = self.api.kubeconfig(root / "kubeconfig")
        self.client = KubernetesClient(from_kubeconfig(self.kubeconfig))
        self.cluster = ServedCluster(self.client, KINDS)
        assert self.cluster.wait_ready(20)
        self.reconciler = self.reborn()

    def reborn(self) -> Reconciler:
        """The reconciler of an operator that has just started."""
        self.reconciler = Reconciler(
            self.cluster,
            ObjectJobs(self.rig.client, self.cluster.identity()),
            SubmissionTarget(self.cluster.identity()),
        )
        return self.reconciler

    def apply(self, one: Object) -> ObjectKey:
        """Create an object, or replace its spec."""
        meta, kind = one["metadata"], KINDS[one["kind"]]
        key = ObjectKey(kind.kind, meta["namespace"], meta["name"])
        known = self.client.get(kind.path(key.namespace, key.name))
        if known is None:
            self.client.call("POST", kind.path(key.namespace), one)
        else:
            body = {**known, "spec": one["spec"]}
            self.client.call("PUT", kind.path(key.namespace, key.name), body)
        return key

    def change(self, key: ObjectKey, **run: Any) -> None:
        """Change keys of the run policy."""
        one = self.object(key)
        one["spec"].setdefault("runPolicy", {}).update(run)
        self.apply(one)

    def object(self, key: ObjectKey) -> Object:
        """An object as the API server has it."""
        found = self.cluster.read(key)
        assert found is not None
        return found

    def look(self, key: ObjectKey) -> float | None:
        """One look of the operator, when its mirrors know what the API server does."""
        wait_until(self._knows, "the mirrors")
        return self.reconciler.reconcile(key, self.rig.clock.now() // 1_000_000)

    def _knows(self) -> bool:
        version = str(self.api.store.version)
        mirrors = self.cluster._mirrors
        return all(one._version == version for one in mirrors)

    def conditions(self, key: ObjectKey) -> list[str]:
        """The conditions of an object, with a minus where one is false."""
        found = self.object(key).get("status", {}).get("conditions", [])
        return [("" if one["status"] == "True" else "-") + one["type"] for one in found]

    def state_column(self, key: ObjectKey) -> str:
        """What `kubectl get pytorchjob` shows as the state: `.status.conditions[-1:].type` of its CRD."""
        return str(self.object(key)["status"]["conditions"][-1]["type"])

    def replicas(self, key: ObjectKey) -> Object:
        """The replica statuses of an object without their selectors."""
        found = self.object(key)["status"]["replicaStatuses"]
        return {
            role: {name: count for name, count in one.items() if name != "selector"}
            for role, one in found.items()
        }

    def events(self) -> list[tuple[str, str]]:
        """Reasons and messages of the events of the namespace, in order."""
        here = [one for (plural, *_), one in self.api.store.objects.items() if plural == "events"]
        return [(one["reason"], one["message"]) for one in here]

    def close(self) -> None:
        """End the connections and the API server."""
        self.cluster.close()
        self.api.close()


@contextmanager
def serving(rig: Rig, root: Path, *, slots: int = 4, nodes: int = 2) -> Iterator[ServedObjects]:
    """A served cluster whose pool has so many nodes."""
    rig.executor.nodes = tuple(
        Node(f"kube-{one}", "kube", f"10.0.0.{one}", slots, slots, 8 << 30)
        for one in range(1, nodes + 1)
    )
    served = ServedObjects(rig, root)
    try:
        yield served
    finally:
        served.close()


def start(served: ServedObjects, num: int = 1, attempt: int = 1) -> list:
    """Start the ranks of a job on both of its nodes."""
    served.rig.turn()
    supervisors = [served.rig.supervisor(num, rank, attempt) for rank in (0, 1)]
    for one in supervisors:
        one.ready()
    for one in supervisors:
        one.sync()
    for one in supervisors:
        one.started(pids=(7,))
    assert served.rig.job(num).state == "running"
    return supervisors


def end(served: ServedObjects, supervisors: list, outcome: str = "succeeded") -> None:
    """End the ranks of a job and let its supervisors leave."""
    for one in supervisors:
        one.ended(0, outcome, step=3)
    for one in supervisors:
        one.leave()
    served.rig.turn()
