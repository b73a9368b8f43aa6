"""The parts of a pod that a job and its pool decide together: containers, volumes, tolerations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from phalanx.core.contract.pods import PodContract, SideContainer, TaintToleration, VolumeMount
from phalanx.kit.interpreter import command_in
from phalanx.schemas.pools.kubernetes_pools import KubernetesPool
from phalanx.schemas.wire.assignments import Assignment

Body = dict[str, Any]
NO_WISHES = PodContract()
BOOTSTRAP_DIR = "/var/run/phalanx"
TREE_DIR = "/phalanx-tree"
"""Where pods mount the copy of the supervisor tree."""
TREE_IN_IMAGE = "/opt/phalanx-tree"
"""Where `supervisor_image` has it."""
COPY_CONTAINER = "phalanx-supervisor"
_POD = ("-m", "phalanx.executors.kubernetes.pod")
_COPY = ("-m", "phalanx.supervise.portable.copy", TREE_DIR)
_COPY_RESOURCES = {
    "requests": {"cpu": "100m", "memory": "64Mi"},
    "limits": {"memory": "256Mi"},
}
# The scheduler must have something to count; a container that only waits uses less.
_LEAST_MILLICPUS = 100


def wishes(assignment: Assignment) -> PodContract:
    """What the job asks of its pods."""
    return NO_WISHES if assignment.pod is None else assignment.pod


def image_of(pool: KubernetesPool, assignment: Assignment) -> str:
    """The image of the ranks."""
    return wishes(assignment).image or pool.image


def supervisor_command(pool: KubernetesPool, assignment: Assignment) -> list[str]:
    """The command of the container of the ranks: with the Python of the image, or of the tree."""
    if pool.needs_tree(image_of(pool, assignment)):
        return command_in(TREE_DIR, *_POD)
    return ["python", *_POD]


def copy_of_tree(pool: KubernetesPool, assignment: Assignment) -> list[Body]:
    """The init container that copies the supervisor tree into the pod; none where the image needs none."""
    if not pool.needs_tree(image_of(pool, assignment)):
        return []
    return [
        {
            "name": COPY_CONTAINER,
            "image": pool.supervisor_image,
            "command": command_in(TREE_IN_IMAGE, *_COPY),
            "resources": _COPY_RESOURCES,
            "securityContext": security(pool),
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "volumeMounts": [{"name": "tree", "mountPath": TREE_DIR}],
        }
    ]


def shm_bytes(pool: KubernetesPool, assignment: Assignment) -> int:
    """Size of /dev/shm: that of the job, else that of the pool; 0: the container runtime's."""
    return assignment.gang.role.shm_per_node_bytes or pool.shm or 0


def resources(
    pool: KubernetesPool, assignment: Assignment, slot: str, num_slots: int
) -> dict[str, dict[str, str]]:
    """What the container of the ranks requests; the limits are the same, apart from CPUs."""
    wish = wishes(assignment)
    limits = {name: str(number) for name, number in {**pool.resources, **wish.resources}.items()}
    if num_slots and slot != "cpu":
        limits[slot] = str(num_slots)
    requests = {**limits, "cpu": _cpus(assignment, wish, slot, num_slots)}
    if assignment.limit_memory_bytes:
        # Shared memory is an emptyDir in memory, which counts against the limit.
        size = str(assignment.limit_memory_bytes + shm_bytes(pool, assignment))
        limits["memory"] = requests["memory"] = size
    return {"limits": limits, "requests": requests}


def _cpus(assignment: Assignment, wish: PodContract, slot: str, num_slots: int) -> str:
    """CPUs of the ranks. Where the job does not say, the sidecars get theirs from the node's share."""
    if slot != "cpu" and assignment.gang.role.cpus_per_node:
        return str(max(1, assignment.cpus))
    beside = sum(one.millicpus for one in wish.sidecars)
    whole = max(1, num_slots if slot == "cpu" else assignment.cpus)
    if not beside:
        return str(whole)
    return f"{max(_LEAST_MILLICPUS, whole * 1000 - beside)}m"


def security(pool: KubernetesPool) -> Body:
    """The security context of every container."""
    capabilities: Body = {"drop": ["ALL"]}
    if pool.ipc_lock:
        capabilities["add"] = ["IPC_LOCK"]
    return {"allowPrivilegeEscalation": False, "capabilities": capabilities}


def pod_security(pool: KubernetesPool) -> Body:
    """The security context of a pod."""
    found: Body = {"seccompProfile": {"type": "RuntimeDefault"}}
    if pool.run_as_user is not None:
        user = pool.run_as_user
        found |= {"runAsNonRoot": True, "runAsUser": user, "runAsGroup": user, "fsGroup": user}
    return found


def before_ranks(pool: KubernetesPool, wish: PodContract, mounts: Sequence[Body]) -> list[Body]:
    """The init containers: sidecars, which run as long as the ranks, then those that run to their end."""
    beside = [_side(pool, one, mounts) | {"restartPolicy": "Always"} for one in wish.sidecars]
    return [*beside, *(_side(pool, one, mounts) for one in wish.init)]


def _side(pool: KubernetesPool, one: SideContainer, mounts: Sequence[Body]) -> Body:
    requests = {"cpu": f"{one.millicpus}m"} if one.millicpus else {}
    limits = {}
    if one.memory_bytes:
        limits["memory"] = requests["memory"] = str(one.memory_bytes)
    found: Body = {
        "name": one.name,
        "image": one.image,
        "env": [{"name": name, "value": value} for name, value in one.env.items()],
        "resources": {"limits": limits, "requests": requests},
        "securityContext": security(pool),
        "volumeMounts": [*mounts],
    }
    if one.command:
        found["command"] = list(one.command)
    if one.args:
        found["args"] = list(one.args)
    return found


def tolerations(pool: KubernetesPool, wish: PodContract) -> list[Body]:
    """The taints that a pod tolerates: a node without contact, those of the pool, those of the job."""
    # By default a kubelet that is silent for five minutes costs every pod of its node.
    seconds = round(pool.fence) + 300
    silent = [
        {
            "key": f"node.kubernetes.io/{trouble}",
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": seconds,
        }
        for trouble in ("not-ready", "unreachable")
    ]
    told = [TaintToleration(one.key, one.value, one.effect) for one in pool.tolerations]
    return [*silent, *(_toleration(one) for one in (*told, *wish.tolerations))]


def _toleration(one: TaintToleration) -> Body:
    entry: Body = {"operator": "Exists" if one.value is None else "Equal"}
    entry |= {"key": one.key} if one.key else {}
    entry |= {} if one.value is None else {"value": one.value}
    return entry | ({} if one.effect is None else {"effect": one.effect})


def volumes(
    pool: KubernetesPool, assignment: Assignment, secret: str
) -> tuple[list[Body], list[Body], list[Body]]:
    """The volumes of a pod, the mounts of the ranks, and those of the containers beside them."""
    found: list[Body] = [
        {"name": "bootstrap", "secret": {"secretName": secret, "defaultMode": 0o444}}
    ]
    own: list[Body] = [{"name": "bootstrap", "mountPath": BOOTSTRAP_DIR, "readOnly": True}]
    if pool.needs_tree(image_of(pool, assignment)):
        found.append({"name": "tree", "emptyDir": {}})
        own.append({"name": "tree", "mountPath": TREE_DIR, "readOnly": True})
    shared: list[Body] = []
    size = shm_bytes(pool, assignment)
    if size:
        found.append({"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": str(size)}})
        shared.append({"name": "shm", "mountPath": "/dev/shm"})
    for number, one in enumerate(merged_mounts(pool, wishes(assignment))):
        name = f"mount-{number}"
        found.append({"name": name, **_source(one)})
        shared.append({"name": name, "mountPath": one.path, "readOnly": one.read_only})
    return found, [*own, *shared], shared


def merged_mounts(pool: KubernetesPool, wish: PodContract) -> tuple[VolumeMount, ...]:
    """The mounts of the pool, then those of the job; at one path that of the job counts."""
    by_path = {one.path: one for one in pool.volumes}
    by_path |= {one.path: one for one in wish.mounts}
    return tuple(by_path.values())


def _source(one: VolumeMount) -> Body:
    if one.kind == "pvc":
        return {"persistentVolumeClaim": {"claimName": one.source, "readOnly": one.read_only}}
    if one.kind == "configmap":
        return {"configMap": {"name": one.source}}
    if one.kind == "secret":
        return {"secret": {"secretName": one.source}}
    if one.kind == "emptydir":
        return {"emptyDir": {"sizeLimit": one.source} if one.source else {}}
    if one.kind == "hostpath":
        return {"hostPath": {"path": one.source, "type": "Directory"}}
    server, _, export = one.source.partition(":")
    return {"nfs": {"server": server, "path": export, "readOnly": one.read_only}}


def pull_secrets(names: Iterable[str]) -> list[Body]:
    """Secrets for private registries, each once."""
    return [{"name": one} for one in dict.fromkeys(names)]
