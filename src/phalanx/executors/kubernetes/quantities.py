"""Amounts of resources in Kubernetes objects: parse quantities, sum what a pod requests."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

_FACTORS: Mapping[str, Decimal] = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "": Decimal(1),
    **{unit: Decimal(1000) ** (n + 1) for n, unit in enumerate("kMGTPE")},
    **{f"{unit}i": Decimal(1024) ** (n + 1) for n, unit in enumerate("KMGTPE")},
}


def parse_quantity(text: Any) -> Decimal:
    """The amount that a quantity such as `500m`, `8Gi` or `1e3` stands for. Raises ValueError."""
    number, unit = str(text).strip(), ""
    for length in (2, 1):
        if number[-length:] in _FACTORS and not number[-length:].isdigit():
            number, unit = number[:-length], number[-length:]
            break
    try:
        return Decimal(number) * _FACTORS[unit]
    except InvalidOperation as error:
        raise ValueError(f"{text!r} is no quantity") from error


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
