"""The objects that are created for an attempt: an anchor, its bootstrap Secret, a pod for each node."""

from __future__ import annotations

import base64
import copy
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from phalanx.core.contract.pods import PodContract
from phalanx.executors.kubernetes import containers, kueue
from phalanx.executors.kubernetes.containers import BOOTSTRAP_DIR
from phalanx.executors.kubernetes.inventory import OWNER_LABEL
from phalanx.schemas.pools.kubernetes_pools import KubernetesPool
from phalanx.schemas.wire.assignments import Assignment

FINALIZER = "phalanx.dev/accounting"
PLACEMENT = "phalanx.dev/placement"
CONTAINER = "ranks"
TERMINATION_LOG = "/dev/termination-log"
NODE_ROOT = "/tmp/phalanx"
# A Secret holds at most 1 MiB.
MAX_BOOTSTRAP_BYTES = 900_000
# Beyond the grace period of the job: the supervisor reports, and its parent writes the exit record.
_LEAVE_S = 15
ATTEMPT_LABEL = "phalanx.dev/attempt"
JOB_LABEL = "phalanx.dev/job"
POOL_LABEL = "phalanx.dev/pool"
# Stands for the anchor where an object is only tried; nothing is stored of it.
NO_UID = "00000000-0000-0000-0000-000000000000"


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
    tpu: Mapping[str, str] | None = None  # variables of a host of a TPU slice; None: it is none
    num_pods: int = 1  # of the whole gang


def labels_of(names: AttemptNames, owner: str, job: int, pool: str) -> dict[str, str]:
    """The labels of every object of an attempt."""
    return {
        OWNER_LABEL: owner,
        "app.kubernetes.io/managed-by": "phalanx",
        JOB_LABEL: f"j-{job}",
        POOL_LABEL: pool,
        ATTEMPT_LABEL: names.anchor,
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
    whole = [one.model_dump(mode="json", exclude={"pod"}) for one in gang]
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
    wish = containers.wishes(assignment)
    volumes, mounts, shared = containers.volumes(pool, assignment, names.anchor)
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "enableServiceLinks": False,
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": round(assignment.gang.role.grace_s) + _LEAVE_S,
        "affinity": {"nodeAffinity": _pinned(place.node)},
        "tolerations": containers.tolerations(pool, wish),
        "securityContext": containers.pod_security(pool),
        "volumes": volumes,
        "containers": [_container(pool, assignment, place, mounts)],
    }
    given = {
        "initContainers": [
            *containers.copy_of_tree(pool, assignment),
            *containers.before_ranks(pool, wish, shared),
        ],
        "nodeSelector": {**pool.node_selector, **wish.node_selector},
        "serviceAccountName": wish.service_account or pool.service_account,
        "priorityClassName": wish.priority_class or pool.priority_class,
        "runtimeClassName": wish.runtime_class,
        "imagePullSecrets": containers.pull_secrets(
            (*wish.image_pull_secrets, *pool.image_pull_secrets)
        ),
    }
    spec |= {name: value for name, value in given.items() if value}
    if place.tpu is not None:
        # Its name in the Service of the slice.
        spec |= {"hostname": names.pod(assignment.node_rank), "subdomain": names.anchor}
    if wish.host_network:
        spec |= {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
    metadata = _metadata(pool, names, labels, wish, place, shape_of({"spec": spec}))
    metadata["annotations"][PLACEMENT] = digest
    metadata |= {
        "name": names.pod(assignment.node_rank),
        "finalizers": [FINALIZER],
        "ownerReferences": owned_by(names, uid),
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _metadata(
    pool: KubernetesPool,
    names: AttemptNames,
    labels: Mapping[str, str],
    wish: PodContract,
    place: PodPlace,
    shape: Any,
) -> dict[str, Any]:
    """The labels and annotations of a pod: those of the job, of the platform, and of its queue."""
    return {
        "labels": {
            **wish.labels,
            **labels,
            **kueue.group_labels(pool.queue, names.anchor),
            # Meshes delay the start of gangs and keep pods from ending.
            "sidecar.istio.io/inject": "false",
        },
        "annotations": {
            **wish.annotations,
            **kueue.group_annotations(pool.queue, place.num_pods, shape),
            "linkerd.io/inject": "disabled",
            "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
            "karpenter.sh/do-not-disrupt": "true",
        },
    }


def shape_of(pod: Mapping[str, Any]) -> Any:
    """What admission looks at: without the name, the node and the number of the pod."""
    spec = copy.deepcopy(pod["spec"])
    for key in ("affinity", "hostname"):
        spec.pop(key, None)
    for one in spec["containers"]:
        one.pop("env")
    return spec


def _container(
    pool: KubernetesPool,
    assignment: Assignment,
    place: PodPlace,
    mounts: list[dict[str, Any]],
) -> dict[str, Any]:
    pod_ip = {"fieldRef": {"fieldPath": "status.podIP"}}
    return {
        "name": CONTAINER,
        "image": containers.image_of(pool, assignment),
        "command": containers.supervisor_command(pool, assignment),
        "env": [
            {"name": "PHALANX_BOOTSTRAP", "value": BOOTSTRAP_DIR},
            {"name": "PHALANX_POD_NODE_RANK", "value": str(assignment.node_rank)},
            {"name": "PHALANX_NODE_ROOT", "value": NODE_ROOT},
            {"name": "PHALANX_TERMINATION_LOG", "value": TERMINATION_LOG},
            {"name": "PHALANX_POD_IP", "valueFrom": pod_ip},
            *({"name": name, "value": value} for name, value in (place.tpu or {}).items()),
        ],
        "resources": containers.resources(pool, assignment, place.slot, place.num_slots),
        "securityContext": containers.security(pool),
        "terminationMessagePath": TERMINATION_LOG,
        # Where it is empty, such as in an image without Phalanx, the last output tells the cause.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts,
    }


def _pinned(node: str) -> dict[str, Any]:
    """An affinity to one node: the scheduler binds, so that volumes and taints are respected."""
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    return {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
