"""Scripts that a tool runs once on each node, with variables for the number and place of the node."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from phalanx.schemas.foreign.commands import CommandPlan, read_script
from phalanx.schemas.foreign.reader import ForeignReader
from phalanx.schemas.foreign.rules import KeyAction
from phalanx.schemas.foreign.tasks.accelerate import launcher

_ADDRESS = re.compile(
    r"(export\s+)?(MASTER_ADDR|MASTER_PORT|RANK|WORLD_SIZE|LOCAL_RANK|NODE_RANK)="
)
# What needs only the first of the addresses, or their number.
_FIRST = re.compile(r"head\s+-(n\s*)?1\b|wc\s+-l|\[0\]|cut\s+-d.*-f\s*1\b|awk\s+.*NR==1")


@dataclass(frozen=True, slots=True)
class NodeVariables:
    """Variables of a tool on each node.

    `from_rank` has the value of each as a text for the shell, from the variables of a rank; `known` those
    that are the same on all nodes. `addresses` names the variable with the addresses of all nodes: only
    the first is right here, repeated for each node. `refused` has variables that do not exist here, with
    what to do.
    """

    from_rank: Mapping[str, str]
    known: Mapping[str, str]
    addresses: str
    refused: Mapping[str, str]


def read_node_script(
    at: ForeignReader, key: str, text: str, env: Mapping[str, str], has: NodeVariables
) -> CommandPlan:
    """The plan of the script under a key. Without a launcher as its last command it runs once per node."""
    start = at.line_of(key)
    for number, line in enumerate(text.splitlines(), 1):
        _check(at, key, start + number, line, has)
    plan = read_script(text, {**env, **has.known}, launcher(at.log))
    if not plan.launched:
        # One rank for each node: its place and number are those of the node, also with --local.
        script = _with_variables(text, has)
        for ours, of_node in (("$RANK", "$GROUP_RANK"), ("WORLD_SIZE", "GROUP_WORLD_SIZE")):
            script = script.replace(of_node, ours)
        plan.run = ["bash", "-c", script]
        return plan
    if isinstance(plan.run, str):
        lines = []
        for line in plan.run.splitlines():
            if _ADDRESS.match(line):
                said = "Phalanx sets the addresses and numbers of ranks"
                at.log.note(start, f"{key}: {line[:40]}", KeyAction.DROPPED, said)
            else:
                lines.append(line)
        plan.run = ["bash", "-c", _with_variables("\n".join(lines), has)]
    if plan.setup is not None:
        plan.setup = _setup(plan.setup, has)
    return plan


def _check(at: ForeignReader, key: str, number: int, line: str, has: NodeVariables) -> None:
    for name, said in has.refused.items():
        if re.search(rf"\b{name}\b", line):
            at.log.refuse(number, key, f"{name} is not known here: {said}")
    if re.search(rf"\b{has.addresses}\b", line) and not _FIRST.search(line):
        said = (
            f"{has.addresses} has the address of the first node alone: use `| head -n1`, or submit a "
            "job spec with ranks that meet at MASTER_ADDR"
        )
        at.log.refuse(number, key, said)


def _with_variables(text: str, has: NodeVariables) -> str:
    """The text with the variables that it names set before it."""
    named = [one for one in has.from_rank if re.search(rf"\b{one}\b", text)]
    sets = " ".join(f"{one}={has.from_rank[one]}" for one in named)
    return f"export {sets}\n{text}" if sets else text


def _setup(text: str, has: NodeVariables) -> str:
    """A setup text with the variables that are the same on all nodes."""
    named = [one for one in has.known if re.search(rf"\b{one}\b", text)]
    sets = " ".join(f"{one}={has.known[one]}" for one in named)
    return f"export {sets}\n{text}" if sets else text


def join_setup(first: str | None, second: str | None) -> str | None:
    """One setup text of two; the second runs only after the first has succeeded."""
    if first is None or second is None:
        return first or second
    return f"(\n{first.rstrip()}\n) || exit\n{second}"
