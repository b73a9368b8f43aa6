"""JobSet (jobset.x-k8s.io/v1alpha2) with one replicated job, and Job (batch/v1), as job specs."""

from __future__ import annotations

from typing import Any

from phalanx.schemas.foreign.commands import read_words
from phalanx.schemas.foreign.gangs import GangSize, gang, head, merged
from phalanx.schemas.foreign.kubernetes.pods import METADATA, POD_TEMPLATE, read_pod
from phalanx.schemas.foreign.reader import ForeignReader
from phalanx.schemas.foreign.rules import KeyRule, RuleTable, dropped, mapped, refused, under
from phalanx.schemas.spec.fields import MAX_NODES

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
    *dropped("names of pods are those of Phalanx", "replicatedJobs.*.name"),
    *mapped("resources.nodes", "replicatedJobs.*.replicas"),
    *under("replicatedJobs.*.template", JOB),
    *dropped("a gang starts as a whole", "startupPolicy"),
    *dropped("a gang with one role succeeds as a whole", "successPolicy"),
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
    if len(jobs) != 1:
        said = (
            f"has {len(jobs)} replicated jobs: only one is supported; where they are no single torch "
            "world, submit a job spec with `roles:`"
        )
        body.refuse("replicatedJobs", said)
        return spec
    inner = jobs[0].at("template").at("spec")
    replicas = jobs[0].whole("replicas", 1, MAX_NODES)
    found = merged(spec, _gang(inner, replicas or 1, jobs[0].line_of("replicas")))
    restarts = body.at("failurePolicy").whole("maxRestarts", 0, 10**9)
    if restarts is not None:
        found = merged(found, {"recovery": {"rank_crash": {"count": restarts}}})
    return found


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
    pods = inner.whole("parallelism", 1, MAX_NODES)
    ends = inner.whole("completions", 1, MAX_NODES)
    if ends is not None and ends != (1 if pods is None else pods):
        inner.refuse("completions", "must be as many as `parallelism`: all ranks run at once", ends)
    needs = read_pod(inner.at("template"), None)
    containers = inner.at("template").at("spec").line_of("containers")
    log.came_from(containers, "run", "setup", "env")
    line = inner.line_of("parallelism") if pods is not None else line
    size = GangSize(line, replicas * (pods or 1))
    found = gang(size, read_words(needs.words, needs.env), needs, log)
    limit = inner.whole("activeDeadlineSeconds", 1, 10**9)
    return found if limit is None else {**found, "max_duration": f"{limit}s"}
