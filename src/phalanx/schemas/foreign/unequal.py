"""Pods of one world with templates that differ: roles that share the world of the first one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from phalanx.schemas.foreign.commands import CommandPlan
from phalanx.schemas.foreign.gangs import GangSize, gang
from phalanx.schemas.foreign.needs import PodNeeds
from phalanx.schemas.foreign.reader import ForeignReader
from phalanx.schemas.foreign.rules import ConversionLog, KeyAction

# Fields of `PodNeeds` in which the pods of one world may differ.
_OWN = frozenset(
    {"words", "env", "secrets", "gpus", "cpus", "memory", "shm", "image", "mounts", "accelerator"}
)
_OF_ROLE = ("run", "env", "image", "mounts", "resources")


@dataclass(slots=True)
class RolePods:
    """The pods of one role of a file; `reader` is at the role, and `size` its number of nodes."""

    name: str
    reader: ForeignReader
    needs: PodNeeds
    plan: CommandPlan
    size: GangSize


def are_alike(pods: Sequence[PodNeeds]) -> bool:
    """Whether all pods have one template."""
    return not any(pods[0].differences(other) for other in pods[1:])


def shared_world(roles: Sequence[RolePods], log: ConversionLog) -> dict[str, Any]:
    """The keys of the spec for roles of one world, the first one with rank 0.

    What is the same in all roles stands in the job. Problems go to the log.
    """
    first = roles[0]
    for role in roles:
        _check_role(first, role)
        _count_processes(role, roles, log)
        said = f"roles.{role.name}: nodes of their own in one world"
        role.reader.note("template", KeyAction.MAPPED, said)
    found = {role.name: gang(role.size, role.plan, role.needs, log) for role in roles}
    same = dict(found[first.name])
    for key in _OF_ROLE:
        same.pop(key)
    everywhere = _everywhere([one["env"] for one in found.values()])
    mounts = [one for one in first.needs.mounts if all(one in r.needs.mounts for r in roles)]
    parts = {
        role.name: _part(role, found[role.name], (everywhere, mounts, first.needs.image), log)
        for role in roles
    }
    for role in roles[1:]:
        parts[role.name]["world"] = "shared"
    secrets = list(dict.fromkeys(one for role in roles for one in role.needs.secrets))
    return {
        **same,
        "image": first.needs.image,
        "env": everywhere,
        "secrets": secrets,
        "mounts": mounts,
        "roles": parts,
    }


def _part(
    role: RolePods,
    found: dict[str, Any],
    common: tuple[dict[str, str], list[str], str | None],
    log: ConversionLog,
) -> dict[str, Any]:
    """One entry of `roles`, without what stands in the job."""
    env, mounts, image = common
    resources = found["resources"]
    if total := resources.pop("accelerators", None):
        # With --local: the nodes are parts of this machine.
        resources |= {"nodes": role.size.nodes, "slots_per_node": total // role.size.nodes}
    own = {
        "run": found["run"],
        "image": None if found["image"] == image else found["image"],
        "env": {name: value for name, value in found["env"].items() if name not in env},
        "mounts": [one for one in found["mounts"] if one not in mounts],
        "resources": resources,
    }
    line = role.reader.at("template").at("spec").line_of("containers")
    log.came_from(line, *(f"roles.{role.name}.{key}" for key in own))
    return {key: value for key, value in own.items() if value not in (None, {}, [])}


def _everywhere(variables: Sequence[dict[str, str]]) -> dict[str, str]:
    """The variables with one value in all roles."""
    return {
        name: value
        for name, value in variables[0].items()
        if all(other.get(name) == value for other in variables)
    }


def _check_role(first: RolePods, role: RolePods) -> None:
    """Refuse what the roles of one world cannot have each for itself."""
    unequal = [one for one in first.needs.differences(role.needs) if _field(one) not in _OWN]
    mine, theirs = first.plan, role.plan
    unequal += [
        said
        for said, differs in (
            ("commands before the launcher", mine.setup != theirs.setup),
            ("the framework of the launcher", mine.framework != theirs.framework),
        )
        if differs
    ]
    if unequal:
        said = (
            f"differs from the template of {first.name} in {', '.join(unequal)}: nodes of "
            "one world may differ in command, env, image, mounts and resources; make the rest equal"
        )
        role.reader.refuse("template", said)
    for name in sorted(set(role.needs.secrets) & first.needs.env.keys()) + sorted(
        set(first.needs.secrets) & role.needs.env.keys()
    ):
        said = f"{name} is a secret in one role and a plain variable in another; make both equal"
        role.reader.refuse("template", said)


def _field(name: str) -> str:
    """The field of `PodNeeds` that `differences` names."""
    return name if name in {one.name for one in fields(PodNeeds)} else "words"


def _count_processes(role: RolePods, roles: Sequence[RolePods], log: ConversionLog) -> None:
    """Read what a launcher says of all nodes as something of this role's nodes."""
    nodes = sum(one.size.nodes for one in roles)
    plan = role.plan
    if plan.nodes == (nodes, nodes):
        plan.nodes = None  # the launcher counts all nodes, the role its own
    if plan.total_ranks is None:
        return
    if plan.total_ranks == sum(max(one.needs.gpus, 1) * one.size.nodes for one in roles):
        plan.total_ranks, plan.ranks = None, 0
    elif plan.total_ranks % nodes:
        said = f"{plan.total_ranks} processes cannot be divided among {nodes} nodes"
        log.refuse(role.size.line, "command", said)
        plan.total_ranks = None
    else:
        plan.total_ranks = plan.total_ranks // nodes * role.size.nodes
