"""Convert Kubernetes nodes to Phalanx nodes: slots, accelerators, topology, reasons for exclusion."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

from phalanx.core.gang.placement import Node
from phalanx.executors.kubernetes.quantities import amounts, requested
from phalanx.schemas.pools.kubernetes_pools import KubernetesPool
from phalanx.schemas.pools.traits import DEFAULT_HAZARD, NodeTraits, TraitValues

OWNER_LABEL = "phalanx.dev/owner"
_SLOTS = ("nvidia.com/gpu", "amd.com/gpu", "cpu")
_TYPES = (
    "nvidia.com/gpu.product",
    "cloud.google.com/gke-accelerator",
    "k8s.amazonaws.com/accelerator",
    "amd.com/gpu.product-name",
)
_SPOT = {
    "karpenter.sh/capacity-type": "spot",
    "cloud.google.com/gke-spot": "true",
    "eks.amazonaws.com/capacityType": "SPOT",
    "kubernetes.azure.com/scalesetpriority": "spot",
}
# Taints of autoscalers and cloud providers on nodes that are about to go.
_LEAVING = (
    "ToBeDeletedByClusterAutoscaler",
    "karpenter.sh/disrupted",
    "aws-node-termination-handler/",
    "cloud.google.com/impending-node-termination",
)
_ENDED = ("Succeeded", "Failed")
_SOME_DAY = 2**62
_US = 1_000_000
_MIB = 1 << 20


def node_id(pool: KubernetesPool, name: str) -> str:
    """The id of a node: unique also where two clusters have nodes of one name."""
    return f"{pool.name}-{name}"


def slot_resource(pool: KubernetesPool, node: Mapping[str, Any]) -> str:
    """The resource that is counted as slots of a node."""
    if pool.slot is not None:
        return pool.slot
    found = amounts((node.get("status") or {}).get("capacity"))
    return next((name for name in _SLOTS if found.get(name, 0) > 0), "cpu")


def nodes_of(
    pool: KubernetesPool,
    nodes: Sequence[Mapping[str, Any]],
    pods: Iterable[Mapping[str, Any]],
    owner: str,
) -> tuple[Node, ...]:
    """The nodes of the pool, without what pods of others request on them, in a stable order."""
    taken: dict[str, dict[str, Decimal]] = {}
    for pod in pods:
        name = (pod.get("spec") or {}).get("nodeName")
        phase = (pod.get("status") or {}).get("phase")
        ours = (pod["metadata"].get("labels") or {}).get(OWNER_LABEL) == owner
        if not name or phase in _ENDED or ours:
            continue
        there = taken.setdefault(name, {})
        for resource, amount in requested(pod).items():
            there[resource] = there.get(resource, Decimal(0)) + amount
    found = (
        _node(pool, one, taken.get(one["metadata"]["name"], {}))
        for one in sorted(nodes, key=lambda one: str(one["metadata"]["name"]))
        if _is_of(pool, one)
    )
    return tuple(one for one in found if one is not None)


def _is_of(pool: KubernetesPool, node: Mapping[str, Any]) -> bool:
    labels = node["metadata"].get("labels") or {}
    linux = labels.get("kubernetes.io/os", "linux") == "linux"
    return linux and all(labels.get(key) == value for key, value in pool.node_selector.items())


def _node(
    pool: KubernetesPool, one: Mapping[str, Any], taken: Mapping[str, Decimal]
) -> Node | None:
    meta, status = one["metadata"], one.get("status") or {}
    labels: Mapping[str, str] = meta.get("labels") or {}
    slot = slot_resource(pool, one)
    there = amounts(status.get("allocatable"))
    num_slots = int(there.get(slot, 0) - taken.get(slot, Decimal(0)))
    if int(amounts(status.get("capacity")).get(slot, 0)) < 1 and int(there.get(slot, 0)) < 1:
        return None
    taints = _taints(one)
    traits = TraitValues.of(pool, NodeTraits())
    cpus = int(there.get("cpu", 1) - taken.get("cpu", Decimal(0)))
    memory = int(there.get("memory", 0) - taken.get("memory", Decimal(0)))
    node = traits.on(
        Node(
            id=node_id(pool, meta["name"]),
            pool=pool.name,
            address="",  # pods have their own, which their supervisors report
            num_slots=max(1, num_slots),
            num_cpus=max(1, cpus if traits.cpus is None else traits.cpus),
            memory_bytes=max(0, memory if traits.memory is None else traits.memory),
            slot_type="" if slot == "cpu" else _first(labels, _TYPES),
            domains=tuple(
                (level, labels[label]) for level, label in pool.topology.items() if label in labels
            ),
            closed=_closed(pool, one, slot, num_slots),
            leaves_at=_leaves_at(taints),
        )
    )
    device_memory = amounts({"size": labels.get("nvidia.com/gpu.memory", "0")}).get("size", 0)
    spot = any(labels.get(label) == value for label, value in _SPOT.items())
    named = {label.rpartition("/")[2]: value for label, value in labels.items()}
    return replace(
        node,
        device_memory_bytes=node.device_memory_bytes or int(device_memory) * _MIB,
        hazard_per_hour=node.hazard_per_hour or (DEFAULT_HAZARD if spot else 0.0),
        taints=tuple(sorted({*node.taints, *(_untolerated(pool, taints))})),
        labels=tuple(sorted({**named, **dict(node.labels)}.items())),
    )


def _first(labels: Mapping[str, str], names: Sequence[str]) -> str:
    return next((labels[name] for name in names if labels.get(name)), "")


def _taints(node: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return list((node.get("spec") or {}).get("taints") or ())


def _untolerated(pool: KubernetesPool, taints: Sequence[Mapping[str, Any]]) -> list[str]:
    """Keys of taints that keep pods away; those of conditions and of cordons are in `closed`."""
    return [
        str(taint["key"])
        for taint in taints
        if taint.get("effect") in ("NoSchedule", "NoExecute")
        and not str(taint["key"]).startswith("node.kubernetes.io/")
        and not str(taint["key"]).startswith(_LEAVING)
        and not any(_tolerates(one, taint) for one in pool.tolerations)
    ]


def _tolerates(toleration: Any, taint: Mapping[str, Any]) -> bool:
    return (
        toleration.key in ("", taint["key"])
        and toleration.value in (None, taint.get("value", ""))
        and toleration.effect in (None, taint.get("effect"))
    )


def _closed(pool: KubernetesPool, node: Mapping[str, Any], slot: str, num_slots: int) -> str:
    labels = node["metadata"].get("labels") or {}
    ready = condition(node, "Ready")
    if ready.get("status") != "True":
        return f"Kubernetes: the node is not ready: {ready.get('message') or 'no contact'}"
    if (node.get("spec") or {}).get("unschedulable"):
        return "Kubernetes: the node is cordoned"
    leaving = [one["key"] for one in _taints(node) if str(one["key"]).startswith(_LEAVING)]
    if leaving:
        return f"Kubernetes: the node is about to be removed ({leaving[0]})"
    shared = labels.get("nvidia.com/gpu.product", "").endswith("-SHARED")
    if (shared or _replicas(labels) > 1) and not pool.time_slicing:
        return "its GPUs are time-sliced: set `time_slicing: true` in the pool to use them"
    if num_slots < 1:
        return f"no {slot} is left: unhealthy, or requested by pods other than Phalanx's"
    return ""


def _replicas(labels: Mapping[str, str]) -> int:
    text = labels.get("nvidia.com/gpu.replicas", "1")
    return int(text) if text.isdecimal() else 1


def condition(one: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """A condition of an object's status; empty where it has none."""
    found = (one.get("status") or {}).get("conditions") or ()
    return next((entry for entry in found if entry.get("type") == kind), {})


def _leaves_at(taints: Sequence[Mapping[str, Any]]) -> int | None:
    for taint in taints:
        if str(taint["key"]).startswith(_LEAVING):
            value = str(taint.get("value", ""))
            is_time = taint["key"] == _LEAVING[0] and value.isdecimal()
            return int(value) * _US if is_time else _SOME_DAY
    return None
