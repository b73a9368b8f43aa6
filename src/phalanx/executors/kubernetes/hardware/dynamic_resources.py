"""GPUs that a driver of dynamic resource allocation (DRA) serves: they are in no node's allocatable.

The platform counts slots in the resources of nodes, so such GPUs cannot be used. A node with them must not
pass for a node of CPUs: it is closed, and a pool that has no other GPUs is refused, with the driver's name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

PATH = "/apis/resource.k8s.io/v1/resourceslices"
_KINDS = ("gpu", "mig", "tpu")

Object = Mapping[str, Any]


def slice_parts(one: dict[str, Any]) -> dict[str, Any]:
    """What is read of a ResourceSlice: its driver, its node, and the kinds of its devices."""
    spec = one.get("spec") or {}
    kinds = sorted({_kind(device) for device in spec.get("devices") or ()} - {""})
    meta = {
        key: one["metadata"][key] for key in ("name", "resourceVersion") if key in one["metadata"]
    }
    told = {"driver": spec.get("driver", ""), "nodeName": spec.get("nodeName", ""), "kinds": kinds}
    return {"metadata": meta, "spec": told}


def _kind(device: Object) -> str:
    """The kind of a device; drivers of the older form nest its attributes in `basic`."""
    inner = device.get("basic") or device
    told = (inner.get("attributes") or {}).get("type") or {}
    return str(told.get("string", ""))


def drivers(slices: Iterable[Object]) -> dict[str, str]:
    """The driver of the GPUs of each node that has one; `slices` as `slice_parts` leaves them."""
    found: dict[str, str] = {}
    for one in slices:
        spec = one["spec"]
        name, driver = spec["nodeName"], str(spec["driver"])
        is_gpu = driver.partition(".")[0] in _KINDS or any(kind in _KINDS for kind in spec["kinds"])
        if name and is_gpu:
            found.setdefault(name, driver)
    return found


def closed_by(driver: str) -> str:
    """Why a node is closed where this driver serves the GPUs."""
    return (
        f"its GPUs are served by the DRA driver {driver}, and slots are counted in resources of nodes: use "
        "a device plugin, or extended resource names of the driver"
    )


def refusal(pool: str, served: Mapping[str, str], with_slots: Sequence[str]) -> str:
    """Why a pool is refused, with nodes by driver and the nodes that have slots; empty: it is not."""
    if not served or with_slots:
        return ""
    named = ", ".join(sorted(set(served.values())))
    nodes = ", ".join(sorted(served)[:4]) + (" …" if len(served) > 4 else "")
    return f"the GPUs of pool {pool} are served by the DRA driver {named} (nodes {nodes})"
