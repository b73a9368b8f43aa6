"""The objects of a fake API server: versions, history, finalizers, graceful deletion, owners."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from phalanx.kit.text import random_hex

Object = dict[str, Any]
Key = tuple[str, str, str]  # plural, namespace, name
CLUSTER_WIDE = (
    "nodes",
    "namespaces",
    "persistentvolumes",
    "validatingwebhookconfigurations",
    "resourceslices",
)


class ApiError(Exception):
    """An answer that is no success, as a `Status` of the API."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code, self.reason, self.message = code, reason, message

    @property
    def body(self) -> Object:
        """The object that is sent."""
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "status": "Failure",
            "code": self.code,
            "reason": self.reason,
            "message": self.message,
        }


@dataclass(frozen=True, slots=True)
class ObjectChange:
    """One event of the history."""

    version: int
    kind: str
    plural: str
    body: Object


class KubernetesObjects:
    """All objects, and their history since the last compaction. Safe for several threads."""

    def __init__(self) -> None:
        self.changed = threading.Condition(threading.RLock())
        self.objects: dict[Key, Object] = {}
        self.history: list[ObjectChange] = []
        self.version = 1
        self.oldest = 1
        self.uids: dict[str, list[str]] = {}  # uids ever created, by plural/name

    def tried(self, plural: str, namespace: str, body: Object) -> Object:
        """Check a new object as `create` does, and store nothing. Raises ApiError."""
        name = body["metadata"]["name"]
        if (plural, namespace, name) in self.objects:
            raise ApiError(409, "AlreadyExists", f'{plural} "{name}" already exists')
        if namespace and ("namespaces", "", namespace) not in self.objects:
            raise ApiError(404, "NotFound", f'namespaces "{namespace}" not found')
        return body

    def create(self, plural: str, namespace: str, body: Object) -> Object:
        """Store a new object. Raises ApiError."""
        with self.changed:
            meta = body.setdefault("metadata", {})
            key = (plural, namespace, meta["name"])
            self.tried(plural, namespace, body)
            meta |= {"uid": random_hex(32), "creationTimestamp": _now()}
            if namespace:
                meta["namespace"] = namespace
            if plural == "pods":
                body.setdefault("status", {}).setdefault("phase", "Pending")
            self.uids.setdefault(f"{plural}/{meta['name']}", []).append(meta["uid"])
            return self._put(key, body, "ADDED")

    def get(self, plural: str, namespace: str, name: str) -> Object:
        """A copy of one object. Raises ApiError."""
        with self.changed:
            found = self.objects.get((plural, namespace, name))
            if found is None:
                raise ApiError(404, "NotFound", f'{plural} "{name}" not found')
            return copy.deepcopy(found)

    def update(self, plural: str, namespace: str, name: str, body: Object) -> Object:
        """Replace an object; removing its last finalizer may end it. Raises ApiError on a conflict."""
        with self.changed:
            before = self.get(plural, namespace, name)["metadata"]
            wanted = body["metadata"].get("resourceVersion")
            if wanted and wanted != before["resourceVersion"]:
                raise ApiError(409, "Conflict", "the object has been modified")
            key = (plural, namespace, name)
            if before.get("deletionTimestamp") and self._may_go(plural, body):
                return self._drop(key, body)
            return self._put(key, body, "MODIFIED")

    def delete(self, plural: str, namespace: str, name: str, options: Mapping[str, Any]) -> Object:
        """Delete an object, or mark it until its processes and finalizers are gone. Raises ApiError."""
        with self.changed:
            body = self.get(plural, namespace, name)
            meta = body["metadata"]
            wanted = (options.get("preconditions") or {}).get("uid")
            if wanted and wanted != meta["uid"]:
                raise ApiError(409, "Conflict", f"the uid is {meta['uid']}, not {wanted}")
            grace = self._grace(plural, body, options.get("gracePeriodSeconds"))
            known = meta.get("deletionGracePeriodSeconds")
            meta.setdefault("deletionTimestamp", _now())
            meta["deletionGracePeriodSeconds"] = grace if known is None else min(known, grace)
            if self._may_go(plural, body):
                return self._drop((plural, namespace, name), body)
            return self._put((plural, namespace, name), body, "MODIFIED")

    def compact(self) -> None:
        """Forget the history: watches that have to read it get 410."""
        with self.changed:
            self.history.clear()
            self.oldest = self.version
            self.changed.notify_all()

    def bump(self) -> None:
        """Let the version grow without a change that watches of other collections see."""
        with self.changed:
            self.version += 1

    # -- inside ------------------------------------------------------------------------------------

    @staticmethod
    def _grace(plural: str, body: Object, wanted: int | None) -> int:
        ended = (body.get("status") or {}).get("phase") in ("Succeeded", "Failed")
        if plural != "pods" or ended or not (body.get("spec") or {}).get("nodeName"):
            return 0
        own = (body.get("spec") or {}).get("terminationGracePeriodSeconds", 30)
        return int(own if wanted is None else wanted)

    @staticmethod
    def _may_go(plural: str, body: Object) -> bool:
        meta = body["metadata"]
        return not meta.get("finalizers") and not meta.get("deletionGracePeriodSeconds")

    def _put(self, key: Key, body: Object, kind: str) -> Object:
        self.version += 1
        body["metadata"]["resourceVersion"] = str(self.version)
        self.objects[key] = copy.deepcopy(body)
        self._tell(kind, key[0], body)
        return body

    def _drop(self, key: Key, body: Object) -> Object:
        del self.objects[key]
        self.version += 1
        body["metadata"]["resourceVersion"] = str(self.version)
        self._tell("DELETED", key[0], body)
        self._collect(body["metadata"]["uid"])
        return body

    def _tell(self, kind: str, plural: str, body: Object) -> None:
        self.history.append(ObjectChange(self.version, kind, plural, copy.deepcopy(body)))
        self.changed.notify_all()

    def _collect(self, uid: str) -> None:
        """Delete what belonged to an object that is gone."""
        for (plural, namespace, name), one in list(self.objects.items()):
            owners = one["metadata"].get("ownerReferences") or []
            if owners and all(entry["uid"] == uid for entry in owners):
                self.delete(plural, namespace, name, {})


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
