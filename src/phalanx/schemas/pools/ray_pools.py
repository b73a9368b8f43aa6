"""Pools of a pool file whose nodes are those of a Ray cluster."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from phalanx.schemas.spec.fields import Duration, Name, Section, WholeFromOne

_Path = Annotated[str, Field(strict=True, pattern="^/")]
_Url = Annotated[str, Field(strict=True, pattern=r"^https?://[^/\s]+$")]


def _address(address: str) -> str:
    if "://" in address:
        raise ValueError(
            "the control plane has to be a node of the cluster, without resources if you like: run "
            "`ray start --address HEAD:6379 --num-cpus 0` beside it and write auto"
        )
    return address


class RayScale(Section):
    """What Ray's autoscaler may add. A gang that is next in line asks for its nodes and no more."""

    max_nodes: WholeFromOne = Field(description="Nodes at most, those that are there included.")
    slots: WholeFromOne = Field(description="Slots of one node.")
    cpus: WholeFromOne = Field(default=1, description="CPUs of one node.")
    slot: Annotated[str, Field(strict=True, min_length=1)] = Field(
        default="GPU", description="The Ray resource that its slots are."
    )


class RayPool(Section):
    """A pool whose nodes are those of a Ray cluster."""

    name: Name = Field(description="The pool's name, as in a job's `pool`.")
    executor: Literal["ray"] = Field(description="ray.")
    address: Annotated[str, Field(strict=True, min_length=1), AfterValidator(_address)] = Field(
        default="auto",
        description="`host:port` of the head, or auto: the cluster that this machine belongs to.",
    )
    slot: Annotated[str, Field(strict=True, min_length=1)] | None = Field(
        default=None,
        description="The Ray resource whose units are slots; absent: GPU, else slot, else CPU.",
    )
    topology: dict[Name, Annotated[str, Field(strict=True, min_length=1)]] = Field(
        default_factory=lambda: {
            "region": "ray.io/availability-region",
            "zone": "ray.io/availability-zone",
            "rack": "rack",
        },
        description="Topology levels, widest first, and the Ray node labels that name them.",
    )
    root: _Path = Field(
        default="/tmp/phalanx",
        description="Folder on the nodes for attempts and for code kept by its digest.",
    )
    checkpoints: _Path | None = Field(
        default=None,
        description="Where nodes see the checkpoint folder; absent: at the same path as here.",
    )
    server_url: _Url | None = Field(
        default=None, description="How nodes reach the control plane; absent: as clients do."
    )
    reserve_within: Duration = Field(
        default=20.0, description="How long Ray may take to give a placed gang all its places."
    )
    fence: Duration = Field(
        default=600.0,
        description="A node that neither answers nor was taken away counts as dead after this long.",
    )
    runtime_env: dict[str, Any] = Field(
        default_factory=dict,
        description="Ray runtime environment of the nodes' processes: pip, uv, conda, image_uri, …",
    )
    scale: RayScale | None = Field(default=None, description="What Ray's autoscaler may add.")
