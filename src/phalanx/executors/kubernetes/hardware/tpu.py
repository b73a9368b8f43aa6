"""TPU slices: which hosts belong together, and what their pods need to find each other."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from phalanx.errors import LaunchError
from phalanx.schemas.wire.assignments import Assignment

TPU = "google.com/tpu"
"""The resource of TPU chips."""
TYPE_LABEL = "cloud.google.com/gke-tpu-accelerator"
TOPOLOGY_LABEL = "cloud.google.com/gke-tpu-topology"
SLICE_LABEL = "cloud.google.com/gke-nodepool"
SLICE_LEVEL = "slice"
"""The topology level of the hosts of one slice."""
_GIB = 1 << 30
_MEMORY_GIB = {
    "tpu-v4-podslice": 32,
    "tpu-v5-lite-podslice": 16,
    "tpu-v5-lite-device": 16,
    "tpu-v5p-slice": 95,
    "tpu-v6e-slice": 32,
}
_PORT = 8471
_SLICES_PORT = 8080


def memory_bytes(labels: Mapping[str, str]) -> int:
    """Memory of one chip of a node with these labels; 0: unknown."""
    return _MEMORY_GIB.get(labels.get(TYPE_LABEL, ""), 0) * _GIB


def num_hosts(topology: str, chips_per_host: int) -> int:
    """Hosts of a slice with a topology such as `4x4`; 1 where it cannot be read."""
    sides = topology.split("x")
    if not chips_per_host or not all(one.isdecimal() and 0 < len(one) < 6 for one in sides):
        return 1
    return max(1, math.prod(map(int, sides)) // chips_per_host)


def slices_of(labels: Sequence[Mapping[str, str]]) -> list[range]:
    """The numbers of the hosts of each slice: hosts that follow each other in one slice."""
    names = [one.get(SLICE_LABEL, "") for one in labels]
    starts = [at for at, name in enumerate(names) if not at or name != names[at - 1]]
    return [range(at, end) for at, end in pairwise([*starts, len(names)])]


def check_slices(gang: Sequence[Assignment], labels: Sequence[Mapping[str, str]]) -> None:
    """Raise LaunchError where a gang on nodes with these labels is not on whole slices, in turn.

    The chips of a host belong to one process, and a slice of several hosts works with all of them only.
    Slices that work together are alike.
    """
    slots = gang[0].gang.role.slots_per_node
    for one in gang:
        if one.num_ranks != 1:
            raise LaunchError(
                f"the {slots} TPU chips of a host belong to one process: write "
                f"`slots_per_rank: {slots}` in `resources`"
            )
    parts, names = slices_of(labels), sorted({one.get(SLICE_LABEL, "") for one in labels})
    shapes = sorted({one.get(TOPOLOGY_LABEL, "") for one in labels})
    if len(shapes) > 1:
        raise LaunchError(
            f"the gang is on TPU slices with several topologies ({', '.join(shapes[:4])}): write one in "
            f"`kubernetes: {{node_selector: {{{TOPOLOGY_LABEL}: {shapes[0]}}}}}`"
        )
    wanted = num_hosts(shapes[0], slots)
    if len(parts) > 1 and (len(parts) != len(names) or {len(one) for one in parts} != {wanted}):
        raise LaunchError(
            f"the gang is on parts of several TPU slices ({', '.join(names[:4])}), which have {wanted} "
            f"hosts each: write `nodes: {wanted}` and `placement: {{required: {SLICE_LEVEL}}}` for one "
            f"slice, `nodes: {2 * wanted}` and `placement: {{required: {SLICE_LEVEL}, domains: 2}}` for two"
        )
    if len(parts) == 1 and len(gang) != wanted and max(len(gang), wanted) > 1:
        raise LaunchError(
            f"a TPU slice with topology {shapes[0]} has {wanted} hosts with {slots} chips each, and works "
            f"with all of them only: write `nodes: {wanted}`, not {len(gang)}"
        )


def variables(
    anchor: str, pods: Sequence[str], labels: Sequence[Mapping[str, str]]
) -> list[dict[str, str]]:
    """What libtpu reads in each of the pods, on nodes with these labels."""
    slices = slices_of(labels)
    names = [f"{one}.{anchor}" for one in pods] if len(pods) > 1 else ["localhost"]
    found = []
    for slice_id, hosts in enumerate(slices):
        together: dict[str, str] = {}
        if len(slices) > 1:
            together = {
                "MEGASCALE_NUM_SLICES": str(len(slices)),
                "MEGASCALE_SLICE_ID": str(slice_id),
                "MEGASCALE_COORDINATOR_ADDRESS": names[0],
                "MEGASCALE_PORT": str(_SLICES_PORT),
            }
        for number in hosts:
            own = {
                "TPU_WORKER_ID": str(number - hosts.start),
                "TPU_WORKER_HOSTNAMES": ",".join(names[at] for at in hosts),
                "TPU_TOPOLOGY": labels[number].get(TOPOLOGY_LABEL, ""),
                "TPU_SKIP_MDS_QUERY": "true",
            }
            found.append({**own, **together})
    return found


def slice_service(
    anchor: str, labels: Mapping[str, str], owners: list[dict[str, Any]]
) -> dict[str, Any]:
    """The headless Service that gives the pods of slices their names; it ends with the anchor."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": anchor, "labels": dict(labels), "ownerReferences": owners},
        "spec": {
            "clusterIP": "None",
            "selector": dict(labels),
            "publishNotReadyAddresses": True,
            "ports": [
                {"name": "tpu", "port": _PORT},
                {"name": "slices", "port": _SLICES_PORT},
            ],
        },
    }
