"""TrainJob (trainer.kubeflow.org/v1alpha1) with a torch runtime, as a job spec."""

from __future__ import annotations

from typing import Any

from phalanx.schemas.foreign.commands import read_words
from phalanx.schemas.foreign.gangs import GangSize, gang, head, merged
from phalanx.schemas.foreign.pods import METADATA, PodNeeds, read_container
from phalanx.schemas.foreign.reader import ForeignReader
from phalanx.schemas.foreign.rules import KeyRule, RuleTable, dropped, mapped, refused
from phalanx.schemas.spec.fields import MAX_NODES

TOOL = "TrainJob"
_RUNTIME = "torch-distributed"
_RULES: tuple[KeyRule, ...] = (
    *mapped("the format", "apiVersion", "kind"),
    *METADATA,
    *mapped("max_duration", "spec.activeDeadlineSeconds"),
    *refused("inputs are `data:` of a job spec", "spec.initializer"),
    *dropped("the job is run by Phalanx", "spec.managedBy"),
    *dropped("labels and annotations have no effect", "spec.labels", "spec.annotations"),
    *refused("changes of a runtime are not supported", "spec.runtimePatches", of_image=True),
    *refused("changes of a runtime are not supported", "spec.podTemplateOverrides", of_image=True),
    *mapped("framework", "spec.runtimeRef"),
    *refused("a job cannot be submitted paused; use `phalanx pause`", "spec.suspend"),
    *mapped("run", "spec.trainer.command", "spec.trainer.args"),
    *mapped("env", "spec.trainer.env", "spec.trainer.env.*.name", "spec.trainer.env.*.value"),
    *mapped("secrets", "spec.trainer.env.*.valueFrom"),
    *mapped("image", "spec.trainer.image", of_image=True),
    *mapped("resources.nodes", "spec.trainer.numNodes"),
    *mapped("resources.slots_per_node", "spec.trainer.numProcPerNode"),
    *mapped("resources", "spec.trainer.resourcesPerNode", "spec.trainer.resourcesPerNode.limits"),
    *mapped("resources", "spec.trainer.resourcesPerNode.requests"),
    *refused("devices by claim are not supported", "spec.trainer.resourcesPerNode.claims"),
)
TABLE = RuleTable(_RULES)


def convert_trainjob(document: ForeignReader) -> dict[str, Any]:
    """The spec of a TrainJob. Problems go to the log of the reader."""
    log, body = document.log, document.at("spec")
    spec = head(document)
    runtime = body.at("runtimeRef").text("name")
    if runtime != _RUNTIME:
        said = f"only the runtime {_RUNTIME} is known here; a job spec may say any framework"
        body.refuse("runtimeRef", said, runtime)
    trainer = body.at("trainer")
    needs = PodNeeds()
    read_container(trainer, needs, "resourcesPerNode")
    log.came_from(trainer.line_of("command"), "run", "setup", "env")
    nodes = trainer.whole("numNodes", 1, MAX_NODES) or 1
    ranks: int | None = 0
    if trainer.value("numProcPerNode") not in (None, "auto", "gpu"):
        ranks = trainer.whole("numProcPerNode", 1, 4096)
    size = GangSize(trainer.line_of("numNodes"), nodes, None, ranks)
    found = merged(spec, gang(size, read_words(needs.words, needs.env), needs, log))
    limit = body.whole("activeDeadlineSeconds", 1, 10**9)
    return found if limit is None else {**found, "max_duration": f"{limit}s"}
