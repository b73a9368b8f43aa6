"""The section `kubernetes` of a job spec: keys of the pods of a job."""

from __future__ import annotations

import math
import re
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from phalanx.core.contract.pods import SideContainer, TaintToleration
from phalanx.kit.units import parse_quantity
from phalanx.schemas.spec.fields import MAX_WHOLE, Section, Size, Text, Variable, Whether, optional

MAX_CONTAINERS = 16
"""The most sidecars of a job, and the most containers before its ranks."""
_MAX_SIDE_CPUS = 1024
_LABEL_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_LABEL_PREFIX = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
# Set by the executor, or read by programs of the cluster that the executor speaks with.
_OURS = ("phalanx.dev", "app.kubernetes.io/managed-by", "sidecar.istio.io/inject")
_OUR_ANNOTATIONS = (
    "phalanx.dev",
    "linkerd.io/inject",
    "cluster-autoscaler.kubernetes.io/safe-to-evict",
    "karpenter.sh/do-not-disrupt",
)
_COUNTED = ("cpu", "memory", "nvidia.com/gpu", "amd.com/gpu", "google.com/tpu")
_OWN_CONTAINERS = {
    "ranks": "the container of the ranks",
    "phalanx-supervisor": "the container that brings the supervisor",
}

DnsName = Annotated[
    str, Field(strict=True, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")
]
Image = Annotated[str, Field(strict=True, min_length=1, max_length=1024, pattern=r"^[!-~]+$")]


def _label_key(key: str) -> str:
    prefix, slash, name = key.rpartition("/")
    if not _LABEL_NAME.fullmatch(name) or (slash and not _LABEL_PREFIX.fullmatch(prefix)):
        raise ValueError("write a name of labels such as team, or example.com/team")
    return key


def _label_value(value: str) -> str:
    if value and not _LABEL_NAME.fullmatch(value):
        raise ValueError("a label has at most 63 letters, digits, dots, dashes and underscores")
    return value


def _amount(value: Any) -> int:
    try:
        found = None if isinstance(value, bool) else parse_quantity(value)
    except (ValueError, TypeError):
        found = None
    if found is None or not found.is_finite() or not 1 <= found <= MAX_WHOLE or found % 1:
        raise ValueError("write a whole amount such as 1 or 100Gi")
    return int(found)


def _cpus(value: Any) -> float:
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,7}m", value):
        value = int(value[:-1]) / 1000
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("write a number of CPUs such as 0.5 or 500m")
    if not 0.001 <= value <= _MAX_SIDE_CPUS:
        raise ValueError(f"must be from 0.001 to {_MAX_SIDE_CPUS}")
    return round(float(value), 3)


LabelKey = Annotated[str, Field(strict=True, max_length=317), AfterValidator(_label_key)]
LabelValue = Annotated[Text, Field(max_length=63), AfterValidator(_label_value)]
Amount = Annotated[int, BeforeValidator(_amount)]
Cpus = Annotated[float, BeforeValidator(_cpus)]


class JobToleration(Section):
    """A taint of nodes that the job tolerates, as in Kubernetes."""

    key: LabelKey = Field(description="Key of the taint.")
    value: LabelValue | None = optional("Value of the taint; absent: every value.")
    effect: (
        Annotated[str, Field(strict=True, pattern="^(NoSchedule|PreferNoSchedule|NoExecute)$")]
        | None
    ) = optional("NoSchedule, PreferNoSchedule or NoExecute; absent: every effect.")

    def to_core(self) -> TaintToleration:
        """The core value."""
        return TaintToleration(self.key, self.value, self.effect)


class PodContainer(Section):
    """A container beside the ranks or before them; it has the volumes of the ranks."""

    name: Annotated[
        str, Field(strict=True, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
    ] = Field(description="Name of the container.")
    image: Image = Field(description="Container image.")
    command: Annotated[list[Text], Field(max_length=1000)] = Field(
        default_factory=list, description="Words of the command; absent: that of the image."
    )
    args: Annotated[list[Text], Field(max_length=1000)] = Field(
        default_factory=list, description="Further words behind the command."
    )
    env: Annotated[dict[Variable, Text], Field(max_length=100)] = Field(
        default_factory=dict, description="Environment variables."
    )
    cpus: Cpus | None = optional("CPUs that it requests, such as 0.5; absent: none.")
    memory: Size | None = optional("Memory that it requests and may use; absent: no limit.")

    @field_validator("name")
    @classmethod
    def _is_free(cls, name: str) -> str:
        if name in _OWN_CONTAINERS:
            raise ValueError(f"{name} is the name of {_OWN_CONTAINERS[name]}")
        return name

    def to_core(self) -> SideContainer:
        """The core value."""
        return SideContainer(
            name=self.name,
            image=self.image,
            command=tuple(self.command),
            args=tuple(self.args),
            env=dict(self.env),
            millicpus=0 if self.cpus is None else round(self.cpus * 1000),
            memory_bytes=self.memory or 0,
        )


class KubernetesSection(Section):
    """Keys of the pods of a job in pools that are Kubernetes clusters."""

    service_account: DnsName | None = optional(
        "Service account of the pods; its token is not mounted. Absent: that of the pool."
    )
    node_selector: Annotated[dict[LabelKey, LabelValue], Field(max_length=16)] = Field(
        default_factory=dict, description="Labels that nodes must have, with their whole names."
    )
    tolerations: Annotated[list[JobToleration], Field(max_length=32)] = Field(
        default_factory=list, description="Taints that the job tolerates beside those of its pool."
    )
    labels: Annotated[dict[LabelKey, LabelValue], Field(max_length=32)] = Field(
        default_factory=dict, description="Labels of the pods."
    )
    annotations: Annotated[
        dict[LabelKey, Annotated[Text, Field(max_length=16_384)]], Field(max_length=32)
    ] = Field(default_factory=dict, description="Annotations of the pods.")
    resources: Annotated[dict[LabelKey, Amount], Field(max_length=8)] = Field(
        default_factory=dict,
        description="Further resources of each pod, such as rdma/ib: 1 or ephemeral-storage: 100Gi.",
    )
    sidecars: Annotated[list[PodContainer], Field(max_length=MAX_CONTAINERS)] = Field(
        default_factory=list, description="Containers that run as long as the ranks."
    )
    init: Annotated[list[PodContainer], Field(max_length=MAX_CONTAINERS)] = Field(
        default_factory=list,
        description="Containers that run to their end, one after the other, before the ranks.",
    )
    priority_class: DnsName | None = optional(
        "PriorityClass of the pods; absent: that of the pool."
    )
    runtime_class: DnsName | None = optional("RuntimeClass of the pods.")
    image_pull_secrets: Annotated[list[DnsName], Field(max_length=8)] = Field(
        default_factory=list, description="Secrets of the namespace for private registries."
    )
    host_network: Whether = Field(
        default=False,
        description="Whether the pods use the network of their node, where the pool allows it.",
    )

    @field_validator("labels", "annotations")
    @classmethod
    def _not_ours(cls, value: dict[str, str], info: Any) -> dict[str, str]:
        taken = _OURS if info.field_name == "labels" else _OUR_ANNOTATIONS
        for key in value:
            if key in taken or key.startswith("phalanx.dev/"):
                raise ValueError(f"{key} is set by the platform; remove it")
        return value

    @field_validator("resources")
    @classmethod
    def _not_counted(cls, value: dict[str, int]) -> dict[str, int]:
        for key in value:
            if key in _COUNTED:
                said = "is requested with `resources` of the job: slots_per_node, cpus, memory"
                raise ValueError(f"{key} {said}")
        return value

    @model_validator(mode="after")
    def _names_differ(self) -> KubernetesSection:
        names = [one.name for one in (*self.sidecars, *self.init)]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two containers have the name {name}")
        return self

    @property
    def sidecar_cpus(self) -> int:
        """Whole CPUs that hold what all sidecars request."""
        return math.ceil(sum(one.cpus or 0.0 for one in self.sidecars))

    @property
    def sidecar_memory_bytes(self) -> int:
        """Memory that all sidecars request."""
        return sum(one.memory or 0 for one in self.sidecars)
