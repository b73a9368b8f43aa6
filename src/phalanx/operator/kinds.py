"""The kinds of objects that are served: where they are in the API, and what their fields mean.

Each kind is a `ServedKind` with its own way to read an object and to write its status; `pytorchjobs` and
`managed_jobs` have them, and `submission` lists them.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, ClassVar

from phalanx.core.serving.life import LifeStatus, ServedObject

Object = dict[str, Any]
SERVE_LABEL, PROJECT_LABEL = "phalanx.dev/serve", "phalanx.dev/project"
"""Labels of namespaces: which objects are served there, and the project of their jobs."""
JOB_ANNOTATION = "phalanx.dev/job"
UID_LABEL = "operator.phalanx.dev/uid"
"""Label of pods with the uid of the object that they run for."""
DIGEST_VERSION = "2"
"""Grows whenever `fixed_spec` of a kind takes other parts of a spec: older digests tell nothing then."""


@dataclass(frozen=True, slots=True)
class ObjectKey:
    """One object: its kind, namespace and name."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


class ServedKind(ABC):
    """One kind: where its objects are, and what their fields mean."""

    kind: ClassVar[str]
    group: ClassVar[str]
    version: ClassVar[str]
    plural: ClassVar[str]
    changeable: ClassVar[str]
    """What may change after the submission, in words."""

    @property
    def api_version(self) -> str:
        """As in `apiVersion` of an object."""
        return f"{self.group}/{self.version}"

    def path(self, namespace: str = "", name: str = "", part: str = "") -> str:
        """The path of the collection, of one of its objects, or of a part such as `status`."""
        words = [f"/apis/{self.group}/{self.version}"]
        words += [f"namespaces/{namespace}"] if namespace else []
        return "/".join([*words, self.plural, *filter(None, (name, part))])

    def may_be_served(self, one: Object) -> bool:
        """Whether an object is served in some namespace; what decides never changes."""
        return True

    @abstractmethod
    def is_served(self, one: Object, serve: str | None) -> bool:
        """Whether an object is served; `serve` is the value of the label of its namespace."""

    @abstractmethod
    def asked_for(self, one: Object) -> ServedObject:
        """What an object asks for. Values of a wrong type count as absent: the conversion refuses them."""

    @abstractmethod
    def fixed_spec(self, one: Object) -> Object:
        """The part of the spec that must not change."""

    @abstractmethod
    def submitted_spec(self, one: Object) -> Object:
        """The spec as it is converted: without what the operator itself acts on."""

    @abstractmethod
    def read_status(self, one: Object) -> LifeStatus:
        """The status of an object, as it was written; what cannot be read counts as absent."""

    @abstractmethod
    def status_body(self, one: Object, status: LifeStatus, restarts: int) -> Object:
        """A status as it is written."""

    @abstractmethod
    def pod_labels(self, one: Object) -> dict[str, str]:
        """Labels of all pods of an object, by which people select them."""

    @abstractmethod
    def rank_labels(self, wanted: ServedObject, node_rank: int) -> dict[str, str]:
        """Labels of the pod of one node rank."""

    def spec_digest(self, one: Object) -> str:
        """A short name of the part of the spec that must not change, with the version of its making."""
        text = json.dumps(self.fixed_spec(one), sort_keys=True)
        return f"{DIGEST_VERSION}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"

    def differs(self, one: Object, submitted: str) -> bool:
        """Whether that part is known to differ from the one with this digest.

        It is not known for a digest of another version of the operator: a running job outlives updates.
        """
        digest = self.spec_digest(one)
        return submitted.startswith(f"{DIGEST_VERSION}-") and submitted != digest


def section(one: Mapping[str, Any], key: str) -> Object:
    """A mapping below a key; {} where there is none, or something else."""
    found = one.get(key)
    return found if isinstance(found, dict) else {}


def entries(one: Mapping[str, Any], key: str) -> list[Object]:
    """The mappings in a list below a key; [] where there is none, or something else."""
    found = one.get(key)
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def whole(place: Mapping[str, Any], key: str) -> int | None:
    """A whole number below a key that is not negative, or None."""
    value = place.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def copied(one: Object) -> Object:
    """A copy that may be changed."""
    found: Object = json.loads(json.dumps(one))
    return found


def key_of(kind: str, one: Object) -> ObjectKey:
    """The key of an object."""
    return ObjectKey(kind, one["metadata"].get("namespace", ""), one["metadata"]["name"])


def project_of(namespace: Object) -> str:
    """The project of a namespace: that of its label, else its name."""
    meta = namespace["metadata"]
    return str((meta.get("labels") or {}).get(PROJECT_LABEL) or meta["name"])


def timestamp(at_s: int) -> str:
    """A time as Kubernetes writes it."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds(text: Any) -> int | None:
    """A time as Kubernetes writes it, in seconds since the epoch; None for anything else."""
    try:
        return int(datetime.fromisoformat(str(text)).timestamp()) if text else None
    except (ValueError, OverflowError):
        return None
