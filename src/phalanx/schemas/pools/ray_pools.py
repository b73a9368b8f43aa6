"""Pools of a pool file with the nodes of a Ray cluster."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationError, model_validator

from phalanx.schemas.pools.scaling import ScalingSection
from phalanx.schemas.pools.traits import NodeTraits
from phalanx.schemas.spec.fields import (
    MAX_NODES,
    MAX_SLOTS_PER_NODE,
    Duration,
    Name,
    NotEmpty,
    Section,
    WholeFromOne,
    optional,
)

_Path = Annotated[str, Field(strict=True, max_length=4096, pattern="^/")]
_Url = Annotated[str, Field(strict=True, max_length=4096, pattern=r"^https?://[^/\s]+$")]


def _address(address: str) -> str:
    if "://" in address:
        raise ValueError(
            "must be auto or HOST:PORT: the control plane needs a Ray node on its own machine; run "
            "`ray start --address HEAD:6379 --num-cpus 0` there and write auto"
        )
    return address


class RayScale(Section):
    """Nodes that Ray's autoscaler may add: the older form of `scaling`."""

    max_nodes: Annotated[int, Field(strict=True, ge=1, le=MAX_NODES)] = Field(
        description="Maximum number of nodes, present ones included."
    )
    slots: Annotated[int, Field(strict=True, ge=1, le=MAX_SLOTS_PER_NODE)] = Field(
        description="Slots of one node."
    )
    cpus: WholeFromOne = Field(default=1, description="CPUs of one node.")
    slot: NotEmpty = Field(default="GPU", description="Ray resource that is counted as slots.")


class RayPool(NodeTraits):
    """A pool with the nodes of a Ray cluster; its traits apply unless labels of a node override them."""

    name: Name = Field(description="Name of the pool, as in a job's `pool`.")
    executor: Literal["ray"] = Field(description="ray.")
    address: Annotated[
        str, Field(strict=True, min_length=1, max_length=4096), AfterValidator(_address)
    ] = Field(
        default="auto",
        description="`host:port` of the head, or auto: the cluster of this machine.",
    )
    slot: NotEmpty | None = optional(
        "Ray resource that is counted as slots; absent: GPU, else slot, else CPU."
    )
    topology: dict[Name, NotEmpty] = Field(
        default_factory=lambda: {
            "region": "ray.io/availability-region",
            "zone": "ray.io/availability-zone",
            "rack": "rack",
        },
        max_length=8,
        description="Topology levels, widest first, and the Ray node labels that name them.",
    )
    root: _Path = Field(
        default="/tmp/phalanx",
        description="Folder on the nodes for attempts and code archives.",
    )
    checkpoints: _Path | None = optional(
        "Checkpoint folder on the nodes; absent: the same path as here."
    )
    server_url: _Url | None = optional(
        "URL of the control plane for nodes; absent: that of clients."
    )
    reserve_within: Duration = Field(
        default=20.0, description="Time in which Ray must reserve all places of a gang."
    )
    fence: Duration = Field(
        default=600.0,
        description="Time after which a node without contact counts as dead.",
    )
    runtime_env: dict[str, Any] = Field(
        default_factory=dict,
        description="Ray runtime environment of the nodes' processes: pip, uv, conda, image_uri, …",
    )
    scale: RayScale | None = optional("The older form of `scaling`, which it becomes.")
    scaling: ScalingSection | None = optional("Nodes that Ray's autoscaler may add.")

    @model_validator(mode="before")
    @classmethod
    def _in_current_form(cls, data: Any) -> Any:
        """The data with `scaling` in place of `scale`."""
        if not isinstance(data, dict) or data.get("scale") is None:
            return data
        if data.get("scaling") is not None:
            raise ValueError("scale is the older form of scaling: give scaling alone")
        try:
            scale = RayScale.model_validate(data["scale"])
        except ValidationError:
            return data  # what is wrong is said of the field
        node = {"slots": scale.slots, "cpus": scale.cpus}
        rest = {key: value for key, value in data.items() if key != "scale"}
        if rest.get("slot") is None and scale.slot != "GPU":
            rest["slot"] = scale.slot
        return {**rest, "scaling": {"max": scale.max_nodes, "node": node}}
