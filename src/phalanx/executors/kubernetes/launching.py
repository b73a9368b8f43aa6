"""Creating the objects of an attempt: the anchor and the Secret at once, the pods in the background.

Nothing here waits for a cluster to bind or start pods: `poll` looks at them later.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from phalanx.core.reasons import Cause
from phalanx.errors import ExecutorUnavailable, LaunchError
from phalanx.executors.kubernetes import kueue, manifests
from phalanx.executors.kubernetes.client import (
    JSON_PATCH,
    KubernetesClient,
    KubernetesRefused,
    Object,
)
from phalanx.executors.kubernetes.hardware import tpu
from phalanx.executors.kubernetes.manifests import (
    FINALIZER,
    PLACEMENT,
    AttemptNames,
    PodPlace,
)
from phalanx.executors.kubernetes.notes import PodNote, PodNotes
from phalanx.executors.kubernetes.reflector import Reflector
from phalanx.executors.outbound import outbound
from phalanx.executors.protocol import SupervisorRef
from phalanx.schemas.home import HomeLayout
from phalanx.schemas.pools.kubernetes_pools import KubernetesPool
from phalanx.schemas.wire.assignments import Assignment

_AT_ONCE = 16
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.5, 15.0


@dataclass(slots=True)
class _Creation:
    """The pods of one attempt that are being created."""

    cancelled: threading.Event = field(default_factory=threading.Event)
    refused: LaunchError | None = None  # why the cluster does not take them
    futures: list[Future[None]] = field(default_factory=list)

    @property
    def runs(self) -> bool:
        return not all(one.done() for one in self.futures)


class PodLauncher:
    """Creates the objects of attempts. Safe for several threads."""

    def __init__(
        self,
        client: KubernetesClient,
        pool: KubernetesPool,
        home: HomeLayout,
        owner: str,
        pods: Reflector,
    ) -> None:
        self._client, self._pool, self._home = client, pool, home
        self._owner, self._pods, self._notes = owner, pods, PodNotes(home)
        self._threads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="kubernetes")
        self._creations: dict[tuple[int, int], _Creation] = {}

    def is_creating(self, ref: SupervisorRef) -> bool:
        """Whether pods of an attempt are still being created."""
        found = self._creations.get((ref.job, ref.attempt))
        return found is not None and found.runs

    def cancel(self, ref: SupervisorRef) -> None:
        """Create no further pod of an attempt."""
        found = self._creations.get((ref.job, ref.attempt))
        if found is not None:
            found.cancelled.set()

    def close(self) -> None:
        """Stop creating."""
        for one in list(self._creations.values()):
            one.cancelled.set()
        self._threads.shutdown(wait=False)

    def launch(
        self, names: AttemptNames, gang: Sequence[Assignment], places: Sequence[PodPlace]
    ) -> None:
        """Create the anchor and the Secret, and begin to create the pods.

        Raises LaunchError where the cluster refuses them, with nothing left of them.
        """
        facts = gang[0].gang
        key = (facts.job.num, facts.attempt)
        labels = manifests.labels_of(names, self._owner, facts.job.num, self._pool.name)
        digest = manifests.placement_digest(places)
        away = [outbound(one, self._pool, self._home) for one in gang]

        pods = [
            manifests.pod_object(self._pool, names, labels, manifests.NO_UID, digest, one, place)
            for one, place in zip(away, places, strict=True)
        ]
        notes = [
            PodNote(names.namespace, names.anchor, names.pod(one.node_rank), place.node, len(gang))
            for one, place in zip(gang, places, strict=True)
        ]
        if said := self._no_group(pods):
            raise LaunchError(said)
        try:
            self._try(names, pods)
            # Before the anchor, so that a crash leaves none that is not known.
            if self._notes.read(SupervisorRef.of(gang[0])) is None:
                self._notes.write(SupervisorRef.of(gang[0]), notes[0])
            anchor = manifests.anchor_object(names, labels, digest)
            uid = self._make(names, "configmaps", anchor, digest)["metadata"]["uid"]
            self._make_own(names, "secrets", manifests.bootstrap_secret(names, labels, uid, away))
            if len(gang) > 1 and any(one.tpu is not None for one in places):
                service = tpu.slice_service(names.anchor, labels, manifests.owned_by(names, uid))
                self._make_own(names, "services", service)
        except (KubernetesRefused, ValueError) as error:
            raise self._undone(error, names, SupervisorRef.of(gang[0]), notes[0]) from error
        work = _Creation()
        # The list is whole before the first of them may be looked for.
        work.futures.append(Future())
        self._creations = {key: one for key, one in self._creations.items() if one.runs}
        self._creations[key] = work
        for one, note, pod in zip(gang, notes, pods, strict=True):
            pod["metadata"]["ownerReferences"] = manifests.owned_by(names, uid)
            args = (work, names, SupervisorRef.of(one), note, pod)
            work.futures.append(self._threads.submit(self._create, *args))
        work.futures[0].set_result(None)

    def _undone(
        self, error: Exception, names: AttemptNames, first: SupervisorRef, note: PodNote
    ) -> LaunchError:
        """Remove what there is of a launch that was refused; returns the error of it."""
        for plural in ("secrets", "configmaps"):
            delete(self._client, names.path(plural, names.anchor), {})
        if self._notes.read(first) is not None:
            self._notes.write(first, replace(note, gone=True, cleaned=True, message=str(error)))
        if isinstance(error, KubernetesRefused):
            return refusal_error(error, names)
        return LaunchError(str(error))

    def _create(
        self, work: _Creation, names: AttemptNames, ref: SupervisorRef, note: PodNote, pod: Object
    ) -> None:
        """Create one pod; an API server that does not answer is asked until it does."""
        wait_s, digest = _FIRST_WAIT_S, pod["metadata"]["annotations"][PLACEMENT]
        known = self._notes.read(ref)
        if known is not None and (known.uid or known.gone):
            return
        while not work.cancelled.is_set():
            try:
                # Before the pod, so that a crash leaves none that is not known.
                self._notes.write(ref, note)
                made = self._make(names, "pods", pod, digest)
            except ExecutorUnavailable:
                work.cancelled.wait(wait_s)
                wait_s = min(_LONGEST_WAIT_S, wait_s * 2)
                continue
            except KubernetesRefused as refused:
                work.refused = refusal_error(refused, names)
                work.cancelled.set()
                break
            note = replace(note, uid=made["metadata"]["uid"])
            self._notes.write(ref, note)
            self._pods.put(made)
            if work.cancelled.is_set():
                with contextlib.suppress(ExecutorUnavailable):
                    delete(self._client, names.path("pods", note.name), {})
            return
        said, cause = "stopped before its pod was created", ""
        if work.refused is not None:
            said, cause = work.refused.message, work.refused.cause
        self._notes.write(ref, replace(note, gone=True, message=said, cause=cause))

    def _no_group(self, pods: Sequence[Object]) -> str:
        """Why the pods can be no group of the pool's queue; empty: they can, or there is none."""
        if self._pool.queue is None:
            return ""
        shapes = {json.dumps(manifests.shape_of(one), sort_keys=True) for one in pods}
        return kueue.too_many_roles(len(shapes))

    def _try(self, names: AttemptNames, pods: Sequence[Object]) -> None:
        """Have the API server check one pod of each shape, without storing it."""
        seen = set()
        for one in pods:
            shape = json.dumps(manifests.shape_of(one), sort_keys=True)
            if shape in seen:
                continue
            seen.add(shape)
            try:
                self._client.call("POST", names.path("pods"), one, query={"dryRun": "All"})
            except KubernetesRefused as refused:
                # A launch that a crash interrupted has pods of these names already.
                if refused.status != 409:
                    raise

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

    def _make_own(self, names: AttemptNames, plural: str, body: Object) -> None:
        try:
            self._client.call("POST", names.path(plural), body)
        except KubernetesRefused as refused:
            # A Secret cannot be read, by design: one of the same name was made for the same attempt.
            if refused.status != 409 or refused.reason != "AlreadyExists":
                raise


def refusal_error(refused: KubernetesRefused, names: AttemptNames) -> LaunchError:
    """A refusal with what to do where that is known, and the cause that it is for the job."""
    if refused.status == 404:
        said = f"namespace {names.namespace} does not exist: create it, or change the pool's `namespace`"
        return LaunchError(said)
    if refused.status == 403 and "exceeded quota" in refused.message:
        said = f"a quota of Kubernetes refuses the pods: {refused.message}"
        return LaunchError(said, cause=Cause.CLUSTER_QUOTA.value)
    if refused.status == 403 and "PodSecurity" in refused.message:
        said = f"the Pod Security level of namespace {names.namespace} refuses the pods"
        return LaunchError(f"{said}: {refused.message}")
    return LaunchError(f"Kubernetes refuses the pods: {refused.message}")


def delete(client: KubernetesClient, path: str, body: Object) -> None:
    """Delete an object, unless it is gone or another one has its name. Raises ExecutorUnavailable."""
    try:
        options = {"apiVersion": "v1", "kind": "DeleteOptions", **body}
        client.call("DELETE", path, options)
    except KubernetesRefused as refused:
        # 409: the object of this name is another one, which is not ours to delete.
        if refused.status not in (404, 409):
            raise ExecutorUnavailable(f"{path}: {refused.message}") from refused


def remove_pod(client: KubernetesClient, path: str, pod: Object) -> None:
    """Delete a pod, and give up the finalizer that kept it readable. Raises ExecutorUnavailable."""
    meta = pod["metadata"]
    if not meta.get("deletionTimestamp"):
        delete(client, path, {"preconditions": {"uid": meta["uid"]}})
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
