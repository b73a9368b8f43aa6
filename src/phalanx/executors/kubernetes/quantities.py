"""Amounts of resources in Kubernetes objects: sum what a pod requests."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from phalanx.kit.units import parse_quantity


def amounts(section: Mapping[str, Any] | None) -> dict[str, Decimal]:
    """The amounts of a section such as `allocatable`; what cannot be read is left out."""
    found: dict[str, Decimal] = {}
    for name, text in (section or {}).items():
        try:
            found[name] = parse_quantity(text)
        except ValueError:
            continue
    return found


def requested(pod: Mapping[str, Any]) -> dict[str, Decimal]:
    """What the scheduler counts for a pod.

    Containers and init containers that run beside them are summed; the other init containers run one by
    one before, so the largest of them counts where it is more. The pod's overhead is added.
    """
    spec = pod.get("spec") or {}
    total: dict[str, Decimal] = {}
    largest: dict[str, Decimal] = {}
    beside: dict[str, Decimal] = {}
    for container in spec.get("initContainers") or ():
        own = _requests(container)
        if container.get("restartPolicy") == "Always":
            beside = _plus(beside, own)
        else:
            for name, amount in _plus(beside, own).items():
                largest[name] = max(largest.get(name, Decimal(0)), amount)
    for container in spec.get("containers") or ():
        total = _plus(total, _requests(container))
    total = _plus(total, beside)
    for name, amount in largest.items():
        total[name] = max(total.get(name, Decimal(0)), amount)
    return _plus(total, amounts(spec.get("overhead")))


def _requests(container: Mapping[str, Any]) -> dict[str, Decimal]:
    resources = container.get("resources") or {}
    # A limit without a request is one.
    return {**amounts(resources.get("limits")), **amounts(resources.get("requests"))}


def _plus(one: Mapping[str, Decimal], other: Mapping[str, Decimal]) -> dict[str, Decimal]:
    return {
        name: one.get(name, Decimal(0)) + other.get(name, Decimal(0)) for name in one.keys() | other
    }
