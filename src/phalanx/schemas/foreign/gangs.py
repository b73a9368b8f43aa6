"""Put a job spec together from pods, a command and a number of nodes."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from phalanx.schemas.foreign.commands import CommandPlan
from phalanx.schemas.foreign.needs import PodNeeds
from phalanx.schemas.foreign.reader import ForeignReader
from phalanx.schemas.foreign.rules import ConversionLog, KeyAction
from phalanx.schemas.spec.fields import MAX_NODES, MAX_SLOTS_PER_NODE
from phalanx.schemas.spec.foreign_studies.reading import as_name


@dataclass(frozen=True, slots=True)
class GangSize:
    """Number of nodes, its range where the gang is elastic, and processes on each node as the file says.

    `ranks` None: the file does not say; 0: as many as GPUs. `line` is the line of the numbers.
    """

    line: int
    nodes: int
    elastic: tuple[int, int] | None = None
    ranks: int | None = None
    slices: int = 1  # TPU slices that it has in equal parts, where its devices are TPU chips


def head(document: ForeignReader) -> dict[str, Any]:
    """Name and labels of an object."""
    meta = document.at("metadata")
    name = meta.text("name") or meta.text("generateName") or "job"
    labels = {}
    for key, value in meta.mapping("labels").items():
        if "/" in key or as_name(key, "") != key:
            said = "labels of jobs have no slash in their names"
            meta.at("labels").note(key, KeyAction.DROPPED, said)
        else:
            labels[key] = value
    document.log.came_from(meta.line_of("labels"), "labels")
    return {"schema": 1, "name": as_name(name, "job"), "labels": labels}


def gang(size: GangSize, plan: CommandPlan, needs: PodNeeds, log: ConversionLog) -> dict[str, Any]:
    """The keys of the spec that describe the gang and what it runs."""
    for one in plan.notes:
        log.note(log.lines.get("run", size.line), "command", KeyAction.DROPPED, one)
    resources = _resources(size, plan, needs, log)
    found: dict[str, Any] = {
        "run": _with_later_env(plan.run, needs),
        "setup": plan.setup,
        "image": needs.image,
        "resources": {key: one for key, one in resources.items() if one is not None},
        "env": {**needs.env, **plan.env},
        "secrets": needs.secrets,
        "mounts": needs.mounts,
        "kubernetes": needs.kubernetes,
    }
    placement = {
        "selector": needs.selector,
        "tolerate": needs.tolerate,
        **_slices(size, needs, log),
    }
    found["placement"] = {key: one for key, one in placement.items() if one}
    framework = plan.framework or ("jax" if needs.tpu else None)
    if framework is not None:
        found["framework"] = framework
    if needs.grace is not None:
        found["grace"] = f"{needs.grace}s"
    if plan.restarts is not None:
        found["recovery"] = {"rank_crash": {"count": plan.restarts}}
    return found


def _slices(size: GangSize, needs: PodNeeds, log: ConversionLog) -> dict[str, Any]:
    """The keys of `placement` that keep the hosts of each TPU slice together."""
    if not needs.tpu or size.nodes == 1 or log.local:
        return {}
    log.came_from(size.line, "placement.required", "placement.domains")
    return {"required": "slice", "domains": size.slices if size.slices > 1 else None}


def _with_later_env(run: list[str] | str, needs: PodNeeds) -> list[str] | str:
    """The command with the variables that differ on the nodes after the first."""
    if not needs.later_env:
        return run
    sets = [
        f"unset {name}" if value is None else f"export {name}={shlex.quote(value)}"
        for name, value in needs.later_env.items()
    ]
    text = f'if [ "$GROUP_RANK" -gt 0 ]; then {"; ".join(sets)}; fi'
    if isinstance(run, str):
        return f"{text}\n{run}"
    return ["sh", "-c", f'{text}; exec "$@"', "sh", *run]


def _resources(
    size: GangSize, plan: CommandPlan, needs: PodNeeds, log: ConversionLog
) -> dict[str, Any]:
    nodes, elastic = size.nodes, size.elastic
    if plan.nodes is not None and plan.nodes[0] < plan.nodes[1] and elastic is None:
        elastic = plan.nodes
    elif plan.nodes is not None and plan.nodes[0] != nodes and elastic is None:
        said = f"the launcher says {plan.nodes[0]} nodes and the file {nodes}: the file counts"
        log.note(size.line, "command", KeyAction.DROPPED, said)
    ranks = _ranks(size, plan, needs, nodes, log)
    slots = needs.gpus or ranks
    per_rank = slots // ranks
    if ranks > slots or slots % ranks:
        said = f"{ranks} processes on a node with {needs.gpus} GPUs: must be a divisor of the GPUs"
        log.refuse(size.line, "processes on each node", said)
        per_rank = 1
    if slots > MAX_SLOTS_PER_NODE:
        log.refuse(size.line, "processes on each node", f"at most {MAX_SLOTS_PER_NODE}", slots)
    keys = ("resources.nodes", "resources.slots_per_node", "resources.accelerators")
    log.came_from(size.line, *keys)
    if log.local:
        log.came_from(size.line, "resources")
        if nodes * slots > MAX_SLOTS_PER_NODE:
            said = f"--local runs at most {MAX_SLOTS_PER_NODE} slots; submit fewer nodes"
            log.refuse(size.line, "nodes", said, nodes)
        return {"accelerators": nodes * slots, "slots_per_rank": per_rank}
    if nodes > MAX_NODES:
        log.refuse(size.line, "nodes", f"at most {MAX_NODES}", nodes)
    return {
        "nodes": f"{elastic[0]}..{elastic[1]}" if elastic else nodes,
        "slots_per_node": slots,
        "slots_per_rank": per_rank,
        "accelerator": needs.accelerator,
        "cpus": needs.cpus,
        "memory": needs.memory,
        "shm": needs.shm,
    }


def _ranks(
    size: GangSize, plan: CommandPlan, needs: PodNeeds, nodes: int, log: ConversionLog
) -> int:
    """Processes on each node, at least one."""
    if not plan.launched:
        if size.ranks is not None and size.ranks > 1:
            said = "the command starts no processes of its own: one on each node"
            log.note(size.line, "command", KeyAction.DROPPED, said)
        return 1
    ranks = size.ranks if plan.ranks is None else plan.ranks
    if plan.total_ranks is not None:
        if plan.total_ranks % nodes:
            said = f"{plan.total_ranks} processes cannot be divided among {nodes} nodes"
            log.refuse(size.line, "command", said)
        ranks = plan.total_ranks // nodes
    return max((ranks if ranks else needs.gpus), 1)


def merged(spec: dict[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """A spec with more keys; mappings are joined, and the keys of `more` count."""
    found = dict(spec)
    for key, one in more.items():
        here = found.get(key)
        both = isinstance(one, Mapping) and isinstance(here, Mapping)
        found[key] = merged(dict(here or {}), one) if both else one
    return found
