"""Gangs with several roles: the nodes and ranks of each role.

Shares of a placement, and so node ranks, are ordered by role. Every process has a rank in the gang,
used in logs, metrics and reports, and a rank in its role, which is in the variable `RANK`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from phalanx.core.gang.placement import GangShape, RoleShape

WORKER = "worker"
"""The role of a job that names none."""


@dataclass(frozen=True, slots=True)
class Part:
    """One role's nodes and ranks: `first_node` and `first_rank` count through the gang."""

    name: str
    first_node: int
    num_nodes: int
    first_rank: int
    ranks_per_node: int
    slots_per_node: int
    required: bool = True

    @property
    def world_size(self) -> int:
        """Ranks of the role."""
        return self.num_nodes * self.ranks_per_node

    @property
    def nodes(self) -> range:
        """Its node ranks in the gang."""
        return range(self.first_node, self.first_node + self.num_nodes)

    @property
    def ranks(self) -> range:
        """Its ranks in the gang."""
        return range(self.first_rank, self.first_rank + self.world_size)

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
        parts.append(
            Part(
                role.name,
                last.first_node + last.num_nodes,
                role.nodes,
                last.first_rank + last.world_size,
                role.ranks_per_node,
                role.slots_per_node,
                role.required,
            )
        )
    return tuple(parts)


def part_at(parts: Sequence[Part], node_rank: int) -> Part:
    """The part that a node rank of the gang belongs to. Raises IndexError where there is none."""
    for part in parts:
        if node_rank in part.nodes:
            return part
    raise IndexError(f"the gang has no node rank {node_rank}")


def part_of_rank(parts: Sequence[Part], rank: int) -> Part | None:
    """The part that a rank of the gang belongs to; None for a number that no rank has."""
    return next((part for part in parts if rank in part.ranks), None)
