"""Nodes that a cluster's autoscaler could add, as the planner sees them: nothing starts on them.

They make a job that is larger than the cluster is now wait instead of being refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from phalanx.core.gang.placement import Node
from phalanx.core.scaling.model import ScalingPolicy

_WHY = "not started yet: the cluster's autoscaler adds nodes for waiting jobs"
# All new nodes count as one domain of each level: placeholders of a gang are kept together.
_DOMAIN = "new"


def future_nodes(
    policy: ScalingPolicy, pattern: Node, present: Sequence[Node], levels: Iterable[str]
) -> tuple[Node, ...]:
    """The nodes beyond the present ones, like `pattern`; what it leaves open is that of present nodes."""
    number = policy.max_nodes - len(present)
    if policy.max_slots is not None:
        left = policy.max_slots - sum(node.num_slots for node in present)
        number = min(number, left // pattern.num_slots)
    named = _levels_of(present, levels)
    node = replace(
        _like(pattern, present),
        domains=tuple((level, _DOMAIN) for level in named),
        closed=_WHY,
        future=True,
    )
    return tuple(replace(node, id=f"{node.pool}-future-{n}") for n in range(max(0, number)))


def _levels_of(present: Sequence[Node], levels: Iterable[str]) -> tuple[str, ...]:
    """The levels of the present nodes, so that all nodes of the pool agree on the narrowest one."""
    if present:
        return tuple(level for level, _ in present[0].domains)
    return tuple(levels)


def _like(pattern: Node, present: Sequence[Node]) -> Node:
    """The pattern with the traits that all present nodes share, where it has none of its own."""
    if not present:
        return pattern
    first = present[0]
    shared: Mapping[str, str] = dict(
        set(first.labels).intersection(*(node.labels for node in present[1:]))
    )
    types = {node.slot_type for node in present}
    return replace(
        pattern,
        slot_type=pattern.slot_type or (first.slot_type if len(types) == 1 else ""),
        device_memory_bytes=pattern.device_memory_bytes or first.device_memory_bytes,
        interconnect=pattern.interconnect or first.interconnect,
        taints=pattern.taints or _shared_taints(present),
        labels=tuple(sorted({**shared, **dict(pattern.labels)}.items())),
    )


def _shared_taints(present: Sequence[Node]) -> tuple[str, ...]:
    found = set(present[0].taints).intersection(*(node.taints for node in present[1:]))
    return tuple(sorted(found))
