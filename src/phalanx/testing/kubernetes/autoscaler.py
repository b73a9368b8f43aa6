"""A small cluster autoscaler for tests: it adds nodes for pods that wait, and removes unused nodes.

It moves only when a test tells it to, with the time as an argument. It binds pods, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from phalanx.executors.kubernetes.quantities import amounts, requested
from phalanx.testing.kubernetes.api import FakeKubernetes
from phalanx.testing.kubernetes.objects import Object

REQUESTS = "provisioningrequests"
GROUP = "autoscaling.x-k8s.io/v1"
_KEEPS = "cluster-autoscaler.kubernetes.io/safe-to-evict"
_HOSTNAME = "kubernetes.io/hostname"


@dataclass
class FakeClusterAutoscaler:
    """`gives` is the part of the missing nodes that it adds: 1 all, 0.5 half of them, 0 none."""

    api: FakeKubernetes  # with the objects that it works on
    capacity: Mapping[str, str]  # of each node that it adds
    gives: float = 1.0  # see above
    delay_s: float = 60.0  # from a pod that waits to its node
    idle_s: float = 300.0  # after which it removes a node that nothing keeps
    num_added: int = 0  # nodes ever
    removed: list[str] = field(default_factory=list)  # names of nodes
    _waits_since: dict[str, float] = field(default_factory=dict)  # by uid
    _served: set[str] = field(default_factory=set)  # uids of what was answered
    _idle_since: dict[str, float] = field(default_factory=dict)  # by node

    def serve_requests(self) -> None:
        """Let the cluster have the kind ProvisioningRequest."""
        self.api.groups[GROUP] = (REQUESTS,)

    def step(self, now_s: float) -> None:
        """Bind pods that fit, add nodes for those that have waited, and remove nodes."""
        with self.api.store.changed:
            self._bind(now_s)
            self._grow(now_s)
            self._answer(now_s)
            self._bind(now_s)
            self._shrink(now_s)

    def add_nodes(self, count: int) -> None:
        """Add nodes at once."""
        for _ in range(count):
            self.num_added += 1
            name = f"auto-{self.num_added}"
            status = {
                "capacity": dict(self.capacity),
                "allocatable": dict(self.capacity),
                "conditions": [{"type": "Ready", "status": "True"}],
                "nodeInfo": {"bootID": name},
            }
            labels = {"kubernetes.io/os": "linux", _HOSTNAME: name}
            body = {"metadata": {"name": name, "labels": labels}, "spec": {}, "status": status}
            self.api.store.create("nodes", "", body)

    def pods(self) -> list[Object]:
        """All pods that have not ended."""
        return [
            one
            for one in self._all("pods")
            if (one.get("status") or {}).get("phase") not in ("Succeeded", "Failed")
        ]

    def nodes(self) -> list[str]:
        """The names of all nodes."""
        return sorted(one["metadata"]["name"] for one in self._all("nodes"))

    # -- inside ------------------------------------------------------------------------------------

    def _all(self, plural: str) -> list[Object]:
        return [one for key, one in self.api.store.objects.items() if key[0] == plural]

    def _waiting(self) -> list[Object]:
        return [
            one
            for one in self.pods()
            if not one["spec"].get("nodeName") and not one["spec"].get("schedulingGates")
        ]

    def _bind(self, now_s: float) -> None:
        for pod in self._waiting():
            meta = pod["metadata"]
            node = next((name for name in self.nodes() if self._fits(pod, name)), None)
            if node is not None:
                bound = {**pod, "spec": {**pod["spec"], "nodeName": node}}
                bound["status"] = {
                    "phase": "Running",
                    "conditions": [{"type": "PodScheduled", "status": "True"}],
                }
                self.api.store.update("pods", meta["namespace"], meta["name"], bound)
                self._waits_since.pop(meta["uid"], None)
            elif meta["uid"] not in self._waits_since:
                self._waits_since[meta["uid"]] = now_s
                said = f"0/{len(self.nodes())} nodes are available."
                entry = {"type": "PodScheduled", "status": "False", "message": said}
                waits = {**pod, "status": {"phase": "Pending", "conditions": [entry]}}
                self.api.store.update("pods", meta["namespace"], meta["name"], waits)

    def _fits(self, pod: Object, name: str) -> bool:
        affinity = pod["spec"].get("affinity") or {}
        pinned = _terms(affinity.get("nodeAffinity"), "nodeSelectorTerms")
        if pinned and pinned[0]["matchFields"][0]["values"] != [name]:
            return False
        there = [one for one in self.pods() if one["spec"].get("nodeName") == name]
        for term in _terms(affinity.get("podAntiAffinity")):
            labels = term["labelSelector"]["matchLabels"].items()
            if any(labels <= (one["metadata"].get("labels") or {}).items() for one in there):
                return False
        node = self.api.store.objects["nodes", "", name]
        room = amounts(node["status"]["allocatable"])
        used = [requested(one) for one in there]
        return all(
            amount + sum(one.get(key, 0) for one in used) <= room.get(key, 0)
            for key, amount in requested(pod).items()
        )

    def _grow(self, now_s: float) -> None:
        due = [
            pod
            for pod in self._waiting()
            if pod["metadata"]["uid"] not in self._served
            and now_s - self._waits_since.get(pod["metadata"]["uid"], now_s) >= self.delay_s
        ]
        self._served |= {pod["metadata"]["uid"] for pod in due}
        self.add_nodes(int(len(due) * self.gives))
        for pod in due if not self.gives else ():
            self._tell(pod)

    def _tell(self, pod: Object) -> None:
        meta = pod["metadata"]
        event = {
            "metadata": {"name": f"{meta['name']}.{len(self._served)}"},
            "reason": "NotTriggerScaleUp",
            "message": "pod didn't trigger scale-up: 1 max node group size reached",
            "involvedObject": {"kind": "Pod", "name": meta["name"]},
        }
        self.api.store.create("events", meta["namespace"], event)

    def _answer(self, now_s: float) -> None:
        """Serve ProvisioningRequests: all of their nodes, or none."""
        for one in self._all(REQUESTS):
            meta = one["metadata"]
            since = self._waits_since.setdefault(meta["uid"], now_s)
            if meta["uid"] in self._served or now_s - since < self.delay_s:
                continue
            self._served.add(meta["uid"])
            kind, said = "Provisioned", "Provisioning Request was successfully provisioned."
            if self.gives < 1:
                kind, said = "Failed", "Provisioning Request cannot be provisioned: stockout."
            else:
                self.add_nodes(sum(int(entry["count"]) for entry in one["spec"]["podSets"]))
            status = {"conditions": [{"type": kind, "status": "True", "message": said}]}
            body = {**one, "status": status}
            self.api.store.update(REQUESTS, meta["namespace"], meta["name"], body)

    def _shrink(self, now_s: float) -> None:
        for name in self.nodes():
            there = [one for one in self.pods() if one["spec"].get("nodeName") == name]
            if not all(_may_go(one) for one in there):
                self._idle_since.pop(name, None)
                continue
            if now_s - self._idle_since.setdefault(name, now_s) < self.idle_s:
                continue
            for one in there:
                meta = one["metadata"]
                options = {"gracePeriodSeconds": 0}
                self.api.store.delete("pods", meta["namespace"], meta["name"], options)
            self.api.store.delete("nodes", "", name, {})
            self.removed.append(name)


def _terms(affinity: Any, inner: str = "") -> list[Any]:
    found: Any = (affinity or {}).get("requiredDuringSchedulingIgnoredDuringExecution") or []
    return list(found[inner]) if inner and found else list(found)


def _may_go(pod: Object) -> bool:
    annotations = pod["metadata"].get("annotations") or {}
    return bool(annotations.get(_KEEPS) == "true")
