"""Placeholder pods: of the shape of a gang, so that the cluster's autoscaler adds nodes for all of it.

They wait behind a scheduling gate until all pods of their gang exist, so that no part of a gang brings
nodes.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from phalanx.core.scaling.model import FLOOR, NodeWish, WantedGang
from phalanx.executors.kubernetes import containers
from phalanx.executors.kubernetes.inventory import OWNER_LABEL
from phalanx.schemas.pools.kubernetes_pools import KubernetesPool
from phalanx.schemas.pools.scaling import KubernetesScalingSection

Body = dict[str, Any]
POOL_LABEL = "phalanx.dev/scaling-pool"
CLAIM_LABEL = "phalanx.dev/scaling-claim"
GATE = "phalanx.dev/whole-gang"
_HOSTNAME = "kubernetes.io/hostname"
_DEFAULT_PROJECT = "default"
_LEAST_MILLICPUS = 100


@dataclass(frozen=True, slots=True)
class ScalingNames:
    """The names and labels of the objects of one pool: the same after a crash of the control plane."""

    pool: KubernetesPool
    owner: str

    @property
    def namespace(self) -> str:
        """The namespace of all of them."""
        scaling = self.pool.scaling
        own = None if scaling is None else scaling.namespace
        return own or self.pool.namespace_of(_DEFAULT_PROJECT)

    @property
    def selector(self) -> str:
        """The label selector of all of them."""
        return f"{OWNER_LABEL}={self.owner},{POOL_LABEL}={_short(self.pool.name)}"

    def claim(self, gang: WantedGang) -> str:
        """The name of the request for a gang; another shape has another name."""
        told = [[one.slots, one.cpus, one.memory_bytes] for one in gang.nodes]
        shape = _short(json.dumps([told, gang.together]))
        return f"phx-{self.owner}-{_short(self.pool.name)}-{_of_job(gang.job)}-{shape}"

    def hold(self, node: str) -> str:
        """The name of the pod that keeps a node."""
        return f"phx-{self.owner}-{_short(self.pool.name)}-keep-{_short(node, 10)}"

    def job_of(self, claim: str) -> int | None:
        """The job of a claim by its name."""
        word = claim.removeprefix(f"phx-{self.owner}-{_short(self.pool.name)}-").partition("-")[0]
        if word == "min":
            return FLOOR
        return int(word[1:]) if word[:1] == "j" and word[1:].isdecimal() else None

    def labels(self, claim: str) -> dict[str, str]:
        """The labels of an object of a claim."""
        return {
            OWNER_LABEL: self.owner,
            "app.kubernetes.io/managed-by": "phalanx",
            POOL_LABEL: _short(self.pool.name),
            CLAIM_LABEL: claim,
            "sidecar.istio.io/inject": "false",
        }

    def path(self, plural: str, name: str = "") -> str:
        """Where such objects are in the API."""
        return f"/api/v1/namespaces/{self.namespace}/{plural}" + (f"/{name}" if name else "")


def _of_job(job: int) -> str:
    return "min" if job == FLOOR else f"j{job}"


def _short(text: str, length: int = 6) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def gang_pods(names: ScalingNames, gang: WantedGang) -> list[Body]:
    """A gated pod for each node rank of a gang, no two of them on one node."""
    claim = names.claim(gang)
    return [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": _metadata(names, claim, f"{claim}-{number}"),
            "spec": {**pod_spec(names, gang, wish), "schedulingGates": [{"name": GATE}]},
        }
        for number, wish in enumerate(gang.nodes)
    ]


def _metadata(names: ScalingNames, claim: str, name: str, *, keeps: bool = False) -> Body:
    # A node that only placeholders are on may go; one that is kept may not.
    evict = "false" if keeps else "true"
    found: Body = {
        "name": name,
        "labels": names.labels(claim),
        "annotations": {
            "cluster-autoscaler.kubernetes.io/safe-to-evict": evict,
            "linkerd.io/inject": "disabled",
        },
    }
    if keeps:
        found["annotations"]["karpenter.sh/do-not-disrupt"] = "true"
    return found


def pod_spec(names: ScalingNames, gang: WantedGang, wish: NodeWish) -> Body:
    """What a node rank of a gang requests of its node, as the spec of a pod that only waits."""
    pool, scaling = names.pool, _section(names.pool)
    labels = {CLAIM_LABEL: names.claim(gang)}
    affinity: Body = {
        "podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {"topologyKey": _HOSTNAME, "labelSelector": {"matchLabels": labels}}
            ]
        }
    }
    level = pool.topology.get(gang.together)
    if level:
        affinity["podAffinity"] = {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {"topologyKey": level, "labelSelector": {"matchLabels": labels}}
            ]
        }
    return {
        **_waiting_spec(pool, scaling),
        "affinity": affinity,
        "containers": [_container(pool, scaling, requests_of(pool, wish))],
    }


def requests_of(pool: KubernetesPool, wish: NodeWish) -> dict[str, str]:
    """The resources of one node rank, as its own pod will request them."""
    slot = pool.slot or "cpu"
    found = {name: str(number) for name, number in pool.resources.items()}
    if slot != "cpu":
        if wish.slots:
            found[slot] = str(wish.slots)
        found["cpu"] = str(wish.cpus) if wish.cpus else f"{_LEAST_MILLICPUS}m"
    else:
        found["cpu"] = str(max(wish.cpus, wish.slots)) if wish.slots or wish.cpus else "100m"
    if wish.memory_bytes:
        found["memory"] = str(wish.memory_bytes)
    return found


def hold_pod(names: ScalingNames, node: str) -> Body:
    """A pod that requests nothing, and that the autoscaler must not evict from its node."""
    pool, scaling = names.pool, _section(names.pool)
    name = names.hold(node)
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    spec = {
        **_waiting_spec(pool, scaling),
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}
            }
        },
        "containers": [_container(pool, scaling, {})],
    }
    metadata = _metadata(names, name, name, keeps=True)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _section(pool: KubernetesPool) -> KubernetesScalingSection:
    assert pool.scaling is not None
    return pool.scaling


def _waiting_spec(pool: KubernetesPool, scaling: KubernetesScalingSection) -> Body:
    found: Body = {
        "restartPolicy": "Never",
        "enableServiceLinks": False,
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 0,
        "tolerations": containers.tolerations(pool, containers.NO_WISHES),
        "securityContext": {
            "seccompProfile": {"type": "RuntimeDefault"},
            "runAsNonRoot": True,
            "runAsUser": 65535,
        },
    }
    if pool.node_selector:
        found["nodeSelector"] = dict(pool.node_selector)
    if scaling.priority_class:
        found["priorityClassName"] = scaling.priority_class
    if pool.image_pull_secrets:
        found["imagePullSecrets"] = containers.pull_secrets(pool.image_pull_secrets)
    return found


def _container(
    pool: KubernetesPool, scaling: KubernetesScalingSection, requests: dict[str, str]
) -> Body:
    # Extended resources need limits that equal their requests.
    limits = {name: value for name, value in requests.items() if name != "cpu"}
    return {
        "name": "placeholder",
        "image": scaling.image,
        "resources": {"requests": requests, "limits": limits} if requests else {},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
    }
