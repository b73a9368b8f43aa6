"""Why a job's pods could never start in a pool: what shows before any of them is created."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from phalanx.core.contract.gang import GangContract, WorldShape
from phalanx.core.contract.job import JobContract, JobIdentity, RoleContract
from phalanx.core.contract.pods import PodContract, VolumeMount
from phalanx.errors import ExecutorUnavailable, Problem
from phalanx.executors.kubernetes import containers, manifests
from phalanx.executors.kubernetes.client import KubernetesClient, KubernetesRefused
from phalanx.executors.kubernetes.inventory import nodes_in, slot_resource
from phalanx.executors.kubernetes.manifests import AttemptNames, PodPlace
from phalanx.executors.kubernetes.policies.refusals import is_for_now, policy_problems
from phalanx.executors.kubernetes.quantities import amounts
from phalanx.executors.kubernetes.reflector import Reflector
from phalanx.schemas.pools.kubernetes_pools import KubernetesPool
from phalanx.schemas.spec.pods.mounts import is_below
from phalanx.schemas.wire.assignments import Assignment

_SHARED_MODES = {"ReadWriteMany"}
_READ_MODES = {"ReadOnlyMany", "ReadWriteMany"}

# An answer of the cluster counts for so long; a batch of jobs asks for it many times.
_FRESH_S = 5.0
_MAX_ANSWERS = 1000

Object = Mapping[str, Any]
A = TypeVar("A")


class _Answers(Generic[A]):
    """Answers of the API server as they were at most a few seconds ago. Safe for several threads."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[float, A]] = {}

    def get(self, key: str, ask: Callable[[], A]) -> A:
        """The answer to a question; `ask` is called where none is fresh."""
        now = time.monotonic()
        known = self._known.get(key)
        if known is not None and now - known[0] < _FRESH_S:
            return known[1]
        answer = ask()
        if len(self._known) >= _MAX_ANSWERS:
            self._known.clear()
        self._known[key] = (now, answer)
        return answer


class PodAdmission:
    """Answers what a pool and its cluster do not allow. Safe for several threads."""

    def __init__(
        self, pool: KubernetesPool, client: KubernetesClient, nodes: Reflector, owner: str
    ) -> None:
        self._pool, self._client, self._nodes, self._owner = pool, client, nodes, owner
        self._claims = _Answers[Object | None]()
        self._tries = _Answers[list[Problem]]()

    def refusals(self, project: str, contract: JobContract, num_nodes: int) -> list[Problem]:
        """See `PodChecker`; what the cluster would say is left out while it does not answer."""
        found = [one for pod in contract.pods for one in self.of_pod(project, pod, num_nodes)]
        if found:
            return found
        try:
            return self._tried(project, contract, num_nodes)
        except ExecutorUnavailable:
            return []

    def _tried(self, project: str, contract: JobContract, num_nodes: int) -> list[Problem]:
        """What the API server says to one pod of each role; nothing is stored of it."""
        nodes = nodes_in(self._pool, self._nodes.read())
        names = AttemptNames(self._pool.namespace_of(project), f"phx-{self._owner}-check")
        labels = manifests.labels_of(names, self._owner, 0, self._pool.name)
        found: dict[str, Problem] = {}
        for role in contract.roles:
            slot = next(
                (name for one in nodes if (name := slot_resource(self._pool, one)) != "cpu"), "cpu"
            )
            one = trial_assignment(project, contract, role, num_nodes)
            # No node is named for good: admission does not look at it.
            place = PodPlace("any", slot, role.slots_per_node)
            body = manifests.pod_object(
                self._pool, names, labels, manifests.NO_UID, "check", one, place
            )
            pod = one.pod or containers.NO_WISHES
            said = self._tries.get(
                json.dumps([names.namespace, manifests.shape_of(body)], sort_keys=True),
                lambda body=body, pod=pod, slot=slot: self._try(names, body, pod, slot),  # type: ignore[misc]
            )
            found |= {str(problem): problem for problem in said}
        return list(found.values())

    def _try(
        self, names: AttemptNames, body: dict[str, Any], pod: PodContract, slot: str
    ) -> list[Problem]:
        try:
            self._client.call("POST", names.path("pods"), body, query={"dryRun": "All"})
        except KubernetesRefused as refused:
            if not is_for_now(refused):
                return policy_problems(refused, names.namespace, pod, slot)
        return []

    def of_pod(self, project: str, pod: PodContract, num_nodes: int) -> list[Problem]:
        """What the pool file, the nodes and the claims of the cluster do not allow."""
        found = pool_problems(self._pool, pod)
        namespace = self._pool.namespace_of(project)
        try:
            found += node_problems(self._pool, pod, self._nodes.read())
            for number, mount in enumerate(pod.mounts):
                if mount.kind == "pvc":
                    claim = self._claim(namespace, mount.source)
                    at = f"mounts[{number}].source"
                    problem = claim_problem(at, mount, claim, namespace, num_nodes)
                    found += [] if problem is None else [problem]
        except ExecutorUnavailable:
            return found
        return found

    def _claim(self, namespace: str, name: str) -> Object | None:
        path = f"/api/v1/namespaces/{namespace}/persistentvolumeclaims/{name}"
        try:
            return self._claims.get(path, lambda: self._client.get(path))
        except KubernetesRefused as refused:
            said = f"claim {name} of {namespace} cannot be read: {refused.message}"
            raise ExecutorUnavailable(said) from refused


def trial_assignment(
    project: str, contract: JobContract, role: RoleContract, num_nodes: int
) -> Assignment:
    """An assignment of a node of a role, with everything that its pod shows: the pod is only tried."""
    return Assignment(
        gang=GangContract(
            job=JobIdentity(0, "check", project),
            attempt=1,
            world=WorldShape(num_nodes, max(1, role.slots_per_node // role.slots_per_rank)),
            role=role,
            checkpoint_dir="/",
        ),
        node_rank=0,
        pod=role.pod or contract.pod,
        node_dir="/",
        workdir="/",
        cwd="/",
        command="true",
        env={},
        # Where the job does not say, the node that is chosen does; no limit is below one.
        cpus=max(1, role.cpus_per_node),
        limit_memory_bytes=role.memory_per_node_bytes,
        server_url="http://localhost",
        token="",
    )


def pool_problems(pool: KubernetesPool, pod: PodContract) -> list[Problem]:
    """What the pool file does not allow."""
    found = []
    if pod.host_network and not pool.host_network:
        said = f"pool {pool.name} does not allow it; its `host_network: true` would"
        found.append(Problem("kubernetes.host_network", said))
    for number, one in enumerate(pod.mounts):
        if one.kind == "hostpath" and not is_below(one.source, pool.host_paths):
            allowed = ", ".join(pool.host_paths) or "nothing"
            said = f"pool {pool.name} allows {allowed} of its nodes (`host_paths` of the pool)"
            found.append(Problem(f"mounts[{number}].source", said, f"hostpath:{one.source}"))
    if pool.slot is not None and pool.slot in pod.resources:
        said = "is requested with `resources.slots_per_node`"
        found.append(Problem(f"kubernetes.resources.{pool.slot}", said))
    return found


def node_problems(pool: KubernetesPool, pod: PodContract, nodes: Sequence[Object]) -> list[Problem]:
    """Resources that no node of the cluster has enough of."""
    found = []
    for name, wanted in pod.resources.items():
        most = max(
            (amounts((one.get("status") or {}).get("allocatable")).get(name, 0) for one in nodes),
            default=0,
        )
        if most < wanted:
            said = f"the largest node of pool {pool.name} has {most}"
            found.append(Problem(f"kubernetes.resources.{name}", said, str(wanted)))
    return found


def claim_problem(
    at: str, mount: VolumeMount, claim: Object | None, namespace: str, num_nodes: int
) -> Problem | None:
    """Why a persistent volume claim cannot be mounted by pods on so many nodes; None: it can."""
    if claim is None:
        said = f"namespace {namespace} has no claim of this name"
        return Problem(at, said, mount.source)
    status, spec = claim.get("status") or {}, claim.get("spec") or {}
    if status.get("phase") == "Lost":
        return Problem(at, "the volume of this claim is lost", mount.source)
    modes = set(status.get("accessModes") or spec.get("accessModes") or ())
    if modes == {"ReadOnlyMany"} and not mount.read_only:
        return Problem(at, "its claim is read only; write :ro behind the mount", mount.source)
    if num_nodes < 2 or modes & (_READ_MODES if mount.read_only else _SHARED_MODES):
        return None
    named = ", ".join(sorted(modes)) or "no access mode"
    wanted = "ReadOnlyMany or ReadWriteMany" if mount.read_only else "ReadWriteMany"
    said = f"its claim has {named}: pods on {num_nodes} nodes need {wanted}"
    return Problem(at, said, mount.source)
