"""The objects of a cluster that are served, with their namespaces, pods and events."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from phalanx.core.serving.life import LifeStatus, ObjectEvent
from phalanx.errors import ExecutorUnavailable, ServerError
from phalanx.executors.kubernetes.client import (
    MERGE_PATCH,
    KubernetesClient,
    KubernetesRefused,
    Object,
)
from phalanx.executors.kubernetes.reflector import Reflector
from phalanx.operator.kinds import (
    JOB_ANNOTATION,
    SERVE_LABEL,
    UID_LABEL,
    ObjectKey,
    ServedKind,
    key_of,
    project_of,
    timestamp,
)
from phalanx.operator.pod_events import exit_code

COMPONENT = "phalanx-operator"
_MOST_EXITS = 10_000
_JOIN_S = 5.0
_MOST_MESSAGE = 1000
_MOST_TOLD = 20_000


@dataclass(frozen=True, slots=True)
class WatchScope:
    """Which objects are listed and watched: the API server leaves out the others.

    Neither Jobs nor JobSets can be selected by their manager: those of others are told, and forgotten.
    """

    namespaces: tuple[str, ...] = ()  # empty: all
    selector: str = ""  # by labels of the objects; empty: all

    @property
    def places(self) -> tuple[str, ...]:
        """The namespaces of the mirrors; one empty name: all in one."""
        return self.namespaces or ("",)

    def place_of(self, namespace: str) -> str:
        """The mirror of the objects of a namespace."""
        return namespace if self.namespaces else ""

    def covers(self, namespace: str) -> bool:
        """Whether objects of a namespace are listed."""
        return not self.namespaces or namespace in self.namespaces

    def object_query(self) -> dict[str, str]:
        """The query of objects."""
        return {"labelSelector": self.selector} if self.selector else {}

    def namespace_queries(self) -> list[dict[str, str]]:
        """The queries that find the namespaces."""
        return [{"fieldSelector": f"metadata.name={name}"} if name else {} for name in self.places]


class ServedCluster:
    """Reads come from mirrors of the API; what is absent there is believed after a read from its store.

    Reads raise ExecutorUnavailable while a mirror may lack something. Safe for several threads.
    """

    def __init__(
        self,
        client: KubernetesClient,
        kinds: Mapping[str, ServedKind],
        changed: Callable[[], None] = lambda: None,
        scope: WatchScope | None = None,
    ) -> None:
        self.client, self.kinds = client, kinds
        self.scope = scope or WatchScope()
        self._exits: dict[str, int] = {}  # exit codes of pods by uid, also of those that are gone
        self._namespaces = [
            Reflector(client, "/api/v1/namespaces", query, changed=changed, trim=_namespace_parts)
            for query in self.scope.namespace_queries()
        ]
        self._objects = {
            (name, namespace): Reflector(
                client,
                kind.path(namespace),
                self.scope.object_query(),
                changed=changed,
                keep=kind.may_be_served,
            )
            for name, kind in kinds.items()
            for namespace in self.scope.places
        }
        self._pods = [
            Reflector(
                client,
                f"/api/v1/namespaces/{namespace}/pods" if namespace else "/api/v1/pods",
                {"labelSelector": UID_LABEL},
                changed=changed,
                trim=self._pod_parts,
            )
            for namespace in self.scope.places
        ]
        self._told: dict[str, None] = {}  # names of events that are there

    @property
    def _mirrors(self) -> list[Reflector]:
        return [*self._namespaces, *self._pods, *self._objects.values()]

    def wait_ready(self, timeout_s: float) -> bool:
        """Whether the cluster answers within this time."""
        return all(one.wait_ready(timeout_s) for one in self._mirrors)

    def close(self) -> None:
        """End the connections."""
        for one in self._mirrors:
            one.close()
        self.client.close()
        for one in self._mirrors:
            one.join(_JOIN_S)

    # -- reading -----------------------------------------------------------------------------------

    def identity(self) -> str:
        """A name of the cluster that is the same for ever: the uid of its namespace `kube-system`."""
        found = self._namespace("kube-system")
        if found is None and self.scope.namespaces:
            query = {"fieldSelector": "metadata.name=kube-system"}
            found = next(iter(self.client.list("/api/v1/namespaces", query).items), None)
        if found is None:
            raise ServerError("the cluster has no namespace kube-system", "name it with --cluster")
        return str(found["metadata"]["uid"])

    def versions(self) -> dict[ObjectKey, str]:
        """The version of every object that is served, and of its pods: what differs was changed."""
        pods: dict[str, list[str]] = {}
        for one in self._all_pods():
            pods.setdefault(one["metadata"]["labels"][UID_LABEL], []).append(_version(one))
        found = {}
        for (kind, _), mirror in self._objects.items():
            for one in mirror.read():
                key, uid = key_of(kind, one), one["metadata"]["uid"]
                if self.is_served(key, one):
                    found[key] = " ".join([_version(one), *sorted(pods.get(uid, ()))])
        return found

    def find(self, key: ObjectKey) -> Object | None:
        """An object; that there is none is read from the store of the API."""
        mirror = self._objects.get((key.kind, self.scope.place_of(key.namespace)))
        found = None if mirror is None else mirror.find(key.namespace, key.name)
        return self.read(key) if found is None else found

    def read(self, key: ObjectKey) -> Object | None:
        """An object from the store of the API, past the mirror."""
        return self.client.get(self._path(key))

    def is_served(self, key: ObjectKey, one: Object) -> bool:
        """Whether an object is served, by its namespace and its own fields."""
        namespace = self._namespace(key.namespace) or {"metadata": {}}
        labels = namespace["metadata"].get("labels") or {}
        return self.kinds[key.kind].is_served(one, labels.get(SERVE_LABEL))

    def project(self, namespace: str) -> str:
        """The project of the jobs of a namespace."""
        found = self._namespace(namespace)
        if found is None:
            raise ExecutorUnavailable(f"the namespace {namespace} is no longer there")
        return project_of(found)

    def pods(self, uid: str) -> list[Object]:
        """The pods that run for an object."""
        return [one for one in self._all_pods() if one["metadata"]["labels"][UID_LABEL] == uid]

    def exit_of(self, uid: str) -> int | None:
        """The exit code that a pod had, also after it was deleted; None where none was seen."""
        return self._exits.get(uid)

    def _pod_parts(self, pod: Object) -> Object:
        """What is kept of a pod. A pod may end and be deleted between two looks at its object."""
        parts, code = _pod_parts(pod), exit_code(pod)
        if code is not None:
            self._exits[pod["metadata"]["uid"]] = code
            if len(self._exits) > _MOST_EXITS:
                del self._exits[next(iter(self._exits))]
        return parts

    def _namespace(self, name: str) -> Object | None:
        found = (one.find("", name) for one in self._namespaces)
        return next((one for one in found if one is not None), None)

    def _all_pods(self) -> list[Object]:
        return [one for mirror in self._pods for one in mirror.read()]

    # -- writing -----------------------------------------------------------------------------------

    def write_status(
        self, key: ObjectKey, one: Object, status: LifeStatus, restarts: int
    ) -> Object:
        """Replace the status of an object as it was read. Raises KubernetesRefused, 409 if it changed."""
        kind = self.kinds[key.kind]
        body = {**one, "status": kind.status_body(one, status, restarts)}
        # Entries of lists may lack these.
        body |= {"apiVersion": kind.api_version, "kind": kind.kind}
        if body["status"] == one.get("status"):
            return one
        return self.client.call("PUT", self._path(key, "status"), body)

    def annotate(self, key: ObjectKey, one: Object, url: str) -> Object:
        """Set the annotation with the URL of the job, unless it is there."""
        meta = one["metadata"]
        if not url or (meta.get("annotations") or {}).get(JOB_ANNOTATION) == url:
            return one
        patch = {"metadata": {"uid": meta["uid"], "annotations": {JOB_ANNOTATION: url}}}
        return self.client.call("PATCH", self._path(key), patch, kind=MERGE_PATCH)

    def delete(self, key: ObjectKey, uid: str) -> None:
        """Delete an object; nothing for one that is gone, or that was made anew."""
        options = {"preconditions": {"uid": uid}, "propagationPolicy": "Background"}
        try:
            self.client.call("DELETE", self._path(key), options)
        except KubernetesRefused as refused:
            if refused.status not in (404, 409):
                raise

    def label_pod(self, pod: Object, labels: Mapping[str, str]) -> None:
        """Add labels to a pod; nothing for one that is gone."""
        meta = pod["metadata"]
        patch = {"metadata": {"uid": meta["uid"], "labels": dict(labels)}}
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
        try:
            self.client.call("PATCH", path, patch, kind=MERGE_PATCH)
        except KubernetesRefused as refused:
            if refused.status not in (404, 409):
                raise

    def tell(self, key: ObjectKey, one: Object, event: ObjectEvent, now_s: int) -> None:
        """Create an event about an object, once: its name follows from what it tells."""
        uid = one["metadata"]["uid"]
        told = f"{uid} {event.reason} {event.about}"
        name = f"{key.name[:200]}.{hashlib.sha256(told.encode()).hexdigest()[:16]}"
        if f"{key.namespace}/{name}" in self._told:
            return
        try:
            path = f"/api/v1/namespaces/{key.namespace}/events"
            self.client.call(
                "POST", path, _event_body(self.kinds[key.kind], one, name, event, now_s)
            )
        except KubernetesRefused as refused:
            # It was told before, or its namespace is being deleted.
            if refused.status != 409 and "being terminated" not in refused.message:
                raise
        self._told[f"{key.namespace}/{name}"] = None
        if len(self._told) > _MOST_TOLD:
            self._told.pop(next(iter(self._told)))

    def _path(self, key: ObjectKey, part: str = "") -> str:
        return self.kinds[key.kind].path(key.namespace, key.name, part)


def _event_body(kind: ServedKind, one: Object, name: str, event: ObjectEvent, now_s: int) -> Object:
    meta = one["metadata"]
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": meta["namespace"]},
        "involvedObject": {
            "apiVersion": kind.api_version,
            "kind": kind.kind,
            "namespace": meta["namespace"],
            "name": meta["name"],
            "uid": meta["uid"],
            "resourceVersion": _version(one),
        },
        "reason": event.reason,
        "message": event.message[:_MOST_MESSAGE],
        "type": "Warning" if event.warning else "Normal",
        "count": 1,
        "firstTimestamp": timestamp(now_s),
        "lastTimestamp": timestamp(now_s),
        "source": {"component": COMPONENT},
        "reportingComponent": COMPONENT,
        "reportingInstance": "",
    }


def _namespace_parts(namespace: Object) -> Object:
    """What is read of a namespace."""
    return {"metadata": _meta_parts(namespace)}


def _meta_parts(one: Object) -> Object:
    named = ("name", "namespace", "uid", "labels", "resourceVersion", "deletionTimestamp")
    return {key: value for key, value in one["metadata"].items() if key in named}


def _pod_parts(pod: Object) -> Object:
    """What is read of a pod."""
    status = pod.get("status") or {}
    kept = ("phase", "conditions", "containerStatuses", "initContainerStatuses")
    return {
        "metadata": _meta_parts(pod),
        "status": {key: status[key] for key in kept if status.get(key)},
    }


def _version(one: Object) -> str:
    return str(one["metadata"].get("resourceVersion", ""))
