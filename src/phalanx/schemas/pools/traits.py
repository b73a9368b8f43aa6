"""Traits of nodes: the keys that pools of every executor have, and the Ray node labels that set them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import yaml
from pydantic import Field, ValidationError

from phalanx.core.gang.placement import Node
from phalanx.schemas.spec.fields import (
    MAX_ENTRIES,
    Name,
    Names,
    NotNegative,
    Section,
    Size,
    Text,
    Whether,
    WholeFromOne,
    optional,
)

# Reclaims per hour of a spot node when the file gives none.
DEFAULT_HAZARD = 0.05
# Labels of Ray nodes: `phalanx/price` is the trait `price`, `taint.phalanx/NAME` is a taint.
LABEL_PREFIX = "phalanx/"
TAINT_PREFIX = "taint.phalanx/"
_MARKET_TYPE, _NODE_ID = "ray.io/market-type", "ray.io/node-id"
# Characters of a label's value that a message shows.
_SHOWN_LENGTH = 64
_NO_LABEL = ("cpus", "memory", "taints", "labels")


class NodeTraits(Section):
    """Traits that a pool sets for all of its nodes and that a node may override."""

    slot_type: Name | None = optional("Accelerator model, such as H100; jobs request it by name.")
    device_memory: Size | None = optional(
        "Memory of each slot's device; absent: as found, or 16GB where only a model is known."
    )
    cpus: WholeFromOne | None = optional("CPUs of the node; absent: the machine's.")
    memory: Size | None = optional("Memory of the node; absent: the machine's.")
    interconnect: Name | None = optional(
        "Link between the slots of one node, such as nvlink or pcie."
    )
    bandwidth_gbps: NotNegative | None = optional(
        "Bandwidth of the node's link to the others, Gbit/s."
    )
    price: NotNegative | None = optional("US dollars per slot and hour.")
    spot: Whether | None = optional("Whether the provider may reclaim the nodes.")
    reclaims_per_hour: NotNegative | None = optional(
        f"Expected reclaims of a spot node per hour; absent: {DEFAULT_HAZARD}."
    )
    taints: Names | None = optional("Taints: only jobs that tolerate all of them run on the nodes.")
    labels: dict[Name, Text] = Field(
        default_factory=dict,
        max_length=MAX_ENTRIES,
        description="Labels by which jobs select nodes; those of a node add to its pool's.",
    )


@dataclass(frozen=True, slots=True)
class TraitValues:
    """The traits of one node: its own where it has them, else those of its pool."""

    slot_type: str  # empty: unknown
    device_memory: int  # bytes; 0: unknown
    cpus: int | None  # None: as found
    memory: int | None  # bytes; None: as found
    interconnect: str  # empty: unknown
    bandwidth_gbps: float  # 0: unknown
    price: float  # per slot and hour; 0: unknown
    hazard_per_hour: float  # expected reclaims; 0: not a spot node
    taints: tuple[str, ...]  # sorted names
    labels: tuple[tuple[str, str], ...]  # sorted pairs of name and value

    @classmethod
    def of(cls, pool: NodeTraits, node: NodeTraits) -> TraitValues:
        """The values of a node of a pool."""

        def said(trait: str) -> Any:
            own = getattr(node, trait)
            return getattr(pool, trait) if own is None else own

        hazard = said("reclaims_per_hour")
        return cls(
            slot_type=said("slot_type") or "",
            device_memory=said("device_memory") or 0,
            cpus=said("cpus"),
            memory=said("memory"),
            interconnect=said("interconnect") or "",
            bandwidth_gbps=said("bandwidth_gbps") or 0.0,
            price=said("price") or 0.0,
            hazard_per_hour=(DEFAULT_HAZARD if hazard is None else hazard) if said("spot") else 0.0,
            taints=tuple(sorted(said("taints") or ())),
            labels=tuple(sorted({**pool.labels, **node.labels}.items())),
        )

    def on(self, node: Node) -> Node:
        """The node with these traits; a slot type that it already has stays, CPUs and memory too."""
        return replace(
            node,
            slot_type=node.slot_type or self.slot_type,
            device_memory_bytes=self.device_memory,
            interconnect=self.interconnect,
            bandwidth_gbps=self.bandwidth_gbps,
            price_per_slot_hour=self.price,
            hazard_per_hour=self.hazard_per_hour,
            taints=self.taints,
            labels=self.labels,
        )


def traits_of_labels(labels: Mapping[str, str]) -> NodeTraits:
    """The traits that a Ray node's labels set; the other labels become labels of the node.

    The name of such a label is the part behind its prefix: a job selects `node-group: a100`, not
    `ray.io/node-group`. A label without a prefix wins over one with.
    Raises ValueError, which names a label that cannot be read.
    """
    told: dict[str, Any] = {}
    named: dict[str, str] = {}
    taints: list[str] = []
    for label, value in sorted(labels.items()):
        if label.startswith(TAINT_PREFIX):
            taints.append(label.removeprefix(TAINT_PREFIX))
        elif label.startswith(LABEL_PREFIX):
            told[_trait(label)] = value if label.endswith("slot-type") else _loaded(label, value)
        elif label != _NODE_ID:
            named[label.rpartition("/")[2]] = value
    if _MARKET_TYPE in labels:
        told.setdefault("spot", labels[_MARKET_TYPE] == "spot")
    plain = {label: value for label, value in labels.items() if "/" not in label}
    try:
        traits = NodeTraits.model_validate({**told, **({"taints": taints} if taints else {})})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        label = LABEL_PREFIX + str(first["loc"][0]).replace("_", "-")
        said = first["msg"].removeprefix("Value error, ")
        raise _unreadable(label, labels.get(label, ""), said) from None
    return traits.model_copy(update={"labels": named | plain})


def _loaded(label: str, value: str) -> Any:
    """The value that a label's text gives as YAML, which may be any text of a node's owner."""
    try:
        return yaml.safe_load(value)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        said = getattr(error, "problem", None) or "it is no value"
        raise _unreadable(label, value, said) from None


def _unreadable(label: str, value: str, said: str) -> ValueError:
    shown = value if len(value) <= _SHOWN_LENGTH else f"{value[:_SHOWN_LENGTH]}…"
    return ValueError(f"label {label}={shown} cannot be read: {said}")


def _trait(label: str) -> str:
    trait = label.removeprefix(LABEL_PREFIX).replace("-", "_")
    if trait not in NodeTraits.model_fields or trait in _NO_LABEL:
        known = sorted(set(NodeTraits.model_fields) - set(_NO_LABEL))
        shown = ", ".join(LABEL_PREFIX + one.replace("_", "-") for one in known)
        raise ValueError(f"label {label} is not known; known: {shown}")
    return trait
