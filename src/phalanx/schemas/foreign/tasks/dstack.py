"""Tasks of dstack (`type: task`) as job specs. The commands run once on each node."""

from __future__ import annotations

import re
from typing import Any

from phalanx.kit.units import parse_duration, parse_size
from phalanx.schemas.foreign.commands import CommandPlan
from phalanx.schemas.foreign.gangs import GangSize, gang, merged
from phalanx.schemas.foreign.needs import PodNeeds
from phalanx.schemas.foreign.reader import ForeignReader
from phalanx.schemas.foreign.rules import KeyAction, KeyRule, RuleTable, dropped, mapped, refused
from phalanx.schemas.foreign.tasks.node_scripts import NodeVariables, read_node_script
from phalanx.schemas.spec.fields import MAX_NODES, MAX_SLOTS_PER_NODE
from phalanx.schemas.spec.foreign_studies.reading import as_name
from phalanx.schemas.spec.roles import OUR_PREFIXES, OURS

TOOL = "dstack task"
TYPES = ("task", "service", "dev-environment", "fleet", "volume", "gateway", "preset")
"""Values of the key `type` of dstack's files."""
_POOLS = "where a job may run is written as `pool:`"
_IMAGE = "settings of the container are those of the pool"
_RESOURCES: tuple[KeyRule, ...] = (
    *mapped("resources.slots_per_node", "gpu"),
    *mapped("resources", "cpu", "memory", "shm_size"),
    *dropped("the nodes of a pool are as they are", "disk"),
)
_RULES: tuple[KeyRule, ...] = (
    *mapped("the format", "type"),
    *mapped("name", "name"),
    *mapped("resources.nodes", "nodes"),
    *mapped("run", "commands"),
    *mapped("env", "env"),
    *(KeyRule(f"resources.{one.path}", one.action, one.text) for one in _RESOURCES),
    *(KeyRule(f"groups.*.resources.{one.path}", one.action, one.text) for one in _RESOURCES),
    *mapped("roles", "groups.*.name", "groups.*.nodes", "groups.*.commands"),
    *dropped("ports are not opened", "ports", "groups.*.ports"),
    *mapped("image", "image", of_image=True),
    *dropped("the interpreter is that of the node; see `python:`", "python", "nvcc"),
    *dropped(_IMAGE, "shell", "home_dir", "single_branch"),
    *refused("containers inside the container are not supported", "docker", of_image=True),
    *refused(_IMAGE, "user", "privileged", "entrypoint", "registry_auth", of_image=True),
    *refused("commands begin in the folder of the code; use cd", "working_dir", of_image=True),
    *refused("the code of a job is the folder of its file", "repos", "repo", of_image=True),
    *refused("files travel in the folder of the job file", "files", of_image=True),
    *refused("volumes are mounted by their pool: write `mounts:`", "volumes", of_image=True),
    *dropped("has had no effect in dstack either", "setup", "init"),
    *mapped("priority", "priority"),
    *mapped("max_duration", "max_duration"),
    *mapped("grace", "stop_duration"),
    *mapped("recovery", "retry", "retry.on_events"),
    *dropped("restarts have limits of their own: `recovery`", "retry.duration"),
    *mapped("labels", "tags"),
    *dropped(_POOLS, "backends", "regions", "availability_zones", "instance_types"),
    *dropped(_POOLS, "reservation", "spot_policy", "max_price", "creation_policy", "fleets"),
    *dropped(_POOLS, "idle_duration", "instances", "backend_options", "pool_name"),
    *dropped(_POOLS, "termination_policy", "termination_idle_time", "instance_name"),
    *dropped("a gang starts as a whole", "startup_order"),
    *dropped("a gang ends when all ranks have", "stop_criteria"),
    *dropped("a job without progress is stopped by `stall`", "utilization_policy"),
    *dropped("the control plane is known to every rank", "dstack"),
    *refused("use `phalanx schedules create`", "schedule"),
)
TABLE = RuleTable(_RULES)


def convert_dstack(task: ForeignReader) -> dict[str, Any]:
    """The spec of a task. Problems go to the log of the reader."""
    log = task.log
    env, secrets = _variables(task)
    spec: dict[str, Any] = {"schema": 1, "name": as_name(task.text("name") or "task", "task")}
    log.came_from(task.line_of("env"), "env")
    groups = task.entries("groups")
    if groups:
        spec = merged(spec, {**_roles(groups, env), "env": env, "secrets": secrets})
        spec["image"] = _image(task)
    else:
        nodes = task.whole("nodes", 1, MAX_NODES) or 1
        needs = PodNeeds(env=env, secrets=secrets, image=_image(task))
        memory = _amounts(task.at("resources"), needs)
        plan = _plan(task, needs, nodes)
        line = task.line_of("nodes") if task.value("nodes") else task.line_of("resources")
        spec = merged(spec, gang(GangSize(line, nodes), plan, needs, log))
        if memory is not None and not log.local:
            spec["resources"]["accelerator_memory"] = f"{memory}.."
    log.came_from(task.line_of("commands"), "run", "setup")
    return {**spec, **_policy(task)}


def _image(task: ForeignReader) -> str | None:
    image = task.text("image")
    task.log.came_from(task.line_of("image"), "image")
    return None if task.log.local else image


def _roles(groups: list[ForeignReader], env: dict[str, str]) -> dict[str, Any]:
    """Groups of nodes as roles; the commands of each run on its nodes."""
    roles: dict[str, Any] = {}
    for number, group in enumerate(groups):
        needs = PodNeeds(env=env)
        _amounts(group.at("resources"), needs)
        nodes = group.whole("nodes", 1, MAX_NODES) or 1
        plan = _plan(group, needs, nodes)
        part = gang(GangSize(group.line_of("nodes"), nodes), plan, needs, group.log)
        name = as_name(str(group.value("name") or number), f"group-{number}")
        if plan.setup is not None:
            lines = f"{plan.setup}\n{plan.run if isinstance(plan.run, str) else ''}"
            group.refuse("commands", f"only a job without groups prepares nodes: {lines[:40]}")
        resources = {key: one for key, one in part["resources"].items() if one is not None}
        resources.pop("shm", None)
        roles[name] = {"run": part["run"], "resources": resources}
        if group.log.local:
            total = resources.pop("accelerators")
            resources |= {"nodes": 1, "slots_per_node": total}
    return {"roles": roles}


def _plan(at: ForeignReader, needs: PodNeeds, nodes: int) -> CommandPlan:
    commands = at.words("commands")
    if not commands:
        at.refuse("commands", "is required: what runs on each node")
    gpus = str(needs.gpus)
    known = {
        "DSTACK_NODES_NUM": str(nodes),
        "DSTACK_GPUS_PER_NODE": gpus,
        "DSTACK_GPUS_NUM": str(nodes * needs.gpus),
    }
    has = NodeVariables(
        from_rank={
            **known,
            "DSTACK_NODES_NUM": "$GROUP_WORLD_SIZE",
            "DSTACK_GPUS_NUM": f"$(({gpus} * GROUP_WORLD_SIZE))",
            "DSTACK_NODE_RANK": "$GROUP_RANK",
            "DSTACK_MASTER_NODE_IP": "$MASTER_ADDR",
            "DSTACK_RUN_NAME": "$TORCHELASTIC_RUN_ID",
            "DSTACK_NODES_IPS": '"$(for i in $(seq $GROUP_WORLD_SIZE); do echo $MASTER_ADDR; done)"',
        },
        known=known,
        addresses="DSTACK_NODES_IPS",
        refused={
            "DSTACK_MPI_HOSTFILE": "MPI programs need a job spec with `framework: mpi`",
            "DSTACK_REPO_DIR": "commands begin in the folder of the code",
        },
    )
    return read_node_script(at, "commands", "\n".join(commands) or "true", needs.env, has)


def _variables(task: ForeignReader) -> tuple[dict[str, str], list[str]]:
    """Variables with values, and names without one, which are secrets."""
    found = task.value("env")
    env: dict[str, str] = {}
    secrets: list[str] = []
    if isinstance(found, list):
        pairs = [(one.partition("=") if isinstance(one, str) else (None, "", one)) for one in found]
    elif isinstance(found, dict):
        pairs = [(name, "" if value is None else "=", value) for name, value in found.items()]
    else:
        if found is not None:
            task.refuse("env", "must be a list of NAME=VALUE, or a mapping")
        return env, secrets
    for name, equals, value in pairs:
        given = None if name is None else task.log.given(name)
        if given is not None:
            equals, value = "=", given
        _variable(task, (name, equals, value), env, secrets)
    return env, secrets


def _variable(
    task: ForeignReader, pair: tuple[str | None, str, Any], env: dict[str, str], secrets: list[str]
) -> None:
    name, equals, value = pair
    key = f"env ({name})"
    if name is None or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        task.refuse("env", "must be a list of NAME=VALUE, or of NAME for a secret", name)
    elif name in OURS or name.startswith(OUR_PREFIXES):
        said = "Phalanx sets this variable for every rank"
        task.log.note(task.line_of("env"), key, KeyAction.DROPPED, said)
    elif isinstance(value, dict | list | bool):
        task.refuse("env", f"{name} must be text; put it in quotes")
    elif not equals or re.fullmatch(r"\$\{\{\s*secrets\.[\w.-]+\s*\}\}", str(value)):
        secrets.append(name)
        said = f"secrets: store its value with `phalanx secrets set {name}`"
        task.log.note(task.line_of("env"), key, KeyAction.MAPPED, said)
    elif "${{" in str(value):
        task.refuse("env", f"{name}: expressions are not supported; write the value")
    else:
        env[name] = str(value)


def _amounts(at: ForeignReader, needs: PodNeeds) -> int | None:
    """CPUs, memory and GPUs of a node; the answer is the memory of each GPU in bytes, or None."""
    log = at.log
    cpus, memory, shm = _cpus(at), _size(at, "memory"), _size(at, "shm_size")
    kind, count, gpu_memory = _gpu(at)
    needs.gpus = count
    if not log.local:
        needs.cpus, needs.memory, needs.shm, needs.accelerator = cpus, memory, shm, kind
        log.came_from(at.line_of("shm_size"), "resources.shm")
        log.came_from(at.line_of("gpu"), "resources.accelerator_memory", "resources.accelerator")
    return gpu_memory


def _low(text: str) -> str:
    """The lower end of `8`, `8..`, `..8` and `4..8`."""
    low, dots, high = text.partition("..")
    return low or ("1" if dots and high else text)


def _cpus(at: ForeignReader) -> int | None:
    value = at.value("cpu")
    if isinstance(value, dict):
        value = value.get("count")
    if value is None:
        return None
    parts = str(value).replace(" ", "").split(":")
    numbers = [_low(one) for one in parts if one.lower() not in ("x86", "arm")]
    if len(numbers) == 1 and re.fullmatch(r"[0-9]{1,5}", numbers[0]) and int(numbers[0]):
        return int(numbers[0])
    at.refuse("cpu", "must be a number or a range, such as 8 or 8..16", value)
    return None


def _size(at: ForeignReader, key: str) -> int | None:
    value = at.value(key)
    if value is None:
        return None
    try:
        text = _low(str(value).replace(" ", ""))
        return parse_size(text if not text.replace(".", "").isdigit() else f"{text}GB")
    except ValueError:
        at.refuse(key, "must be a size or a range, such as 16GB or 16GB..", value)
        return None


def _gpu(at: ForeignReader) -> tuple[str | None, int, int | None]:
    """Type, number and memory of the GPUs: `H100:80GB:8`, a number, or a mapping."""
    value = at.value("gpu")
    if isinstance(value, dict):
        parts = [value.get("name"), value.get("memory"), value.get("count", 1)]
        parts = [",".join(one) if isinstance(one, list) else one for one in parts]
        value = ":".join(str(one) for one in parts if one is not None)
        for key in ("total_memory", "compute_capability"):
            if at.at("gpu").value(key) is not None:
                at.at("gpu").note(key, KeyAction.DROPPED, "write `resources.accelerator`")
    if value is None:
        return None, 0, None
    kind, count, memory = _gpu_parts(at, str(value))
    if count > MAX_SLOTS_PER_NODE:
        at.refuse("gpu", f"at most {MAX_SLOTS_PER_NODE} on a node", count)
        count = 1
    return kind, count, memory


def _gpu_parts(at: ForeignReader, text: str) -> tuple[str | None, int, int | None]:
    kind: str | None = None
    count, memory = 1, None
    for part in text.replace(" ", "").split(":"):
        low = _low(part)
        if re.fullmatch(r"[0-9]{1,4}", low):
            count = int(low)
        elif re.fullmatch(r"[0-9]{1,5}(\.[0-9]{1,3})?[GMT]B", low, re.IGNORECASE):
            memory = parse_size(low.upper())
        elif part.lower().startswith(("tpu", "google")):
            at.refuse("gpu", "TPUs are not supported", text)
        elif re.fullmatch(r"[A-Za-z][A-Za-z0-9,._-]{0,90}", part):
            if part.lower() in ("nvidia", "amd", "intel", "tenstorrent"):
                continue
            kind, *others = part.split(",")
            if others:
                said = f"resources.accelerator: the first of the alternatives counts, {kind}"
                at.note("gpu", KeyAction.DROPPED, said)
        else:
            at.refuse("gpu", "must be COUNT, TYPE:COUNT or TYPE:MEMORY:COUNT", text)
    return kind, count, memory


def _policy(task: ForeignReader) -> dict[str, Any]:
    """Priority, limits of time, restarts and labels."""
    found: dict[str, Any] = {}
    priority = task.whole("priority", 0, 100)
    if priority is not None:
        found["priority"] = priority
    for key, ours in (("max_duration", "max_duration"), ("stop_duration", "grace")):
        seconds = _seconds(task, key)
        if seconds:
            found[ours] = f"{seconds:g}s"
    retry = task.value("retry")
    if retry is False:
        found["recovery"] = {"rank_crash": 0, "node_lost": 0}
    elif isinstance(retry, dict):
        events = retry.get("on_events") or ["error", "interruption", "no-capacity"]
        known = {"error", "interruption", "no-capacity"}
        if not isinstance(events, list) or not set(map(str, events)) <= known:
            task.at("retry").refuse("on_events", f"must be a list of {', '.join(sorted(known))}")
        elif "error" not in events:
            found["recovery"] = {"rank_crash": 0}
    elif retry not in (None, True):
        task.refuse("retry", "must be true, false or a mapping", retry)
    tags = task.mapping("tags")
    kept = {key: one for key, one in tags.items() if as_name(key, "") == key}
    if len(kept) < len(tags):
        task.note("tags", KeyAction.DROPPED, "labels of jobs have no slash in their names")
    return {**found, "labels": kept}


def _seconds(task: ForeignReader, key: str) -> float | None:
    value = task.value(key)
    if value in (None, "off", False):
        return None
    try:
        if isinstance(value, bool):
            raise ValueError(value)
        return parse_duration(value)
    except (ValueError, TypeError):
        task.refuse(key, "must be a duration such as 2h, or off", value)
        return None
