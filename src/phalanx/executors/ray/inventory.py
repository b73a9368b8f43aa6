"""Convert Ray nodes to Phalanx nodes: slots, labels, topology, and reasons for exclusion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from phalanx.core.gang.placement import Node
from phalanx.core.residency import LABEL
from phalanx.core.scaling.future import future_nodes
from phalanx.core.scaling.model import NodeWish, ScalingBounds
from phalanx.schemas.pools.ray_pools import RayPool
from phalanx.schemas.pools.traits import NodeTraits, TraitValues, traits_of_labels

_TYPE_LABEL = "ray.io/accelerator-type"
_TYPE_PREFIX = "accelerator_type:"
_SHORT = 8
_SOME_MEMORY = 1 << 20
# A drain without a deadline: leave, and take the time that saving needs.
_SOME_DAY = 2**62


@dataclass(frozen=True, slots=True)
class RayNode:
    """A node of Ray behind one of ours.

    `slot` is the resource that its slots are made of, `num_cpus` what Ray has of CPUs there: maybe none.
    """

    ray_id: str
    node: Node
    slot: str
    num_cpus: int


class RayInventory:
    """Converts Ray's nodes, and remembers the Ray node behind each node id."""

    def __init__(self, pool: RayPool) -> None:
        self._pool = pool
        self.policy = pool.scaling  # may be replaced while it is in use
        self.bounds: ScalingBounds | None = None  # set beside the section; may be replaced too
        self._known: dict[str, RayNode] = {}

    def known(self, node_id: str) -> RayNode | None:
        """The Ray node behind a node id, also when it is gone; None for an unknown id."""
        return self._known.get(node_id)

    def read(self, found: Sequence[Mapping[str, Any]]) -> tuple[Node, ...]:
        """Nodes with slots, in a stable order."""
        nodes: list[RayNode] = []
        for one in sorted(found, key=lambda one: str(one["id"])):
            known = self._translate(one)
            if known is not None:
                nodes.append(known)
        self._known |= {known.node.id: known for known in nodes}
        present = [known.node for known in nodes]
        return (*present, *self._possible(present))

    def _translate(self, one: Mapping[str, Any]) -> RayNode | None:
        resources: Mapping[str, float] = one["resources"]
        slot = self._slot(resources)
        num_slots = int(resources.get(slot, 0))
        if num_slots < 1:
            return None
        labels: Mapping[str, str] = one["labels"]
        closed = _closed(one, slot)
        try:
            own = traits_of_labels(labels)
        except ValueError as error:
            # Without its price or taints it must not be used, and its owner must see why.
            own, closed = NodeTraits(), str(error)
        if LABEL in self._pool.labels:
            # A node cannot say that it is elsewhere than its pool.
            inside = {LABEL: self._pool.labels[LABEL]}
            own = own.model_copy(update={"labels": {**own.labels, **inside}})
        traits = TraitValues.of(self._pool, own)
        cpus = max(1, int(resources.get("CPU", 1)))
        node = Node(
            id=f"{self._pool.name}-{str(one['id'])[:_SHORT]}",
            pool=self._pool.name,
            address=str(one["address"]),
            num_slots=num_slots,
            num_cpus=cpus if traits.cpus is None else traits.cpus,
            memory_bytes=_memory(resources, traits),
            slot_type=own.slot_type or _slot_type(resources, labels),
            domains=tuple(
                (level, labels[label])
                for level, label in self._pool.topology.items()
                if label in labels
            ),
            closed=closed,
            leaves_at=_leaves_at(one["draining_deadline_ms"]),
        )
        return RayNode(str(one["id"]), traits.on(node), slot, int(resources.get("CPU", 0)))

    def _slot(self, resources: Mapping[str, float]) -> str:
        if self._pool.slot is not None:
            return self._pool.slot
        return next((name for name in ("GPU", "slot", "CPU") if name in resources), "CPU")

    def _possible(self, present: Sequence[Node]) -> tuple[Node, ...]:
        """Nodes that the autoscaler could add."""
        scaling = self.policy
        if scaling is None:
            return ()
        traits = TraitValues.of(self._pool, NodeTraits())
        pattern = Node(
            id="",
            pool=self._pool.name,
            address="",
            num_slots=scaling.node.slots,
            num_cpus=scaling.node.cpus,
            memory_bytes=scaling.node.memory or traits.memory or 0,
        )
        policy = scaling.to_core()
        if self.bounds is not None:
            policy = self.bounds.over(policy)
        return future_nodes(policy, traits.on(pattern), present, levels=self._pool.topology)

    def bundle(self, known: RayNode, num_slots: int, cpus: int) -> dict[str, float]:
        """The Ray bundle of `num_slots` slots of a node: the slots and their share of its CPUs."""
        if not num_slots:
            # A place without slots; Ray wants a bundle to hold something, and CPUs may all be taken.
            return {"memory": float(_SOME_MEMORY)}
        if known.slot == "CPU":
            return {"CPU": float(num_slots)}
        part = min(cpus, known.num_cpus * num_slots // known.node.num_slots)
        bundle = {known.slot: float(num_slots)}
        return {**bundle, "CPU": float(part)} if part > 0 else bundle

    def whole(self, node_id: str) -> dict[str, float]:
        """The bundle of all slots of a node."""
        known = self._known.get(node_id)
        return {} if known is None else {known.slot: float(known.node.num_slots)}

    def asked(self, wish: NodeWish) -> dict[str, float]:
        """The bundle of a share of a gang on a node that the autoscaler has yet to add."""
        slot = self._pool.slot or "GPU"
        if not wish.slots:
            return {"CPU": float(max(1, wish.cpus))}
        bundle = {slot: float(wish.slots)}
        if slot != "CPU" and self.policy is not None:
            node = self.policy.node
            part = node.cpus * wish.slots // max(1, node.slots)
            bundle["CPU"] = float(wish.cpus or part)
        return bundle


def _memory(resources: Mapping[str, float], traits: TraitValues) -> int:
    return int(resources.get("memory", 0)) if traits.memory is None else traits.memory


def _slot_type(resources: Mapping[str, float], labels: Mapping[str, str]) -> str:
    if _TYPE_LABEL in labels:
        return labels[_TYPE_LABEL]
    names = (name for name in resources if name.startswith(_TYPE_PREFIX))
    return next((name.removeprefix(_TYPE_PREFIX) for name in names), "")


def _leaves_at(deadline_ms: int | None) -> int | None:
    if deadline_ms is None:
        return None
    return deadline_ms * 1000 if deadline_ms > 0 else _SOME_DAY


def _closed(one: Mapping[str, Any], slot: str) -> str:
    if one["silent"]:
        return "the raylet does not answer"
    if one["draining_deadline_ms"] is not None:
        return "Ray drains the node"
    used = one["foreign"].get(slot, 0.0)
    if used:
        return f"{used:g} of its {slot} are used by programs other than Phalanx"
    return ""
