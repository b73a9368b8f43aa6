"""Kueue for tests: pod groups wait at a gate, are admitted as a whole, and are evicted as a whole.

`hold` is what its webhook does with a new pod; `FakeKueue` is its controller, which acts through the API.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from phalanx.errors import ExecutorUnavailable
from phalanx.executors.kubernetes.client import (
    JSON_PATCH,
    MERGE_PATCH,
    KubernetesClient,
    KubernetesRefused,
)
from phalanx.executors.kubernetes.credentials import from_kubeconfig
from phalanx.executors.kubernetes.kueue import path_of
from phalanx.executors.kubernetes.reflector import Reflector

Object = dict[str, Any]
_PREFIX = "kueue.x-k8s.io/"
_LOOK_S = 0.05
_ENDED = ("Succeeded", "Failed")


def hold(pod: Object) -> None:
    """What the webhook of Kueue adds to a new pod that has a queue."""
    labels = pod["metadata"].get("labels") or {}
    if f"{_PREFIX}queue-name" not in labels:
        return
    labels[f"{_PREFIX}managed"] = "true"
    pod["metadata"].setdefault("finalizers", []).append(f"{_PREFIX}managed")
    pod["spec"]["schedulingGates"] = [{"name": f"{_PREFIX}admission"}]


class FakeKueue:
    """Queues with quotas in pods. A group that has ended, or lost its Workload, gives its quota back."""

    def __init__(self, kubeconfig: Path) -> None:
        self.quotas: dict[str, int] = {}  # most pods at once, by queue
        self.hold: Callable[[Object], None] = hold
        self._client = KubernetesClient(from_kubeconfig(kubeconfig))
        self._admitted: dict[str, int] = {}  # pods of admitted groups, by group
        self._evicted: set[str] = set()
        self._lock = threading.RLock()
        self._closed = threading.Event()
        self._pods = Reflector(self._client, "/api/v1/pods", {"labelSelector": f"{_PREFIX}managed"})
        self._thread = threading.Thread(target=self._run, name="kueue", daemon=True)
        self._thread.start()

    @property
    def num_admitted(self) -> int:
        """Pods that hold quota."""
        with self._lock:
            return sum(self._admitted.values())

    def close(self) -> None:
        """Stop."""
        self._closed.set()
        self._pods.close()
        self._client.close()
        self._pods.join(10)
        self._thread.join(10)

    def evict(self, group: str, message: str) -> None:
        """Take back the quota of a group: all its pods are deleted."""
        said = {"type": "TerminationTarget", "status": "True", "reason": "WorkloadEvicted"}
        with self._lock:
            self._evicted.add(group)
            self._admitted.pop(group, None)
            for pod in self._groups().get(group, []):
                known = self._client.call("GET", _path(pod))["status"].get("conditions") or []
                body = {"status": {"conditions": [*known, {**said, "message": message}]}}
                self._client.call("PATCH", f"{_path(pod)}/status", body, kind=MERGE_PATCH)
                self._client.call("DELETE", _path(pod), {})

    # -- the loop ----------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closed.is_set():
            # Another look follows also where the API server is away, or an object has changed.
            with contextlib.suppress(ExecutorUnavailable, KubernetesRefused), self._lock:
                for group, pods in self._groups().items():
                    self._look(group, pods)
            self._pods.wait(_LOOK_S)

    def _groups(self) -> dict[str, list[Object]]:
        found: dict[str, list[Object]] = {}
        for one in self._pods.read():
            group = (one["metadata"].get("labels") or {}).get(f"{_PREFIX}pod-group-name")
            if group is not None:
                found.setdefault(group, []).append(one)
        return found

    def _look(self, group: str, pods: list[Object]) -> None:
        meta = pods[0]["metadata"]
        namespace, queue = meta["namespace"], meta["labels"][f"{_PREFIX}queue-name"]
        total = int(meta["annotations"][f"{_PREFIX}pod-group-total-count"])
        if all(one["status"].get("phase") in _ENDED for one in pods) or (
            all(one["metadata"].get("deletionTimestamp") for one in pods)
        ):
            self._admitted.pop(group, None)
            for one in pods:
                self._release(one)
            return
        if group in self._admitted:
            self._open(pods)
        if group in self._admitted or group in self._evicted or len(pods) < total:
            return
        workload = self._client.get(path_of(namespace, group))
        if workload is None:
            workload = self._announce(namespace, group, queue, pods)
        used, most = self.num_admitted, self.quotas.get(queue, 0)
        if used + total <= most:
            self._tell(workload, "True", "QuotaReserved", "Quota reserved in ClusterQueue main")
            self._admitted[group] = total
            self._open(pods)
            return
        said = f"insufficient unused quota for pods in flavor default, {used + total - most} more needed"
        self._tell(workload, "False", "Pending", said)

    def _open(self, pods: list[Object]) -> None:
        """Remove the gates of pods."""
        for one in pods:
            if one["spec"].get("schedulingGates"):
                gates = {"op": "remove", "path": "/spec/schedulingGates"}
                self._pods.put(self._client.call("PATCH", _path(one), [gates], kind=JSON_PATCH))

    def _announce(self, namespace: str, group: str, queue: str, pods: list[Object]) -> Object:
        """Create the Workload of a group."""
        containers = [
            {"name": one["name"], "image": one["image"]} for one in pods[0]["spec"]["containers"]
        ]
        template = {"spec": {"containers": containers, "restartPolicy": "Never"}}
        owners = [
            {"apiVersion": "v1", "kind": "Pod"}
            | {key: one["metadata"][key] for key in ("name", "uid")}
            for one in pods
        ]
        body = {
            "apiVersion": f"{_PREFIX}v1beta2",
            "kind": "Workload",
            "metadata": {"name": group, "ownerReferences": owners},
            "spec": {
                "queueName": queue,
                "podSets": [{"name": "main", "count": len(pods), "template": template}],
            },
        }
        return self._client.call("POST", path_of(namespace, "").rstrip("/"), body)

    def _tell(self, workload: Object, holds: str, reason: str, message: str) -> None:
        """Write to a Workload whether its quota is reserved."""
        known = (workload.get("status") or {}).get("conditions") or [{}]
        if known[0].get("message") == message:
            return
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        said = {"type": "QuotaReserved", "status": holds, "reason": reason, "message": message}
        body = {"status": {"conditions": [{**said, "lastTransitionTime": at}]}}
        meta = workload["metadata"]
        path = f"{path_of(meta['namespace'], meta['name'])}/status"
        self._client.call("PATCH", path, body, kind=MERGE_PATCH)

    def _release(self, pod: Object) -> None:
        entry = f"{_PREFIX}managed"
        finalizers = pod["metadata"].get("finalizers") or []
        if entry not in finalizers:
            return
        place = f"/metadata/finalizers/{finalizers.index(entry)}"
        patch = [
            {"op": "test", "path": place, "value": entry},
            {"op": "remove", "path": place},
        ]
        # The platform removes its own beside it, and then the place is another one.
        with contextlib.suppress(KubernetesRefused):
            self._client.call("PATCH", _path(pod), patch, kind=JSON_PATCH)


def _path(pod: Object) -> str:
    meta = pod["metadata"]
    return f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
