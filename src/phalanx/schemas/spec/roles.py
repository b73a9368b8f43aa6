"""The spec's sections `resources` and `roles`: what has to start together, and what each part runs.

Without `roles` a job has one role, `worker`, made of `run` and `resources`. With `run` that role stays
and comes first, and `roles` are more of them; without it the first of `roles` comes first. The first
role is what the job is about: its steps are the job's steps, its checkpoints those of the job. Each role
is a world of ranks, unless it shares that of the first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from phalanx.core.contract.pods import PodContract
from phalanx.core.gang.placement import GangShape, RoleShape
from phalanx.schemas.frameworks import framework
from phalanx.schemas.spec.fields import (
    MAX_ENTRIES,
    MAX_SLOTS_PER_NODE,
    Command,
    CountRange,
    Name,
    Range,
    RoleFrameworkName,
    Section,
    SizeRange,
    Text,
    Variable,
    Whether,
    optional,
)
from phalanx.schemas.spec.pods.mounts import Mount, short_mount
from phalanx.schemas.spec.pods.section import Image
from phalanx.schemas.spec.training import Training

_ONE = Range(1, 1)
# Laid over the environment of every rank; a spec that sets them would be ignored silently.
_OURS = (
    "MASTER_ADDR MASTER_PORT RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK "
    "GROUP_WORLD_SIZE NODE_RANK ROLE_RANK ROLE_NAME ROLE_WORLD_SIZE"
)
OURS = frozenset(_OURS.split())
OUR_PREFIXES = ("PHALANX_", "TORCHELASTIC_", "PET_")
# Defaults of ours that a spec may replace: which connections ranks accept.
_ACCEPT = frozenset({"PHALANX_ACCEPT", "PHALANX_ACCEPT_PEERS"})
_ACCEPT_MODES = ("gang", "all", "off")
_SHORT = ("nodes", "slots_per_node", "slots_per_rank", "cpus", "memory", "accelerator")


def not_ours(env: dict[str, str]) -> dict[str, str]:
    """Variables that a spec may set. Raises ValueError for those that the platform sets."""
    taken = [
        key for key in env if key in OURS or (key.startswith(OUR_PREFIXES) and key not in _ACCEPT)
    ]
    if taken:
        raise ValueError(f"{', '.join(taken)}: set by the platform for every rank; remove it")
    if (mode := env.get("PHALANX_ACCEPT", "gang")) not in _ACCEPT_MODES:
        raise ValueError(f"PHALANX_ACCEPT: must be {', '.join(_ACCEPT_MODES)}, not {mode!r}")
    return env


Environment = Annotated[
    dict[Variable, Text], Field(max_length=MAX_ENTRIES), AfterValidator(not_ours)
]
# Zero slots are allowed in roles only.
Slots = Annotated[int, Field(strict=True, ge=1, le=MAX_SLOTS_PER_NODE)]
SlotsFromZero = Annotated[int, Field(strict=True, ge=0, le=MAX_SLOTS_PER_NODE)]


class Resources(Section):
    """What one node of the gang needs, and how many nodes."""

    nodes: CountRange = Field(
        default=_ONE, description="Nodes of the gang; a range makes it elastic."
    )
    slots_per_node: Slots = Field(
        default=1,
        description="Slots on each node: GPUs, or CPU worker places where a pool has no GPUs.",
    )
    slots_per_rank: Slots = Field(default=1, description="Slots that one rank uses.")
    isolate_devices: Whether = Field(
        default=False,
        description="Each rank sees its own devices only, numbered from 0; otherwise ranks with one slot "
        "see all devices of the job on their node, as under torchrun.",
    )
    accelerators: Slots | None = optional(
        "Slots in all, instead of nodes and slots_per_node: placed on one node, else split evenly."
    )
    cpus: CountRange | None = optional("CPUs on each node.")
    memory: SizeRange | None = optional("Memory on each node.")
    shm: SizeRange | None = optional("Shared memory (/dev/shm) on each node.")
    accelerator: Name | None = optional("Accelerator model, such as H100.")
    accelerator_memory: SizeRange | None = optional("Memory of each accelerator.")

    @model_validator(mode="before")
    @classmethod
    def _in_all(cls, value: Any) -> Any:
        """Slots in all are those of one node, until the gang is placed."""
        total = value.get("accelerators") if isinstance(value, dict) else None
        if isinstance(total, bool) or not isinstance(total, int):
            return value
        for key, meant in (("nodes", 1), ("slots_per_node", total)):
            if value.get(key, meant) not in (meant, str(meant), _ONE if key == "nodes" else meant):
                raise ValueError(f"{key} is chosen with the placement; remove it, or accelerators")
        return {**value, "nodes": 1, "slots_per_node": total}

    @model_validator(mode="after")
    def _ranks_fit(self) -> Resources:
        if self.slots_per_node % self.slots_per_rank:
            raise ValueError(
                f"slots_per_rank ({self.slots_per_rank}) does not divide "
                f"slots_per_node ({self.slots_per_node})"
            )
        return self


class RoleResources(Resources):
    """What one node of a role needs, and how many nodes; a role may do without slots."""

    slots_per_node: SlotsFromZero = Field(
        default=1, description="Slots on each node; 0: CPUs alone, for one rank on each node."
    )


def _short(key: str) -> Any:
    return Field(default=None, exclude=True, description=f"Short for `resources.{key}`.")


class Role(Section):
    """One part of a gang with several: a learner, actors, an evaluator, servers, other nodes.

    What stands in `resources` may stand in the role itself.
    """

    run: Command | None = optional("Command of the role's ranks; absent: the job's.")
    resources: RoleResources = Field(
        default_factory=RoleResources, description="Number of nodes, and what each of them needs."
    )
    framework: RoleFrameworkName | None = optional(
        "What the role's ranks use to communicate; absent: the job's framework."
    )
    env: Environment = Field(
        default_factory=dict, description="Environment variables of the role, over the job's."
    )
    training: Training | None = optional(
        "Section `training` of the role; the job's is the first role's."
    )
    image: Image | None = optional("Container image of the role's ranks; absent: the job's.")
    mounts: list[Annotated[Mount, BeforeValidator(short_mount)]] = Field(
        default_factory=list, max_length=32, description="Volumes of the role beside the job's."
    )
    required: Whether = Field(
        default=True,
        description="false: the job continues when the role fails, and does not wait for its end.",
    )
    world: Literal["own", "shared"] = Field(
        default="own",
        description="shared: its ranks are in the world of the first role, numbered after the ranks "
        "before them, so that the nodes of one world may differ.",
    )

    # What `_short_form` moves into `resources`; here for editors, and to tell a slip of the pen.
    nodes: CountRange | None = _short("nodes")
    slots: SlotsFromZero | None = _short("slots_per_node")
    slots_per_node: SlotsFromZero | None = _short("slots_per_node")
    slots_per_rank: Slots | None = _short("slots_per_rank")
    cpus: CountRange | None = _short("cpus")
    memory: SizeRange | None = _short("memory")
    accelerator: Name | None = _short("accelerator")

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        value = dict(value)
        if value.get("slots") is not None and value.get("slots_per_node") is not None:
            raise ValueError("slots is short for slots_per_node; give only one of them")
        if "slots" in value:
            value["slots_per_node"] = value.pop("slots")
        flat = {key: value.pop(key) for key in _SHORT if value.get(key) is not None}
        below = value.get("resources", {})
        if not flat or not isinstance(below, dict):
            return value
        if twice := sorted(set(flat) & set(below)):
            raise ValueError(f"{', '.join(twice)}: given twice, in the role and in `resources`")
        return {**value, "resources": {**below, **flat}}


@dataclass(frozen=True, slots=True)
class PodExtras:
    """What the containers beside the ranks request on each node."""

    cpus: int = 0
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True)
class RolePlan:
    """One role of a job with what it takes from the job filled in; `leads`: it is the first one."""

    #: name of the role
    name: str
    #: its command, or None
    run: list[str] | str | None
    #: what each of its nodes needs
    need: Resources
    #: what its ranks use to communicate
    framework: str
    #: its variables, over those of the job
    env: dict[str, str]
    #: its section `training`, or None
    training: dict[str, Any] | None
    #: its failure ends the job
    required: bool
    #: it is the first role
    leads: bool
    #: its ranks are in the world of the first role
    shares_world: bool = False
    #: of the containers beside its ranks
    extras: PodExtras = PodExtras()

    @property
    def in_lead_world(self) -> bool:
        """Whether its ranks are in the world that represents the job."""
        return self.leads or self.shares_world

    @property
    def cpus_per_node(self) -> int:
        """CPUs that each of its nodes has to have; 0 where the spec does not say."""
        return 0 if self.need.cpus is None else self.need.cpus.low

    @property
    def planned_cpus(self) -> int:
        """CPUs that its ranks and the containers beside them need on each node."""
        return self.cpus_per_node + self.extras.cpus

    @property
    def shm_bytes(self) -> int:
        """Size of /dev/shm on each node; 0 where the spec does not say."""
        return 0 if self.need.shm is None else self.need.shm.low

    @property
    def planned_memory_bytes(self) -> int:
        """Memory of each node for its ranks, /dev/shm, which is memory too, and other containers."""
        memory = self.need.memory
        return (0 if memory is None else memory.low) + self.shm_bytes + self.extras.memory_bytes

    @property
    def shape(self) -> GangShape:
        """Its part of the gang, with the top of the range where the number of nodes is one."""
        need = self.need
        nodes = need.nodes.high or need.nodes.low
        adapter = framework(self.framework)
        ranks = adapter.ranks_per_node(need.slots_per_node, need.slots_per_rank)
        return GangShape(nodes, need.slots_per_node, ranks)

    def to_core(self) -> RoleShape:
        """The core value of a role that is not the first."""
        shape = self.shape
        return RoleShape(
            nodes=shape.nodes,
            slots_per_node=shape.slots_per_node,
            ranks_per_node=shape.ranks_per_node,
            name=self.name,
            cpus_per_node=self.planned_cpus,
            memory_per_node_bytes=self.planned_memory_bytes,
            slot_type=self.need.accelerator or "",
            required=self.required,
            shares_world=self.shares_world,
        )


def plans_of(job: RolePlan, roles: Mapping[str, Role]) -> tuple[RolePlan, ...]:
    """Every role, the first one first; `job` is that of the job itself: a role if it has a command."""
    plans = [job] if job.run is not None or not roles else []
    for name, role in roles.items():
        leads = not plans
        shares = not leads and role.world == "shared"
        training = None if role.training is None else role.training.given()
        if shares:
            training = plans[0].training
        elif leads and training is None:
            training = job.training
        plans.append(
            RolePlan(
                name=name,
                run=job.run if role.run is None else role.run,
                need=role.resources,
                framework=role.framework or (plans[0] if shares else job).framework,
                env=dict(role.env),
                training=training,
                required=role.required,
                leads=leads,
                shares_world=shares,
                extras=job.extras,
            )
        )
    # The ranks of one world are numbered through, so the roles that share one are neighbours.
    return tuple(sorted(plans, key=lambda plan: not plan.in_lead_world))


def pod_of_role(job: PodContract | None, role: Role | None) -> PodContract | None:
    """What the containers of a role are where it says more than the job; None: as those of the job."""
    if role is None or not (role.image or role.mounts):
        return None
    job = job or PodContract()
    own = tuple(one.to_core() for one in role.mounts)
    return replace(job, image=role.image or job.image, mounts=(*job.mounts, *own))
