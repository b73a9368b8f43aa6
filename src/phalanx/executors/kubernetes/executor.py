"""The executor of a pool that is a Kubernetes cluster."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from phalanx.core.gang.placement import Node, NodeShare, Placement
from phalanx.errors import ExecutorUnavailable, LaunchError
from phalanx.executors.kubernetes import deaths, manifests
from phalanx.executors.kubernetes.client import (
    JSON_PATCH,
    KubernetesClient,
    KubernetesRefused,
    Object,
)
from phalanx.executors.kubernetes.credentials import ClusterAccess
from phalanx.executors.kubernetes.inventory import OWNER_LABEL, nodes_of, slot_resource
from phalanx.executors.kubernetes.manifests import FINALIZER, PLACEMENT, AttemptNames, PodPlace
from phalanx.executors.kubernetes.notes import PodNote, PodNotes
from phalanx.executors.kubernetes.reflector import Reflector
from phalanx.executors.outbound import outbound
from phalanx.executors.protocol import SupervisorRef, SupervisorStatus
from phalanx.schemas.home import HomeLayout
from phalanx.schemas.pools.kubernetes_pools import PROJECT, KubernetesPool
from phalanx.schemas.wire.assignments import Assignment
from phalanx.schemas.wire.supervision import ExitRecord

_AT_ONCE = 16
# After a gang is bound: how long a refused image or volume is waited for before `start` returns.
_BEGIN_S = 5.0
_UNDO_S = 30.0
_LOOK_S = 0.5
# Stopping comes after the job's own grace period: what is left is killed.
_KILL_GRACE_S = 2
# A gap between two polls counts as at most so much silence of a node.
_POLL_S = 10.0


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
        self._nodes = Reflector(self._client, "/api/v1/nodes", trim=_node_parts)
        self._pods = Reflector(self._client, *_own_pods(pool, owner))
        self._threads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="kubernetes")
        self._silent: dict[str, float] = {}  # seconds without contact, by node
        self._pulling: dict[str, float] = {}  # when a pod was first seen with a failed pull
        self._looked_at: float | None = None

    def wait_ready(self, timeout_s: float) -> bool:
        """Whether the cluster answers within this time."""
        return self._nodes.wait_ready(timeout_s) and self._pods.wait_ready(timeout_s)

    def inventory(self) -> Sequence[Node]:
        """The nodes of the pool that have slots. Raises ExecutorUnavailable."""
        return nodes_of(self._pool, self._nodes.read(), self._pods.read(), self._owner)

    def close(self) -> None:
        """End the connections. Pods in the cluster continue."""
        for one in (self._nodes, self._pods):
            one.close()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._client.close()

    # -- starting ----------------------------------------------------------------------------------

    def reserve(self, placement: Placement, gang: Sequence[Assignment]) -> None:
        """See `GangReserver`: create all pods, and wait until all are bound to their nodes."""
        refs = [SupervisorRef.of(one) for one in gang]
        notes = [self._notes.read(ref) for ref in refs]
        if any(note is not None and (note.gone or note.uid) for note in notes):
            return  # begun by a control plane before this one: what is gone stays gone
        facts = gang[0].gang
        self._check(gang)
        places = [self._place(share) for share in placement.shares]
        names = AttemptNames.of(
            self._pool, self._owner, facts.job.project, facts.job.num, facts.attempt
        )
        for ref, place in zip(refs, places, strict=True):
            note = PodNote(
                names.namespace, names.anchor, names.pod(ref.node_rank), place.node, len(gang)
            )
            self._notes.write(ref, note)
        try:
            self._create(names, gang, places)
            self._await_bound(names, refs)
        except (LaunchError, KubernetesRefused) as error:
            self._undo(refs, names)
            message = error.message if isinstance(error, LaunchError) else _told(error, names)
            raise LaunchError(message) from error

    def start(self, node: Node, assignment: Assignment) -> None:
        """See `Executor`. A gang of one node is reserved here unless it was before."""
        ref = SupervisorRef.of(assignment)
        note = self._notes.read(ref)
        if note is None or not (note.uid or note.gone):
            if assignment.gang.world.num_nodes != 1 or assignment.role is not None:
                raise ExecutorUnavailable(f"the pods of job {ref.job} are not reserved yet")
            slots = tuple(range(assignment.gang.world.ranks_per_node))
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

    def _place(self, share: NodeShare) -> PodPlace:
        name = share.node.removeprefix(f"{self._pool.name}-")
        node = self._nodes.find("", name)
        if node is None:
            raise LaunchError(f"node {share.node} is no longer there")
        return PodPlace(name, slot_resource(self._pool, node), len(share.slots))

    def _create(
        self, names: AttemptNames, gang: Sequence[Assignment], places: Sequence[PodPlace]
    ) -> None:
        labels = manifests.labels_of(names, self._owner, gang[0].gang.job.num)
        digest = manifests.placement_digest(places)
        anchor = self._make(
            names, "configmaps", manifests.anchor_object(names, labels, digest), digest
        )
        uid = anchor["metadata"]["uid"]
        away = [outbound(one, self._pool, self._home) for one in gang]
        try:
            secret = manifests.bootstrap_secret(names, labels, uid, away)
        except ValueError as error:
            raise LaunchError(str(error)) from error
        self._make_secret(names, secret)

        def create(number: int) -> Object:
            pod = manifests.pod_object(
                self._pool, names, labels, uid, digest, away[number], places[number]
            )
            made = self._make(names, "pods", pod, digest)
            self._pods.put(made)
            return made

        self._side_by_side(create, range(len(gang)))

    def _side_by_side(self, act: Callable[[int], Any], numbers: Sequence[int]) -> None:
        """Call for each number, and raise the first error only after all calls have returned."""
        futures = [self._threads.submit(act, number) for number in numbers]
        errors = [error for one in futures if (error := one.exception()) is not None]
        if errors:
            raise errors[0]

    def _make(self, names: AttemptNames, plural: str, body: Object, digest: str) -> Object:
        """Create an object, or return the one of the same launch that is there already."""
        try:
            return self._client.call("POST", names.path(plural), body)
        except KubernetesRefused as refused:
            if refused.status != 409 or refused.reason != "AlreadyExists":
                raise
        name = body["metadata"]["name"]
        found = self._client.get(names.path(plural, name))
        told = {} if found is None else found["metadata"].get("annotations") or {}
        if found is None or told.get(PLACEMENT) != digest:
            raise ExecutorUnavailable(f"{plural}/{name} of {names.namespace} is of another launch")
        return found

    def _make_secret(self, names: AttemptNames, body: Object) -> None:
        try:
            self._client.call("POST", names.path("secrets"), body)
        except KubernetesRefused as refused:
            # It cannot be read, by design: one of the same name was made for the same attempt.
            if refused.status != 409 or refused.reason != "AlreadyExists":
                raise

    def _await_bound(self, names: AttemptNames, refs: Sequence[SupervisorRef]) -> None:
        """Wait until all pods are bound and, for a moment, until none fails to begin."""
        began = time.monotonic()
        bound_at: float | None = None
        while True:
            found = [self._find(names, names.pod(ref.node_rank)) for ref in refs]
            pods = [one for one in found if one is not None]
            if len(pods) < len(found):
                raise LaunchError("a pod was deleted while it was waited for")
            for pod in pods:
                self._refuse_hopeless(pod)
            now = time.monotonic()
            bound = all((pod.get("spec") or {}).get("nodeName") for pod in pods)
            if bound and bound_at is None:
                bound_at = now
            if bound_at is not None and (all(map(_began, pods)) or now - bound_at > _BEGIN_S):
                break
            if not bound and now - began > self._pool.reserve_within:
                raise LaunchError(deaths.slowest(pods) or "the pods were not bound in time")
            self._pods.wait(_LOOK_S)
        for ref, pod in zip(refs, pods, strict=True):
            note = self._notes.read(ref)
            assert note is not None
            boot_id = _boot_id(self._nodes.find("", note.node))
            self._notes.write(ref, replace(note, uid=pod["metadata"]["uid"], boot_id=boot_id))

    def _refuse_hopeless(self, pod: Object) -> None:
        fault, said = deaths.trouble(pod)
        gated = (pod.get("spec") or {}).get("schedulingGates")
        refused = (pod.get("status") or {}).get("phase") == "Failed" and not _began(pod)
        if refused:
            fault, said = deaths.why(pod)
        if fault is not None and (gated or refused or deaths.is_final(pod, 0.0, self._pool)):
            raise LaunchError(f"pod {pod['metadata']['name']}: {said}")

    def _undo(self, refs: Sequence[SupervisorRef], names: AttemptNames) -> None:
        """Remove a gang that cannot start. Raises ExecutorUnavailable until nothing of it is left."""
        until = time.monotonic() + _UNDO_S
        for ref in refs:
            self.stop(ref)
        while any(one.alive for one in self.poll(refs)):
            if time.monotonic() > until:
                raise ExecutorUnavailable(f"pods of {names.anchor} are still being removed")
            self._pods.wait(_LOOK_S)

    # -- ending ------------------------------------------------------------------------------------

    def stop(self, ref: SupervisorRef) -> None:
        """See `Executor`."""
        note = self._notes.read(ref)
        if note is None or note.gone:
            return
        body: Object = {"gracePeriodSeconds": _KILL_GRACE_S}
        if note.uid:
            body["preconditions"] = {"uid": note.uid}
        _delete(self._client, f"/api/v1/namespaces/{note.namespace}/pods/{note.name}", body)

    def poll(self, refs: Sequence[SupervisorRef]) -> Sequence[SupervisorStatus]:
        """See `Executor`. Nothing of an attempt is left once all its supervisors are gone."""
        notes = [(ref, self._notes.read(ref)) for ref in refs]
        if all(note is None or note.cleaned for _, note in notes):
            return [_status(ref, note) for ref, note in notes]
        self._watch_silence()
        return [self._look(ref, note) for ref, note in notes]

    def _look(self, ref: SupervisorRef, note: PodNote | None) -> SupervisorStatus:
        if note is None or note.cleaned:
            return _status(ref, note)
        if not note.gone:
            found = self._verdict(note)
            if not found.dead:
                return SupervisorStatus(ref, True, None, found.message)
            note = replace(note, gone=True, record=found.record, message=found.message)
            # Before the finalizer goes: what the pod left must be known after a crash, too.
            self._notes.write(ref, note)
        self._clean(ref, note)
        note = replace(note, cleaned=True)
        self._notes.write(ref, note)
        return _status(ref, note)

    def _verdict(self, note: PodNote) -> deaths.PodVerdict:
        names = AttemptNames(note.namespace, note.anchor)
        pod = self._find(names, note.name)
        node = self._nodes.find("", note.node)
        silent_s = self._silent.get(note.node, 0.0)
        if pod is None or (note.uid and pod["metadata"]["uid"] != note.uid):
            if not note.uid:
                return deaths.PodVerdict(True, message="the pod was never created")
            # Only by force: the finalizer keeps a pod until its end was recorded.
            proof = deaths.node_ended(node, note.boot_id, self._pool, silent_s)
            said = "the pod was removed by force; its processes may run until its node is known to be off"
            return deaths.PodVerdict(bool(proof), deaths.PodFault.DELETED, proof or said)
        found = deaths.verdict(pod, node, note.boot_id, self._pool, silent_s)
        if not found.dead and found.fault in (deaths.PodFault.IMAGE, deaths.PodFault.CONTAINER):
            self._give_up_hopeless(note, pod)
        return found

    def _give_up_hopeless(self, note: PodNote, pod: Object) -> None:
        """Delete a pod that can never begin: its end then has the reason."""
        since = self._pulling.setdefault(note.name, time.monotonic())
        deleted = pod["metadata"].get("deletionTimestamp")
        if not deleted and deaths.is_final(pod, time.monotonic() - since, self._pool):
            body = {"preconditions": {"uid": pod["metadata"]["uid"]}}
            _delete(self._client, f"/api/v1/namespaces/{note.namespace}/pods/{note.name}", body)

    def _watch_silence(self) -> None:
        """Add up for how long each node has had no contact; outages of the API count for nothing."""
        now = time.monotonic()
        passed = 0.0 if self._looked_at is None else min(_POLL_S, now - self._looked_at)
        try:
            silent = {
                one["metadata"]["name"] for one in self._nodes.read() if deaths.is_silent(one)
            }
            there = {one["metadata"]["name"] for one in self._nodes.read()}
        except ExecutorUnavailable:
            self._looked_at = None
            raise
        self._looked_at = now
        used = {
            (one.get("spec") or {}).get("nodeName", "")
            for one in self._pods.read()
            if (one["metadata"].get("labels") or {}).get(OWNER_LABEL) == self._owner
        }
        absent = {name for name in used | self._silent.keys() if name and name not in there}
        self._silent = {name: self._silent.get(name, 0.0) + passed for name in silent | absent}

    def _find(self, names: AttemptNames, name: str) -> Object | None:
        """A pod; that there is none is believed only after a read from the API's store."""
        found = self._pods.find(names.namespace, name)
        return self._client.get(names.path("pods", name)) if found is None else found

    def _clean(self, ref: SupervisorRef, note: PodNote) -> None:
        names = AttemptNames(note.namespace, note.anchor)
        self._pulling.pop(note.name, None)
        pod = self._client.get(names.path("pods", note.name))
        if pod is not None and (not note.uid or pod["metadata"]["uid"] == note.uid):
            _remove(self._client, names.path("pods", note.name), pod)
        others = [
            self._notes.read(SupervisorRef(ref.job, ref.attempt, rank))
            for rank in range(note.nodes)
            if rank != ref.node_rank
        ]
        if all(one is None or one.gone for one in others):
            _delete(self._client, names.path("secrets", note.anchor), {})
            _delete(self._client, names.path("configmaps", note.anchor), {})


def _remove(client: KubernetesClient, path: str, pod: Object) -> None:
    meta = pod["metadata"]
    if not meta.get("deletionTimestamp"):
        _delete(client, path, {"preconditions": {"uid": meta["uid"]}})
    finalizers = meta.get("finalizers") or []
    if FINALIZER not in finalizers:
        return
    entry = f"/metadata/finalizers/{finalizers.index(FINALIZER)}"
    # Other programs have finalizers beside ours: the test makes sure that this one is removed.
    patch = [
        {"op": "test", "path": entry, "value": FINALIZER},
        {"op": "remove", "path": entry},
    ]
    try:
        client.call("PATCH", path, patch, kind=JSON_PATCH)
    except KubernetesRefused as refused:
        if refused.status != 404:
            raise ExecutorUnavailable(f"the finalizer stays: {refused.message}") from refused


def _delete(client: KubernetesClient, path: str, body: Object) -> None:
    try:
        options = {"apiVersion": "v1", "kind": "DeleteOptions", **body}
        client.call("DELETE", path, options)
    except KubernetesRefused as refused:
        # 409: the object of this name is another one, which is not ours to delete.
        if refused.status not in (404, 409):
            raise ExecutorUnavailable(f"{path}: {refused.message}") from refused


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


def _began(pod: Object) -> bool:
    """Whether the container runs or has run."""
    states = [
        one.get("state") or {} for one in (pod.get("status") or {}).get("containerStatuses") or ()
    ]
    return bool(states) and all("running" in one or "terminated" in one for one in states)


def _status(ref: SupervisorRef, note: PodNote | None) -> SupervisorStatus:
    if note is None:
        return SupervisorStatus(ref, False)
    record = None
    if note.record:
        try:
            record = ExitRecord.model_validate_json(note.record)
        except ValidationError:
            record = None
    return SupervisorStatus(ref, False, record, note.message)


def _told(refused: KubernetesRefused, names: AttemptNames) -> str:
    """The message of a refusal, with what to do where that is known."""
    if refused.status == 404:
        return f"namespace {names.namespace} does not exist: create it, or change the pool's `namespace`"
    if refused.status == 403 and "exceeded quota" in refused.message:
        return f"a quota of Kubernetes refuses the pods: {refused.message}"
    return f"Kubernetes refuses the pods: {refused.message}"
