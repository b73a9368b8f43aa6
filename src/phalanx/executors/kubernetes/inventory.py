"""Convert Kubernetes nodes to Phalanx nodes: slots, accelerators, topology, reasons for exclusion."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

from phalanx.core.contract.pods import CONTAINERS_LABEL
from phalanx.core.gang.placement import Node
from phalanx.executors.kubernetes.hardware import dynamic_resources, tpu
from phalanx.executors.kubernetes.quantities import amounts, requested
from phalanx.schemas.pools.kubernetes_pools import KubernetesPool
from phalanx.schemas.pools.scaling import NewNode
from phalanx.schemas.pools.traits import DEFAULT_HAZARD, NodeTraits, TraitValues

OWNER_LABEL = "phalanx.dev/owner"
_SLOTS = ("nvidia.com/gpu", "amd.com/gpu", tpu.TPU, "cpu")
_MIG = "nvidia.com/mig-"
_TYPES = (
    "nvidia.com/gpu.product",
    "cloud.google.com/gke-accelerator",
    "k8s.amazonaws.com/accelerator",
    "amd.com/gpu.product-name",
    tpu.TYPE_LABEL,
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
# Different sums of requests that are kept.
_MAX_SHAPES = 10_000
_NAMING = ("name", "namespace", "resourceVersion")


KnownNode = tuple[tuple[str | None, str], Mapping[str, Decimal], Node | None]
"""A node with the version, the driver and the requests of others that it was read from."""


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
    known: dict[str, KnownNode] | None = None,
    drivers: Mapping[str, str] | None = None,
) -> tuple[Node, ...]:
    """The nodes of the pool, without what pods of others request on them, in a stable order.

    `known` keeps the nodes between calls: those that have not changed are not read again. `drivers` are
    those that serve GPUs of nodes which are in no allocatable.
    """
    known = {} if known is None else known
    drivers = {} if drivers is None else drivers
    taken: dict[str, dict[str, Decimal]] = {}
    shared: dict[int, Mapping[str, Decimal]] = {}  # pods that `PodParts` has trimmed share these
    for pod in pods:
        name = (pod.get("spec") or {}).get("nodeName")
        phase = (pod.get("status") or {}).get("phase")
        ours = (pod["metadata"].get("labels") or {}).get(OWNER_LABEL) == owner
        if not name or phase in _ENDED or ours:
            continue
        there = taken.setdefault(name, {})
        for resource, amount in _amounts_of(pod, shared).items():
            there[resource] = there.get(resource, Decimal(0)) + amount
    found = (
        _known_node(
            pool, one, taken.get(name := one["metadata"]["name"], {}), known, drivers.get(name, "")
        )
        for one in sorted(nodes_in(pool, nodes), key=lambda one: str(one["metadata"]["name"]))
    )
    return tuple(one for one in found if one is not None)


def _known_node(
    pool: KubernetesPool,
    one: Mapping[str, Any],
    taken: Mapping[str, Decimal],
    known: dict[str, KnownNode],
    driver: str,
) -> Node | None:
    """A node as it was read before, unless it or what others request on it has changed."""
    name, version = one["metadata"]["name"], one["metadata"].get("resourceVersion")
    before, key = known.get(name), (version, driver)
    if before is not None and version and (before[0], before[1]) == (key, taken):
        return before[2]
    node = _node(pool, one, taken, driver)
    known[name] = (key, taken, node)
    return node


class PodParts:
    """Takes of each pod what is read later: own pods stay whole, of others only their requests do.

    A cluster has tens of thousands of them, and few different requests.
    """

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._requests: dict[tuple[tuple[str, str], ...], dict[str, Any]] = {}

    def __call__(self, pod: dict[str, Any]) -> dict[str, Any]:
        """The parts of a pod, as a pod with one container."""
        meta = pod["metadata"]
        if (meta.get("labels") or {}).get(OWNER_LABEL) == self._owner:
            return pod
        told = tuple(sorted((name, str(value)) for name, value in requested(pod).items()))
        if len(self._requests) > _MAX_SHAPES:
            self._requests.clear()
        container = self._requests.get(told)
        if container is None:
            container = {"resources": {"requests": dict(told)}}
            self._requests[told] = container
        node = (pod.get("spec") or {}).get("nodeName")
        named = {name: meta[name] for name in _NAMING if name in meta}
        return {
            "metadata": named,
            "spec": {"nodeName": sys.intern(node) if node else "", "containers": [container]},
            "status": {"phase": sys.intern((pod.get("status") or {}).get("phase") or "")},
        }


def _amounts_of(
    pod: Mapping[str, Any], shared: dict[int, Mapping[str, Decimal]]
) -> Mapping[str, Decimal]:
    """What a pod requests; of containers that several pods share it is worked out once."""
    containers: Sequence[Any] = (pod.get("spec") or {}).get("containers") or ()
    if len(containers) != 1 or "uid" in pod["metadata"]:
        return requested(pod)
    found = shared.get(id(containers[0]))
    if found is None:
        found = shared[id(containers[0])] = requested(pod)
    return found


def nodes_in(pool: KubernetesPool, nodes: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The nodes of a cluster that belong to the pool."""
    return [one for one in nodes if _is_of(pool, one)]


def served_by_drivers(
    pool: KubernetesPool, nodes: Iterable[Mapping[str, Any]], drivers: Mapping[str, str]
) -> tuple[dict[str, str], list[str]]:
    """The drivers by node where nothing else serves GPUs, and the nodes with slots of devices."""
    ours = nodes_in(pool, nodes)
    lacking = {
        str(one["metadata"]["name"]): drivers[one["metadata"]["name"]]
        for one in ours
        if one["metadata"]["name"] in drivers and _lacks_slots(pool, one)
    }
    return lacking, [
        str(one["metadata"]["name"])
        for one in ours
        if slot_resource(pool, one) != "cpu" and not _lacks_slots(pool, one)
    ]


def _lacks_slots(pool: KubernetesPool, node: Mapping[str, Any]) -> bool:
    """Whether a node has no devices that are counted, in a pool that does not ask for CPUs."""
    if pool.slot == "cpu":
        return False
    slot = slot_resource(pool, node)
    there = amounts((node.get("status") or {}).get("capacity"))
    return slot == "cpu" or int(there.get(slot, 0)) < 1


def _is_of(pool: KubernetesPool, node: Mapping[str, Any]) -> bool:
    labels = node["metadata"].get("labels") or {}
    linux = labels.get("kubernetes.io/os", "linux") == "linux"
    return linux and all(labels.get(key) == value for key, value in pool.node_selector.items())


def _node(
    pool: KubernetesPool, one: Mapping[str, Any], taken: Mapping[str, Decimal], driver: str
) -> Node | None:
    meta, status = one["metadata"], one.get("status") or {}
    labels: Mapping[str, str] = meta.get("labels") or {}
    slot = slot_resource(pool, one)
    there, capacity = amounts(status.get("allocatable")), amounts(status.get("capacity"))
    num_slots = int(there.get(slot, 0) - taken.get(slot, Decimal(0)))
    by_driver = driver if driver and _lacks_slots(pool, one) else ""
    if int(capacity.get(slot, 0)) < 1 and int(there.get(slot, 0)) < 1 and not by_driver:
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
            slot_type="" if slot == "cpu" else _slot_type(labels, slot),
            domains=_domains(pool, labels, slot),
            closed=dynamic_resources.closed_by(by_driver)
            if by_driver
            else _closed(pool, one, slot, num_slots),
            leaves_at=_leaves_at(pool, one, taints),
            # CPUs that the node keeps for itself are no fault.
            num_unhealthy=0
            if slot == "cpu"
            else max(0, int(capacity.get(slot, 0)) - int(there.get(slot, 0))),
        )
    )
    spot = any(labels.get(label) == value for label, value in _SPOT.items())
    named = {sys.intern(label.rpartition("/")[2]): value for label, value in labels.items()}
    # Jobs select by the name behind the prefix in `placement`, by the whole name in `kubernetes`.
    named |= {sys.intern(label): value for label, value in labels.items()}
    named |= dict([CONTAINERS_LABEL])
    return replace(
        node,
        device_memory_bytes=node.device_memory_bytes or _device_memory(labels, slot),
        hazard_per_hour=node.hazard_per_hour or (DEFAULT_HAZARD if spot else 0.0),
        taints=tuple(sorted({*node.taints, *(_untolerated(pool, taints))})),
        labels=tuple(sorted({**named, **dict(node.labels)}.items())),
    )


def future_pattern(pool: KubernetesPool, new: NewNode) -> Node:
    """A node as the cluster's autoscaler adds it; present nodes tell the rest."""
    traits = TraitValues.of(pool, NodeTraits())
    node = Node(
        id="",
        pool=pool.name,
        address="",
        num_slots=new.slots,
        num_cpus=new.cpus,
        memory_bytes=new.memory or traits.memory or 0,
    )
    node = traits.on(node)
    labels = {**pool.node_selector, **dict(node.labels)} | dict([CONTAINERS_LABEL])
    return replace(node, labels=tuple(sorted(labels.items())))


def _slot_type(labels: Mapping[str, str], slot: str) -> str:
    """Model of the devices; instances of a partitioned GPU have its model and their profile."""
    model = _first(labels, _TYPES)
    return f"{model}-MIG-{slot.removeprefix(_MIG)}" if slot.startswith(_MIG) and model else model


def _device_memory(labels: Mapping[str, str], slot: str) -> int:
    """Memory of each device in bytes; 0: unknown."""
    if slot == tpu.TPU:
        return tpu.memory_bytes(labels)
    label = f"{slot}.memory" if slot.startswith(_MIG) else "nvidia.com/gpu.memory"
    return int(amounts({"size": labels.get(label, "0")}).get("size", 0)) * _MIB


def _domains(
    pool: KubernetesPool, labels: Mapping[str, str], slot: str
) -> tuple[tuple[str, str], ...]:
    """Position of a node; the hosts of a TPU slice share a domain."""
    found = [(level, labels[label]) for level, label in pool.topology.items() if label in labels]
    if slot == tpu.TPU and tpu.SLICE_LABEL in labels and tpu.SLICE_LEVEL not in pool.topology:
        found.append((tpu.SLICE_LEVEL, labels[tpu.SLICE_LABEL]))
    return tuple(found)


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


def _leaves_at(
    pool: KubernetesPool, node: Mapping[str, Any], taints: Sequence[Mapping[str, Any]]
) -> int | None:
    """When a node goes, as far as its cluster says; a cordon comes before a drain."""
    for taint in taints:
        if str(taint["key"]).startswith(_LEAVING):
            value = str(taint.get("value", ""))
            is_time = taint["key"] == _LEAVING[0] and value.isdecimal()
            return int(value) * _US if is_time else _SOME_DAY
    cordoned = bool((node.get("spec") or {}).get("unschedulable"))
    return _SOME_DAY if cordoned and pool.cordon == "move" else None
