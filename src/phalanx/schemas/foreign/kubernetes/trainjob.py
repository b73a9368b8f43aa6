"""TrainJob (trainer.kubeflow.org/v1alpha1) with its runtime, as a job spec."""

from __future__ import annotations

from typing import Any

from phalanx.schemas.foreign.commands import CommandPlan, read_words
from phalanx.schemas.foreign.documents import ForeignDocument
from phalanx.schemas.foreign.gangs import GangSize, gang, head, merged
from phalanx.schemas.foreign.kubernetes.jobset import JOBSET_SPEC
from phalanx.schemas.foreign.kubernetes.pods import (
    METADATA,
    POD_SPEC,
    POD_TEMPLATE,
    read_container,
    read_patch,
    read_pod,
)
from phalanx.schemas.foreign.mpirun import unwrapped_mpi
from phalanx.schemas.foreign.needs import PodNeeds
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
from phalanx.schemas.spec.fields import MAX_NODES

TOOL, GROUP = "TrainJob", "trainer.kubeflow.org/v1alpha1"
RUNTIMES = ("ClusterTrainingRuntime", "TrainingRuntime")
"""Kinds of objects that a TrainJob refers to; they may stand in the same file."""
_PATCH = "spec.runtimePatches.*"
_INSIDE = "trainingRuntimeSpec.template.spec.replicatedJobs.*"
_RULES: tuple[KeyRule, ...] = (
    *mapped("the format", "apiVersion", "kind"),
    *METADATA,
    *mapped("max_duration", "spec.activeDeadlineSeconds"),
    *mapped("data", "spec.initializer.dataset.storageUri", "spec.initializer.model.storageUri"),
    *refused("inputs with credentials are not supported", "spec.initializer.dataset.secretRef"),
    *refused("inputs with credentials are not supported", "spec.initializer.model.secretRef"),
    *refused("inputs have no variables", "spec.initializer.dataset.env"),
    *refused("inputs have no variables", "spec.initializer.model.env"),
    *dropped("the job is run by Phalanx", "spec.managedBy"),
    *dropped("labels and annotations have no effect", "spec.labels", "spec.annotations"),
    *dropped("the patches of all managers count", f"{_PATCH}.manager", f"{_PATCH}.time"),
    *dropped(
        "names and labels of pods are those of Phalanx",
        f"{_PATCH}.trainingRuntimeSpec.template.metadata",
        f"{_PATCH}.{_INSIDE}.template.metadata",
    ),
    *mapped("which pods are changed", f"{_PATCH}.{_INSIDE}.name"),
    *under(f"{_PATCH}.{_INSIDE}.template.spec.template", POD_TEMPLATE),
    *mapped("which pods are changed", "spec.podTemplateOverrides.*.targetJobs"),
    *dropped("labels of pods are those of Phalanx", "spec.podTemplateOverrides.*.metadata"),
    *under("spec.podTemplateOverrides.*.spec", POD_SPEC),
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
_NO_FLUX = "Flux is not supported: submit a job spec with `framework: mpi`"
_NO_XGBOOST = "the tracker of XGBoost is not supported"
RUNTIME_TABLE = RuleTable(
    (
        *mapped("the runtime of the job", "apiVersion", "kind"),
        *METADATA,
        *mapped("resources.nodes", "spec.mlPolicy.numNodes"),
        *mapped("framework", "spec.mlPolicy.torch", "spec.mlPolicy.jax"),
        *mapped("framework", "spec.mlPolicy.mpi.mpiImplementation"),
        *mapped("resources.slots_per_node", "spec.mlPolicy.mpi.numProcPerNode"),
        *mapped("resources.slots_per_node", "spec.mlPolicy.torch.numProcPerNode"),
        *dropped("the launcher has no node of its own", "spec.mlPolicy.mpi.runLauncherAsNode"),
        *dropped("processes start without ssh", "spec.mlPolicy.mpi.sshAuthMountPath"),
        *refused(_NO_FLUX, "spec.mlPolicy.flux"),
        *refused(_NO_XGBOOST, "spec.mlPolicy.xgboost"),
        *dropped("a gang starts as a whole", "spec.podGroupPolicy"),
        *dropped("names of pods are those of Phalanx", "spec.template.metadata"),
        *under("spec.template.spec", JOBSET_SPEC),
    )
)
_KNOWN = {
    "torch-distributed": "torch",
    "jax-distributed": "jax",
    "deepspeed-distributed": "mpi",
    "mlx-distributed": "mpi",
}
_REFUSED = (
    ("torchtune", "recipes of torchtune without a script are not supported; write a `command`"),
    ("flux", _NO_FLUX),
    ("xgboost", _NO_XGBOOST),
    ("cache", "the data cache is not supported; write `data:` in a job spec"),
)


def convert_trainjob(document: ForeignReader) -> dict[str, Any]:
    """The spec of a TrainJob. Problems go to the log of the reader."""
    log, body = document.log, document.at("spec")
    runtime = _beside(document)
    framework = _framework(body, runtime)
    spec = {**head(document), "framework": framework if framework != "torch" else None}
    needs, nodes, ranks = _of_runtime(runtime)
    trainer = body.at("trainer")
    own = PodNeeds()
    starts = bool(trainer.value("command")) or not needs.words
    read_container(trainer, own, "resourcesPerNode", starts=starts, default_image=True)
    needs = _over(needs, own)
    _patches(body, needs)
    log.came_from(trainer.line_of("command"), "run", "setup", "env")
    nodes = trainer.whole("numNodes", 1, MAX_NODES) or nodes
    if trainer.value("numProcPerNode") not in (None, "auto", "gpu"):
        ranks = trainer.whole("numProcPerNode", 1, 4096)
    size = GangSize(trainer.line_of("numNodes"), nodes, None, ranks)
    found = merged(spec, gang(size, _plan(trainer, needs, framework), needs, log))
    found["data"] = _inputs(body.at("initializer"))
    limit = body.whole("activeDeadlineSeconds", 1, 10**9)
    return found if limit is None else {**found, "max_duration": f"{limit}s"}


def _plan(trainer: ForeignReader, needs: PodNeeds, framework: str) -> CommandPlan:
    if framework != "mpi":
        return read_words(needs.words, needs.env)
    plan = read_words(needs.words, needs.env, unwrapped_mpi)
    if needs.words and not plan.launched:
        said = "must be mpirun as the last command, with flags that are known"
        trainer.refuse("command", said)
    return plan


def _beside(document: ForeignReader) -> ForeignReader | None:
    """The runtime that the job names, where it stands in the same file."""
    name = document.at("spec").at("runtimeRef").value("name")
    for other in document.log.beside:
        meta = other.data.get("metadata")
        named = meta.get("name") if isinstance(meta, dict) else None
        if other.data.get("kind") in RUNTIMES and named == name and name is not None:
            log = document.log
            log.forget(other)
            RUNTIME_TABLE.walk(other, log)
            return ForeignReader(other, log)
    return None


def is_runtime(document: ForeignDocument) -> bool:
    """Whether a document is the runtime of a TrainJob."""
    return document.data.get("kind") in RUNTIMES


def _framework(body: ForeignReader, runtime: ForeignReader | None) -> str:
    reference = body.at("runtimeRef")
    name = reference.text("name")
    if runtime is not None:
        policy = runtime.at("spec").at("mlPolicy")
        implementation = policy.at("mpi").value("mpiImplementation")
        if implementation not in (None, "OpenMPI"):
            policy.at("mpi").refuse("mpiImplementation", "must be OpenMPI", implementation)
        return next((one for one in ("jax", "mpi") if one in policy.data()), "torch")
    if name is None:
        body.refuse("runtimeRef", "is required: the name of a runtime")
    elif name not in _KNOWN:
        why = next((said for word, said in _REFUSED if word in name), None)
        said = f"known are {', '.join(_KNOWN)}; for another one, add its object to the file"
        reference.refuse("name", why or said, name)
    return _KNOWN.get(name or "", "torch")


def _of_runtime(runtime: ForeignReader | None) -> tuple[PodNeeds, int, int | None]:
    """What the runtime gives to each node, the number of nodes, and of processes on each."""
    if runtime is None:
        return PodNeeds(), 1, 0
    spec = runtime.at("spec")
    nodes = spec.at("mlPolicy").whole("numNodes", 1, MAX_NODES) or 1
    ranks: int | None = 0
    for one in ("torch", "mpi"):
        policy = spec.at("mlPolicy").at(one)
        if policy.value("numProcPerNode") not in (None, "auto", "gpu"):
            ranks = policy.whole("numProcPerNode", 1, 4096)
    for job in spec.at("template").at("spec").entries("replicatedJobs"):
        if job.value("name") == "node":
            template = job.at("template").at("spec").at("template")
            needs = read_pod(template, "node", starts=False, default_image=True)
            if any("sshd" in word for word in needs.words):
                needs.words = []
            return needs, nodes, ranks
    said = "needs a replicated job with the name node: the pods that train"
    spec.refuse("template", said)
    return PodNeeds(), nodes, ranks


def _over(base: PodNeeds, own: PodNeeds) -> PodNeeds:
    """What the runtime gives, with what the job says itself."""
    base.words = own.words or base.words
    base.env = {**base.env, **own.env}
    base.secrets = list(dict.fromkeys([*base.secrets, *own.secrets]))
    base.image = own.image or base.image
    base.gpus = own.gpus or base.gpus
    base.cpus = own.cpus or base.cpus
    base.memory = own.memory or base.memory
    return base


def _patches(body: ForeignReader, needs: PodNeeds) -> None:
    """Changes of the runtime's pods: those of the node are taken over."""
    for patch in body.entries("runtimePatches"):
        jobs = patch.at("trainingRuntimeSpec").at("template").at("spec")
        for job in jobs.entries("replicatedJobs"):
            template = job.at("template").at("spec").at("template")
            _patch(job.value("name") in (None, "node"), template.at("spec"), needs)
    for override in body.entries("podTemplateOverrides"):
        names = [one.value("name") for one in override.entries("targetJobs")]
        _patch(not names or "node" in names, override.at("spec"), needs)


def _patch(ours: bool, spec: ForeignReader, needs: PodNeeds) -> None:
    if ours:
        read_patch(spec, needs)
    elif spec.data():
        spec.log.note(spec.line, spec.shown, KeyAction.DROPPED, "these pods do not train")


def _inputs(initializer: ForeignReader) -> dict[str, str]:
    """Inputs as `data`; programs find them at PHALANX_DATA_DATASET and PHALANX_DATA_MODEL."""
    found = {}
    for name in ("dataset", "model"):
        where = initializer.at(name).text("storageUri")
        if where is None:
            continue
        if not where.startswith(("s3://", "http://", "https://", "file://", "/")):
            said = "must be an s3:// or https:// address; let the program fetch other inputs"
            initializer.at(name).refuse("storageUri", said, where)
        found[name] = where.removeprefix("file://")
        said = f"data.{name}; the program finds it at PHALANX_DATA_{name.upper()}"
        initializer.at(name).note("storageUri", KeyAction.MAPPED, said)
    return found
