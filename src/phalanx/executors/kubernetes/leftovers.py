"""What control planes have left in a cluster, and its removal: finalizers, pods, Secrets, anchors.

Pods have a finalizer of the control plane that created them. When that is gone for good, they and their
namespace would stay in the state Terminating.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from phalanx.errors import ExecutorUnavailable
from phalanx.executors.kubernetes import kueue
from phalanx.executors.kubernetes.client import KubernetesClient, KubernetesRefused
from phalanx.executors.kubernetes.inventory import OWNER_LABEL
from phalanx.executors.kubernetes.launching import delete, remove_pod
from phalanx.executors.kubernetes.manifests import ATTEMPT_LABEL, JOB_LABEL, POOL_LABEL
from phalanx.executors.protocol import Leftovers
from phalanx.schemas.pools.kubernetes_pools import PROJECT, KubernetesPool

_SHOWN_JOBS = 20

Object = dict[str, Any]


class LeftObjects:
    """The objects with labels of control planes in the namespaces of a pool."""

    def __init__(self, client: KubernetesClient, pool: KubernetesPool, owner: str) -> None:
        self._client, self._pool, self._owner = client, pool, owner
        words = (re.escape(one) for one in pool.namespace.split(PROJECT))
        self._namespace = re.compile("[a-z0-9-]+".join(words))

    def found(self) -> list[Leftovers]:
        """What each control plane has there. Raises ExecutorUnavailable."""
        by_owner: dict[str, list[Object]] = {}
        for pod in self._pods():
            by_owner.setdefault(pod["metadata"]["labels"][OWNER_LABEL], []).append(pod)
        return [self._told(owner, pods) for owner, pods in sorted(by_owner.items())]

    def remove(self, owner: str) -> int:
        """Remove everything of a control plane; returns the number of pods. Raises ExecutorUnavailable.

        Processes that run there get the grace period of their job from the kubelet.
        """
        pods = [one for one in self._pods() if one["metadata"]["labels"][OWNER_LABEL] == owner]
        anchors: dict[tuple[str, str], bool] = {}
        for pod in pods:
            meta = pod["metadata"]
            path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
            remove_pod(self._client, path, pod)
            anchor = (meta.get("labels") or {}).get(ATTEMPT_LABEL, "")
            if anchor:
                in_queue = bool(kueue.queue_of(pod))
                key = (meta["namespace"], anchor)
                anchors[key] = anchors.get(key, False) or in_queue
        for (namespace, anchor), in_queue in anchors.items():
            if in_queue:
                delete(self._client, kueue.path_of(namespace, anchor), {})
            for plural in ("secrets", "configmaps"):
                delete(self._client, f"/api/v1/namespaces/{namespace}/{plural}/{anchor}", {})
        return len(pods)

    def _pods(self) -> list[Object]:
        path, only = "/api/v1/pods", self._pool.namespace
        if self._pool.dedicated and PROJECT not in only:
            path = f"/api/v1/namespaces/{only}/pods"
        try:
            listed = self._client.list(path, {"labelSelector": OWNER_LABEL})
        except KubernetesRefused as refused:
            raise ExecutorUnavailable(f"pods cannot be listed: {refused.message}") from refused
        return [one for one in listed.items if self._is_of_pool(one)]

    def _is_of_pool(self, pod: Object) -> bool:
        """Whether a pod belongs here: two pools of one control plane may be in one cluster."""
        meta = pod["metadata"]
        if not self._namespace.fullmatch(meta["namespace"]):
            return False
        if meta["labels"][OWNER_LABEL] != self._owner:
            return True  # another control plane may have another name for the pool
        return bool(meta["labels"].get(POOL_LABEL, self._pool.name) == self._pool.name)

    def _told(self, owner: str, pods: Sequence[Object]) -> Leftovers:
        jobs = sorted({str(one["metadata"]["labels"].get(JOB_LABEL, "?")) for one in pods})
        phases = [(one.get("status") or {}).get("phase") for one in pods]
        return Leftovers(
            owner=owner,
            is_own=owner == self._owner,
            num_pods=len(pods),
            num_running=phases.count("Running"),
            jobs=tuple(jobs[:_SHOWN_JOBS]),
            namespaces=tuple(sorted({one["metadata"]["namespace"] for one in pods})),
        )
