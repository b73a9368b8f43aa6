"""What a job asks of the containers that its supervisors run in: image, volumes and keys of pods.

Only executors that run containers read it. Without it, a `JobContract` asks for nothing of that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

CONTAINERS_LABEL = ("phalanx.dev/executor", "kubernetes")
"""The label of nodes that run jobs in containers of their own; jobs that need these select it."""


@dataclass(frozen=True, slots=True)
class VolumeMount:
    """One volume of a pod.

    `source` is the name of a claim, ConfigMap or Secret, `SERVER:/export` of NFS, a path of the node, or
    the largest number of bytes of an `emptydir`, where empty means no limit.
    """

    kind: str  # pvc, configmap, secret, nfs, emptydir or hostpath
    source: str
    path: str  # in the container
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class TaintToleration:
    """A taint of nodes that a job tolerates; None: any value, any effect."""

    key: str
    value: str | None = None
    effect: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SideContainer:
    """A container beside the ranks, or before them."""

    name: str
    image: str
    command: tuple[str, ...] = ()  # empty: that of the image
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    millicpus: int = 0  # requested, in thousandths of a CPU
    memory_bytes: int = 0  # requested, and the limit; 0: no limit


@dataclass(frozen=True, slots=True, kw_only=True)
class PodContract:
    """The keys `image`, `mounts` and `kubernetes` of a job spec."""

    #: image of the ranks; None: that of the pool
    image: str | None = None
    #: volumes beside those of the pool
    mounts: tuple[VolumeMount, ...] = ()
    #: service account of the pods; None: that of the pool
    service_account: str | None = None
    #: labels that nodes must have, with their whole names
    node_selector: Mapping[str, str] = field(default_factory=dict)
    #: taints beside those that the pool tolerates
    tolerations: tuple[TaintToleration, ...] = ()
    #: labels of the pods
    labels: Mapping[str, str] = field(default_factory=dict)
    #: annotations of the pods
    annotations: Mapping[str, str] = field(default_factory=dict)
    #: further resources of each pod, such as rdma/ib
    resources: Mapping[str, int] = field(default_factory=dict)
    #: containers that run as long as the ranks
    sidecars: tuple[SideContainer, ...] = ()
    #: containers that run one after the other before the ranks
    init: tuple[SideContainer, ...] = ()
    #: PriorityClass of the pods; None: that of the pool
    priority_class: str | None = None
    #: RuntimeClass of the pods; None: that of the cluster
    runtime_class: str | None = None
    #: Secrets of the namespace for private registries, beside those of the pool
    image_pull_secrets: tuple[str, ...] = ()
    #: the pods use the network of their node
    host_network: bool = False

    @property
    def claims(self) -> tuple[VolumeMount, ...]:
        """The mounts of persistent volume claims."""
        return tuple(one for one in self.mounts if one.kind == "pvc")
