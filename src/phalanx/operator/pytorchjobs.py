"""PyTorchJobs, with the status and the labels that the training-operator gives them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from phalanx.core.serving.conditions import Conditions, ObjectCondition
from phalanx.core.serving.life import LifeStatus, NodeRange, ReplicaCounts, ServedObject
from phalanx.operator.kinds import (
    Object,
    ServedKind,
    copied,
    entries,
    seconds,
    section,
    timestamp,
    whole,
)
from phalanx.schemas.foreign.kubernetes.pytorchjob import elastic_nodes

_PREFIX = "training.kubeflow.org"
_MANAGERS = (None, "", "kubeflow.org/training-operator")
_COUNTS = ("active", "succeeded", "failed")
# Keys that the operator itself acts on, at any time.
_LIVE = ("suspend", "activeDeadlineSeconds", "ttlSecondsAfterFinished")


class PyTorchJobKind(ServedKind):
    """PyTorchJobs of namespaces with the label; those with another manager are left alone."""

    kind, plural = "PyTorchJob", "pytorchjobs"
    group, version = "kubeflow.org", "v1"
    changeable = (
        "suspend, activeDeadlineSeconds, ttlSecondsAfterFinished, and minReplicas, maxReplicas and "
        "replicas of elastic workers"
    )

    def is_served(self, one: Object, serve: str | None) -> bool:
        """See `ServedKind`."""
        manager = section(section(one, "spec"), "runPolicy").get("managedBy")
        return serve == "pytorchjob" and manager in _MANAGERS

    def asked_for(self, one: Object) -> ServedObject:
        """See `ServedKind`."""
        policy = section(section(one, "spec"), "runPolicy")
        counts = {name: whole(role, "replicas") for name, role in _roles(one).items()}
        return ServedObject(
            kind=self.kind,
            namespace=one["metadata"].get("namespace", ""),
            name=one["metadata"]["name"],
            replicas={name: 1 if count is None else count for name, count in counts.items()},
            suspended=policy.get("suspend") is True,
            deadline_s=whole(policy, "activeDeadlineSeconds"),
            ttl_s=whole(policy, "ttlSecondsAfterFinished"),
            backoff_limit=whole(policy, "backoffLimit"),
            nodes=_elastic_nodes(one, counts),
            by_exit_code=frozenset(
                name
                for name, role in _roles(one).items()
                if role.get("restartPolicy") == "ExitCode"
            ),
        )

    def fixed_spec(self, one: Object) -> Object:
        """See `ServedKind`."""
        spec = self.submitted_spec(one)
        if policy := section(spec, "elasticPolicy"):
            for key in ("minReplicas", "maxReplicas"):
                policy.pop(key, None)
            for name, role in section(spec, "pytorchReplicaSpecs").items():
                if name.lower() == "worker" and isinstance(role, dict):
                    role.pop("replicas", None)
        return spec

    def submitted_spec(self, one: Object) -> Object:
        """See `ServedKind`."""
        spec = copied(section(one, "spec"))
        for key in _LIVE:
            section(spec, "runPolicy").pop(key, None)
        if not section(spec, "runPolicy"):
            spec.pop("runPolicy", None)
        return spec

    def read_status(self, one: Object) -> LifeStatus:
        """See `ServedKind`."""
        status = section(one, "status")
        replicas = {
            role: ReplicaCounts(*(whole(counts, key) or 0 for key in _COUNTS))
            for role, counts in section(status, "replicaStatuses").items()
            if isinstance(counts, dict)
        }
        return LifeStatus(
            tuple(_conditions(status)),
            replicas,
            seconds(status.get("startTime")),
            seconds(status.get("completionTime")),
        )

    def status_body(self, one: Object, status: LifeStatus, restarts: int) -> Object:
        """See `ServedKind`. Counts of zero are left out, as the training-operator does."""
        name = one["metadata"]["name"]
        body: Object = {
            "conditions": [
                {
                    "type": str(each.kind),
                    "status": "True" if each.holds else "False",
                    "reason": each.reason,
                    "message": each.message,
                    "lastUpdateTime": timestamp(each.updated_s),
                    "lastTransitionTime": timestamp(each.changed_s),
                }
                for each in _true_last(status.conditions)
            ],
            "replicaStatuses": {
                role: {**_written(counts), "selector": _selector(name, role)}
                for role, counts in status.replicas.items()
            },
        }
        times = {"startTime": status.start_s, "completionTime": status.completed_s}
        return body | {key: timestamp(at) for key, at in times.items() if at is not None}

    def pod_labels(self, one: Object) -> dict[str, str]:
        """See `ServedKind`."""
        return _labels(one["metadata"]["name"])

    def rank_labels(self, wanted: ServedObject, node_rank: int) -> dict[str, str]:
        """See `ServedKind`. The master comes first."""
        is_master = wanted.has_master and node_rank == 0
        found = {
            f"{_PREFIX}/replica-type": "master" if is_master else "worker",
            f"{_PREFIX}/replica-index": str(node_rank - (wanted.has_master and not is_master)),
        }
        return {**found, f"{_PREFIX}/job-role": "master"} if node_rank == 0 else found


def _roles(one: Object) -> dict[str, Object]:
    """The roles by their names, Master first; names may have any case."""
    given = section(section(one, "spec"), "pytorchReplicaSpecs")
    found = {name.capitalize(): role for name, role in given.items() if isinstance(role, dict)}
    return {name: found[name] for name in ("Master", "Worker") if name in found}


def _true_last(conditions: Conditions) -> Conditions:
    """The conditions with one at the end that is true: `kubectl get` shows the type of the last one."""
    last = [one for one in conditions if one.holds][-1:]
    if conditions and conditions[-1].holds:
        return conditions
    return (*(one for one in conditions if one not in last), *last)


def _elastic_nodes(one: Object, counts: Mapping[str, int | None]) -> NodeRange | None:
    """The nodes of an elastic gang; None for one of a fixed size."""
    policy = section(section(one, "spec"), "elasticPolicy")
    if not policy:
        return None
    masters, workers = (counts.get(name, 0) for name in ("Master", "Worker"))
    return elastic_nodes(
        1 if masters is None else masters,
        1 if workers is None else workers,
        whole(policy, "minReplicas"),
        whole(policy, "maxReplicas"),
    )


def _conditions(status: Object) -> list[ObjectCondition]:
    found = []
    for entry in entries(status, "conditions"):
        if entry.get("type"):
            updated_s = seconds(entry.get("lastUpdateTime")) or 0
            found.append(
                ObjectCondition(
                    str(entry["type"]),
                    entry.get("status") == "True",
                    str(entry.get("reason", "")),
                    str(entry.get("message", "")),
                    updated_s,
                    seconds(entry.get("lastTransitionTime")) or updated_s,
                )
            )
    return found


def _written(one: ReplicaCounts) -> dict[str, Any]:
    return {key: count for key in _COUNTS if (count := getattr(one, key))}


def _labels(name: str) -> dict[str, str]:
    return {f"{_PREFIX}/job-name": name, f"{_PREFIX}/operator-name": "pytorchjob-controller"}


def _selector(name: str, role: str) -> str:
    labels = {**_labels(name), f"{_PREFIX}/replica-type": role.lower()}
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
