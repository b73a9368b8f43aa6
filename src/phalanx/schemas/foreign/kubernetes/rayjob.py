"""RayJob and RayCluster (ray.io) as job specs: the gang's nodes are a Ray cluster."""

from __future__ import annotations

import re
from typing import Any

from phalanx.errors import SpecInvalid
from phalanx.schemas.foreign.commands import CommandPlan
from phalanx.schemas.foreign.documents import read_documents
from phalanx.schemas.foreign.gangs import GangSize, gang, head, merged
from phalanx.schemas.foreign.kubernetes.pods import METADATA, POD_TEMPLATE, read_pod
from phalanx.schemas.foreign.needs import PodNeeds
from phalanx.schemas.foreign.reader import ForeignReader
from phalanx.schemas.foreign.rules import (
    PROGRAM,
    ConversionLog,
    KeyAction,
    KeyRule,
    RuleTable,
    dropped,
    mapped,
    refused,
    under,
)
from phalanx.schemas.foreign.unequal import RolePods, are_alike, shared_world
from phalanx.schemas.spec.fields import MAX_NODES
from phalanx.schemas.spec.foreign_studies.reading import as_name

RAYJOB, RAYCLUSTER = "RayJob", "RayCluster"
_HAS_ITS_OWN = "Phalanx starts the Ray cluster of the job itself"
_GROUP: tuple[KeyRule, ...] = (
    *refused("Ray nodes of a job have no resources of their own names", "rayStartParams.resources"),
    *dropped(_HAS_ITS_OWN, "rayStartParams", "labels"),
    *refused("Ray nodes have the slots of their nodes: write limits of the pod", "resources"),
    *under("template", POD_TEMPLATE),
)
_CLUSTER: tuple[KeyRule, ...] = (
    *under("headGroupSpec", _GROUP),
    *dropped(_HAS_ITS_OWN, "headGroupSpec.enableIngress", "headGroupSpec.headService"),
    *dropped(_HAS_ITS_OWN, "headGroupSpec.ingressOptions", "headGroupSpec.serviceType"),
    *under("workerGroupSpecs.*", _GROUP),
    *mapped("resources.nodes", "workerGroupSpecs.*.replicas", "workerGroupSpecs.*.minReplicas"),
    *mapped("resources.nodes", "workerGroupSpecs.*.maxReplicas", "workerGroupSpecs.*.numOfHosts"),
    *dropped("groups have no names here", "workerGroupSpecs.*.groupName"),
    *dropped("a gang starts as a whole", "workerGroupSpecs.*.scaleStrategy"),
    *dropped("a gang starts as a whole", "workerGroupSpecs.*.idleTimeoutSeconds"),
    *dropped("a gang starts as a whole", "workerGroupSpecs.*.priority"),
    *refused("a job cannot be submitted paused; use `phalanx pause`", "workerGroupSpecs.*.suspend"),
    *refused("a job cannot be submitted paused; use `phalanx pause`", "suspend"),
    *mapped("resources.nodes", "enableInTreeAutoscaling"),
    *dropped("a job grows with free slots", "autoscalerOptions"),
    *dropped("a job is started again from its checkpoints", "gcsFaultToleranceOptions"),
    *dropped(_HAS_ITS_OWN, "headServiceAnnotations", "rayVersion", "upgradeStrategy"),
    *dropped("logs and metrics are stored with the job", "historyServerOptions"),
    *dropped("the job is run by Phalanx", "managedBy"),
    *dropped("the connections of a gang are those of its pool", "authOptions", "tlsOptions"),
    *dropped("the connections of a gang are those of its pool", "networkPolicy"),
)
RAYCLUSTER_TABLE = RuleTable(
    (*mapped("the format", "apiVersion", "kind"), *METADATA, *under("spec", _CLUSTER))
)
RAYJOB_TABLE = RuleTable(
    (
        *mapped("the format", "apiVersion", "kind"),
        *METADATA,
        *under("spec.rayClusterSpec", _CLUSTER),
        *mapped("run", "spec.entrypoint"),
        *mapped("env, python", "spec.runtimeEnvYAML"),
        *mapped("max_duration", "spec.activeDeadlineSeconds"),
        *mapped("recovery.rank_crash.count", "spec.backoffLimit"),
        *refused(
            "a cluster that exists is a pool with `executor: ray`; leave this out, and write `pool:`",
            "spec.clusterSelector",
        ),
        *dropped("processes of an ended job never stay", "spec.shutdownAfterJobFinishes"),
        *dropped("processes of an ended job never stay", "spec.deletionStrategy"),
        *dropped("retention is that of the home", "spec.ttlSecondsAfterFinished"),
        *dropped("the entry point runs on the first node", "spec.entrypointNumCpus"),
        *dropped("the entry point runs on the first node", "spec.entrypointNumGpus"),
        *refused(
            "Ray nodes of a job have no resources of their own names", "spec.entrypointResources"
        ),
        *dropped("jobs have numbers of Phalanx", "spec.jobId"),
        *dropped("write labels of the object", "spec.metadata"),
        *dropped("the job is run by Phalanx", "spec.managedBy", "spec.submitterConfig"),
        *dropped("the job is run by Phalanx", "spec.submitterPodTemplate"),
        *dropped("waiting has its own limits", "spec.preRunningDeadlineSeconds"),
        *mapped("run", "spec.submissionMode"),
        *refused("a job cannot be submitted paused; use `phalanx pause`", "spec.suspend"),
    )
)
_ELSEWHERE = "the code of a job is the folder of its file: get the code there, and use --local"
_RUNTIME_KEYS = (
    ("py_modules", _ELSEWHERE),
    ("conda", "environments of conda are not made here; list packages under `pip`"),
    ("container", "write the image of the containers"),
    ("image_uri", "write the image of the containers"),
    ("java_jars", "not supported"),
    ("py_executable", "not supported"),
    ("worker_process_setup_hook", "not supported"),
    ("nsight", "use `phalanx profile`"),
    ("_nsight", "use `phalanx profile`"),
)


def convert_rayjob(document: ForeignReader) -> dict[str, Any]:
    """The spec of a RayJob. Problems go to the log of the reader."""
    log, body = document.log, document.at("spec")
    entry = body.text("entrypoint")
    if entry is None:
        body.refuse("entrypoint", "is required: the command that uses the cluster")
    mode = body.value("submissionMode")
    if mode == "InteractiveMode":
        body.refuse("submissionMode", "has no command; write `entrypoint`", mode)
    log.came_from(body.line_of("entrypoint"), "run")
    cluster = body.at("rayClusterSpec")
    if not cluster.data():
        body.refuse("rayClusterSpec", "is required: the nodes of the job")
    spec = merged(head(document), _cluster(cluster, entry or "true"))
    spec = merged(spec, _runtime(body))
    retries = body.whole("backoffLimit", 0, 10**9)
    if retries is not None:
        spec["recovery"] = {"rank_crash": {"count": retries}}
    limit = body.whole("activeDeadlineSeconds", 1, 10**9)
    return spec if limit is None else {**spec, "max_duration": f"{limit}s"}


def convert_raycluster(document: ForeignReader) -> dict[str, Any]:
    """The spec of a RayCluster with the program that `--set PROGRAM=…` gives. Problems go to the log."""
    log, body = document.log, document.at("spec")
    program = log.given(PROGRAM)
    if program is None:
        said = f"is a cluster without a program; add --set {PROGRAM}='python train.py'"
        log.refuse(body.line, "spec", said)
    return merged(head(document), _cluster(body, program or "true"))


def _cluster(cluster: ForeignReader, entry: str) -> dict[str, Any]:
    log = cluster.log
    first = read_pod(cluster.at("headGroupSpec").at("template"), None, starts=False)
    leader = cluster.at("headGroupSpec")
    if first.gpus:
        said = "a head with GPUs is a node with other work than the workers; give it none"
        leader.refuse("template", said)
    for container in leader.at("template").at("spec").entries("containers"):
        if container.value("resources") is not None:
            said = "the head runs on the first node of the gang"
            container.note("resources", KeyAction.DROPPED, said)
    parts = _workers(cluster, cluster.entries("workerGroupSpecs"), entry)
    for needs in [one.needs for one in parts]:
        needs.env = {**first.env, **needs.env}
        needs.secrets = sorted({*first.secrets, *needs.secrets})
        needs.mounts = list(dict.fromkeys([*needs.mounts, *first.mounts]))
    if len(parts) > 1:
        found = shared_world(parts, log)
        for part in parts:
            _slots_of_ray(found["roles"][part.name]["resources"], part.needs, log)
        return found
    needs, size = first, GangSize(leader.line, 1)
    if parts:
        needs, size = parts[0].needs, parts[0].size
    found = gang(size, CommandPlan(entry, framework="ray"), needs, log)
    _slots_of_ray(found["resources"], needs, log)
    return found


def _slots_of_ray(resources: dict[str, Any], needs: PodNeeds, log: ConversionLog) -> None:
    """Ray divides the GPUs of a node itself."""
    if not log.local and needs.gpus:
        resources["slots_per_rank"] = 1


def _workers(cluster: ForeignReader, groups: list[ForeignReader], entry: str) -> list[RolePods]:
    """The workers of each group; groups that are alike are one."""
    if not groups:
        return []
    found = [read_pod(one.at("template"), None, starts=False) for one in groups]
    for group, other in zip(groups[1:], found[1:], strict=True):
        if _limits(groups[0]) != _limits(group) and not found[0].differences(other):
            said = "differs from the first group in resources that are not read; make both equal"
            group.log.refuse(group.line, group.shown, said)
    if are_alike(found):
        plan = CommandPlan(entry, framework="ray")
        return [RolePods("worker", groups[0], found[0], plan, _group_size(cluster, groups))]
    parts = []
    for number, (group, needs) in enumerate(zip(groups, found, strict=True)):
        if group.value("replicas") == 0 and not group.value("minReplicas"):
            continue
        size = _group_size(cluster, [group])
        if size.elastic is not None:
            said = "the nodes of an elastic gang are alike; leave out minReplicas and maxReplicas"
            group.log.refuse(group.line, group.shown, said)
        name = as_name(group.text("groupName") or "", f"group-{number}")
        plan = CommandPlan(entry, framework="ray")
        group.note("groupName", KeyAction.MAPPED, f"roles.{name}")
        parts.append(RolePods(name, group, needs, plan, GangSize(size.line, size.nodes)))
    names = [one.name for one in parts]
    for part in parts:
        if names.count(part.name) > 1:
            part.reader.refuse("groupName", "must be a name that no other group has", part.name)
    return parts


def _group_size(cluster: ForeignReader, groups: list[ForeignReader]) -> GangSize:
    """The number of workers in groups that are alike, and its range where the cluster may grow."""
    grows = cluster.value("enableInTreeAutoscaling") is True
    low = high = count = 0
    for group in groups:
        hosts = group.whole("numOfHosts", 1, 4096)
        if hosts not in (None, 1):
            group.refuse("numOfHosts", "must be 1: one worker is one node", hosts)
        replicas = group.whole("replicas", 0, MAX_NODES)
        least = group.whole("minReplicas", 0, MAX_NODES) or 0
        most = group.whole("maxReplicas", 0, 2**31 - 1)
        replicas = max(replicas or 0, least)
        count, low = count + replicas, low + least
        high += min(replicas if most is None else most, MAX_NODES)
        if not grows:
            for key in ("minReplicas", "maxReplicas"):
                if group.value(key) is not None:
                    group.note(
                        key, KeyAction.DROPPED, "the cluster has no autoscaler: a fixed size"
                    )
    line = groups[0].line_of("replicas")
    if not 1 <= count <= MAX_NODES:
        groups[0].refuse("replicas", f"must be from 1 to {MAX_NODES} in all groups", count)
        count = 1
    low, high = max(low, 1), min(max(high, count), MAX_NODES)
    elastic = (low, high) if grows and low < high else None
    return GangSize(line, count, elastic)


def _limits(group: ForeignReader) -> list[Any]:
    """Resources of the containers as they are written."""
    containers = group.at("template").at("spec").entries("containers")
    return [] if group.log.local else [one.value("resources") for one in containers]


def _runtime(body: ForeignReader) -> dict[str, Any]:
    """Variables and packages of `runtimeEnvYAML`, a text of YAML in the document."""
    text, log = body.text("runtimeEnvYAML"), body.log
    if text is None:
        return {}
    start = body.line_of("runtimeEnvYAML")
    try:
        documents = read_documents(text, "runtimeEnvYAML")
    except SpecInvalid as error:
        for one in error.problems:
            log.refuse(start, f"spec.{one.path}", one.message)
        return {}
    if not documents:
        return {}
    runtime = ForeignReader(documents[0], log.moved(start, "spec.runtimeEnvYAML"))
    known = {"env_vars", "pip", "uv", "working_dir", "excludes", "config"}
    reasons = dict(_RUNTIME_KEYS)
    for key in runtime.data():
        if key not in known:
            runtime.refuse(key, reasons.get(key, "unknown key; it is not read"))
    for key in ("excludes", "config"):
        if runtime.value(key) is not None:
            runtime.note(key, KeyAction.DROPPED, "has no effect here")
    _working_dir(runtime)
    env = {}
    for name, value in runtime.mapping("env_vars").items():
        if isinstance(value, str | int | float) and not isinstance(value, bool):
            env[name] = str(value)
        else:
            runtime.at("env_vars").refuse(name, "must be text; put it in quotes")
    if env:
        runtime.note("env_vars", KeyAction.MAPPED, "env")
    return {"env": env, "python": _packages(runtime)}


def _working_dir(runtime: ForeignReader) -> None:
    """The folder of the code is that of the file; another place is refused."""
    where = runtime.value("working_dir")
    if where is None or where in (".", "./"):
        return
    if runtime.log.local:
        said = "left out by --local: the code is the folder of the file"
        runtime.note("working_dir", KeyAction.DROPPED, said)
    else:
        runtime.refuse("working_dir", _ELSEWHERE, where)


def _packages(runtime: ForeignReader) -> dict[str, Any]:
    """The section `python` for `pip` or `uv`: a list of requirements, or a requirements file."""
    for key in ("pip", "uv"):
        given = runtime.value(key)
        if given is None:
            continue
        if isinstance(given, dict):
            for other in given:
                if other != "packages":
                    said = "has no effect: packages are installed by the rules of `python`"
                    runtime.at(key).note(other, KeyAction.DROPPED, said)
            given = given.get("packages")
        runtime.note(key, KeyAction.MAPPED, "python")
        if isinstance(given, str) and re.fullmatch(r"[\w./-]+", given):
            return {"requirements": given.removeprefix("./")}
        if isinstance(given, list) and all(isinstance(one, str) for one in given):
            return {"packages": given}
        runtime.refuse(key, "must be a list of requirements, or a file of them")
    return {}
