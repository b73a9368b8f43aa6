"""PyTorchJob (kubeflow.org/v1) as a job spec."""

from __future__ import annotations

from typing import Any

from phalanx.schemas.foreign.commands import read_words
from phalanx.schemas.foreign.gangs import GangSize, gang, head, merged
from phalanx.schemas.foreign.kubernetes.pods import METADATA, read_pod
from phalanx.schemas.foreign.kubernetes.training_operator import (
    RUN_POLICY,
    read_replicas,
    read_roles,
    replica_rules,
    run_policy,
)
from phalanx.schemas.foreign.needs import one_template
from phalanx.schemas.foreign.reader import ForeignReader
from phalanx.schemas.foreign.rules import KeyRule, RuleTable, dropped, mapped
from phalanx.schemas.foreign.unequal import RolePods, are_alike, shared_world
from phalanx.schemas.spec.fields import MAX_NODES

TOOL = "PyTorchJob"
_RULES: tuple[KeyRule, ...] = (
    *mapped("the format", "apiVersion", "kind"),
    *METADATA,
    *mapped("resources.slots_per_node", "spec.nprocPerNode", "spec.elasticPolicy.nProcPerNode"),
    *replica_rules("pytorchReplicaSpecs"),
    *mapped("recovery.rank_crash.count", "spec.elasticPolicy.maxRestarts"),
    *mapped("resources.nodes", "spec.elasticPolicy.minReplicas", "spec.elasticPolicy.maxReplicas"),
    *dropped("Phalanx connects the ranks itself", "spec.elasticPolicy.rdzvBackend"),
    *dropped("Phalanx connects the ranks itself", "spec.elasticPolicy.rdzvConf"),
    *dropped("Phalanx connects the ranks itself", "spec.elasticPolicy.rdzvHost"),
    *dropped("Phalanx connects the ranks itself", "spec.elasticPolicy.rdzvId"),
    *dropped("Phalanx connects the ranks itself", "spec.elasticPolicy.rdzvPort"),
    *dropped("Phalanx connects the ranks itself", "spec.elasticPolicy.standalone"),
    *dropped("an elastic job grows with free slots, not by metrics", "spec.elasticPolicy.metrics"),
    *RUN_POLICY,
)
TABLE = RuleTable(_RULES)


def convert_pytorchjob(document: ForeignReader) -> dict[str, Any]:
    """The spec of a PyTorchJob. Problems go to the log of the reader."""
    log, body = document.log, document.at("spec")
    spec = head(document)
    roles = read_roles(body, "pytorchReplicaSpecs", {"master": "", "worker": ""})
    if not roles:
        body.refuse("pytorchReplicaSpecs", "is required: Master, Worker or both")
        return spec
    found = [(role, read_pod(role.at("template"), "pytorch")) for _, role in roles]
    counts = {kind: read_replicas(role, 1 if kind == "master" else None) for kind, role in roles}
    size = _size(body, roles[-1][1], counts)
    parts = [
        RolePods(
            kind,
            role,
            needs,
            read_words(needs.words, needs.env),
            GangSize(role.line_of("replicas"), counts[kind], None, size.ranks),
        )
        for (kind, role), (_, needs) in zip(roles, found, strict=True)
        if counts[kind]
    ]
    elastic = body.value("elasticPolicy") is not None
    ranges = any(one.plan.nodes and one.plan.nodes[0] < one.plan.nodes[1] for one in parts)
    # The nodes of an elastic gang are alike: they get the larger amounts.
    if not (elastic or ranges) and not are_alike([one.needs for one in parts]):
        return merged(merged(spec, shared_world(parts, log)), run_policy(body, roles[-1][1]))
    needs = one_template(found)
    container = roles[0][1].at("template").at("spec").line_of("containers")
    log.came_from(container, "run", "setup", "env")
    plan = read_words(needs.words, needs.env)
    plan.restarts = None if elastic else plan.restarts
    return merged(merged(spec, gang(size, plan, needs, log)), run_policy(body, roles[-1][1]))


def elastic_nodes(masters: int, workers: int, low: int | None, high: int | None) -> tuple[int, int]:
    """The least and the most nodes of an elastic gang; a limit that is absent is the number of workers."""
    some = max(workers, 1)
    return masters + (low or some), masters + (high or some)


def _size(body: ForeignReader, last: ForeignReader, counts: dict[str, int]) -> GangSize:
    nodes, line = sum(counts.values()), last.line_of("replicas")
    if nodes < 1:
        last.refuse("replicas", "must be at least 1", nodes)
    policy = body.at("elasticPolicy")
    elastic = None
    if policy.data():
        low = policy.whole("minReplicas", 1, MAX_NODES)
        high = policy.whole("maxReplicas", 1, MAX_NODES)
        elastic = elastic_nodes(counts.get("master", 0), counts.get("worker", 0), low, high)
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
