"""SkyPilot tasks and pipelines as job specs. `run` starts once on each node."""

from __future__ import annotations

import math
import re
from typing import Any

from phalanx.schemas.foreign.commands import CommandPlan
from phalanx.schemas.foreign.gangs import GangSize, gang, merged
from phalanx.schemas.foreign.needs import PodNeeds
from phalanx.schemas.foreign.reader import ForeignReader
from phalanx.schemas.foreign.rules import KeyAction, KeyRule, RuleTable, dropped, mapped, refused
from phalanx.schemas.foreign.tasks.node_scripts import (
    NodeVariables,
    join_setup,
    read_node_script,
)
from phalanx.schemas.spec.fields import MAX_NODES, MAX_SLOTS_PER_NODE
from phalanx.schemas.spec.foreign_studies.reading import as_name
from phalanx.schemas.spec.job import JobSpec
from phalanx.schemas.spec.roles import OUR_PREFIXES, OURS

TOOL = "SkyPilot task"
_POOLS = "where a job may run is written as `pool:`"
_NODE = "the nodes of a pool are as they are"
_RESOURCES: tuple[KeyRule, ...] = (
    *mapped("resources.slots_per_node", "accelerators"),
    *mapped("resources", "cpus", "memory"),
    *mapped("image", "image_id", of_image=True),
    *mapped("recovery", "job_recovery", "job_recovery.strategy"),
    *mapped("recovery.rank_crash.count", "job_recovery.max_restarts_on_errors"),
    *mapped("recovery.exit_codes", "job_recovery.recover_on_exit_codes"),
    *dropped("jobs of Phalanx restart after a lost node", "spot_recovery"),
    *mapped("labels", "labels"),
    *dropped(_POOLS, "cloud", "region", "zone", "infra", "use_spot", "max_hourly_cost"),
    *dropped(_NODE, "instance_type", "disk_size", "disk_tier", "network_tier", "local_disk"),
    *dropped(_NODE, "ephemeral_storage", "volumes", "_cluster_config_overrides"),
    *dropped("nodes belong to their pools", "autostop", "_no_missing_accel_warnings"),
    *dropped("ports are not opened", "ports"),
    *refused("TPUs are not supported", "accelerator_args"),
    *dropped("write `priority:` of Phalanx", "priority", "priority_class"),
    *refused("registries are settings of the pool", "_docker_login_config", of_image=True),
    *dropped("set by SkyPilot", "_is_image_managed", "_requires_fuse"),
)
_RULES: tuple[KeyRule, ...] = (
    *mapped("name", "name"),
    *mapped("workdir", "workdir"),
    *refused("get the code into the folder of the file", "workdir.url", "workdir.ref"),
    *mapped("resources.nodes", "num_nodes"),
    *(KeyRule(f"resources.{one.path}", one.action, one.text, one.of_image) for one in _RESOURCES),
    *mapped("the first alternative counts", "resources.any_of", "resources.ordered"),
    *(
        KeyRule(f"resources.{many}.*.{one.path}", one.action, one.text, one.of_image)
        for many in ("any_of", "ordered")
        for one in _RESOURCES
    ),
    *mapped("setup", "setup"),
    *mapped("run", "run"),
    *mapped("env", "envs"),
    *mapped("secrets", "secrets"),
    *refused("store them with `phalanx secrets set`", "managed_secrets"),
    *refused(
        "files travel in the folder of the job file, and inputs from buckets in `data:` of a job spec",
        "file_mounts.*",
        of_image=True,
    ),
    *refused("volumes are mounted by their pool: write `mounts:`", "volumes", of_image=True),
    *refused("volumes are mounted by their pool: write `mounts:`", "volume_mounts", of_image=True),
    *dropped("Phalanx runs jobs and serves no requests", "service", "pool"),
    *dropped("use `phalanx hooks`", "event_callback"),
    *dropped("sizes of data have no effect", "inputs", "outputs"),
    *dropped("settings of SkyPilot have no effect", "config", "experimental", "_metadata"),
    *dropped("settings of SkyPilot have no effect", "api_server_access", "file_mounts_mapping"),
)
TABLE = RuleTable(_RULES)
HEADER_TABLE = RuleTable(
    (
        *mapped("name", "name"),
        *refused("stages run one after the other", "execution", "primary_tasks"),
        *refused("stages run one after the other", "termination_delay"),
    )
)
"""Keys of the document before the stages of a pipeline."""
OURS_ONLY = frozenset(
    {"kind", *(one.alias or name for name, one in JobSpec.model_fields.items())}
) - {one.path.partition(".")[0] for one in _RULES}
"""Keys of a job spec that a task of SkyPilot never has."""
_MARKS = frozenset(
    {"num_nodes", "envs", "file_mounts", "managed_secrets", "event_callback", "file_mounts_mapping"}
    | {"volume_mounts", "service", "inputs", "outputs"}
)
_RESOURCE_MARKS = frozenset(
    one.path.partition(".")[0] for one in _RESOURCES if one.path not in ("cpus", "memory")
) - {"accelerators"} | {"any_of", "ordered"}


def is_skypilot(data: dict[str, Any]) -> bool:
    """Whether a document is a task of SkyPilot and cannot be a job spec."""
    if OURS_ONLY & set(data):
        return False
    resources = data.get("resources")
    marks = bool(_MARKS & set(data)) or isinstance(data.get("secrets"), dict)
    if isinstance(resources, dict):
        accelerators = resources.get("accelerators")
        marks |= bool(_RESOURCE_MARKS & set(resources))
        marks |= isinstance(accelerators, str | dict | list) and not str(accelerators).isdigit()
    return marks


def convert_skypilot(task: ForeignReader) -> dict[str, Any]:
    """The spec of one task. Problems go to the log of the reader."""
    log = task.log
    nodes = task.whole("num_nodes", 1, MAX_NODES) or 1
    needs = PodNeeds(env=_variables(task), secrets=_secrets(task))
    resources = _chosen(task.at("resources"))
    _amounts(task.at("resources"), resources, needs)
    plan = _plan(task, needs, nodes)
    line = task.line_of("num_nodes") if task.value("num_nodes") else task.line_of("resources")
    log.came_from(task.line_of("run"), "run")
    log.came_from(task.line_of("setup"), "setup")
    log.came_from(task.line_of("envs"), "env")
    spec: dict[str, Any] = {"schema": 1, "name": as_name(task.text("name") or "task", "task")}
    spec = merged(spec, gang(GangSize(line, nodes), plan, needs, log))
    folder = task.value("workdir")
    if isinstance(folder, str):
        if folder.startswith(("/", "~", "$")):
            task.refuse("workdir", "must be relative to the file: the folder is copied", folder)
        else:
            spec["workdir"] = folder
    elif folder is not None and not isinstance(folder, dict):
        task.refuse("workdir", "must be a folder", folder)
    return {**spec, **_recovery(task.at("resources"), resources)}


def _plan(task: ForeignReader, needs: PodNeeds, nodes: int) -> CommandPlan:
    text, first = task.text("run"), task.text("setup")
    if text is None:
        task.refuse("run", "is required: the commands of each node")
    gpus = str(needs.gpus)
    has = NodeVariables(
        from_rank={
            "SKYPILOT_NODE_RANK": "$GROUP_RANK",
            "SKYPILOT_NUM_NODES": "$GROUP_WORLD_SIZE",
            "SKYPILOT_NUM_GPUS_PER_NODE": gpus,
            "SKYPILOT_TASK_ID": "$TORCHELASTIC_RUN_ID",
            "SKYPILOT_NODE_IPS": '"$(for i in $(seq $GROUP_WORLD_SIZE); do echo $MASTER_ADDR; done)"',
        },
        known={"SKYPILOT_NUM_NODES": str(nodes), "SKYPILOT_NUM_GPUS_PER_NODE": gpus},
        addresses="SKYPILOT_NODE_IPS",
        refused={"SKYPILOT_CLUSTER_INFO": "it describes a cluster of SkyPilot"},
    )
    plan = read_node_script(task, "run", text or "true", needs.env, has)
    plan.setup = join_setup(first, plan.setup)
    return plan


def _variables(task: ForeignReader) -> dict[str, str]:
    """Variables of `envs`; those without a value need `--set`."""
    env: dict[str, str] = {}
    at = task.at("envs")
    for name, value in task.mapping("envs").items():
        given = task.log.given(name)
        value = value if given is None else given
        if name in OURS or name.startswith(OUR_PREFIXES):
            at.note(name, KeyAction.DROPPED, "Phalanx sets this variable for every rank")
        elif value is None or value == "":
            at.refuse(name, f"has no value; add --set {name}=VALUE, or list it under `secrets`")
        elif isinstance(value, bool | dict | list | float):
            at.refuse(name, "must be text; put it in quotes", value)
        else:
            env[name] = str(value)
            at.note(name, KeyAction.MAPPED, f"env.{name}")
    return env


def _secrets(task: ForeignReader) -> list[str]:
    found = task.value("secrets")
    if found is None:
        return []
    if isinstance(found, list) and all(isinstance(one, str) for one in found):
        return list(found)
    if not isinstance(found, dict):
        task.refuse("secrets", "must be a mapping of variables, or a list of their names")
        return []
    for name in found:
        task.log.given(name)
        said = f"secrets: store its value with `phalanx secrets set {name}`"
        task.at("secrets").note(name, KeyAction.MAPPED, said)
    return list(found)


def _chosen(resources: ForeignReader) -> ForeignReader:
    """The place with the first alternative, which counts; the resources themselves without one."""
    for key in ("any_of", "ordered"):
        entries = resources.entries(key)
        for other in entries[1:]:
            said = "the first alternative counts"
            other.log.note(other.line, other.shown, KeyAction.DROPPED, said)
        if entries:
            return entries[0]
    return resources


def _amounts(base: ForeignReader, chosen: ForeignReader, needs: PodNeeds) -> None:
    log = base.log

    def holder(key: str) -> ForeignReader:
        return chosen if chosen.value(key) is not None else base

    name, count = _accelerator(holder("accelerators"))
    needs.gpus, needs.accelerator = count, None if log.local else name
    image = holder("image_id")
    text = image.value("image_id")
    if isinstance(text, str) and text.startswith("docker:"):
        needs.image = None if log.local else text.removeprefix("docker:")
        log.came_from(image.line_of("image_id"), "image")
    elif text is not None:
        image.note("image_id", KeyAction.DROPPED, "images of machines are those of the pool")
    cpus, memory = holder("cpus"), holder("memory")
    cores = _at_least(cpus, "cpus", "4 or 4+")
    amount = _at_least(memory, "memory", "32 or 32+, in GB")
    if not log.local:
        needs.cpus = None if cores is None else math.ceil(cores)
        needs.memory = None if amount is None else math.ceil(amount * 2**30)


def _at_least(at: ForeignReader, key: str, example: str) -> float | None:
    value = at.value(key)
    if value is None:
        return None
    match = re.fullmatch(r"([0-9]{1,6}(\.[0-9]{1,3})?)\s*(GB|GiB)?\+?", str(value))
    if match is None or isinstance(value, bool) or not float(match[1]):
        at.refuse(key, f"must be {example}", value)
        return None
    return float(match[1])


def _accelerator(at: ForeignReader) -> tuple[str | None, int]:
    """The type of accelerator and the number of them on each node; of several the first."""
    value = at.value("accelerators")
    if value is None:
        return None, 0
    if isinstance(value, str) and value.startswith("{"):
        value = [one.strip(" '\"") for one in value.strip("{}").split(",")]
    if isinstance(value, dict):
        value = [name if count is None else f"{name}:{count}" for name, count in value.items()]
    many = value if isinstance(value, list) else [value]
    if not many or not all(isinstance(one, str) for one in many):
        at.refuse("accelerators", "must be TYPE:COUNT, such as H100:8")
        return None, 0
    if len(many) > 1:
        said = f"resources.accelerator: the first of the alternatives counts, {many[0]}"
        at.note("accelerators", KeyAction.DROPPED, said)
    name, _, count = many[0].partition(":")
    if name.lower().startswith("tpu"):
        at.refuse("accelerators", "TPUs are not supported", many[0])
        return None, 0
    whole = re.fullmatch(r"([0-9]{1,4})(\.0)?", count or "1")
    if whole is None or not 1 <= int(whole[1]) <= MAX_SLOTS_PER_NODE or not name:
        at.refuse("accelerators", "must be TYPE:COUNT with a whole number, such as H100:8", many[0])
        return None, 0
    return name, int(whole[1])


def _recovery(base: ForeignReader, chosen: ForeignReader) -> dict[str, Any]:
    """Restarts and labels."""
    at = chosen if chosen.value("job_recovery") is not None else base
    found: dict[str, Any] = {}
    labels = {**base.mapping("labels"), **(chosen.mapping("labels") if chosen is not base else {})}
    kept = {key: one for key, one in labels.items() if as_name(key, "") == key}
    if kept:
        found["labels"] = kept
    if len(kept) < len(labels):
        base.note("labels", KeyAction.DROPPED, "labels of jobs have no slash in their names")
    policy = at.value("job_recovery")
    if not isinstance(policy, dict):
        if policy is not None:
            at.note("job_recovery", KeyAction.DROPPED, "jobs restart by cause: `recovery`")
        return found
    inner = at.at("job_recovery")
    if inner.value("strategy") is not None:
        inner.note("strategy", KeyAction.DROPPED, "jobs restart by cause: `recovery`")
    recovery: dict[str, Any] = {}
    count = inner.whole("max_restarts_on_errors", 0, 10**6)
    if count is not None:
        recovery["rank_crash"] = {"count": count}
        recovery["user_error"] = {"count": count}
    codes = inner.value("recover_on_exit_codes")
    codes = codes if isinstance(codes, list) else [] if codes is None else [codes]
    if all(type(one) is int and 1 <= one <= 255 for one in codes):
        recovery["exit_codes"] = dict.fromkeys(codes, "retry")
    else:
        inner.refuse("recover_on_exit_codes", "must be exit codes from 1 to 255")
    return {**found, "recovery": {key: one for key, one in recovery.items() if one}}
