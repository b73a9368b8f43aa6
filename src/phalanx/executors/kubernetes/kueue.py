"""Pods under a queue of Kueue: Kueue decides when a gang may start, the platform where.

All pods of an attempt are one pod group, each pinned to its node as without a queue. Kueue holds them by a
gate until its quota has room, and takes quota back by deleting the whole group.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from phalanx.errors import ExecutorUnavailable
from phalanx.executors.kubernetes.client import KubernetesClient, KubernetesRefused

GATE = "kueue.x-k8s.io/admission"
"""The scheduling gate of pods that wait for their queue."""
_QUEUE = "kueue.x-k8s.io/queue-name"
_GROUP = "kueue.x-k8s.io/pod-group-name"
_COUNT = "kueue.x-k8s.io/pod-group-total-count"
_ROLE = "kueue.x-k8s.io/role-hash"
_RETRIED = "kueue.x-k8s.io/retriable-in-group"
# Written to a pod by Kueue before it deletes it.
_ENDED_BY = "TerminationTarget"
_MAX_ROLES = 8

Object = Mapping[str, Any]


def group_labels(queue: str | None, group: str) -> dict[str, str]:
    """Labels of a pod of a group; none without a queue."""
    return {} if queue is None else {_QUEUE: queue, _GROUP: group}


def group_annotations(queue: str | None, num_pods: int, shape: Any) -> dict[str, str]:
    """Annotations of a pod of a group with so many pods; none without a queue."""
    if queue is None:
        return {}
    # By default Kueue takes pods with different affinities for different roles, and allows eight. Its
    # webhook keeps a name that is given.
    role = hashlib.sha256(json.dumps(shape, sort_keys=True).encode()).hexdigest()[:8]
    # A pod that ends is not replaced: a new attempt is another group. Without this the group of a failed
    # pod would wait for a replacement and keep its quota.
    return {_COUNT: str(num_pods), _ROLE: role, _RETRIED: "false"}


def is_gated(pod: Object) -> bool:
    """Whether a pod waits for the admission of its group."""
    return any(
        one.get("name") == GATE for one in (pod.get("spec") or {}).get("schedulingGates") or ()
    )


def queue_of(pod: Object) -> str:
    """The queue that the pod was created for; empty: none, a rule of its namespace caught it."""
    meta = pod["metadata"]
    ours = _RETRIED in (meta.get("annotations") or {})
    return str((meta.get("labels") or {}).get(_QUEUE, "")) if ours else ""


def evicted_by(pod: Object) -> str | None:
    """The words of Kueue where it ended a pod; None: it did not."""
    for one in (pod.get("status") or {}).get("conditions") or ():
        if one.get("type") == _ENDED_BY and one.get("status") == "True":
            return str(one.get("message") or one.get("reason") or "")
    return None


def path_of(namespace: str, group: str) -> str:
    """Where the Workload of a pod group is in the API; it has the name of the group."""
    return f"/apis/kueue.x-k8s.io/v1beta2/namespaces/{namespace}/workloads/{group}"


def waits_for(client: KubernetesClient, namespace: str, group: str) -> str:
    """Why a group is not admitted, in the words of its Workload; empty: they are not known."""
    try:
        return message_of(client.get(path_of(namespace, group)))
    except (ExecutorUnavailable, KubernetesRefused):
        return ""


def message_of(workload: Object | None) -> str:
    """What a Workload says about its admission."""
    if workload is None:
        return "Kueue has no Workload of the pods: is its integration with pods switched on?"
    found = {one.get("type"): one for one in (workload.get("status") or {}).get("conditions") or ()}
    for kind in ("QuotaReserved", "Admitted"):
        one = found.get(kind) or {}
        if one.get("status") == "False" and one.get("message"):
            return str(one["message"])
    return ""


def too_many_roles(num_shapes: int) -> str:
    """Why a gang of so many different kinds of pods can be no group; empty: it can."""
    if num_shapes <= _MAX_ROLES:
        return ""
    return (
        f"the gang has {num_shapes} different kinds of pods, a group of Kueue at most "
        f"{_MAX_ROLES}: use a pool without `queue`"
    )
