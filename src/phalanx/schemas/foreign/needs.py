"""What one node of a gang gets: the common ground of all formats of job files."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from phalanx.schemas.foreign.reader import ForeignReader
from phalanx.schemas.foreign.rules import KeyAction


@dataclass(slots=True)
class PodNeeds:
    """What one node of the gang gets from a pod template."""

    #: the container's command and arguments
    words: list[str] = field(default_factory=list)
    #: variables with their values
    env: dict[str, str] = field(default_factory=dict)
    #: variables with values that are stored as secrets
    secrets: list[str] = field(default_factory=list)
    #: GPUs of the container, or TPU chips
    gpus: int = 0
    #: whether they are TPU chips
    tpu: bool = False
    #: whole CPUs, or None
    cpus: int | None = None
    #: bytes of memory, or None
    memory: int | None = None
    #: bytes of shared memory, or None
    shm: int | None = None
    #: container image
    image: str | None = None
    #: file systems as `source:/path[:ro]`
    mounts: list[str] = field(default_factory=list)
    #: labels of nodes
    selector: dict[str, str] = field(default_factory=dict)
    #: type of the GPU
    accelerator: str | None = None
    #: taints
    tolerate: list[str] = field(default_factory=list)
    #: seconds to exit
    grace: int | None = None
    #: variables that differ on the nodes after the first; None: not set there
    later_env: dict[str, str | None] = field(default_factory=dict)
    #: the section `kubernetes`
    kubernetes: dict[str, Any] = field(default_factory=dict)

    def add(self, key: str, more: list[Any] | dict[str, Any]) -> None:
        """Add to a list or mapping of the section `kubernetes`."""
        if isinstance(more, dict):
            self.kubernetes[key] = {**self.kubernetes.get(key, {}), **more}
        else:
            self.kubernetes[key] = [*self.kubernetes.get(key, []), *more]

    def differences(self, other: PodNeeds) -> list[str]:
        """The fields in which another template has other values."""
        return [
            "command" if one.name == "words" else one.name
            for one in fields(self)
            if getattr(self, one.name) != getattr(other, one.name)
        ]


def one_template(found: list[tuple[ForeignReader, PodNeeds]]) -> PodNeeds:
    """The needs of all pods of a gang, from those of each role; the first role is the leading one.

    Amounts that differ become the largest; other differences are refused.
    """
    (lead, first), *others = found
    for role, needs in others:
        for amount in ("gpus", "cpus", "memory", "shm"):
            _largest(first, needs, amount, role)
        unequal = first.differences(needs)
        if unequal == ["env"] and len(found) == 2:
            names = dict.fromkeys([*first.env, *needs.env])
            later = {one: needs.env.get(one) for one in names}
            first.later_env = {
                one: value for one, value in later.items() if first.env.get(one) != value
            }
            said = f"env of the nodes after the first: {', '.join(first.later_env)}"
            role.note("template", KeyAction.MAPPED, said)
        elif unequal:
            said = (
                f"differs from the template of the {lead.path[-1]} in {', '.join(unequal)}: one gang has "
                "one template; make both equal, or submit a job spec with `roles:` where the parts are no "
                "single torch world"
            )
            role.refuse("template", said)
    return first


def _largest(first: PodNeeds, other: PodNeeds, amount: str, role: ForeignReader) -> None:
    """Give both the larger amount."""
    mine, theirs = getattr(first, amount), getattr(other, amount)
    if mine == theirs:
        return
    most = max(mine or 0, theirs or 0)
    said = f"{amount} of the roles differ: every node of the gang gets the larger amount"
    role.note("template", KeyAction.DROPPED, said)
    setattr(first, amount, most)
    setattr(other, amount, most)
