"""The executor of a pool that is a Kubernetes cluster."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from pydantic import ValidationError

from phalanx.core.contract.job import JobContract
from phalanx.core.gang.placement import Node, NodeShare, Placement
from phalanx.core.reasons import Cause
from phalanx.core.scaling.future import future_nodes
from phalanx.core.scaling.model import PoolDemand, ScalingBounds, ScalingPolicy
from phalanx.errors import ExecutorUnavailable, LaunchError, Problem, ServerError
from phalanx.executors.kubernetes import deaths, kueue
from phalanx.executors.kubernetes.client import KubernetesClient, Object
from phalanx.executors.kubernetes.credentials import ClusterAccess
from phalanx.executors.kubernetes.hardware import dynamic_resources, tpu
from phalanx.executors.kubernetes.hardware.gpu_labels import GpuLabels
from phalanx.executors.kubernetes.inventory import (
    OWNER_LABEL,
    KnownNode,
    PodParts,
    future_pattern,
    nodes_of,
    served_by_drivers,
    slot_resource,
)
from phalanx.executors.kubernetes.launching import PodLauncher, delete, remove_pod
from phalanx.executors.kubernetes.leftovers import LeftObjects
from phalanx.executors.kubernetes.manifests import AttemptNames, PodPlace
from phalanx.executors.kubernetes.notes import PodNote, PodNotes
from phalanx.executors.kubernetes.policies.admission import PodAdmission
from phalanx.executors.kubernetes.reflector import Reflector
from phalanx.executors.kubernetes.scaling.requests import NodeRequests
from phalanx.executors.protocol import Leftovers, SupervisorRef, SupervisorStatus
from phalanx.schemas.home import HomeLayout
from phalanx.schemas.pools.kubernetes_pools import PROJECT, KubernetesPool
from phalanx.schemas.pools.scaling import ScalingSection
from phalanx.schemas.wire.assignments import Assignment
from phalanx.schemas.wire.supervision import ExitRecord

_SHOWN = 300
_CLOSE_S = 5.0
# A cluster without dynamic resources answers as fast; one that does not answer is not waited for.
_SLICES_S = 5.0
# Stopping comes after the job's own grace period: what is left is killed.
_KILL_GRACE_S = 2


class KubernetesExecutor:
    """The `Executor` of one cluster. Safe for several threads.

    Its state is in the API server, under names that follow from job and attempt, and in one note per pod.
    """

    def __init__(
        self, home: HomeLayout, pool: KubernetesPool, access: ClusterAccess, *, owner: str
    ) -> None:
        """Does not wait for the cluster: until it answers, calls raise ExecutorUnavailable."""
        self._home, self._pool, self._owner = home, pool, owner
        self._client = KubernetesClient(access)
        self._notes = PodNotes(home)
        self._changed: Callable[[str], None] = lambda pool: None
        self._nodes = Reflector(self._client, "/api/v1/nodes", trim=_node_parts)
        self._pods = Reflector(
            self._client,
            *_own_pods(pool, owner),
            trim=PodParts(owner),
            changed=lambda: self._changed(pool.name),
        )
        self._slices = Reflector(
            self._client, dynamic_resources.PATH, trim=dynamic_resources.slice_parts
        )
        self._labels = GpuLabels()
        self._seen: tuple[int, ...] = ()  # changes that the last inventory knew
        self._last: tuple[Node, ...] = ()
        self._known: dict[str, KnownNode] = {}
        self._bounds: ScalingBounds | None = None
        self._admission = PodAdmission(pool, self._client, self._nodes, owner)
        self._launcher = PodLauncher(self._client, pool, home, owner, self._pods)
        self._silence = deaths.NodeSilence(time.monotonic)
        self._requests = NodeRequests(self._client, pool, owner)
        #: when a pod that has not begun was first looked at, by name and whether its queue holds it
        self._since: dict[tuple[str, bool], float] = {}

    def wait_ready(self, timeout_s: float) -> bool:
        """Whether the cluster answers within this time."""
        return self._nodes.wait_ready(timeout_s) and self._pods.wait_ready(timeout_s)

    def tell(self, changed: Callable[[str], None]) -> None:
        """See `ChangeTeller`."""
        self._changed = changed

    def check_devices(self) -> None:
        """Raise ServerError where only a driver of dynamic resources serves the GPUs of the pool."""
        self._slices.wait_answer(_SLICES_S)
        _check_devices(self._pool, self._nodes, self._slices)

    def inventory(self) -> Sequence[Node]:
        """The nodes of the pool that have slots. Raises ExecutorUnavailable."""
        mirrors = (self._nodes, self._pods, self._slices)
        changes = tuple(one.num_changes for one in mirrors)  # before they are read
        nodes, pods, now = self._nodes.read(), self._pods.read(), time.monotonic()
        if changes != self._seen or now >= self._labels.until:
            kept, drivers = self._labels.kept(nodes, now), _drivers(self._slices)
            present = nodes_of(self._pool, kept, pods, self._owner, self._known, drivers)
            self._last = (*present, *_future(self._pool, present, self._bounds))
            self._seen = changes
        return self._last

    # -- the autoscaler ----------------------------------------------------------------------------

    def scaling_policies(self) -> Mapping[str, ScalingPolicy]:
        """See `ScalableExecutor`."""
        scaling = self._pool.scaling
        return {} if scaling is None else {self._pool.name: scaling.to_core()}

    def request(self, pool: str, demand: PoolDemand) -> Mapping[int, str]:
        """See `ScalableExecutor`."""
        names = tuple(node.removeprefix(f"{self._pool.name}-") for node in demand.keep)
        return self._requests.make(replace(demand, keep=names))

    def growth(self, pool: str, jobs: Sequence[int]) -> Mapping[int, str]:
        """See `ScalableExecutor`."""
        return self._requests.said(jobs)

    def set_scaling(self, scaling: ScalingSection | None) -> None:
        """See `AdjustableExecutor`. What was requested under the earlier section is withdrawn."""
        if self._pool.scaling is not None:
            with contextlib.suppress(ExecutorUnavailable):
                self._requests.make(PoolDemand())
        self._pool = self._pool.model_copy(update={"scaling": scaling})
        self._requests = NodeRequests(self._client, self._pool, self._owner)
        self._seen = ()

    def set_bounds(self, bounds: ScalingBounds | None) -> None:
        """See `AdjustableExecutor`. Open requests stay: they are replaced with the next demand."""
        if bounds != self._bounds:
            self._bounds, self._seen = bounds, ()

    def close(self) -> None:
        """End the connections. Pods in the cluster continue."""
        self._launcher.close()
        mirrors = (self._nodes, self._pods, self._slices)
        for one in mirrors:
            one.close()
        self._client.close()
        for one in mirrors:
            one.join(_CLOSE_S)

    def refusals(
        self, pool: str, project: str, contract: JobContract, num_nodes: int
    ) -> Sequence[Problem]:
        """See `PodChecker`."""
        return self._admission.refusals(project, contract, num_nodes)

    def leftovers(self, pool: str) -> Sequence[Leftovers]:
        """See `LeftoverCleaner`."""
        return LeftObjects(self._client, self._pool, self._owner).found()

    def forget(self, pool: str, owner: str) -> int:
        """See `LeftoverCleaner`."""
        return LeftObjects(self._client, self._pool, self._owner).remove(owner)

    # -- starting ----------------------------------------------------------------------------------

    def reserve(self, placement: Placement, gang: Sequence[Assignment]) -> None:
        """See `GangReserver`. Pods are created in the background; `poll` tells what became of them."""
        refs = [SupervisorRef.of(one) for one in gang]
        notes = [self._notes.read(ref) for ref in refs]
        if any(note is not None and (note.gone or note.failed) for note in notes):
            return  # what is gone stays gone
        if all(note is not None and note.uid for note in notes) or self._launcher.is_creating(
            refs[0]
        ):
            return
        facts = gang[0].gang
        self._check(gang)
        names = AttemptNames.of(
            self._pool, self._owner, facts.job.project, facts.job.num, facts.attempt
        )
        places = self._tpu_places(
            names, gang, [self._place(one, len(gang)) for one in placement.shares]
        )
        if self._pool.scaling is not None:
            self._requests.drop(facts.job.num)
        self._launcher.launch(names, gang, places)

    def start(self, node: Node, assignment: Assignment) -> None:
        """See `Executor`. A gang of one node is reserved here unless it was before."""
        ref = SupervisorRef.of(assignment)
        note = self._notes.read(ref)
        if (note is not None and (note.uid or note.gone)) or self._launcher.is_creating(ref):
            return
        if assignment.gang.world.num_nodes != 1 or assignment.role is not None:
            raise ExecutorUnavailable(f"the pods of job {ref.job} are not reserved yet")
        slots = tuple(range(assignment.num_ranks))
        share = NodeShare(node.id, node.address, slots)
        self.reserve(Placement(node.pool, (share,)), [assignment])

    def _check(self, gang: Sequence[Assignment]) -> None:
        several = len(gang) > 1
        for one in gang:
            stored = one.gang.role.checkpoint.store
            if several and self._pool.checkpoints is None and stored is None:
                raise LaunchError(
                    f"pool {self._pool.name} has no `checkpoints` folder that pods share, and the job "
                    "no `checkpoint.store`: a job of several nodes needs one of them"
                )
        project = gang[0].gang.job.project
        pods = [one.pod for at, one in enumerate(gang) if one.pod not in [o.pod for o in gang[:at]]]
        for pod in pods:
            problems = [] if pod is None else self._admission.of_pod(project, pod, len(gang))
            if problems:
                raise LaunchError("; ".join(str(one) for one in problems))

    def _place(self, share: NodeShare, num_pods: int) -> PodPlace:
        name = share.node.removeprefix(f"{self._pool.name}-")
        node = self._nodes.find("", name)
        if node is None:
            raise LaunchError(f"node {share.node} is no longer there")
        return PodPlace(name, slot_resource(self._pool, node), len(share.slots), num_pods=num_pods)

    def _tpu_places(
        self, names: AttemptNames, gang: Sequence[Assignment], places: list[PodPlace]
    ) -> list[PodPlace]:
        """The places of a gang, with the variables of TPU hosts. Raises LaunchError."""
        if places[0].slot != tpu.TPU or not places[0].num_slots:
            return places
        nodes = [self._nodes.find("", one.node) or {} for one in places]
        labels = [(one.get("metadata") or {}).get("labels") or {} for one in nodes]
        tpu.check_slices(gang, labels)
        pods = [names.pod(one.node_rank) for one in gang]
        told = tpu.variables(names.anchor, pods, labels)
        return [replace(one, tpu=own) for one, own in zip(places, told, strict=True)]

    # -- ending ------------------------------------------------------------------------------------

    def stop(self, ref: SupervisorRef) -> None:
        """See `Executor`."""
        self._launcher.cancel(ref)
        note = self._notes.read(ref)
        if note is None or note.gone:
            return
        body: Object = {"gracePeriodSeconds": _KILL_GRACE_S}
        if note.uid:
            body["preconditions"] = {"uid": note.uid}
        delete(self._client, f"/api/v1/namespaces/{note.namespace}/pods/{note.name}", body)

    def poll(self, refs: Sequence[SupervisorRef]) -> Sequence[SupervisorStatus]:
        """See `Executor`. Nothing of an attempt is left once all its supervisors are gone."""
        notes = [(ref, self._notes.read(ref)) for ref in refs]
        if all(note.cleaned if note else not self._launcher.is_creating(r) for r, note in notes):
            return [_status(ref, note) for ref, note in notes]
        self._silence.look(self._nodes.read, lambda: _used_nodes(self._pods.read(), self._owner))
        return [self._look(ref, note) for ref, note in notes]

    def _look(self, ref: SupervisorRef, note: PodNote | None) -> SupervisorStatus:
        if self._launcher.is_creating(ref) and (note is None or not note.uid):
            return SupervisorStatus(ref, True, None, "its pod is being created")
        if note is None or note.cleaned:
            return _status(ref, note)
        if not note.gone:
            note, found = self._verdict(ref, note)
            if not found.dead:
                said = note.failed or found.message
                return SupervisorStatus(ref, True, None, said, image=note.image)
            cause = deaths.CAUSES.get(found.fault) if found.fault else None
            note = replace(
                note,
                gone=True,
                record=found.record,
                message=note.failed or found.message,
                cause=note.cause or (cause or ""),
            )
            # Before the finalizer goes: what the pod left must be known after a crash, too.
            self._notes.write(ref, note)
        self._clean(ref, note)
        note = replace(note, cleaned=True)
        self._notes.write(ref, note)
        return _status(ref, note)

    def _verdict(self, ref: SupervisorRef, note: PodNote) -> tuple[PodNote, deaths.PodVerdict]:
        """What the cluster proves of a pod; the note learns what was seen for the first time."""
        names = AttemptNames(note.namespace, note.anchor)
        pod = self._find(names, note.name)
        node = self._nodes.find("", note.node)
        silent_s = self._silence.seconds(note.node)
        if pod is None or (note.uid and pod["metadata"]["uid"] != note.uid):
            if not note.uid:
                said = "the pod was never created"
                return note, deaths.PodVerdict(True, deaths.PodFault.ADMISSION, said)
            # Only by force: the finalizer keeps a pod until its end was recorded.
            proof = deaths.node_ended(node, note.boot_id, self._pool, silent_s)
            said = "the pod was removed by force; its processes may run until its node is known to be off"
            return note, deaths.PodVerdict(bool(proof), deaths.PodFault.FORCED, proof or said)
        image = note.image or deaths.image_of(pod)
        if not note.uid or image != note.image or (not note.boot_id and deaths.began(pod)):
            boot_id = note.boot_id or (_boot_id(node) if deaths.began(pod) else "")
            note = replace(note, uid=pod["metadata"]["uid"], boot_id=boot_id, image=image)
            self._notes.write(ref, note)
        found = deaths.verdict(pod, node, note.boot_id, self._pool, silent_s)
        if not found.dead and not note.failed:
            note = self._give_up_hopeless(ref, note, pod)
        return note, found

    def _give_up_hopeless(self, ref: SupervisorRef, note: PodNote, pod: Object) -> PodNote:
        """Delete a pod that can never begin, or was not bound in time: its end then has the reason."""
        # The time of the scheduler begins when the queue has admitted the gang.
        since = self._since.setdefault((note.name, kueue.is_gated(pod)), time.monotonic())
        fault, said = deaths.hopeless(pod, time.monotonic() - since, self._pool)
        if fault is None:
            return note
        if fault is deaths.PodFault.NOT_ADMITTED:
            more = kueue.waits_for(self._client, note.namespace, note.anchor)
            said = f"{said}: {more}" if more else said
        note = replace(note, failed=said, cause=deaths.CAUSES[fault].value)
        self._notes.write(ref, note)
        body = {"preconditions": {"uid": pod["metadata"]["uid"]}}
        delete(self._client, f"/api/v1/namespaces/{note.namespace}/pods/{note.name}", body)
        return note

    def _find(self, names: AttemptNames, name: str) -> Object | None:
        """A pod; that there is none is believed only after a read from the API's store."""
        found = self._pods.find(names.namespace, name)
        return self._client.get(names.path("pods", name)) if found is None else found

    def _clean(self, ref: SupervisorRef, note: PodNote) -> None:
        names = AttemptNames(note.namespace, note.anchor)
        for gated in (False, True):
            self._since.pop((note.name, gated), None)
        pod = self._client.get(names.path("pods", note.name)) if note.uid else None
        if pod is not None and pod["metadata"]["uid"] == note.uid:
            remove_pod(self._client, names.path("pods", note.name), pod)
        # The last ones first: those that are polled after this one are not gone yet.
        others = (
            self._notes.read(SupervisorRef(ref.job, ref.attempt, rank))
            for rank in reversed(range(note.nodes))
            if rank != ref.node_rank
        )
        creating = self._launcher.is_creating(ref)
        if not creating and all(one is None or one.gone for one in others):
            if self._pool.queue is not None:
                # A group would keep its quota where its pods are gone without an end.
                delete(self._client, kueue.path_of(note.namespace, note.anchor), {})
            delete(self._client, names.path("secrets", note.anchor), {})
            delete(self._client, names.path("configmaps", note.anchor), {})


def _check_devices(pool: KubernetesPool, nodes: Reflector, slices: Reflector) -> None:
    """See `KubernetesExecutor.check_devices`."""
    try:
        served, with_slots = served_by_drivers(pool, nodes.read(), _drivers(slices))
    except ExecutorUnavailable:
        return  # its nodes are closed where that is so
    said = dynamic_resources.refusal(pool.name, served, with_slots)
    if said:
        hint = (
            "install a device plugin, let the driver offer extended resources, or write `slot: cpu`"
        )
        raise ServerError(said, hint)


def _drivers(slices: Reflector) -> dict[str, str]:
    """The drivers of GPUs by node; clusters before 1.34, and without the right to ask, tell none."""
    try:
        return dynamic_resources.drivers(slices.read())
    except ExecutorUnavailable:
        return {}


def _future(
    pool: KubernetesPool, present: Sequence[Node], bounds: ScalingBounds | None
) -> tuple[Node, ...]:
    """Nodes that the cluster's autoscaler could add."""
    scaling = pool.scaling
    if scaling is None:
        return ()
    pattern = future_pattern(pool, scaling.node)
    policy = scaling.to_core() if bounds is None else bounds.over(scaling.to_core())
    return future_nodes(policy, pattern, present, levels=pool.topology)


def _used_nodes(pods: Sequence[Object], owner: str) -> set[str]:
    """The names of nodes with own pods."""
    return {
        (one.get("spec") or {}).get("nodeName", "")
        for one in pods
        if (one["metadata"].get("labels") or {}).get(OWNER_LABEL) == owner
    }


def _own_pods(pool: KubernetesPool, owner: str) -> tuple[str, dict[str, str]]:
    """Where the pods are watched: all of the cluster, or this home's where others do not count."""
    if not pool.dedicated:
        return "/api/v1/pods", {}
    own = {"labelSelector": f"{OWNER_LABEL}={owner}"}
    if PROJECT in pool.namespace:
        return "/api/v1/pods", own
    return f"/api/v1/namespaces/{pool.namespace}/pods", own


def _node_parts(node: Object) -> Object:
    """A node without the list of its images, which is most of its size."""
    (node.get("status") or {}).pop("images", None)
    return node


def _boot_id(node: Object | None) -> str:
    status = (node or {}).get("status") or {}
    return str((status.get("nodeInfo") or {}).get("bootID", ""))


def _status(ref: SupervisorRef, note: PodNote | None) -> SupervisorStatus:
    if note is None:
        return SupervisorStatus(ref, False)
    record = None
    if note.record:
        try:
            record = ExitRecord.model_validate_json(note.record)
        except ValidationError:
            record = None
    cause = Cause(note.cause) if note.cause else None
    if record is None and note.record:
        # Not a record: the last output, such as of an image without Phalanx.
        last = note.record.strip().rpartition("\n")[2]
        said = f"{note.message}: {last[:_SHOWN]}"
        return SupervisorStatus(ref, False, None, said, cause=cause, image=note.image)
    return SupervisorStatus(ref, False, record, note.message, cause=cause, image=note.image)
