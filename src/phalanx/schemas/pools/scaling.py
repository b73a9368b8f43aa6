"""The section `scaling:` of a pool that its cluster's autoscaler grows."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from phalanx.core.cost.prices import NANO
from phalanx.core.scaling.model import ScalingPolicy
from phalanx.schemas.spec.fields import (
    MAX_NODES,
    MAX_SLOTS_PER_NODE,
    Duration,
    Section,
    Size,
    WholeFromOne,
    optional,
)

_US = 1_000_000
_Money = Annotated[Decimal, Field(gt=0, le=10**9, decimal_places=9)]
_DnsLabel = Annotated[
    str, Field(strict=True, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
]
_DnsName = Annotated[
    str, Field(strict=True, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")
]


class NewNode(Section):
    """A node as the autoscaler adds it."""

    slots: Annotated[int, Field(strict=True, ge=1, le=MAX_SLOTS_PER_NODE)] = Field(
        description="Slots of one node."
    )
    cpus: WholeFromOne = Field(default=1, description="CPUs of one node that jobs may use.")
    memory: Size | None = optional("Memory of one node that jobs may use.")


class CoolDowns(Section):
    """Least times between decisions about a pool."""

    up: Duration = Field(default=30.0, description="Least time between two requests for nodes.")
    down: Duration = Field(default=300.0, description="Least time between two releases of nodes.")


class ScalingBudget(Section):
    """The most that a pool may cost: no nodes are requested beyond it."""

    per_hour: _Money | None = optional("US dollars that all nodes together may cost in an hour.")
    per_day: _Money | None = optional("US dollars that all nodes together may cost in a day, UTC.")

    @model_validator(mode="after")
    def _says_something(self) -> ScalingBudget:
        if self.per_hour is None and self.per_day is None:
            raise ValueError("give per_hour, per_day or both")
        return self


class ScalingSection(Section):
    """How a pool grows and shrinks within its bounds."""

    min: Annotated[int, Field(strict=True, ge=0, le=MAX_NODES)] = Field(
        default=0, description="Nodes that are kept without any demand."
    )
    max: Annotated[int, Field(strict=True, ge=1, le=MAX_NODES)] = Field(
        description="Most nodes, present ones included."
    )
    max_slots: WholeFromOne | None = optional("Most slots, present ones included.")
    node: NewNode = Field(description="A node as the cluster's autoscaler adds it.")
    cool_down: CoolDowns = Field(
        default_factory=CoolDowns, description="Least times between decisions."
    )
    idle_after: Duration = Field(
        default=600.0, description="Time without jobs after which a node is released."
    )
    grow_within: Duration = Field(
        default=900.0, description="Time in which requested nodes must be there."
    )
    budget: ScalingBudget | None = optional("The most that the pool may cost.")

    @model_validator(mode="after")
    def _bounds_agree(self) -> ScalingSection:
        if self.min > self.max:
            raise ValueError(f"min is {self.min}, which is above max, {self.max}")
        if self.max_slots is not None and self.max_slots < max(1, self.min) * self.node.slots:
            raise ValueError("max_slots is less than the slots of one node, or of min nodes")
        return self

    def to_core(self) -> ScalingPolicy:
        """The policy as the planner of nodes uses it."""
        budget = self.budget
        return ScalingPolicy(
            max_nodes=self.max,
            min_nodes=self.min,
            max_slots=self.max_slots,
            cool_down_up_us=round(self.cool_down.up * _US),
            cool_down_down_us=round(self.cool_down.down * _US),
            idle_after_us=round(self.idle_after * _US),
            grow_within_us=max(_US, round(self.grow_within * _US)),
            hourly_nano=None if budget is None else _nano(budget.per_hour),
            daily_nano=None if budget is None else _nano(budget.per_day),
        )


class KubernetesScalingSection(ScalingSection):
    """How a pool of a Kubernetes cluster grows and shrinks."""

    mechanism: Literal["auto", "placeholders", "provisioning_request"] = Field(
        default="auto",
        description="How nodes are requested: placeholders: pods of the gang's shape; "
        "provisioning_request: a ProvisioningRequest; auto: that where the cluster has the kind.",
    )
    provisioning_class: _DnsName = Field(
        default="best-effort-atomic-scale-up.autoscaling.x-k8s.io",
        description="Class of the ProvisioningRequests.",
    )
    priority_class: _DnsName | None = Field(
        default="phalanx-placeholder",
        description="PriorityClass of placeholder pods: below that of all other pods.",
    )
    image: Annotated[str, Field(strict=True, min_length=1, max_length=1024, pattern=r"^\S+$")] = (
        Field(
            default="registry.k8s.io/pause:3.10",
            description="Image of placeholder pods: it only waits.",
        )
    )
    namespace: _DnsLabel | None = optional(
        "Namespace of placeholder pods; absent: that of project default."
    )


def refuse_scaling(data: Any, executor: str) -> Any:
    """Data of a pool of an executor that cannot scale. Raises ValueError where it has the section."""
    if isinstance(data, dict) and "scaling" in data:
        raise ValueError(
            f"scaling: executor {executor} cannot add nodes; a pool of executor kubernetes or ray can"
        )
    return data


def _nano(usd: Decimal | None) -> int | None:
    return None if usd is None else int(usd * NANO)
