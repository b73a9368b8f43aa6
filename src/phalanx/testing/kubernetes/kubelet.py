"""Nodes for tests: they bind pinned pods and run their containers as local processes."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import signal
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from phalanx.errors import ExecutorUnavailable
from phalanx.executors.kubernetes.client import (
    MERGE_PATCH,
    KubernetesClient,
    KubernetesRefused,
    Object,
)
from phalanx.executors.kubernetes.credentials import from_kubeconfig
from phalanx.executors.kubernetes.quantities import amounts, requested
from phalanx.executors.kubernetes.reflector import Reflector
from phalanx.kit.clock import SystemClock
from phalanx.kit.text import random_hex
from phalanx.testing.kubernetes.image_root import ImageRoot
from phalanx.testing.kubernetes.pod_processes import ADDRESS, PodProcesses, kill_below

_LOOK_S = 0.05


@dataclass(slots=True)
class FakeNode:
    """One node: what it has, and the faults that it is in."""

    name: str
    capacity: dict[str, str]
    labels: dict[str, str] = field(default_factory=dict)
    boot_id: str = field(default_factory=lambda: random_hex(32))
    connected: bool = True  # to the API server


class ProcessKubelet:
    """The scheduler and the kubelets of a cluster.

    Containers see the files of this machine, apart from those with an image in `images`.
    """

    def __init__(self, kubeconfig: Path, root: Path) -> None:
        self.client = KubernetesClient(from_kubeconfig(kubeconfig))
        self.root = root
        self.nodes: dict[str, FakeNode] = {}
        self.running: dict[str, PodProcesses] = {}
        self.starts: dict[str, int] = {}  # containers ever started, by pod name
        self._clock = SystemClock()
        self.bound_at: dict[str, int] = {}  # when pods were bound to their node, by pod name
        self.ended_at: dict[str, int] = {}  # when it began to tell the end of their containers
        self.missing_images: set[str] = set()  # these cannot be pulled
        self.images: dict[str, ImageRoot] = {}  # root folders, by name
        self._lock = threading.RLock()
        self._closed = False
        self._pods = Reflector(self.client, "/api/v1/pods")
        self._thread = threading.Thread(target=self._run, name="kubelet", daemon=True)
        self._thread.start()

    def add_node(self, name: str, labels: dict[str, str] | None = None, **capacity: str) -> None:
        """Register a node; resources with a slash come as `{"example.com/gpu": "2"}` in `capacity`."""
        node = FakeNode(
            name, {"cpu": "4", "memory": "16Gi", "pods": "110", **capacity}, labels or {}
        )
        with self._lock:
            self.nodes[name] = node
        body = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": {"kubernetes.io/os": "linux", **node.labels}},
            "spec": {},
        }
        self.client.call("POST", "/api/v1/nodes", body)
        self._tell_node(node, "True")

    def lose(self, name: str) -> None:
        """Switch a node off: its processes die, and its kubelet tells nothing."""
        self.partition(name)
        with self._lock:
            self._kill_all(name)

    def partition(self, name: str) -> None:
        """Cut a node off from the API server; its processes continue."""
        with self._lock:
            self.nodes[name].connected = False
        self._tell_node(self.nodes[name], "Unknown")

    def bring_back(self, name: str, *, restarted: bool) -> None:
        """Connect a node again; one that was restarted has another boot id."""
        with self._lock:
            node = self.nodes[name]
            if restarted:
                self._kill_all(name)
                node.boot_id = random_hex(32)
            node.connected = True
        self._tell_node(node, "True")

    def kill(self, pod: str, number: int = signal.SIGKILL) -> None:
        """Kill the first process of a pod's container, which ends all others."""
        with self._lock:
            found = next(one for one in self.running.values() if one.name == pod)
            assert found.process is not None
            if number == signal.SIGKILL:
                kill_below(found.process)
            else:
                found.process.send_signal(number)

    def evict(self, pod: str) -> None:
        """End a pod as a kubelet does that lacks memory or disk."""
        with self._lock:
            found = next(one for one in self.running.values() if one.name == pod)
            found.evicted = True
            found.kill()

    def living(self) -> list[str]:
        """The names of pods with a main container that runs, also where the API server does not know it."""
        with self._lock:
            return [one.name for one in self.running.values() if one.is_alive]

    def close(self) -> None:
        """End everything."""
        self._closed = True
        self._pods.close()
        self._thread.join(10)
        for pod in self.running.values():
            pod.kill()
            pod.wait()
        self.client.close()

    # -- the loop ----------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closed:
            with contextlib.suppress(ExecutorUnavailable, KubernetesRefused):
                pods = self._pods.read()
                with self._lock:
                    for pod in pods:
                        self._serve(pod, pods)
                    self._end_unknown({one["metadata"]["uid"] for one in pods})
            self._pods.wait(_LOOK_S)

    def _end_unknown(self, known: set[str]) -> None:
        """Kill what belongs to pods that the API server has no more, as after a forced deletion."""
        for uid, one in self.running.items():
            if uid not in known and not one.reported and self.nodes[one.node].connected:
                one.kill()
                one.reported = True

    def _kill_all(self, node: str) -> None:
        for one in self.running.values():
            if one.node == node:
                one.kill()

    def _serve(self, pod: Object, pods: list[Object]) -> None:
        name = pod["spec"].get("nodeName")
        if not name:
            if not pod["metadata"].get("deletionTimestamp"):
                self._schedule(pod, pods)
            return
        node = self.nodes.get(name)
        if node is None or not node.connected:
            return
        uid = pod["metadata"]["uid"]
        ended = pod["status"].get("phase") in ("Succeeded", "Failed")
        running = self.running.get(uid)
        if running is None and not ended:
            if pod["metadata"].get("deletionTimestamp"):
                self._report(pod, 137, "", "Deleted")
            else:
                self._begin(pod)
        elif running is not None and not running.reported:
            self._follow(pod, running)
        elif ended and pod["metadata"].get("deletionGracePeriodSeconds"):
            self._confirm_deletion(pod)

    def _schedule(self, pod: Object, pods: list[Object]) -> None:
        affinity = (pod["spec"].get("affinity") or {}).get("nodeAffinity")
        if affinity is None or pod["spec"].get("schedulingGates"):
            return  # a placeholder: it is for an autoscaler, which this cluster has not
        terms = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        name = terms[0]["matchFields"][0]["values"][0]
        node = self.nodes.get(name)
        taken = [
            requested(one) for one in pods if one["spec"].get("nodeName") == name and _lives(one)
        ]
        wanted = requested(pod)
        room = amounts(node.capacity) if node is not None and node.connected else {}
        lacking = [
            key
            for key, amount in wanted.items()
            if amount + sum(one.get(key, 0) for one in taken) > room.get(key, 0)
        ]
        path = _path(pod)
        if lacking:
            said = f"0/{len(self.nodes)} nodes are available: Insufficient {lacking[0]}."
            entry = {
                "type": "PodScheduled",
                "status": "False",
                "reason": "Unschedulable",
                "message": said,
            }
            known = (pod["status"].get("conditions") or [{}])[0]
            if known.get("message") != said:
                self._status(path, {"conditions": [entry]})
            return
        target = {"apiVersion": "v1", "kind": "Node", "name": name}
        body = {"metadata": {"name": pod["metadata"]["name"]}, "target": target}
        self.bound_at[pod["metadata"]["name"]] = self._clock.now()
        self.client.call("POST", f"{path}/binding", body)
        self._pods.put(self.client.call("GET", path))

    def _begin(self, pod: Object) -> None:
        spec = pod["spec"]
        for container in (*spec.get("initContainers", ()), *spec["containers"]):
            if container["image"] in self.missing_images:
                waiting = {"reason": "ErrImagePull", "message": f"{container['image']}: not found"}
                init = container is not spec["containers"][0]
                key = "initContainerStatuses" if init else "containerStatuses"
                states = [_state(container, {"waiting": waiting})]
                self._status(_path(pod), {key: states})
                return
        uid, name = pod["metadata"]["uid"], pod["metadata"]["name"]
        self.running[uid] = PodProcesses(
            pod, self.root / "pods" / uid, self._secrets(pod), self.images
        )
        self.starts[name] = self.starts.get(name, 0) + 1
        self._advance(pod, self.running[uid])

    def _secrets(self, pod: Object) -> dict[str, dict[str, bytes]]:
        """The contents of mounted Secrets by the name of their volume."""
        found = {}
        for volume in pod["spec"].get("volumes") or ():
            if "secret" in volume:
                path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/secrets"
                one = self.client.call("GET", f"{path}/{volume['secret']['secretName']}")
                data = {key: base64.b64decode(text) for key, text in one["data"].items()}
                found[volume["name"]] = data
        return found

    def _advance(self, pod: Object, running: PodProcesses) -> None:
        """Start what is next, and tell it."""
        changed = False
        while running.advance():
            changed = True
        if changed:
            state: Object = {"waiting": {"reason": "PodInitializing"}}
            if running.process is not None:
                state = {"running": {}}
            status: Object = {
                "phase": "Pending" if running.process is None else "Running",
                "podIP": ADDRESS,
                "containerStatuses": [_state(pod["spec"]["containers"][0], state)],
            }
            if pod["spec"].get("initContainers"):
                status["initContainerStatuses"] = running.init_statuses()
            self._status(_path(pod), status)

    def _follow(self, pod: Object, running: PodProcesses) -> None:
        self._advance(pod, running)
        code = running.exit_code
        if code is not None:
            message = (running.root / "termination-log").read_text()
            if code and not message:
                # FallbackToLogsOnError
                message = (running.root / "log").read_text(errors="replace")[-2048:]
            self._report(pod, code, message, "Completed", running)
            running.reported = True
            return
        grace = pod["metadata"].get("deletionGracePeriodSeconds")
        if grace is None:
            return
        now = time.monotonic()
        if running.stop_at is None:
            running.terminate()
            running.stop_at = now + grace
        running.stop_at = min(running.stop_at, now + grace)
        if now >= running.stop_at:
            running.kill()

    def _report(
        self,
        pod: Object,
        code: int,
        message: str,
        reason: str,
        running: PodProcesses | None = None,
    ) -> None:
        self.ended_at[pod["metadata"]["name"]] = self._clock.now()
        container = pod["spec"]["containers"][0]
        word = "Completed" if code == 0 else "Error"
        ended: Object = {"exitCode": code, "reason": word if reason == "Completed" else reason}
        ended |= {"message": message} if message else {}
        state: Object = {"terminated": ended}
        status: Object = {}
        if running is not None and pod["spec"].get("initContainers"):
            if running.failed_init is not None:
                state = {"waiting": {"reason": "PodInitializing"}}
            else:
                # The sidecars run for a moment longer.
                self._status(_path(pod), {"containerStatuses": [_state(container, state)]})
            running.end_sidecars()
            status["initContainerStatuses"] = running.init_statuses()
        status |= {
            "phase": "Failed" if code else "Succeeded",
            "containerStatuses": [_state(container, state)],
        }
        if running is not None and running.evicted:
            status |= {"reason": "Evicted", "message": "The node was low on resource: memory."}
        self._status(_path(pod), status)
        if pod["metadata"].get("deletionTimestamp"):
            self._confirm_deletion(pod)

    def _confirm_deletion(self, pod: Object) -> None:
        """The second step of a deletion: the kubelet says that nothing runs any more."""
        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": pod["metadata"]["uid"]}}
        self.client.call("DELETE", _path(pod), options)

    def _status(self, path: str, status: dict[str, Any]) -> None:
        body = {"status": status}
        self._pods.put(self.client.call("PATCH", f"{path}/status", body, kind=MERGE_PATCH))

    def _tell_node(self, node: FakeNode, ready: str) -> None:
        status = {
            "capacity": node.capacity,
            "allocatable": node.capacity,
            "conditions": [{"type": "Ready", "status": ready}],
            "nodeInfo": {"bootID": node.boot_id},
        }
        path = f"/api/v1/nodes/{node.name}/status"
        self.client.call("PATCH", path, {"status": status}, kind=MERGE_PATCH)


def _state(container: Object, state: Object) -> Object:
    image = container["image"]
    pulled = "" if "waiting" in state else image_id(image)
    return {"name": container["name"], "image": image, "imageID": pulled, "state": state}


def image_id(image: str) -> str:
    """The image with a digest, as a node resolves it."""
    name = image.partition("@")[0].rpartition(":")[0] or image
    return f"{name}@sha256:{hashlib.sha256(image.encode()).hexdigest()}"


def _lives(pod: Object) -> bool:
    return pod["status"].get("phase") not in ("Succeeded", "Failed")


def _path(pod: Object) -> str:
    meta = pod["metadata"]
    return f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
