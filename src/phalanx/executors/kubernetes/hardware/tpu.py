"""TPU slices: which hosts belong together, and what their pods need to find each other."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
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


def memory_bytes(labels: Mapping[str, str]) -> int:
    """Memory of one chip of a node with these labels; 0: unknown."""
    return _MEMORY_GIB.get(labels.get(TYPE_LABEL, ""), 0) * _GIB


def num_hosts(topology: str, chips_per_host: int) -> int:
    """Hosts of a slice with a topology such as `4x4`; 1 where it cannot be read."""
    sides = topology.split("x")
    if not chips_per_host or not all(one.isdecimal() and 0 < len(one) < 6 for one in sides):
        return 1
    return max(1, math.prod(map(int, sides)) // chips_per_host)


def check_slice(gang: Sequence[Assignment], labels: Sequence[Mapping[str, str]]) -> None:
    """Raise LaunchError where a gang on nodes with these labels is no whole slice.

    The chips of a host belong to one process, and a slice of several hosts works with all of them only.
    """
    slots = gang[0].gang.role.slots_per_node
    for one in gang:
        if one.num_ranks != 1:
            raise LaunchError(
                f"the {slots} TPU chips of a host belong to one process: write "
                f"`slots_per_rank: {slots}` in `resources`"
            )
    slices = sorted({one.get(SLICE_LABEL, "") for one in labels})
    if len(slices) > 1:
        raise LaunchError(
            f"the gang is on several TPU slices ({', '.join(slices[:4])}): write "
            f"`placement: {{required: {SLICE_LEVEL}}}`"
        )
    wanted = num_hosts(labels[0].get(TOPOLOGY_LABEL, ""), slots)
    if len(gang) != wanted and max(len(gang), wanted) > 1:
        shape = labels[0].get(TOPOLOGY_LABEL, "")
        raise LaunchError(
            f"a TPU slice with topology {shape} has {wanted} hosts with {slots} chips each, and works "
            f"with all of them only: write `nodes: {wanted}`, not {len(gang)}"
        )


def variables(anchor: str, pods: Sequence[str], number: int, topology: str) -> dict[str, str]:
    """What libtpu reads in the pod with this number in its slice."""
    names = [f"{one}.{anchor}" for one in pods] if len(pods) > 1 else ["localhost"]
    return {
        "TPU_WORKER_ID": str(number),
        "TPU_WORKER_HOSTNAMES": ",".join(names),
        "TPU_TOPOLOGY": topology,
        "TPU_SKIP_MDS_QUERY": "true",
    }


def slice_service(
    anchor: str, labels: Mapping[str, str], owners: list[dict[str, Any]]
) -> dict[str, Any]:
    """The headless Service that gives the pods of a slice their names; it ends with the anchor."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": anchor, "labels": dict(labels), "ownerReferences": owners},
        "spec": {
            "clusterIP": "None",
            "selector": dict(labels),
            "publishNotReadyAddresses": True,
            "ports": [{"name": "tpu", "port": _PORT}],
        },
    }
