"""Pools of a pool file with the nodes of a Kubernetes cluster."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationError, model_validator

from phalanx.core.contract.pods import VolumeMount
from phalanx.schemas.pools.scaling import KubernetesScalingSection
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
from phalanx.schemas.spec.pods.mounts import Mount, is_below, short_mount, twice_mounted

_Path = Annotated[str, Field(strict=True, max_length=4096, pattern="^/")]
_Url = Annotated[str, Field(strict=True, max_length=4096, pattern=r"^https?://[^/\s]+$")]
_Image = Annotated[str, Field(strict=True, min_length=1, max_length=1024, pattern=r"^\S+$")]
_DnsName = Annotated[
    str, Field(strict=True, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")
]
_Resource = Annotated[
    str, Field(strict=True, max_length=316, pattern=r"^[a-z0-9.-]+(/[A-Za-z0-9._-]+)?$")
]
PROJECT = "{project}"


def _literal(pattern: str) -> str:
    """A pattern in which only * is special: image names with digests and ports have other signs."""
    return re.sub(r"[?\[]", lambda found: f"[{found[0]}]", pattern)


def _mount(text: str) -> str:
    try:
        Mount.model_validate(short_mount(text))
    except ValidationError as error:
        raise ValueError(str(error.errors()[0]["msg"]).removeprefix("Value error, ")) from None
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
    image: _Image = Field(description="Container image of jobs that name none.")
    supervisor_image: _Image | None = optional(
        "Image with the supervisor tree, which is copied into pods; absent: all images of jobs have "
        "this version of Phalanx installed."
    )
    images_with_phalanx: Annotated[list[_Image], Field(max_length=64)] = Field(
        default_factory=list,
        description="Images with this version of Phalanx, which need no copy of the tree; * is any text.",
    )
    image_pull_secrets: Annotated[list[_DnsName], Field(max_length=8)] = Field(
        default_factory=list, description="Secrets of the namespace for private registries."
    )
    service_account: _DnsName | None = optional(
        "Service account of the pods; its token is not mounted. Absent: default."
    )
    priority_class: _DnsName | None = optional("PriorityClass of the pods.")
    queue: _DnsName | None = optional(
        "LocalQueue of Kueue in the namespace, which decides when gangs start; absent: none does."
    )
    admit_within: Duration = Field(
        default=300.0, description="Time in which the queue must admit a gang."
    )
    slot: _Resource | None = optional(
        "Resource that is counted as slots; absent: nvidia.com/gpu, amd.com/gpu, google.com/tpu, else cpu."
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
        description="Volumes of every pod: pvc:NAME:/path, configmap:…, secret:…, emptydir:SIZE:…, "
        "nfs:SERVER:/export:/path; :ro behind it makes it read only.",
    )
    host_paths: Annotated[list[_Path], Field(max_length=16)] = Field(
        default_factory=list,
        description="Folders of the nodes that jobs may mount, with what is below; absent: none.",
    )
    host_network: Whether = Field(
        default=False, description="Whether jobs may use the network of their nodes."
    )
    ipc_lock: Whether = Field(
        default=False, description="Whether ranks may lock memory, as RDMA needs it (IPC_LOCK)."
    )
    run_as_user: Annotated[int, Field(strict=True, ge=1, lt=2**31)] | None = optional(
        "User and group number of all containers; absent: those of the images."
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
    cordon: Literal["move", "stay"] = Field(
        default="move",
        description="What jobs of a cordoned node do: move: save and move; stay: run on.",
    )
    time_slicing: Whether = Field(
        default=False, description="Whether slots may be shares of a GPU that others use too."
    )
    dedicated: Whether = Field(
        default=False,
        description="Whether no other pods request slots there, so that only own pods are read.",
    )

    scaling: KubernetesScalingSection | None = optional(
        "Nodes that the cluster's autoscaler may add."
    )

    @model_validator(mode="after")
    def _placeholders_are_seen(self) -> KubernetesPool:
        if self.scaling is not None and self.slot is None:
            raise ValueError(
                "scaling: a pool that grows says what its slots are, such as `slot: nvidia.com/gpu`"
            )
        return self

    @model_validator(mode="after")
    def _mounts_are_allowed(self) -> KubernetesPool:
        path = twice_mounted(self.volumes)
        if path is not None:
            raise ValueError(f"mounts: two volumes have the path {path}")
        for one in self.volumes:
            if one.kind == "hostpath" and not is_below(one.source, self.host_paths):
                raise ValueError(f"mounts: {one.source} of the nodes is not below `host_paths`")
        return self

    @model_validator(mode="after")
    def _tree_is_named(self) -> KubernetesPool:
        if self.images_with_phalanx and self.supervisor_image is None:
            raise ValueError("images_with_phalanx: has no meaning without `supervisor_image`")
        return self

    def needs_tree(self, image: str) -> bool:
        """Whether the supervisor has to be copied into the pods of an image."""
        if self.supervisor_image is None:
            return False
        # The image of the tree has Phalanx installed as well.
        patterns = (*self.images_with_phalanx, self.supervisor_image)
        return not any(fnmatchcase(image, _literal(one)) for one in patterns)

    @property
    def volumes(self) -> tuple[VolumeMount, ...]:
        """The entries of `mounts`."""
        return tuple(Mount.model_validate(short_mount(one)).to_core() for one in self.mounts)

    def namespace_of(self, project: str) -> str:
        """The namespace of the pods of a project's jobs."""
        return self.namespace.replace(PROJECT, project)
