"""An object of a cluster as the submission of a job."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from phalanx.errors import Problem, SpecInvalid
from phalanx.operator.kinds import UID_LABEL, Object, ObjectKey, ServedKind
from phalanx.operator.managed_jobs import BatchJobKind, JobSetKind
from phalanx.operator.pytorchjobs import PyTorchJobKind
from phalanx.schemas.api.jobs import SubmitRequest
from phalanx.schemas.foreign.formats import convert_object
from phalanx.schemas.spec.document import validate_spec

KINDS: Mapping[str, ServedKind] = {
    one.kind: one for one in (PyTorchJobKind(), JobSetKind(), BatchJobKind())
}
"""All kinds that are served, by their names."""
OWNER = "operator"
"""Owner of the jobs where the token is that of the home; else that of the token."""
_CLUSTER, _KIND = "kubernetes-cluster", "kubernetes-kind"
_NAMESPACE, _NAME = "kubernetes-namespace", "kubernetes-name"
_UID, SPEC_LABEL = "kubernetes-uid", "kubernetes-spec"


@dataclass(frozen=True, slots=True)
class SubmissionTarget:
    """Where the jobs of a cluster's objects go."""

    cluster: str  # name of the cluster, the same for ever
    pool: str = ""  # empty: any pool that fits


def uid_labels(cluster: str, uid: str) -> dict[str, str]:
    """Labels of the job of an object, by which it is found again."""
    return {_CLUSTER: cluster, _UID: uid}


def key_labels(cluster: str, key: ObjectKey) -> dict[str, str]:
    """Labels of all jobs that objects of this name ever had."""
    return {_CLUSTER: cluster, _KIND: key.kind, _NAMESPACE: key.namespace, _NAME: key.name}


def key_in(labels: Mapping[str, str]) -> ObjectKey | None:
    """The object that the labels of a job name, or None."""
    if labels.get(_KIND) not in KINDS:
        return None
    return ObjectKey(labels[_KIND], labels.get(_NAMESPACE, ""), labels.get(_NAME, ""))


def uid_in(labels: Mapping[str, str]) -> str:
    """The uid of the object that a job was submitted for."""
    return labels.get(_UID, "")


def idempotency_key(cluster: str, uid: str) -> str:
    """The key of the submission of an object: two of them make one job."""
    return hashlib.sha256(f"{cluster}/{uid}".encode()).hexdigest()[:32]


def submission(
    target: SubmissionTarget, key: ObjectKey, one: Object, project: str
) -> SubmitRequest:
    """The submission of an object. Raises SpecInvalid with the keys that no job can have."""
    kind, meta = KINDS[key.kind], one["metadata"]
    document = {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": {"name": key.name, "labels": meta.get("labels") or {}},
        # Its deadline is watched by the operator: it begins anew after a suspension.
        "spec": kind.submitted_spec(one),
    }
    text = yaml.safe_dump(document, sort_keys=False, width=10_000)
    found = convert_object(text, str(key))
    if found.problems:
        raise SpecInvalid([_placed(one) for one in found.problems])
    spec = dict(found.spec)
    spec["project"] = project
    if target.pool:
        spec["pool"] = target.pool
    own = {**key_labels(target.cluster, key), **uid_labels(target.cluster, meta["uid"])}
    spec["labels"] = {**spec.get("labels", {}), **own, SPEC_LABEL: kind.spec_digest(one)}
    pods = dict(spec.get("kubernetes") or {})
    pods["labels"] = {
        **pods.get("labels", {}),
        **kind.pod_labels(one),
        UID_LABEL: meta["uid"],
    }
    spec["kubernetes"] = pods
    validate_spec(spec)
    return SubmitRequest(spec=spec, owner=OWNER)


def _placed(problem: Problem) -> Problem:
    """A problem without the number of a line that only this program has seen."""
    words: Any = problem.path.partition(": ")[2]
    return Problem(words or problem.path, problem.message, problem.value)
