"""Pools of a pool file with the nodes of a Kubernetes cluster."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from phalanx.schemas.pools.traits import NodeTraits
from phalanx.schemas.spec.fields import (
    Duration,
    Name,
    NotEmpty,
    Section,
    Size,
    Whether,
    WholeFromOne,
    optional,
)

_Path = Annotated[str, Field(strict=True, max_length=4096, pattern="^/")]
_Url = Annotated[str, Field(strict=True, max_length=4096, pattern=r"^https?://[^/\s]+$")]
_DnsName = Annotated[
    str, Field(strict=True, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")
]
_Resource = Annotated[
    str, Field(strict=True, max_length=316, pattern=r"^[a-z0-9.-]+(/[A-Za-z0-9._-]+)?$")
]
_MOUNT = re.compile(
    r"(?P<kind>pvc|configmap|secret|nfs):(?P<source>[^:\s]+(?::/[^:\s]*)?):(?P<path>/[^:\s]+)(?P<ro>:ro)?"
)
PROJECT = "{project}"


def _mount(text: str) -> str:
    found = _MOUNT.fullmatch(text)
    if found is None:
        raise ValueError(
            "must be pvc:NAME:/path, configmap:NAME:/path, secret:NAME:/path or "
            "nfs:SERVER:/export:/path, with :ro behind it where it is read only"
        )
    if (found["kind"] == "nfs") != (":/" in found["source"]):
        raise ValueError("only nfs has an export: nfs:SERVER:/export:/path")
    return text


def _namespace(text: str) -> str:
    if not re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", text.replace(PROJECT, "p")):
        raise ValueError("must be the name of a namespace; {project} in it becomes the project")
    return text


class Toleration(Section):
    """A taint of nodes that the pods of a pool tolerate, as in Kubernetes."""

    key: Annotated[str, Field(strict=True, max_length=316)] = Field(
        default="", description="Key of the taint; absent: every key."
    )
    value: Annotated[str, Field(strict=True, max_length=63)] | None = optional(
        "Value of the taint; absent: every value."
    )
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = optional(
        "Effect of the taint; absent: every effect."
    )


class KubernetesPool(NodeTraits):
    """A pool with the nodes of a Kubernetes cluster; its traits apply to all of them."""

    name: Name = Field(description="Name of the pool, as in a job's `pool`.")
    executor: Literal["kubernetes"] = Field(description="kubernetes.")
    kubeconfig: _Path | None = optional(
        "File with the cluster's address and credentials; absent: the service account of this pod."
    )
    context: NotEmpty | None = optional("Context of the kubeconfig; absent: the current one.")
    namespace: Annotated[str, Field(strict=True, max_length=63), AfterValidator(_namespace)] = (
        Field(
            default="phalanx-{project}",
            description="Namespace of the pods; {project} in it becomes the name of the project.",
        )
    )
    image: Annotated[str, Field(strict=True, min_length=1, max_length=1024, pattern=r"^\S+$")] = (
        Field(description="Container image of the jobs; it has this version of Phalanx installed.")
    )
    image_pull_secrets: Annotated[list[_DnsName], Field(max_length=8)] = Field(
        default_factory=list, description="Secrets of the namespace for private registries."
    )
    service_account: _DnsName | None = optional(
        "Service account of the pods; its token is not mounted. Absent: default."
    )
    priority_class: _DnsName | None = optional("PriorityClass of the pods.")
    slot: _Resource | None = optional(
        "Resource that is counted as slots; absent: nvidia.com/gpu, amd.com/gpu, else cpu."
    )
    resources: dict[_Resource, WholeFromOne] = Field(
        default_factory=dict,
        max_length=8,
        description="Further resources that each pod requests, such as rdma/ib.",
    )
    node_selector: dict[NotEmpty, str] = Field(
        default_factory=dict,
        max_length=16,
        description="Labels that nodes of the pool have; absent: all nodes of the cluster.",
    )
    tolerations: Annotated[list[Toleration], Field(max_length=32)] = Field(
        default_factory=list,
        description="Taints of nodes that do not keep jobs away; any others do.",
    )
    mounts: Annotated[
        list[Annotated[str, Field(strict=True, max_length=1024), AfterValidator(_mount)]],
        Field(max_length=32),
    ] = Field(
        default_factory=list,
        description="Volumes of every pod: pvc:NAME:/path, configmap:…, secret:…, "
        "nfs:SERVER:/export:/path; :ro behind it makes it read only.",
    )
    shm: Size | None = optional("Size of /dev/shm; absent: the 64 MiB of the container runtime.")
    topology: dict[Name, NotEmpty] = Field(
        default_factory=lambda: {
            "region": "topology.kubernetes.io/region",
            "zone": "topology.kubernetes.io/zone",
        },
        max_length=8,
        description="Topology levels, widest first, and the node labels that name them.",
    )
    checkpoints: _Path | None = optional(
        "Checkpoint folder in the pods, on a volume of `mounts`; absent: jobs name a store."
    )
    server_url: _Url | None = optional(
        "URL of the control plane for pods; absent: that of clients."
    )
    reserve_within: Duration = Field(
        default=30.0, description="Time in which all pods of a gang must be bound to their nodes."
    )
    pull_within: Duration = Field(
        default=900.0, description="Time in which the image must be pulled after failed tries."
    )
    fence: Duration = Field(
        default=600.0, description="Time after which a node without contact counts as dead."
    )
    trust_node_deletion: Literal["cloud", "never"] = Field(
        default="never",
        description="cloud: a node that is removed from the API is off; never: only its end proves it.",
    )
    time_slicing: Whether = Field(
        default=False, description="Whether slots may be shares of a GPU that others use too."
    )
    dedicated: Whether = Field(
        default=False,
        description="Whether no other pods request slots there, so that only own pods are read.",
    )

    def namespace_of(self, project: str) -> str:
        """The namespace of the pods of a project's jobs."""
        return self.namespace.replace(PROJECT, project)


def parse_mount(text: str) -> tuple[str, str, str, bool]:
    """Kind, source, path and whether it is read only, of a checked entry of `mounts`."""
    found = _MOUNT.fullmatch(text)
    assert found is not None
    return found["kind"], found["source"], found["path"], found["ro"] is not None
