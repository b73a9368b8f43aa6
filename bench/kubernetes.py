"""The Kubernetes executor against its goals, on the fake API server in a process of its own.

    python bench/kubernetes.py            # all; `--only gang,list,outage`

`gang`: 500 pods reserved and started at 50 requests a second. `list`: 5,000 nodes, 50,000 pods of others.
`outage`: the API server away for ten minutes of a virtual clock, with the pods of 100 jobs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from phalanx.core.gang.placement import NodeShare, Placement
from phalanx.executors.kubernetes.credentials import from_kubeconfig
from phalanx.executors.kubernetes.deaths import NodeSilence
from phalanx.executors.kubernetes.executor import KubernetesExecutor
from phalanx.executors.protocol import SupervisorRef
from phalanx.executors.routing import RoutedExecutor
from phalanx.schemas.home import HomeLayout
from phalanx.schemas.pools.kubernetes_pools import KubernetesPool
from phalanx.schemas.wire.assignments import Assignment
from phalanx.testing.executors import gang_contract, ref_of
from phalanx.testing.kubernetes.api import FakeKubernetes

NAMESPACE = "phalanx-tests"
GOALS = {
    "gang: 500 pods created and running, s": 30.0,
    "gang: reserve returns after, s": 2.0,
    "list: 5,000 nodes and 50,000 pods, s": 10.0,
    "list: peak memory of the process, MB": 300.0,
    "list: inventory after a change, s": 1.0,
    "outage: changes of 100 supervisors in 10 minutes": 0.0,
    "outage: caught up after, s": 5.0,
}
# Without a goal: the server, a Python program, uses the same cores; this is the part of the executor.
CPU = "list: CPU time of the process in the list, s"


def serve(root: Path, num_nodes: int, num_pods: int) -> None:
    """The API server with its objects, and a scheduler and kubelets that only change statuses."""
    api = FakeKubernetes()
    api.add_namespace(NAMESPACE)
    for number in range(num_nodes):
        api.store.create("nodes", "", _node(number))
    for number in range(num_pods):
        api.store.create("pods", NAMESPACE, _foreign(number, num_nodes))
    api.store.compact()
    api.kubeconfig(root / "kubeconfig")
    threading.Thread(target=_run_pods, args=(api,), daemon=True).start()
    print("ready", flush=True)
    for line in sys.stdin:
        word = line.strip()
        if word == "away":
            api.away = True
        elif word == "back":
            api.away = False
        elif word == "touch":
            node = api.store.get("nodes", "", "node-0")
            node["metadata"]["annotations"] = {"x": str(time.monotonic())}
            api.store.update("nodes", "", "node-0", node)
        print("done", flush=True)


def _run_pods(api: FakeKubernetes) -> None:
    seen = api.store.version
    while True:
        with api.store.changed:
            fresh = [one for one in api.store.history if one.version > seen]
            seen = api.store.version
            if not fresh:
                api.store.changed.wait(0.05)
        for change in fresh:
            pod = change.body
            if (
                change.plural == "pods"
                and change.kind == "ADDED"
                and not pod["spec"].get("nodeName")
            ):
                affinity = pod["spec"]["affinity"]["nodeAffinity"]
                terms = affinity["requiredDuringSchedulingIgnoredDuringExecution"]
                name = terms["nodeSelectorTerms"][0]["matchFields"][0]["values"][0]
                with api.store.changed:
                    one = api.store.get("pods", NAMESPACE, pod["metadata"]["name"])
                    one["spec"]["nodeName"] = name
                    state = {"name": "ranks", "state": {"running": {}}}
                    one["status"] = {"phase": "Running", "containerStatuses": [state]}
                    api.store.update("pods", NAMESPACE, pod["metadata"]["name"], one)


def _node(number: int) -> dict[str, Any]:
    capacity = {"cpu": "128", "memory": "1Ti", "nvidia.com/gpu": "8", "pods": "110"}
    labels = {f"example.com/label-{one}": f"value-{one}" for one in range(25)}
    labels |= {"kubernetes.io/os": "linux", "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    labels |= {"topology.kubernetes.io/zone": f"zone-{number % 3}"}
    images = [{"names": [f"example.com/image:{one}"], "sizeBytes": 10**9} for one in range(50)]
    return {
        "metadata": {"name": f"node-{number}", "labels": labels},
        "spec": {},
        "status": {
            "capacity": capacity,
            "allocatable": capacity,
            "conditions": [{"type": "Ready", "status": "True"}],
            "nodeInfo": {"bootID": f"boot-{number}"},
            "images": images,
        },
    }


def _foreign(number: int, num_nodes: int) -> dict[str, Any]:
    env = [{"name": f"VARIABLE_{one}", "value": "x" * 40} for one in range(20)]
    requests = {"cpu": f"{100 + number % 7 * 50}m", "memory": "512Mi"}
    container = {
        "name": "main",
        "image": "example.com/app:1",
        "env": env,
        "resources": {"requests": requests},
    }
    managed = [{"manager": "kubelet", "fieldsV1": {f"f:{one}": {} for one in range(30)}}]
    return {
        "metadata": {
            "name": f"other-{number}",
            "labels": {"app": "other"},
            "managedFields": managed,
        },
        "spec": {"nodeName": f"node-{number % max(num_nodes, 1)}", "containers": [container]},
        "status": {"phase": "Running"},
    }


class Server:
    """The API server as a child process."""

    def __init__(self, root: Path, num_nodes: int, num_pods: int) -> None:
        self.root = root
        words = [sys.executable, __file__, "--serve", str(root), str(num_nodes), str(num_pods)]
        self._child = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._expect("ready")

    def say(self, word: str) -> None:
        """Switch something on or off."""
        assert self._child.stdin is not None
        self._child.stdin.write(f"{word}\n")
        self._child.stdin.flush()
        self._expect("done")

    def _expect(self, word: str) -> None:
        assert self._child.stdout is not None
        assert self._child.stdout.readline().strip() == word

    def close(self) -> None:
        """End the server."""
        assert self._child.stdin is not None
        self._child.stdin.close()
        self._child.kill()
        self._child.wait()


@contextlib.contextmanager
def cluster(num_nodes: int, num_pods: int = 0) -> Iterator[tuple[Server, KubernetesExecutor]]:
    """A server, and an executor that has not been waited for."""
    with tempfile.TemporaryDirectory(prefix="bench-kubernetes-") as folder:
        root = Path(folder)
        server = Server(root, num_nodes, num_pods)
        home = HomeLayout(root / "home")
        home.root.mkdir(mode=0o700)
        told = {"name": "kube", "executor": "kubernetes", "image": "i:1", "namespace": NAMESPACE}
        pool = KubernetesPool.model_validate({**told, "checkpoints": "/shared"})
        executor = KubernetesExecutor(
            home, pool, from_kubeconfig(root / "kubeconfig"), owner="bench"
        )
        try:
            yield server, executor
        finally:
            executor.close()
            server.close()


def gang(executor: KubernetesExecutor, job: int, nodes: list[str]) -> list[SupervisorRef]:
    """Reserve one slot on each of these nodes for a job."""
    made = [
        Assignment(
            gang=gang_contract(job, num_nodes=len(nodes), grace_s=5.0),
            node_rank=rank,
            node_dir="/n",
            workdir="/",
            cwd="/",
            command="true",
            env={},
            cpus=1,
            server_url="http://127.0.0.1:1",
            token="t",
        )
        for rank in range(len(nodes))
    ]
    shares = tuple(NodeShare(node, "", (0,)) for node in nodes)
    executor.reserve(Placement("kube", shares), made)
    return [ref_of(one) for one in made]


def wait_for(true: Any, limit_s: float = 120.0) -> float:
    """Seconds until something is true."""
    began = time.monotonic()
    while not true():
        if time.monotonic() - began > limit_s:
            raise TimeoutError
        time.sleep(0.02)
    return time.monotonic() - began


def bench_gang() -> dict[str, float]:
    """A gang of 500 pods."""
    with cluster(500) as (_, executor):
        assert executor.wait_ready(60)
        nodes = [one.id for one in executor.inventory()]
        began = time.monotonic()
        refs = gang(executor, 1, nodes)
        returned_s = time.monotonic() - began

        def all_run() -> bool:
            notes = [executor._notes.read(ref) for ref in refs]
            if not all(note is not None and note.uid for note in notes):
                return False
            executor.poll(refs)
            return all(
                note is not None and note.boot_id for note in map(executor._notes.read, refs)
            )

        wait_for(all_run)
        return {
            "gang: 500 pods created and running, s": time.monotonic() - began,
            "gang: reserve returns after, s": returned_s,
        }


def bench_list() -> dict[str, float]:
    """The first list of a large cluster, its memory, and the next inventory."""
    with cluster(5000, 50_000) as (server, executor):
        began, used = time.monotonic(), time.process_time()
        assert executor.wait_ready(120)
        listed_s, listed_cpu_s = time.monotonic() - began, time.process_time() - used
        assert len(executor.inventory()) == 5000
        before = executor._nodes.num_changes
        changed = time.monotonic()
        server.say("touch")
        wait_for(lambda: executor._nodes.num_changes > before)
        executor.inventory()
        refresh_s = time.monotonic() - changed
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
        return {
            "list: 5,000 nodes and 50,000 pods, s": listed_s,
            CPU: listed_cpu_s,
            "list: peak memory of the process, MB": peak,
            "list: inventory after a change, s": refresh_s,
        }


def bench_outage() -> dict[str, float]:
    """Ten minutes without the API server, on a virtual clock."""
    with cluster(100) as (server, executor):
        assert executor.wait_ready(60)
        refs = []
        for job, node in enumerate(executor.inventory(), start=1):
            refs += gang(executor, job, [node.id])
        refs = [SupervisorRef(one.job, one.attempt, one.node_rank, "kube") for one in refs]
        routed = RoutedExecutor({"kube": executor})
        now = [0.0]
        executor._silence = NodeSilence(lambda: now[0])
        wait_for(lambda: all(executor._notes.read(ref) is not None for ref in refs))
        wait_for(lambda: all(note.uid for ref in refs if (note := executor._notes.read(ref))))
        assert all(one.alive for one in routed.poll(refs))
        server.say("away")
        wait_for(lambda: "Kubernetes" in routed.poll(refs)[0].message)
        changed = 0
        for _ in range(120):
            now[0] += 5.0
            changed += sum(1 for one in routed.poll(refs) if not one.alive)
        server.say("back")

        def answers() -> bool:
            found = routed.poll(refs)
            return not any(one.message for one in found)

        caught_up_s = wait_for(answers)
        changed += sum(1 for one in routed.poll(refs) if not one.alive)
        return {
            "outage: changes of 100 supervisors in 10 minutes": float(changed),
            "outage: caught up after, s": caught_up_s,
        }


PARTS = {"gang": bench_gang, "list": bench_list, "outage": bench_outage}


def main() -> int:
    """Run the parts, each in a process of its own; returns 1 where a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--serve", nargs=3)
    parser.add_argument("--part")
    given = parser.parse_args()
    if given.serve:
        serve(Path(given.serve[0]), int(given.serve[1]), int(given.serve[2]))
        return 0
    if given.part:
        print(json.dumps(PARTS[given.part]()))
        return 0
    missed = 0
    for part in given.only.split(","):
        words = [sys.executable, __file__, "--part", part]
        done = subprocess.run(words, check=True, capture_output=True, text=True)
        for name, value in json.loads(done.stdout).items():
            if name not in GOALS:
                print(f"{name:55} {value:10.2f}")
                continue
            good = value <= GOALS[name]
            missed += not good
            mark = "" if good else "  MISSED"
            print(f"{name:55} {value:10.2f}   goal {GOALS[name]:g}{mark}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
