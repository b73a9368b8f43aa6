"""Text about the roles of a gang."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Literal

from phalanx.cli.terminal import output
from phalanx.errors import UserError

if TYPE_CHECKING:
    from phalanx.schemas.api.jobs import JobView, RoleView


def role_line(role: RoleView) -> str:
    """Describe one role: its size, its ranks in the gang, and the phases of its nodes."""
    last = role.first_rank + role.num_ranks - 1
    ranks = f"rank {role.first_rank}" if role.num_ranks == 1 else f"ranks {role.first_rank}-{last}"
    said = f"{role.name}: {role.num_nodes} × {role.slots_per_node} slots, {ranks}"
    if role.world != role.name:
        said += f" of the {role.world_size} of {role.world}"
    states = Counter(role.phases)
    if states:
        said += "; " + ", ".join(
            phase if num == role.num_nodes else f"{num} {phase}" for phase, num in states.items()
        )
    return said if role.required else f"{said} (not required)"


def show_role(view: JobView, name: str, form: Literal["text", "json"]) -> None:
    """Print one role with its nodes and ranks. Raises UserError for an unknown role."""
    role = next((one for one in view.roles if one.name == name), None)
    if role is None:
        there = ", ".join(one.name for one in view.roles)
        hint = f"the roles are {there}" if there else "the job has no roles"
        raise UserError(f"{view.label} has no role {name}", hint)
    ranks = [rank for rank in view.ranks if rank.role == name]
    # The ranks of a world are numbered through, over all roles that share it.
    first = next(one.first_rank for one in view.roles if one.name == role.world)
    mine = {rank.node_rank for rank in ranks}
    nodes = [node for node in view.nodes if node.node_rank in mine]
    if form == "json":
        body = role.model_dump(mode="json")
        body["ranks"] = [rank.model_dump(mode="json") for rank in ranks]
        body["nodes"] = [node.model_dump(mode="json") for node in nodes]
        output.as_json(body)
        return
    print(f"{view.label} {view.name}, {view.state}\n{role_line(role)}")
    by_node = {node.node_rank: node for node in nodes}
    output.table(
        ("RANK", "IN GANG", "NODE", "SLOTS", "PHASE", "PID"),
        (
            (
                rank.rank - first,
                rank.rank,
                rank.node,
                ",".join(map(str, by_node[rank.node_rank].slots)) or None,
                by_node[rank.node_rank].phase,
                rank.pid,
            )
            for rank in ranks
        ),
        "the role holds no node now",
    )
