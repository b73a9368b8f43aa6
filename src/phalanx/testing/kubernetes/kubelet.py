"""Nodes for tests: they bind pinned pods and run their containers as local processes."""

from __future__ import annotations

import base64
import contextlib
import os
import shutil
import signal
import subprocess
import sys
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
from phalanx.kit.text import random_hex
from phalanx.launch import linux

_LOOK_S = 0.05
ADDRESS = "127.0.0.1"


@dataclass(slots=True)
class RunningPod:
    """A pod as local processes, with the files that its container sees."""

    process: subprocess.Popen[bytes]
    root: Path
    node: str
    namespace: str
    name: str
    stop_at: float | None = None  # when it is killed; None: it was not asked to end
    reported: bool = False


@dataclass(slots=True)
class FakeNode:
    """One node: what it has, and the faults that it is in."""

    name: str
    capacity: dict[str, str]
    labels: dict[str, str] = field(default_factory=dict)
    boot_id: str = field(default_factory=lambda: random_hex(32))
    connected: bool = True  # to the API server


class ProcessKubelet:
    """The scheduler and the kubelets of a cluster. `images` without an entry here cannot be pulled."""

    def __init__(self, kubeconfig: Path, root: Path) -> None:
        self.client = KubernetesClient(from_kubeconfig(kubeconfig))
        self.root = root
        self.nodes: dict[str, FakeNode] = {}
        self.running: dict[str, RunningPod] = {}
        self.starts: dict[str, int] = {}  # containers ever started, by pod name
        self.missing_images: set[str] = set()
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
            for pod in [one for one in self.running.values() if one.node == name]:
                _kill(pod.process)

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
                node.boot_id = random_hex(32)
            node.connected = True
        self._tell_node(node, "True")

    def kill(self, pod: str, number: int = signal.SIGKILL) -> None:
        """Kill the first process of a pod's container, which ends all others."""
        with self._lock:
            found = next(one for one in self.running.values() if one.name == pod)
            if number == signal.SIGKILL:
                _kill(found.process)
            else:
                found.process.send_signal(number)

    def close(self) -> None:
        """End everything."""
        self._closed = True
        self._pods.close()
        self._thread.join(10)
        for pod in self.running.values():
            _kill(pod.process)
            pod.process.wait()
        self.client.close()

    # -- the loop ----------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closed:
            with contextlib.suppress(ExecutorUnavailable, KubernetesRefused):
                pods = self._pods.read()
                with self._lock:
                    for pod in pods:
                        self._serve(pod, pods)
            self._pods.wait(_LOOK_S)

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
        affinity = pod["spec"]["affinity"]["nodeAffinity"]
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
        self._pods.put(self.client.call("POST", f"{path}/binding", body))

    def _begin(self, pod: Object) -> None:
        container = pod["spec"]["containers"][0]
        if container["image"] in self.missing_images:
            waiting = {"reason": "ErrImagePull", "message": f"{container['image']}: not found"}
            self._status(
                _path(pod), {"containerStatuses": [_state(container, {"waiting": waiting})]}
            )
            return
        uid, name = pod["metadata"]["uid"], pod["metadata"]["name"]
        root = self.root / "pods" / uid
        seen = self._folders(pod, root)
        env = {"PATH": f"{Path(sys.executable).parent}:{os.defpath}", "HOME": str(root)}
        for entry in container.get("env") or ():
            # The file system of a container is a folder here: paths are rewritten.
            value = ADDRESS if "valueFrom" in entry else str(entry["value"])
            below = [one for one in seen if value == one or value.startswith(f"{one}/")]
            env[entry["name"]] = str(seen[below[0]]) + value[len(below[0]) :] if below else value
        argv = [*container["command"], *(container.get("args") or ())]
        with open(root / "log", "ab") as log:
            process = subprocess.Popen(
                [shutil.which(argv[0], path=env["PATH"]) or argv[0], *argv[1:]],
                env=env,
                cwd=root,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        node = pod["spec"]["nodeName"]
        self.running[uid] = RunningPod(process, root, node, pod["metadata"]["namespace"], name)
        self.starts[name] = self.starts.get(name, 0) + 1
        running = _state(container, {"running": {}})
        self._status(
            _path(pod),
            {"phase": "Running", "podIP": ADDRESS, "containerStatuses": [running]},
        )

    def _folders(self, pod: Object, root: Path) -> dict[str, Path]:
        """The folders and files that a container sees, by their path there."""
        root.mkdir(parents=True, mode=0o700)
        (root / "tmp").mkdir(mode=0o700)
        (root / "termination-log").touch()
        seen = {"/tmp": root / "tmp", "/dev/termination-log": root / "termination-log"}
        volumes = {one["name"]: one for one in pod["spec"].get("volumes") or ()}
        for mount in pod["spec"]["containers"][0].get("volumeMounts") or ():
            folder = root / "volumes" / mount["name"]
            folder.mkdir(parents=True, exist_ok=True)
            secret = volumes[mount["name"]].get("secret")
            if secret is not None:
                path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/secrets"
                found = self.client.call("GET", f"{path}/{secret['secretName']}")
                for name, text in found["data"].items():
                    (folder / name).write_bytes(base64.b64decode(text))
            seen[mount["mountPath"]] = folder
        return seen

    def _follow(self, pod: Object, running: RunningPod) -> None:
        code = running.process.poll()
        if code is not None:
            message = (running.root / "termination-log").read_text()
            self._report(pod, code if code >= 0 else 128 - code, message, "Completed")
            running.reported = True
            return
        grace = pod["metadata"].get("deletionGracePeriodSeconds")
        if grace is None:
            return
        now = time.monotonic()
        if running.stop_at is None:
            running.process.send_signal(signal.SIGTERM)
            running.stop_at = now + grace
        running.stop_at = min(running.stop_at, now + grace)
        if now >= running.stop_at:
            _kill(running.process)

    def _report(self, pod: Object, code: int, message: str, reason: str) -> None:
        container = pod["spec"]["containers"][0]
        word = "Completed" if code == 0 else "Error"
        ended = {"exitCode": code, "reason": word if reason == "Completed" else reason}
        ended |= {"message": message} if message else {}
        self._status(
            _path(pod),
            {
                "phase": "Failed" if code else "Succeeded",
                "containerStatuses": [_state(container, {"terminated": ended})],
            },
        )
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
    return {"name": container["name"], "image": container["image"], "state": state}


def _lives(pod: Object) -> bool:
    return pod["status"].get("phase") not in ("Succeeded", "Failed")


def _path(pod: Object) -> str:
    meta = pod["metadata"]
    return f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a container's first process and everything below, as the end of a PID namespace does."""
    with contextlib.suppress(ProcessLookupError):
        # Stopped first: it must not notice that the others end.
        process.send_signal(signal.SIGSTOP)
        linux.kill_below(process.pid, frozenset(), lambda: None)
        process.kill()
