"""TFJob and JAXJob (kubeflow.org/v1) as job specs: gangs in which all pods run one command."""

from __future__ import annotations

from typing import Any

from phalanx.schemas.foreign.commands import CommandPlan, read_words
from phalanx.schemas.foreign.gangs import GangSize, gang, head, merged
from phalanx.schemas.foreign.kubernetes.pods import METADATA, read_pod
from phalanx.schemas.foreign.kubernetes.training_operator import (
    RUN_POLICY,
    read_replicas,
    read_roles,
    replica_rules,
    run_policy,
)
from phalanx.schemas.foreign.needs import PodNeeds, one_template
from phalanx.schemas.foreign.reader import ForeignReader
from phalanx.schemas.foreign.rules import RuleTable, dropped, mapped, refused
from phalanx.schemas.foreign.unequal import RolePods, are_alike, shared_world
from phalanx.schemas.spec.fields import MAX_NODES

TFJOB, JAXJOB = "TFJob", "JAXJob"
_FORMAT = (*mapped("the format", "apiVersion", "kind"), *METADATA, *RUN_POLICY)
TFJOB_TABLE = RuleTable(
    (
        *_FORMAT,
        *replica_rules("tfReplicaSpecs"),
        *dropped("a gang succeeds when all ranks have", "spec.successPolicy"),
        *refused(
            "workers that come and go need parameter servers, which are not supported",
            "spec.enableDynamicWorker",
        ),
    )
)
JAXJOB_TABLE = RuleTable((*_FORMAT, *replica_rules("jaxReplicaSpecs")))
_NO_SERVERS = (
    "parameter servers are not supported: the ranks of a job do the same work; use "
    "MultiWorkerMirroredStrategy with workers alone"
)
_NO_EVALUATOR = "evaluators are not supported; submit a job spec with `roles:`"
_TF_ROLES = {
    "chief": "",
    "master": "",
    "worker": "",
    "ps": _NO_SERVERS,
    "evaluator": _NO_EVALUATOR,
}


def convert_tfjob(document: ForeignReader) -> dict[str, Any]:
    """The spec of a TFJob. Problems go to the log of the reader."""
    return _convert(document, "tfReplicaSpecs", _TF_ROLES, "tensorflow")


def convert_jaxjob(document: ForeignReader) -> dict[str, Any]:
    """The spec of a JAXJob. Problems go to the log of the reader."""
    return _convert(document, "jaxReplicaSpecs", {"worker": ""}, "jax")


def _convert(
    document: ForeignReader, key: str, known: dict[str, str], framework: str
) -> dict[str, Any]:
    log, body = document.log, document.at("spec")
    spec = {**head(document), "framework": framework}
    roles = read_roles(body, key, known)
    if not roles:
        if not body.mapping(key):
            body.refuse(key, "is required: the workers")
        return spec
    pods = [(role, read_pod(role.at("template"), framework)) for _, role in roles]
    last = roles[-1][1]
    counts = {name: read_replicas(role, None if name == "worker" else 1) for name, role in roles}
    nodes = sum(counts.values())
    if not 1 <= nodes <= MAX_NODES:
        last.refuse("replicas", f"must be from 1 to {MAX_NODES}", nodes)
    parts = [
        RolePods(
            name,
            role,
            needs,
            _one_process(needs),
            GangSize(role.line_of("replicas"), counts[name]),
        )
        for (name, role), (_, needs) in zip(roles, pods, strict=True)
        if counts[name]
    ]
    if not are_alike([one.needs for one in parts]):
        return merged(merged(spec, shared_world(parts, log)), run_policy(body, last))
    needs = one_template(pods)
    log.came_from(roles[0][1].at("template").at("spec").line_of("containers"), "run", "env")
    plan = _one_process(needs)
    size = GangSize(last.line_of("replicas"), max(nodes, 1))
    return merged(merged(spec, gang(size, plan, needs, log)), run_policy(body, last))


def _one_process(needs: PodNeeds) -> CommandPlan:
    """The plan of a command that the operator starts once in each pod, with all its GPUs."""
    plan = read_words(needs.words, needs.env)
    if plan.launched:
        return plan
    needs.env = {name: value for name, value in needs.env.items() if name != "TF_CONFIG"}
    return plan
