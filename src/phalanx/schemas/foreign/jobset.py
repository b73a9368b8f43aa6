"""JobSet (jobset.x-k8s.io/v1alpha2) with one replicated job, as a job spec."""

from __future__ import annotations

from typing import Any

from phalanx.schemas.foreign.commands import read_words
from phalanx.schemas.foreign.gangs import GangSize, gang, head, merged
from phalanx.schemas.foreign.pods import METADATA, POD_TEMPLATE, read_pod
from phalanx.schemas.foreign.reader import ForeignReader
from phalanx.schemas.foreign.rules import KeyRule, RuleTable, dropped, mapped, refused, under
from phalanx.schemas.spec.fields import MAX_NODES

TOOL = "JobSet"
_JOB: tuple[KeyRule, ...] = (
    *dropped("names of pods are those of Phalanx", "metadata"),
    *mapped("resources.nodes", "spec.parallelism", "spec.completions"),
    *dropped("all pods of a gang have a number", "spec.completionMode"),
    *mapped("max_duration", "spec.activeDeadlineSeconds"),
    *dropped("restarts are those of the JobSet", "spec.backoffLimit", "spec.backoffLimitPerIndex"),
    *dropped("restarts are those of the JobSet", "spec.maxFailedIndexes"),
    *dropped("the job is run by Phalanx", "spec.managedBy", "spec.manualSelector", "spec.selector"),
    *dropped("pods are never replaced alone", "spec.podReplacementPolicy"),
    *dropped("retention is that of the home", "spec.ttlSecondsAfterFinished"),
    *refused("write `recovery.exit_codes` in a job spec", "spec.podFailurePolicy"),
    *refused("a job succeeds when all ranks have", "spec.successPolicy"),
    *refused("a job cannot be submitted paused; use `phalanx pause`", "spec.suspend"),
    *under("spec.template", POD_TEMPLATE),
)
_RULES: tuple[KeyRule, ...] = (
    *mapped("the format", "apiVersion", "kind"),
    *METADATA,
    *dropped("Phalanx knows the address of each rank", "spec.coordinator", "spec.network"),
    *mapped("recovery.rank_crash.count", "spec.failurePolicy.maxRestarts"),
    *dropped("all ranks restart together", "spec.failurePolicy.restartStrategy"),
    *refused("write `recovery` in a job spec: budgets by cause", "spec.failurePolicy.rules"),
    *dropped("the job is run by Phalanx", "spec.managedBy"),
    *refused("write `depends_on` in a job spec", "spec.replicatedJobs.*.dependsOn"),
    *dropped("names of pods are those of Phalanx", "spec.replicatedJobs.*.groupName"),
    *dropped("names of pods are those of Phalanx", "spec.replicatedJobs.*.name"),
    *mapped("resources.nodes", "spec.replicatedJobs.*.replicas"),
    *under("spec.replicatedJobs.*.template", _JOB),
    *dropped("a gang starts as a whole", "spec.startupPolicy"),
    *dropped("a gang with one role succeeds as a whole", "spec.successPolicy"),
    *refused("a job cannot be submitted paused; use `phalanx pause`", "spec.suspend"),
    *dropped("retention is that of the home", "spec.ttlSecondsAfterFinished"),
    *refused("claims are not made here", "spec.volumeClaimPolicies", of_image=True),
)
TABLE = RuleTable(_RULES)


def convert_jobset(document: ForeignReader) -> dict[str, Any]:
    """The spec of a JobSet. Problems go to the log of the reader."""
    log, body = document.log, document.at("spec")
    spec = head(document)
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
    pods = inner.whole("parallelism", 1, MAX_NODES)
    ends = inner.whole("completions", 1, MAX_NODES)
    if ends is not None and ends != (1 if pods is None else pods):
        inner.refuse("completions", "must be as many as `parallelism`: all ranks run at once", ends)
    needs = read_pod(inner.at("template"), None)
    containers = inner.at("template").at("spec").line_of("containers")
    log.came_from(containers, "run", "setup", "env")
    line = inner.line_of("parallelism") if pods is not None else jobs[0].line_of("replicas")
    size = GangSize(line, (replicas or 1) * (pods or 1))
    found = merged(spec, gang(size, read_words(needs.words, needs.env), needs, log))
    restarts = body.at("failurePolicy").whole("maxRestarts", 0, 10**9)
    if restarts is not None:
        found = merged(found, {"recovery": {"rank_crash": {"count": restarts}}})
    limit = inner.whole("activeDeadlineSeconds", 1, 10**9)
    return found if limit is None else {**found, "max_duration": f"{limit}s"}
