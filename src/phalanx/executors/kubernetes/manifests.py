"""The objects that are created for an attempt: an anchor, its bootstrap Secret, a pod for each node."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from phalanx.executors.kubernetes.inventory import OWNER_LABEL
from phalanx.schemas.pools.kubernetes_pools import KubernetesPool, parse_mount
from phalanx.schemas.wire.assignments import Assignment

FINALIZER = "phalanx.dev/accounting"
PLACEMENT = "phalanx.dev/placement"
CONTAINER = "ranks"
BOOTSTRAP_DIR = "/var/run/phalanx"
TERMINATION_LOG = "/dev/termination-log"
NODE_ROOT = "/tmp/phalanx"
# A Secret holds at most 1 MiB.
MAX_BOOTSTRAP_BYTES = 900_000
# Beyond the grace period of the job: the supervisor reports, and its parent writes the exit record.
_LEAVE_S = 15
_ATTEMPT_LABEL = "phalanx.dev/attempt"


@dataclass(frozen=True, slots=True)
class AttemptNames:
    """The names of an attempt's objects: they are the same after a crash of the control plane."""

    namespace: str
    anchor: str

    @classmethod
    def of(
        cls, pool: KubernetesPool, owner: str, project: str, job: int, attempt: int
    ) -> AttemptNames:
        """The names for an attempt of a job of a project."""
        return cls(pool.namespace_of(project), f"phx-{owner}-j{job}-a{attempt}")

    def pod(self, node_rank: int) -> str:
        """The pod of a node rank."""
        return f"{self.anchor}-n{node_rank}"

    def path(self, plural: str, name: str = "") -> str:
        """Where objects of the namespace are in the API."""
        return f"/api/v1/namespaces/{self.namespace}/{plural}" + (f"/{name}" if name else "")


@dataclass(frozen=True, slots=True)
class PodPlace:
    """The node of a pod, and what its ranks hold there."""

    node: str  # name in the cluster
    slot: str  # resource that slots are made of
    num_slots: int


def labels_of(names: AttemptNames, owner: str, job: int) -> dict[str, str]:
    """The labels of every object of an attempt."""
    return {
        OWNER_LABEL: owner,
        "app.kubernetes.io/managed-by": "phalanx",
        "phalanx.dev/job": f"j-{job}",
        _ATTEMPT_LABEL: names.anchor,
    }


def placement_digest(places: Sequence[PodPlace]) -> str:
    """A short name of where a gang runs: a pod with another one is not of this launch."""
    told = json.dumps([[one.node, one.slot, one.num_slots] for one in places])
    return hashlib.sha256(told.encode()).hexdigest()[:16]


def anchor_object(names: AttemptNames, labels: Mapping[str, str], digest: str) -> dict[str, Any]:
    """The ConfigMap that owns the other objects of an attempt."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": names.anchor,
            "labels": dict(labels),
            "annotations": {PLACEMENT: digest},
        },
    }


def owned_by(names: AttemptNames, uid: str) -> list[dict[str, Any]]:
    """The owner references of an attempt's objects."""
    return [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "name": names.anchor,
            "uid": uid,
            # `true` needs the right to change finalizers of the owner.
            "blockOwnerDeletion": False,
        }
    ]


def bootstrap_secret(
    names: AttemptNames, labels: Mapping[str, str], uid: str, gang: Sequence[Assignment]
) -> dict[str, Any]:
    """The Secret that all pods of an attempt mount. Raises ValueError where it would be too large.

    The assignments differ in a few fields only: the first is whole, of the others the difference is kept.
    """
    whole = [one.model_dump(mode="json") for one in gang]
    common = whole[0]
    nodes = {
        str(one["node_rank"]): {k: v for k, v in one.items() if v != common.get(k)} for one in whole
    }
    data = {"assignment.json": json.dumps(common), "nodes.json": json.dumps(nodes)}
    size = sum(len(text.encode()) for text in data.values())
    if size > MAX_BOOTSTRAP_BYTES:
        raise ValueError(
            f"the assignment of the gang has {size} bytes, a Secret of Kubernetes holds "
            f"{MAX_BOOTSTRAP_BYTES}: shorten `env` or the command"
        )
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "Opaque",
        "metadata": {
            "name": names.anchor,
            "labels": dict(labels),
            "ownerReferences": owned_by(names, uid),
        },
        "data": {name: base64.b64encode(text.encode()).decode() for name, text in data.items()},
    }


def pod_object(
    pool: KubernetesPool,
    names: AttemptNames,
    labels: Mapping[str, str],
    uid: str,
    digest: str,
    assignment: Assignment,
    place: PodPlace,
) -> dict[str, Any]:
    """The pod of one node rank, for exactly one node."""
    grace = round(assignment.gang.role.grace_s) + _LEAVE_S
    volumes, mounts = _volumes(pool, names)
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "enableServiceLinks": False,
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": grace,
        "affinity": {"nodeAffinity": _pinned(place.node)},
        "tolerations": _tolerations(pool),
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "volumes": volumes,
        "containers": [_container(pool, assignment, place, mounts)],
    }
    if pool.node_selector:
        spec["nodeSelector"] = dict(pool.node_selector)
    if pool.service_account is not None:
        spec["serviceAccountName"] = pool.service_account
    if pool.priority_class is not None:
        spec["priorityClassName"] = pool.priority_class
    if pool.image_pull_secrets:
        spec["imagePullSecrets"] = [{"name": one} for one in pool.image_pull_secrets]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": names.pod(assignment.node_rank),
            # Meshes delay the start of gangs and keep pods from ending.
            "labels": {**labels, "sidecar.istio.io/inject": "false"},
            "annotations": {
                PLACEMENT: digest,
                "linkerd.io/inject": "disabled",
                "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
                "karpenter.sh/do-not-disrupt": "true",
            },
            "finalizers": [FINALIZER],
            "ownerReferences": owned_by(names, uid),
        },
        "spec": spec,
    }


def _container(
    pool: KubernetesPool,
    assignment: Assignment,
    place: PodPlace,
    mounts: list[dict[str, Any]],
) -> dict[str, Any]:
    pod_ip = {"fieldRef": {"fieldPath": "status.podIP"}}
    return {
        "name": CONTAINER,
        "image": pool.image,
        "command": ["python", "-m", "phalanx.executors.kubernetes.pod"],
        "env": [
            {"name": "PHALANX_BOOTSTRAP", "value": BOOTSTRAP_DIR},
            {"name": "PHALANX_POD_NODE_RANK", "value": str(assignment.node_rank)},
            {"name": "PHALANX_NODE_ROOT", "value": NODE_ROOT},
            {"name": "PHALANX_TERMINATION_LOG", "value": TERMINATION_LOG},
            {"name": "PHALANX_POD_IP", "valueFrom": pod_ip},
        ],
        "resources": _resources(pool, assignment, place),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
        "terminationMessagePath": TERMINATION_LOG,
        "terminationMessagePolicy": "File",
        "volumeMounts": mounts,
    }


def _resources(pool: KubernetesPool, assignment: Assignment, place: PodPlace) -> dict[str, Any]:
    limits = {name: str(number) for name, number in pool.resources.items()}
    if place.num_slots and place.slot != "cpu":
        limits[place.slot] = str(place.num_slots)
    cpus = place.num_slots if place.slot == "cpu" else assignment.cpus
    requests = {**limits, "cpu": str(max(1, cpus))}
    if assignment.limit_memory_bytes:
        # Shared memory is an emptyDir in memory, which counts against the limit.
        size = str(assignment.limit_memory_bytes + (pool.shm or 0))
        limits["memory"] = requests["memory"] = size
    return {"limits": limits, "requests": requests}


def _pinned(node: str) -> dict[str, Any]:
    """An affinity to one node: the scheduler binds, so that volumes and taints are respected."""
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    return {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}


def _tolerations(pool: KubernetesPool) -> list[dict[str, Any]]:
    # By default a kubelet that is silent for five minutes costs every pod of its node.
    seconds = round(pool.fence) + 300
    found: list[dict[str, Any]] = [
        {
            "key": f"node.kubernetes.io/{trouble}",
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": seconds,
        }
        for trouble in ("not-ready", "unreachable")
    ]
    for one in pool.tolerations:
        entry = {"operator": "Exists" if one.value is None else "Equal"}
        entry |= {"key": one.key} if one.key else {}
        entry |= {} if one.value is None else {"value": one.value}
        entry |= {} if one.effect is None else {"effect": one.effect}
        found.append(entry)
    return found


def _volumes(
    pool: KubernetesPool, names: AttemptNames
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    volumes: list[dict[str, Any]] = [
        {"name": "bootstrap", "secret": {"secretName": names.anchor, "defaultMode": 0o444}}
    ]
    mounts: list[dict[str, Any]] = [
        {"name": "bootstrap", "mountPath": BOOTSTRAP_DIR, "readOnly": True}
    ]
    if pool.shm is not None:
        volumes.append(
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": str(pool.shm)}}
        )
        mounts.append({"name": "shm", "mountPath": "/dev/shm"})
    for number, text in enumerate(pool.mounts):
        kind, source, path, read_only = parse_mount(text)
        name = f"mount-{number}"
        volumes.append({"name": name, **_source(kind, source, read_only)})
        mounts.append({"name": name, "mountPath": path, "readOnly": read_only})
    return volumes, mounts


def _source(kind: str, source: str, read_only: bool) -> dict[str, Any]:
    if kind == "pvc":
        return {"persistentVolumeClaim": {"claimName": source, "readOnly": read_only}}
    if kind == "configmap":
        return {"configMap": {"name": source}}
    if kind == "secret":
        return {"secret": {"secretName": source}}
    server, _, export = source.partition(":")
    return {"nfs": {"server": server, "path": export, "readOnly": read_only}}
