"""Kueue for tests: pod groups wait at a gate, are admitted as a whole, and are evicted as a whole."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from phalanx.testing.kubernetes.objects import ApiError, KubernetesObjects

Object = dict[str, Any]
_PREFIX = "kueue.x-k8s.io/"
_LOOK_S = 0.05
_ENDED = ("Succeeded", "Failed")


@dataclass
class FakeKueue:
    """Queues with quotas in pods. A group that has ended, or lost its Workload, gives its quota back."""

    store: KubernetesObjects
    quotas: dict[str, int] = field(default_factory=dict)  # most pods at once, by queue
    _admitted: dict[str, int] = field(default_factory=dict)  # pods of admitted groups, by group
    _closed: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def mutate(self, pod: Object) -> None:
        """What the webhook adds to a new pod."""
        labels = pod["metadata"].get("labels") or {}
        if f"{_PREFIX}queue-name" not in labels:
            return
        labels[f"{_PREFIX}managed"] = "true"
        pod["metadata"].setdefault("finalizers", []).append(f"{_PREFIX}managed")
        pod["spec"]["schedulingGates"] = [{"name": f"{_PREFIX}admission"}]
        gated = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}
        pod["status"] = {"conditions": [gated]}

    @property
    def num_admitted(self) -> int:
        """Pods that hold quota."""
        return sum(self._admitted.values())

    def start(self) -> None:
        """Begin to admit."""
        self._thread = threading.Thread(target=self._run, name="kueue", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join(10)

    def evict(self, group: str, message: str) -> None:
        """Take back the quota of a group: all its pods are deleted."""
        said = {"type": "TerminationTarget", "status": "True", "reason": "WorkloadEvicted"}

        def ended(pod: Object) -> None:
            pod["status"].setdefault("conditions", []).append({**said, "message": message})

        with self.store.changed:
            self._admitted.pop(group, None)
            for pod in self._groups().get(group, []):
                self._change(pod, ended)
                name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
                self.store.delete("pods", namespace, name, {})

    # -- the loop ----------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closed.wait(_LOOK_S):
            with self.store.changed, contextlib.suppress(ApiError):
                for group, pods in self._groups().items():
                    self._look(group, pods)

    def _groups(self) -> dict[str, list[Object]]:
        found: dict[str, list[Object]] = {}
        for (plural, _, _), one in list(self.store.objects.items()):
            group = (one["metadata"].get("labels") or {}).get(f"{_PREFIX}pod-group-name")
            if plural == "pods" and group is not None:
                found.setdefault(group, []).append(one)
        return found

    def _look(self, group: str, pods: list[Object]) -> None:
        meta = pods[0]["metadata"]
        namespace, queue = meta["namespace"], meta["labels"][f"{_PREFIX}queue-name"]
        total = int(meta["annotations"][f"{_PREFIX}pod-group-total-count"])
        workload = self.store.objects.get(("workloads", namespace, group))
        if all(one["status"].get("phase") in _ENDED for one in pods) or (
            all(one["metadata"].get("deletionTimestamp") for one in pods)
        ):
            self._admitted.pop(group, None)
            for one in pods:
                self._change(one, _released)
            return
        if group in self._admitted or len(pods) < total:
            return
        if workload is None:
            self.store.create("workloads", namespace, {"metadata": {"name": group}, "status": {}})
        used, most = self.num_admitted, self.quotas.get(queue, 0)
        if used + total <= most:
            self._admitted[group] = total
            for one in pods:
                self._change(one, _ungated)
            return
        said = f"insufficient unused quota for pods in flavor default, {used + total - most} more needed"
        waits = {"type": "QuotaReserved", "status": "False", "message": said}
        found = self.store.get("workloads", namespace, group)
        if found["status"].get("conditions") != [waits]:
            found["status"]["conditions"] = [waits]
            self.store.update("workloads", namespace, group, found)

    def _change(self, pod: Object, change: Callable[[Object], None]) -> None:
        meta = pod["metadata"]
        with contextlib.suppress(ApiError):
            found = self.store.get("pods", meta["namespace"], meta["name"])
            before = str(found)
            change(found)
            if str(found) != before:
                self.store.update("pods", meta["namespace"], meta["name"], found)


def _ungated(pod: Object) -> None:
    pod["spec"]["schedulingGates"] = []
    pod["status"]["conditions"] = []


def _released(pod: Object) -> None:
    meta = pod["metadata"]
    meta["finalizers"] = [one for one in meta["finalizers"] if one != f"{_PREFIX}managed"]
