"""Gangs with several roles: the nodes and ranks of each role, and the worlds that they form.

Shares of a placement, and so node ranks, are ordered by role. Every process has a rank in the gang,
used in logs, metrics and reports, and a rank in its world, which is in the variable `RANK`. A role is
a world of its own, unless it shares that of the first role: so the nodes of one world can differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from phalanx.core.gang.placement import GangShape, RoleShape
from phalanx.errors import InvariantBroken

WORKER = "worker"
"""The role of a job that names none."""


@dataclass(frozen=True, slots=True)
class Part:
    """One role's nodes and ranks. Node ranks and ranks count through the gang."""

    name: str  # name of the role
    first_node: int  # node rank of its first node
    num_nodes: int  # number of its nodes
    first_rank: int  # rank of its first process
    ranks_per_node: int  # processes on each of its nodes
    slots_per_node: int  # slots that it holds on each of them
    required: bool = True  # its failure ends the job
    world_node: int = 0  # node rank of the first node of its world
    world_rank: int = 0  # rank of the first process of its world

    @property
    def num_ranks(self) -> int:
        """Ranks of the role."""
        return self.num_nodes * self.ranks_per_node

    @property
    def leads(self) -> bool:
        """Whether its ranks are in the world of the first role, which represents the job."""
        return self.world_node == 0

    @property
    def nodes(self) -> range:
        """Its node ranks in the gang."""
        return range(self.first_node, self.first_node + self.num_nodes)

    @property
    def ranks(self) -> range:
        """Its ranks in the gang."""
        return range(self.first_rank, self.first_rank + self.num_ranks)

    @property
    def ranks_in_world(self) -> range:
        """Its ranks in their world."""
        first = self.first_rank - self.world_rank
        return range(first, first + self.num_ranks)

    def node_ranks(self, node_rank: int) -> range:
        """The ranks in the gang that one of its nodes, by its node rank in the gang, runs."""
        first = self.first_rank + (node_rank - self.first_node) * self.ranks_per_node
        return range(first, first + self.ranks_per_node)


def parts_of(
    name: str, shape: GangShape, roles: Sequence[RoleShape], num_shares: int | None
) -> tuple[Part, ...]:
    """The parts of a placement of `num_shares` shares; the first role takes what others leave."""
    others = sum(role.nodes for role in roles)
    nodes = shape.nodes if num_shares is None else max(0, num_shares - others)
    parts = [Part(name, 0, nodes, 0, shape.ranks_per_node, shape.slots_per_node)]
    for role in roles:
        last = parts[-1]
        node, rank = last.first_node + last.num_nodes, last.first_rank + last.num_ranks
        if role.shares_world and not last.leads:
            raise InvariantBroken(f"role {role.name} is apart from the roles of its world")
        parts.append(
            Part(
                role.name,
                node,
                role.nodes,
                rank,
                role.ranks_per_node,
                role.slots_per_node,
                role.required,
                world_node=0 if role.shares_world else node,
                world_rank=0 if role.shares_world else rank,
            )
        )
    return tuple(parts)


def world_of(parts: Sequence[Part], part: Part) -> tuple[Part, ...]:
    """The parts that form one world with `part`, itself among them, in the order of their ranks."""
    return tuple(one for one in parts if one.world_node == part.world_node)


def part_at(parts: Sequence[Part], node_rank: int) -> Part:
    """The part that a node rank of the gang belongs to. Raises IndexError where there is none."""
    for part in parts:
        if node_rank in part.nodes:
            return part
    raise IndexError(f"the gang has no node rank {node_rank}")


def node_of_rank(parts: Sequence[Part], rank: int) -> int | None:
    """The node rank that runs a rank of the gang; None for a number that no rank has."""
    part = part_of_rank(parts, rank)
    return (
        None if part is None else part.first_node + (rank - part.first_rank) // part.ranks_per_node
    )


def part_of_rank(parts: Sequence[Part], rank: int) -> Part | None:
    """The part that a rank of the gang belongs to; None for a number that no rank has."""
    return next((part for part in parts if rank in part.ranks), None)
