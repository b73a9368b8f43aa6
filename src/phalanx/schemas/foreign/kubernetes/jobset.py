"""JobSet (jobset.x-k8s.io/v1alpha2) and Job (batch/v1) as job specs.

One replicated job is a gang; several are the roles of one.
"""

from __future__ import annotations

from typing import Any

from phalanx.schemas.foreign.commands import read_words
from phalanx.schemas.foreign.gangs import GangSize, gang, head, merged
from phalanx.schemas.foreign.kubernetes.pods import METADATA, POD_TEMPLATE, read_pod
from phalanx.schemas.foreign.reader import ForeignReader
from phalanx.schemas.foreign.rules import (
    KeyAction,
    KeyRule,
    RuleTable,
    dropped,
    mapped,
    refused,
    under,
)
from phalanx.schemas.foreign.unequal import RolePods, shared_world
from phalanx.schemas.spec.fields import MAX_NODES
from phalanx.schemas.spec.foreign_studies.reading import as_name

TOOL = "JobSet"
JOB_SPEC: tuple[KeyRule, ...] = (
    *mapped("resources.nodes", "parallelism", "completions"),
    *dropped("all pods of a gang have a number", "completionMode"),
    *mapped("max_duration", "activeDeadlineSeconds"),
    *mapped("recovery.rank_crash.count", "backoffLimit"),
    *dropped("restarts are those of the whole job", "backoffLimitPerIndex", "maxFailedIndexes"),
    *dropped("the job is run by Phalanx", "managedBy", "manualSelector", "selector"),
    *dropped("pods are never replaced alone", "podReplacementPolicy"),
    *dropped("retention is that of the home", "ttlSecondsAfterFinished"),
    *refused("write `recovery.exit_codes` in a job spec", "podFailurePolicy"),
    *refused("a job succeeds when all ranks have", "successPolicy"),
    *refused("a job cannot be submitted paused; use `phalanx pause`", "suspend"),
    *under("template", POD_TEMPLATE),
)
"""Rules of the spec of a Job of the batch API."""
_OF_SET = "restarts are those of the JobSet"
JOB: tuple[KeyRule, ...] = (
    *dropped("names of pods are those of Phalanx", "metadata"),
    *under("spec", tuple(one for one in JOB_SPEC if one.path != "backoffLimit")),
    *dropped(_OF_SET, "spec.backoffLimit"),
)
"""Rules of the template of a replicated job."""
JOBSET_SPEC: tuple[KeyRule, ...] = (
    *dropped("Phalanx knows the address of each rank", "coordinator", "network"),
    *mapped("recovery.rank_crash.count", "failurePolicy.maxRestarts"),
    *dropped("all ranks restart together", "failurePolicy.restartStrategy"),
    *refused("write `recovery` in a job spec: budgets by cause", "failurePolicy.rules"),
    *dropped("the job is run by Phalanx", "managedBy"),
    *dropped("a gang starts as a whole", "replicatedJobs.*.dependsOn"),
    *dropped("names of pods are those of Phalanx", "replicatedJobs.*.groupName"),
    *mapped("roles", "replicatedJobs.*.name"),
    *mapped("resources.nodes", "replicatedJobs.*.replicas"),
    *under("replicatedJobs.*.template", JOB),
    *dropped("a gang starts as a whole", "startupPolicy"),
    *mapped("roles.*.required", "successPolicy.targetReplicatedJobs"),
    *mapped("all required roles must succeed", "successPolicy.operator"),
    *refused("a job cannot be submitted paused; use `phalanx pause`", "suspend"),
    *dropped("retention is that of the home", "ttlSecondsAfterFinished"),
    *refused("claims are not made here", "volumeClaimPolicies", of_image=True),
)
"""Rules of the spec of a JobSet."""
_RULES: tuple[KeyRule, ...] = (
    *mapped("the format", "apiVersion", "kind"),
    *METADATA,
    *under("spec", JOBSET_SPEC),
)
JOB_TOOL = "Job"
JOB_TABLE = RuleTable(
    (*mapped("the format", "apiVersion", "kind"), *METADATA, *under("spec", JOB_SPEC))
)
TABLE = RuleTable(_RULES)


def convert_jobset(document: ForeignReader) -> dict[str, Any]:
    """The spec of a JobSet. Problems go to the log of the reader."""
    body, spec = document.at("spec"), head(document)
    jobs = body.entries("replicatedJobs")
    if not jobs:
        body.refuse("replicatedJobs", "is required: at least one")
        return spec
    targets = _targets(body, jobs)
    if len(jobs) == 1:
        found = merged(spec, _replicated(jobs[0]))
    else:
        found = merged(spec, _several(body, jobs, targets))
    restarts = body.at("failurePolicy").whole("maxRestarts", 0, 10**9)
    if restarts is not None:
        found = merged(found, {"recovery": {"rank_crash": {"count": restarts}}})
    return found


def _part(job: ForeignReader, number: int) -> RolePods:
    """The pods of one replicated job."""
    inner, replicas = job.at("template").at("spec"), job.whole("replicas", 1, MAX_NODES)
    pods, needs = _pods(inner), read_pod(inner.at("template"), None)
    size = GangSize(job.line_of("replicas"), (replicas or 1) * (pods or 1))
    name = as_name(job.text("name") or "", f"job-{number}")
    return RolePods(name, inner, needs, read_words(needs.words, needs.env), size)


def _replicated(one: ForeignReader) -> dict[str, Any]:
    """The gang of one replicated job."""
    replicas = one.whole("replicas", 1, MAX_NODES)
    return _gang(one.at("template").at("spec"), replicas or 1, one.line_of("replicas"))


def _targets(body: ForeignReader, jobs: list[ForeignReader]) -> set[str]:
    """The names of the replicated jobs that must succeed."""
    policy, names = body.at("successPolicy"), {str(one.value("name")) for one in jobs}
    targets = set(policy.words("targetReplicatedJobs"))
    if unknown := sorted(targets - names):
        said = f"there is no replicated job {unknown[0]}; known: {', '.join(sorted(names))}"
        policy.refuse("targetReplicatedJobs", said)
    operator = policy.text("operator")
    if operator not in (None, "All", "Any"):
        policy.refuse("operator", "must be All or Any", operator)
    if operator == "Any" and len(targets or names) > 1:
        said = "Any is possible with one target only: a job succeeds when all required roles have"
        policy.refuse("operator", said)
    return targets or names


def _several(body: ForeignReader, jobs: list[ForeignReader], targets: set[str]) -> dict[str, Any]:
    """The roles of several replicated jobs: of one world where their launchers say so."""
    parts = [_part(job, number) for number, job in enumerate(jobs)]
    if any(one.needs.tpu for one in parts):
        said = (
            "several replicated jobs with TPU chips among them are not supported: write the slices as one "
            "replicated job, with as many `replicas`"
        )
        body.refuse("replicatedJobs", said)
        return {}
    nodes = sum(one.size.nodes for one in parts)
    # A launcher that counts the nodes of all of them makes them one world.
    if not all(one.plan.launched and one.plan.nodes == (nodes, nodes) for one in parts):
        return _roles(body, jobs, targets)
    for job, part in zip(jobs, parts, strict=True):
        job.note("name", KeyAction.MAPPED, f"roles.{part.name}")
    found = shared_world(parts, body.log)
    return found | _limit([one.reader for one in parts])


def _roles(body: ForeignReader, jobs: list[ForeignReader], targets: set[str]) -> dict[str, Any]:
    """The roles of a job from its replicated jobs, the first one that must succeed leading."""
    if body.log.local:
        body.refuse("replicatedJobs", f"--local runs one role, and there are {len(jobs)}")
        return {}
    ordered = sorted(jobs, key=lambda one: str(one.value("name")) not in targets)
    roles: dict[str, Any] = {}
    shared: dict[str, Any] = {}
    for one in ordered:
        name = as_name(one.text("name") or "", "")
        if not name or name in roles:
            one.refuse("name", "each replicated job needs a name of its own: that of its role")
            continue
        gang_of_role = _replicated(one)
        role = {key: gang_of_role.pop(key) for key in _OF_ROLE if key in gang_of_role}
        role["required"] = None if str(one.value("name")) in targets else False
        roles[name] = {key: value for key, value in role.items() if value not in (None, {}, [])}
        _share(one, shared, gang_of_role, first=one is ordered[0])
        for key in ("run", "resources", "env"):
            body.log.came_from(one.line_of("template"), f"roles.{name}.{key}")
    body.log.came_from(body.line_of("replicatedJobs"), "roles")
    for key in ("image", "mounts"):
        values = [role.get(key) for role in roles.values()]
        if values and values[0] and all(value == values[0] for value in values):
            shared[key] = values[0]
            for role in roles.values():
                del role[key]
    return {**shared, "roles": roles}


_OF_ROLE = ("run", "resources", "env", "framework", "image", "mounts")


def _share(one: ForeignReader, shared: dict[str, Any], own: dict[str, Any], *, first: bool) -> None:
    """Take over what a job has once, from its first role; what another role has otherwise is refused."""
    if first:
        shared.update(own)
        return
    empty: tuple[Any, ...] = (None, [], {})
    unequal = sorted(
        key
        for key in {*shared, *own}
        if shared.get(key) != own.get(key)
        and not (shared.get(key) in empty and own.get(key) in empty)
    )
    if unequal:
        said = f"differs from the first role in {', '.join(unequal)}, which a job has once; make them equal"
        one.refuse("template", said)


def convert_batch_job(document: ForeignReader) -> dict[str, Any]:
    """The spec of a Job of the batch API. Problems go to the log of the reader."""
    body = document.at("spec")
    found = merged(head(document), _gang(body, 1, body.line_of("template")))
    retries = body.whole("backoffLimit", 0, 10**9)
    if retries is not None:
        found["recovery"] = {"rank_crash": {"count": retries}}
    return found


def _gang(inner: ForeignReader, replicas: int, line: int) -> dict[str, Any]:
    """The gang of `replicas` jobs with this spec."""
    log = inner.log
    pods = _pods(inner)
    needs = read_pod(inner.at("template"), None)
    containers = inner.at("template").at("spec").line_of("containers")
    log.came_from(containers, "run", "setup", "env")
    line = inner.line_of("parallelism") if pods is not None else line
    size = GangSize(line, replicas * (pods or 1), slices=replicas)
    found = gang(size, read_words(needs.words, needs.env), needs, log)
    return found | _limit([inner])


def _pods(inner: ForeignReader) -> int | None:
    """The number of pods of a job; None where it does not say."""
    pods = inner.whole("parallelism", 1, MAX_NODES)
    ends = inner.whole("completions", 1, MAX_NODES)
    if ends is not None and ends != (1 if pods is None else pods):
        inner.refuse("completions", "must be as many as `parallelism`: all ranks run at once", ends)
    return pods


def _limit(jobs: list[ForeignReader]) -> dict[str, Any]:
    """The key `max_duration`: the shortest limit of the jobs."""
    limits = [job.whole("activeDeadlineSeconds", 1, 10**9) for job in jobs]
    known = [one for one in limits if one is not None]
    return {"max_duration": f"{min(known)}s"} if known else {}
