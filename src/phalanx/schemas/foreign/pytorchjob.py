"""PyTorchJob (kubeflow.org/v1) as a job spec."""

from __future__ import annotations

from typing import Any

from phalanx.schemas.foreign.commands import read_words
from phalanx.schemas.foreign.gangs import GangSize, gang, head, merged
from phalanx.schemas.foreign.pods import METADATA, POD_TEMPLATE, PodNeeds, read_pod
from phalanx.schemas.foreign.reader import ForeignReader
from phalanx.schemas.foreign.rules import KeyRule, RuleTable, dropped, mapped, refused, under
from phalanx.schemas.spec.fields import MAX_NODES

TOOL = "PyTorchJob"
_MOST = 100_000
_RULES: tuple[KeyRule, ...] = (
    *mapped("the format", "apiVersion", "kind"),
    *METADATA,
    *mapped("resources.slots_per_node", "spec.nprocPerNode", "spec.elasticPolicy.nProcPerNode"),
    *mapped("resources.nodes", "spec.pytorchReplicaSpecs.*.replicas"),
    *mapped("recovery", "spec.pytorchReplicaSpecs.*.restartPolicy"),
    *under("spec.pytorchReplicaSpecs.*.template", POD_TEMPLATE),
    *mapped("recovery.rank_crash.count", "spec.runPolicy.backoffLimit"),
    *mapped("recovery.rank_crash.count", "spec.elasticPolicy.maxRestarts"),
    *mapped("max_duration", "spec.runPolicy.activeDeadlineSeconds"),
    *mapped("resources.nodes", "spec.elasticPolicy.minReplicas", "spec.elasticPolicy.maxReplicas"),
    *dropped("Phalanx connects the ranks itself", "spec.elasticPolicy.rdzvBackend"),
    *dropped("Phalanx connects the ranks itself", "spec.elasticPolicy.rdzvConf"),
    *dropped("Phalanx connects the ranks itself", "spec.elasticPolicy.rdzvHost"),
    *dropped("Phalanx connects the ranks itself", "spec.elasticPolicy.rdzvId"),
    *dropped("Phalanx connects the ranks itself", "spec.elasticPolicy.rdzvPort"),
    *dropped("Phalanx connects the ranks itself", "spec.elasticPolicy.standalone"),
    *dropped("an elastic job grows with free slots, not by metrics", "spec.elasticPolicy.metrics"),
    *dropped("processes of an ended job never stay", "spec.runPolicy.cleanPodPolicy"),
    *dropped("retention is that of the home", "spec.runPolicy.ttlSecondsAfterFinished"),
    *dropped("the job is run by Phalanx", "spec.runPolicy.managedBy"),
    *dropped(
        "a gang always starts as a whole",
        "spec.runPolicy.schedulingPolicy.minAvailable",
        "spec.runPolicy.schedulingPolicy.minResources",
        "spec.runPolicy.schedulingPolicy.scheduleTimeoutSeconds",
    ),
    *dropped(
        "write `project:` and `priority:` of Phalanx",
        "spec.runPolicy.schedulingPolicy.queue",
        "spec.runPolicy.schedulingPolicy.priorityClass",
    ),
    *refused("a job cannot be submitted paused; use `phalanx pause`", "spec.runPolicy.suspend"),
)
TABLE = RuleTable(_RULES)


def convert_pytorchjob(document: ForeignReader) -> dict[str, Any]:
    """The spec of a PyTorchJob. Problems go to the log of the reader."""
    log, body = document.log, document.at("spec")
    spec = head(document)
    replicas = body.at("pytorchReplicaSpecs")
    roles = [(kind, replicas.at(kind)) for kind in replicas.mapping_keys()]
    for kind, role in roles:
        if kind.lower() not in ("master", "worker"):
            log.refuse(role.line, role.shown, "must be Master or Worker")
    roles = [(kind, role) for kind, role in roles if kind.lower() in ("master", "worker")]
    roles.sort(key=lambda one: one[0].lower())
    if not roles:
        body.refuse("pytorchReplicaSpecs", "is required: Master, Worker or both")
        return spec
    found = [(role, read_pod(role.at("template"), "pytorch")) for _, role in roles]
    needs = _one_template(found)
    counts = {kind.lower(): _replicas(kind, role) for kind, role in roles}
    size = _size(body, roles[-1][1], counts)
    container = roles[0][1].at("template").at("spec").line_of("containers")
    log.came_from(container, "run", "setup", "env")
    plan = read_words(needs.words, needs.env)
    plan.restarts = plan.restarts if body.value("elasticPolicy") is None else None
    return merged(merged(spec, gang(size, plan, needs, log)), _policy(body, roles[-1][1]))


def _one_template(found: list[tuple[ForeignReader, PodNeeds]]) -> PodNeeds:
    """The needs of all pods; unequal templates are refused."""
    (_, first), *others = found
    for role, needs in others:
        unequal = first.differences(needs)
        if unequal:
            said = (
                f"differs from the template of the Master in {', '.join(unequal)}: one gang has one "
                "template; make both equal, or submit a job spec with `roles:` where the parts are no "
                "single torch world"
            )
            role.refuse("template", said)
    return first


def _replicas(kind: str, role: ForeignReader) -> int:
    count = role.whole("replicas", 0, _MOST)
    count = 1 if count is None else count
    if kind.lower() == "master" and count != 1:
        role.refuse("replicas", "must be 1 for a Master", count)
    return count


def _size(body: ForeignReader, last: ForeignReader, counts: dict[str, int]) -> GangSize:
    nodes, line = sum(counts.values()), last.line_of("replicas")
    if nodes < 1:
        last.refuse("replicas", "must be at least 1", nodes)
    policy = body.at("elasticPolicy")
    elastic = None
    if policy.data():
        low = policy.whole("minReplicas", 1, MAX_NODES)
        high = policy.whole("maxReplicas", 1, MAX_NODES)
        workers = max(counts.get("worker", 0), 1)
        masters = counts.get("master", 0)
        elastic = (masters + (low or workers), masters + (high or workers))
        if elastic[0] > elastic[1]:
            policy.refuse("maxReplicas", f"must be at least minReplicas, {low}", high)
            elastic = None
        elif elastic[0] == elastic[1]:
            elastic = None
    ranks = None
    word = body.value("nprocPerNode")
    if word in ("auto", "gpu", None):
        ranks = 0
    elif word == "cpu":
        body.refuse("nprocPerNode", "a process for each CPU is not supported; write a number")
    else:
        ranks = body.whole("nprocPerNode", 1, 4096)
    own = policy.whole("nProcPerNode", 1, 4096)
    return GangSize(line, max(nodes, 1), elastic, ranks if own is None else own)


def _policy(body: ForeignReader, role: ForeignReader) -> dict[str, Any]:
    """Restarts and limits of time."""
    run = body.at("runPolicy")
    count = run.whole("backoffLimit", 0, 10**9)
    own = body.at("elasticPolicy").whole("maxRestarts", 0, 10**9)
    count = own if count is None else count
    recovery: dict[str, Any] = {} if count is None else {"rank_crash": {"count": count}}
    policy = role.text("restartPolicy")
    if policy == "Never":
        recovery = {"rank_crash": {"count": 0}, "user_error": {"count": 0}}
    elif policy == "ExitCode":
        codes = {code: "fail" if code < 128 else "retry" for code in range(1, 256)}
        recovery["exit_codes"] = codes
    elif policy not in (None, "OnFailure", "Always"):
        role.refuse("restartPolicy", "must be Always, OnFailure, ExitCode or Never", policy)
    found: dict[str, Any] = {"recovery": recovery} if recovery else {}
    limit = run.whole("activeDeadlineSeconds", 1, 10**9)
    if limit is not None:
        found["max_duration"] = f"{limit}s"
    return found
