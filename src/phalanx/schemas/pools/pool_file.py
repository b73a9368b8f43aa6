"""The pool file: named sets of nodes, their hardware and their topology.

There is one document for every executor. Pools of the local executor are described node by node; for a
Ray or Kubernetes cluster the file says how it is reached, and the cluster reports its nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    Discriminator,
    Field,
    Tag,
    ValidationError,
    field_validator,
    model_validator,
)

from phalanx.core.gang.placement import Node
from phalanx.errors import Problem, SpecInvalid
from phalanx.schemas.pools.kubernetes_pools import KubernetesPool
from phalanx.schemas.pools.ray_pools import RayPool
from phalanx.schemas.pools.scaling import refuse_scaling
from phalanx.schemas.pools.traits import NodeTraits, TraitValues
from phalanx.schemas.spec.document import (
    MAX_PROBLEMS,
    problems_of,
    read_text,
    read_yaml,
)
from phalanx.schemas.spec.fields import (
    MAX_ENTRIES,
    MAX_NODES,
    MAX_SLOTS_PER_NODE,
    Name,
    Section,
    optional,
)

POOL_SCHEMA: Literal[1] = 1
# Executors that a pool may name.
EXECUTORS = ("local", "ray", "kubernetes")
_RESERVED_LEVELS = frozenset({"node", "pool"})


@dataclass(frozen=True, slots=True)
class HostDefaults:
    """Values of a node that the file leaves out: those of the machine that simulates it."""

    address: str = "127.0.0.1"
    num_cpus: int = 1
    memory_bytes: int = 0


class NodeEntry(NodeTraits):
    """One node, or `count` equal nodes."""

    name: Name = Field(description="Unique over all pools; with `count`, -0, -1, … are appended.")
    count: Annotated[int, Field(strict=True, ge=1, le=MAX_NODES)] | None = optional(
        "Number of nodes; absent: one node with this name."
    )
    slots: Annotated[int, Field(strict=True, ge=1, le=MAX_SLOTS_PER_NODE)] = Field(
        description="GPUs, or worker places of a node without GPUs."
    )
    topology: dict[Name, Name] = Field(
        default_factory=dict, description="Position: a domain name for each of the pool's levels."
    )
    host: Name | None = optional(
        "Machine that the node is part of: nodes of one host share CPUs and memory."
    )

    @property
    def names(self) -> list[str]:
        """The names of the nodes of this entry."""
        if self.count is None:
            return [self.name]
        return [f"{self.name}-{i}" for i in range(self.count)]


class PoolSpec(NodeTraits):
    """One pool; its traits apply to every node that does not override them."""

    name: Name = Field(description="Name of the pool, as in a job's `pool`.")
    executor: Name = Field(
        default="local",
        description="Executor that starts the supervisors: local, ray or kubernetes.",
    )
    levels: Annotated[list[Name], Field(max_length=8)] = Field(
        default_factory=list, description="Topology levels, widest first."
    )
    nodes: Annotated[list[NodeEntry], Field(min_length=1, max_length=MAX_NODES)] = Field(
        description="Nodes of the pool."
    )

    @model_validator(mode="before")
    @classmethod
    def _does_not_scale(cls, data: Any) -> Any:
        return refuse_scaling(data, "local")

    @field_validator("levels")
    @classmethod
    def _levels_are_free(cls, levels: list[str]) -> list[str]:
        taken = [level for level in levels if level in _RESERVED_LEVELS]
        if taken:
            raise ValueError(f"{taken[0]} is a level of every pool; leave it out")
        if len(set(levels)) != len(levels):
            raise ValueError("a level is given twice")
        return levels

    @model_validator(mode="after")
    def _topology_is_whole(self) -> PoolSpec:
        for entry in self.nodes:
            if set(entry.topology) != set(self.levels):
                missing = [level for level in self.levels if level not in entry.topology]
                unknown = [level for level in entry.topology if level not in self.levels]
                said = f"has no {', '.join(missing)} in its topology" if missing else ""
                if unknown:
                    said = f"names {', '.join(unknown)}, which is not a level of the pool"
                raise ValueError(f"node {entry.name} {said}")
        return self

    def to_core(self, machine: HostDefaults) -> tuple[Node, ...]:
        """The nodes of the pool; values that the file leaves out come from `machine`."""
        return tuple(
            self._node(entry, name, machine) for entry in self.nodes for name in entry.names
        )

    def _node(self, entry: NodeEntry, name: str, machine: HostDefaults) -> Node:
        traits = TraitValues.of(self, entry)
        node = Node(
            id=name,
            pool=self.name,
            address=machine.address,
            num_slots=entry.slots,
            num_cpus=machine.num_cpus if traits.cpus is None else traits.cpus,
            memory_bytes=machine.memory_bytes if traits.memory is None else traits.memory,
            domains=tuple((level, entry.topology[level]) for level in self.levels),
            host=entry.host or "",
        )
        return traits.on(node)


def _kind(entry: Any) -> str:
    told: Any = (
        entry.get("executor") if isinstance(entry, Mapping) else getattr(entry, "executor", "")
    )
    return told if told in ("ray", "kubernetes") else "local"


ClusterPool = RayPool | KubernetesPool
PoolEntry = Annotated[
    Annotated[PoolSpec, Tag("local")]
    | Annotated[RayPool, Tag("ray")]
    | Annotated[KubernetesPool, Tag("kubernetes")],
    Discriminator(_kind),
]
_MODELS: Mapping[str, type[Section]] = {
    "local": PoolSpec,
    "ray": RayPool,
    "kubernetes": KubernetesPool,
}


class PoolFile(Section):
    """The document that `phalanx pools apply -f` and `phalanx up --pool` read."""

    schema_version: Literal[1] = Field(alias="schema", description="Version of this format.")
    entries: Annotated[list[PoolEntry], Field(min_length=1, max_length=MAX_ENTRIES)] = Field(
        alias="pools", description="The pools."
    )

    @property
    def pools(self) -> list[PoolSpec]:
        """The pools of the local executor."""
        return [one for one in self.entries if isinstance(one, PoolSpec)]

    @property
    def clusters(self) -> list[ClusterPool]:
        """The pools of clusters, which report their nodes themselves."""
        return [one for one in self.entries if not isinstance(one, PoolSpec)]


def current_form(data: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """A pool file in its current form, with notices about older forms.

    Earlier releases expected a Ray pool alone in its file, without a list around it.
    """
    if "pools" in data or "executor" not in data:
        return dict(data), []
    entry = {key: value for key, value in data.items() if key != "schema"}
    said = "a pool outside a list is an older form of pool files; write it as an entry of `pools:`"
    return {"schema": data.get("schema", POOL_SCHEMA), "pools": [entry]}, [said]


def read_pool_file(path: Path) -> tuple[PoolFile, list[str]]:
    """Read a pool file and its notices. Raises SpecInvalid with every problem found."""
    data, notices = current_form(read_yaml(read_text(path), str(path), "a pool file"))
    return read_pools(data, EXECUTORS), notices


def read_pools(data: Mapping[str, Any], executors: Iterable[str]) -> PoolFile:
    """A pool file from plain data. Raises SpecInvalid with every problem found."""
    if "projects" in data and "pools" not in data:
        said = "this is a project file; `phalanx projects apply -f` reads it"
        raise SpecInvalid([Problem("projects", said)])
    try:
        found = PoolFile.model_validate(dict(data))
    except ValidationError as error:
        raise SpecInvalid(_problems(error.errors(include_url=False))) from None
    problems = [*_repeated(found), *_unknown_executors(found, list(executors))]
    if problems:
        raise SpecInvalid(problems)
    return found


def _problems(errors: Iterable[Any]) -> list[Problem]:
    """Problems with the paths and keys of each kind of pool."""
    found: list[Problem] = []
    for error in errors:
        loc = error["loc"]
        if len(loc) > 2 and loc[0] == "pools" and loc[2] in _MODELS:
            inner = {**error, "loc": loc[3:]}
            found += problems_of([inner], _MODELS[loc[2]], f"pools[{loc[1]}]")
        else:
            found += problems_of([error], PoolFile)
    return found


def _repeated(file: PoolFile) -> list[Problem]:
    total = sum(entry.count or 1 for pool in file.pools for entry in pool.nodes)
    if total > MAX_NODES:
        return [Problem("pools", f"must have at most {MAX_NODES} nodes", str(total))]
    problems = []
    pools = Counter(pool.name for pool in file.entries)
    nodes = Counter(name for pool in file.pools for entry in pool.nodes for name in entry.names)
    for what, counted in (("pool", pools), ("node", nodes)):
        for name, times in counted.items():
            if times > 1:
                problems.append(Problem("pools", f"{what} {name} is given {times} times"))
    return problems[:MAX_PROBLEMS]


def _unknown_executors(file: PoolFile, executors: list[str]) -> list[Problem]:
    return [
        Problem(
            f"pools[{i}].executor",
            f"no such executor; known: {', '.join(executors)}",
            pool.executor,
        )
        for i, pool in enumerate(file.entries)
        if pool.executor not in executors
    ]
