"""MPIJob (kubeflow.org/v2beta1 and v1) as a job spec: `mpirun` on the nodes of the workers."""

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
from phalanx.schemas.foreign.mpirun import unwrapped_mpi
from phalanx.schemas.foreign.needs import PodNeeds
from phalanx.schemas.foreign.reader import ForeignReader
from phalanx.schemas.foreign.rules import KeyAction, RuleTable, dropped, mapped, refused
from phalanx.schemas.spec.fields import MAX_NODES

TOOL = "MPIJob"
TABLE = RuleTable(
    (
        *mapped("the format", "apiVersion", "kind"),
        *METADATA,
        *RUN_POLICY,
        *replica_rules("mpiReplicaSpecs"),
        *mapped("resources.slots_per_node", "spec.slotsPerWorker"),
        *mapped("framework", "spec.mpiImplementation"),
        *dropped("processes start without ssh", "spec.sshAuthMountPath"),
        *dropped("a gang starts as a whole", "spec.launcherCreationPolicy"),
        *refused(
            "a launcher that works too is not supported; count it among the workers",
            "spec.runLauncherAsWorker",
        ),
        *dropped("processes of an ended job never stay", "spec.cleanPodPolicy"),
        *dropped("the launcher's container is the one with mpirun", "spec.mainContainer"),
    )
)
_ONLY = "must be OpenMPI, which Phalanx starts; the program has to be built with it"


def convert_mpijob(document: ForeignReader) -> dict[str, Any]:
    """The spec of an MPIJob. Problems go to the log of the reader."""
    log, body = document.log, document.at("spec")
    spec = {**head(document), "framework": "mpi"}
    implementation = body.value("mpiImplementation")
    if implementation not in (None, "OpenMPI"):
        body.refuse("mpiImplementation", _ONLY, implementation)
    roles = dict(read_roles(body, "mpiReplicaSpecs", {"launcher": "", "worker": ""}))
    if "launcher" not in roles or "worker" not in roles:
        body.refuse("mpiReplicaSpecs", "needs a Launcher with mpirun, and a Worker")
        return spec
    launcher, worker = roles["launcher"], roles["worker"]
    read_replicas(launcher, 1)
    nodes = read_replicas(worker)
    if not 1 <= nodes <= MAX_NODES:
        worker.refuse("replicas", f"must be from 1 to {MAX_NODES}", nodes)
    slots = body.whole("slotsPerWorker", 1, 4096) or 1
    plan, needs = _plan(launcher, worker)
    line = worker.line_of("replicas")
    if plan.total_ranks is not None and plan.total_ranks > nodes * slots:
        said = (
            f"mpirun wants {plan.total_ranks} processes, and the workers have {nodes * slots} slots"
        )
        log.refuse(log.lines.get("run", line), "command", said)
        plan.total_ranks = None
    size = GangSize(line, max(nodes, 1), None, slots)
    return merged(merged(spec, gang(size, plan, needs, log)), run_policy(body, launcher))


def _plan(launcher: ForeignReader, worker: ForeignReader) -> tuple[CommandPlan, PodNeeds]:
    """What `mpirun` starts, and what each worker has."""
    log = launcher.log
    starts = read_pod(launcher.at("template"), None)
    needs = read_pod(worker.at("template"), None, starts=False)
    for template, said in (
        (launcher, "the launcher has no node of its own"),
        (worker, "Phalanx starts the processes of the workers"),
    ):
        keys = ("resources", "image") if template is launcher else ("command", "args")
        for container in template.at("template").at("spec").entries("containers"):
            for key in keys:
                if container.value(key) is not None:
                    container.note(key, KeyAction.DROPPED, said)
    containers = launcher.at("template").at("spec").line_of("containers")
    log.came_from(containers, "run", "setup", "env", "framework")
    needs.env = {**needs.env, **starts.env}
    needs.secrets = sorted({*needs.secrets, *starts.secrets})
    plan = read_words(starts.words, needs.env, unwrapped_mpi)
    if starts.words and not plan.launched:
        said = (
            "must be mpirun or horovodrun as the last command, with flags that are known; submit any other "
            "program with a job spec"
        )
        launcher.at("template").at("spec").refuse("containers", said)
    return plan, needs
