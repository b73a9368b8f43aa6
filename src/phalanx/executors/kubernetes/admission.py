"""Why a job's pods could never start in a pool: what shows before any of them is created."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from phalanx.core.contract.pods import PodContract, VolumeMount
from phalanx.errors import ExecutorUnavailable, Problem
from phalanx.executors.kubernetes.client import KubernetesClient, KubernetesRefused
from phalanx.executors.kubernetes.quantities import amounts
from phalanx.executors.kubernetes.reflector import Reflector
from phalanx.schemas.pools.kubernetes_pools import KubernetesPool
from phalanx.schemas.spec.pods.mounts import is_below

_SHARED_MODES = {"ReadWriteMany"}
_READ_MODES = {"ReadOnlyMany", "ReadWriteMany"}

# A claim is read again after so long; a batch of jobs asks for it many times.
_CLAIM_S = 5.0
_MAX_CLAIMS = 1000

Object = Mapping[str, Any]


class PodAdmission:
    """Answers what a pool and its cluster do not allow. Safe for several threads."""

    def __init__(self, pool: KubernetesPool, client: KubernetesClient, nodes: Reflector) -> None:
        self._pool, self._client, self._nodes = pool, client, nodes
        self._claims: dict[tuple[str, str], tuple[float, Object | None]] = {}

    def refusals(self, project: str, pod: PodContract, num_nodes: int) -> list[Problem]:
        """See `PodChecker`; what the cluster would say is left out while it does not answer."""
        found = pool_problems(self._pool, pod)
        namespace = self._pool.namespace_of(project)
        try:
            found += node_problems(self._pool, pod, self._nodes.read())
            for number, mount in enumerate(pod.mounts):
                if mount.kind == "pvc":
                    claim = self._claim(namespace, mount.source)
                    at = f"mounts[{number}].source"
                    problem = claim_problem(at, mount, claim, namespace, num_nodes)
                    found += [] if problem is None else [problem]
        except ExecutorUnavailable:
            return found
        return found

    def _claim(self, namespace: str, name: str) -> Object | None:
        """A claim as it was at most a few seconds ago."""
        now, key = time.monotonic(), (namespace, name)
        read_at, known = self._claims.get(key, (now - _CLAIM_S, None))
        if now - read_at < _CLAIM_S:
            return known
        path = f"/api/v1/namespaces/{namespace}/persistentvolumeclaims/{name}"
        try:
            claim = self._client.get(path)
        except KubernetesRefused as refused:
            said = f"claim {name} of {namespace} cannot be read: {refused.message}"
            raise ExecutorUnavailable(said) from refused
        if len(self._claims) >= _MAX_CLAIMS:
            self._claims.clear()
        self._claims[key] = (now, claim)
        return claim


def pool_problems(pool: KubernetesPool, pod: PodContract) -> list[Problem]:
    """What the pool file does not allow."""
    found = []
    if pod.host_network and not pool.host_network:
        said = f"pool {pool.name} does not allow it; its `host_network: true` would"
        found.append(Problem("kubernetes.host_network", said))
    for number, one in enumerate(pod.mounts):
        if one.kind == "hostpath" and not is_below(one.source, pool.host_paths):
            allowed = ", ".join(pool.host_paths) or "nothing"
            said = f"pool {pool.name} allows {allowed} of its nodes (`host_paths` of the pool)"
            found.append(Problem(f"mounts[{number}].source", said, f"hostpath:{one.source}"))
    if pool.slot is not None and pool.slot in pod.resources:
        said = "is requested with `resources.slots_per_node`"
        found.append(Problem(f"kubernetes.resources.{pool.slot}", said))
    return found


def node_problems(pool: KubernetesPool, pod: PodContract, nodes: Sequence[Object]) -> list[Problem]:
    """Resources that no node of the cluster has enough of."""
    found = []
    for name, wanted in pod.resources.items():
        most = max(
            (amounts((one.get("status") or {}).get("allocatable")).get(name, 0) for one in nodes),
            default=0,
        )
        if most < wanted:
            said = f"the largest node of pool {pool.name} has {most}"
            found.append(Problem(f"kubernetes.resources.{name}", said, str(wanted)))
    return found


def claim_problem(
    at: str, mount: VolumeMount, claim: Object | None, namespace: str, num_nodes: int
) -> Problem | None:
    """Why a persistent volume claim cannot be mounted by pods on so many nodes; None: it can."""
    if claim is None:
        said = f"namespace {namespace} has no claim of this name"
        return Problem(at, said, mount.source)
    status, spec = claim.get("status") or {}, claim.get("spec") or {}
    if status.get("phase") == "Lost":
        return Problem(at, "the volume of this claim is lost", mount.source)
    modes = set(status.get("accessModes") or spec.get("accessModes") or ())
    if modes == {"ReadOnlyMany"} and not mount.read_only:
        return Problem(at, "its claim is read only; write :ro behind the mount", mount.source)
    if num_nodes < 2 or modes & (_READ_MODES if mount.read_only else _SHARED_MODES):
        return None
    named = ", ".join(sorted(modes)) or "no access mode"
    wanted = "ReadOnlyMany or ReadWriteMany" if mount.read_only else "ReadWriteMany"
    said = f"its claim has {named}: pods on {num_nodes} nodes need {wanted}"
    return Problem(at, said, mount.source)
