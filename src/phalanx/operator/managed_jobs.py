"""JobSets and Jobs that name Phalanx as their manager: their own controllers leave them alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from phalanx.core.serving.conditions import ConditionKind, Conditions, ObjectCondition, find
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

MANAGER = "phalanx.dev/executor"
"""Value of `managedBy` of the objects that are served."""
_ROLE = "Worker"
_LIVE = ("suspend", "activeDeadlineSeconds", "ttlSecondsAfterFinished")
_SERVE = ("pytorchjob", "managed")
_K = ConditionKind
_JOB_NAMES = {_K.SUSPENDED: "Suspended", _K.SUCCEEDED: "Complete", _K.FAILED: "Failed"}
_JOB_REASONS = {("Complete", True): "CompletionsReached"}
_JOBSET_NAMES = {_K.SUSPENDED: "Suspended", _K.SUCCEEDED: "Completed", _K.FAILED: "Failed"}
_JOBSET_REASONS = {
    ("Completed", True): "AllJobsCompleted",
    ("Failed", True): "FailedJobs",
    ("Suspended", True): "SuspendedJobs",
    ("Suspended", False): "ResumeJobs",
}


class ManagedKind(ServedKind):
    """What JobSets and Jobs share: the manager, the suspension, conditions with other names."""

    #: names of conditions, as this kind has them
    names: ClassVar[Mapping[ConditionKind, str]]
    #: reasons of conditions by name and status, where the kind has its own
    reasons: ClassVar[Mapping[tuple[str, bool], str]]

    def may_be_served(self, one: Object) -> bool:
        """See `ServedKind`. The manager of an object is immutable."""
        return bool(section(one, "spec").get("managedBy") == MANAGER)

    def is_served(self, one: Object, serve: str | None) -> bool:
        """See `ServedKind`."""
        return serve in _SERVE and self.may_be_served(one)

    def fixed_spec(self, one: Object) -> Object:
        """See `ServedKind`."""
        return self.submitted_spec(one)

    def submitted_spec(self, one: Object) -> Object:
        """See `ServedKind`."""
        spec = copied(section(one, "spec"))
        return {key: value for key, value in spec.items() if key not in _LIVE}

    def _read(self, status: Object) -> Conditions:
        known = {name: kind for kind, name in self.names.items()}
        return tuple(
            ObjectCondition(
                known[entry["type"]],
                entry.get("status") == "True",
                str(entry.get("reason", "")),
                str(entry.get("message", "")),
                seconds(entry.get("lastTransitionTime")) or 0,
                seconds(entry.get("lastTransitionTime")) or 0,
            )
            for entry in entries(status, "conditions")
            if str(entry.get("type")) in known
        )

    def _written(self, conditions: Conditions) -> list[Object]:
        found = []
        for one in conditions:
            name = self.names.get(ConditionKind(one.kind))
            if name is not None:
                found.append(_entry(name, one, self.reasons.get((name, one.holds), one.reason)))
        return found


def _entry(name: str, one: ObjectCondition, reason: str) -> Object:
    return {
        "type": name,
        "status": "True" if one.holds else "False",
        "reason": reason,
        "message": one.message,
        "lastTransitionTime": timestamp(one.changed_s),
    }


class BatchJobKind(ManagedKind):
    """Jobs of the batch API. The cluster itself deletes those that have ended, after their time to live."""

    kind, plural = "Job", "jobs"
    group, version = "batch", "v1"
    changeable = (
        "suspend, activeDeadlineSeconds, ttlSecondsAfterFinished, and parallelism with completions"
    )
    names = _JOB_NAMES
    reasons = _JOB_REASONS

    def asked_for(self, one: Object) -> ServedObject:
        """See `ServedKind`."""
        spec = section(one, "spec")
        return ServedObject(
            kind=self.kind,
            namespace=one["metadata"].get("namespace", ""),
            name=one["metadata"]["name"],
            replicas={_ROLE: whole(spec, "parallelism") or 1},
            suspended=spec.get("suspend") is True,
            deadline_s=whole(spec, "activeDeadlineSeconds"),
            backoff_limit=whole(spec, "backoffLimit"),
            nodes=_nodes(spec),
        )

    def fixed_spec(self, one: Object) -> Object:
        """See `ServedKind`. A size that a gang can have may change."""
        spec = self.submitted_spec(one)
        if _nodes(spec) is not None:
            for key in ("parallelism", "completions"):
                spec.pop(key, None)
        return spec

    def read_status(self, one: Object) -> LifeStatus:
        """See `ServedKind`. A failed Job has no completion time: that of its condition counts."""
        status = section(one, "status")
        counts = ReplicaCounts(
            *(whole(status, key) or 0 for key in ("active", "succeeded", "failed"))
        )
        conditions = self._read(status)
        failed = find(conditions, ConditionKind.FAILED)
        completed_s = seconds(status.get("completionTime"))
        if failed is not None and failed.holds:
            completed_s = failed.changed_s
        start_s = seconds(status.get("startTime"))
        conditions = (*conditions, *_running(counts))
        return LifeStatus(conditions, {_ROLE: counts} if start_s else {}, start_s, completed_s)

    def status_body(self, one: Object, status: LifeStatus, restarts: int) -> Object:
        """See `ServedKind`. The API server refuses an end without the condition that announces it."""
        counts = status.replicas.get(_ROLE, ReplicaCounts())
        body: Object = {"conditions": self._written(status.conditions)}
        for kind, name in (
            (ConditionKind.SUCCEEDED, "SuccessCriteriaMet"),
            (ConditionKind.FAILED, "FailureTarget"),
        ):
            found = find(status.conditions, kind)
            if found is not None and found.holds:
                reason = self.reasons.get((self.names[kind], True), found.reason)
                body["conditions"].insert(0, _entry(name, found, reason))
        numbers = {"active": counts.active, "ready": counts.active, "succeeded": counts.succeeded}
        numbers["failed"] = max(restarts, counts.failed)
        body |= {key: count for key, count in numbers.items() if count}
        # A start may be set anew only after it was absent.
        if status.start_s is not None and not status.holds(ConditionKind.SUSPENDED):
            body["startTime"] = timestamp(status.start_s)
        if status.completed_s is not None and status.holds(ConditionKind.SUCCEEDED):
            body["completionTime"] = timestamp(status.completed_s)
        return body

    def pod_labels(self, one: Object) -> dict[str, str]:
        """See `ServedKind`."""
        name = one["metadata"]["name"]
        return {"batch.kubernetes.io/job-name": name, "job-name": name}

    def rank_labels(self, wanted: ServedObject, node_rank: int) -> dict[str, str]:
        """See `ServedKind`."""
        return {"batch.kubernetes.io/job-completion-index": str(node_rank)}


class JobSetKind(ManagedKind):
    """JobSets; their replicated jobs are the roles of one gang."""

    kind, plural = "JobSet", "jobsets"
    group, version = "jobset.x-k8s.io", "v1alpha2"
    changeable = "suspend and ttlSecondsAfterFinished"
    names = _JOBSET_NAMES
    reasons = _JOBSET_REASONS

    def asked_for(self, one: Object) -> ServedObject:
        """See `ServedKind`. The roles are the replicated jobs."""
        spec = section(one, "spec")
        return ServedObject(
            kind=self.kind,
            namespace=one["metadata"].get("namespace", ""),
            name=one["metadata"]["name"],
            replicas={name: _jobs(each) * _pods(each) for name, each in _replicated(one).items()},
            suspended=spec.get("suspend") is True,
            ttl_s=whole(spec, "ttlSecondsAfterFinished"),
            backoff_limit=whole(section(spec, "failurePolicy"), "maxRestarts"),
        )

    def read_status(self, one: Object) -> LifeStatus:
        """See `ServedKind`. A JobSet has no times: entries of replicated jobs say that it has started."""
        status, pods = section(one, "status"), self.asked_for(one).replicas
        conditions = self._read(status)
        ends = [find(conditions, each) for each in (ConditionKind.SUCCEEDED, ConditionKind.FAILED)]
        completed_s = next((each.changed_s for each in ends if each and each.holds), None)
        counts = {
            str(each.get("name")): ReplicaCounts(
                active=pods.get(str(each.get("name")), 0) if whole(each, "active") else 0
            )
            for each in entries(status, "replicatedJobsStatus")
        }
        if not counts:
            return LifeStatus(conditions, {}, None, completed_s)
        active = ReplicaCounts(active=sum(each.active for each in counts.values()))
        return LifeStatus((*conditions, *_running(active)), counts, 0, completed_s)

    def status_body(self, one: Object, status: LifeStatus, restarts: int) -> Object:
        """See `ServedKind`. Its entries count Jobs: one of them is active while any of its pods is."""
        body: Object = {"conditions": self._written(status.conditions), "restarts": restarts}
        ended = {ConditionKind.SUCCEEDED: "Completed", ConditionKind.FAILED: "Failed"}
        for kind, word in ended.items():
            if status.holds(kind):
                body["terminalState"] = word
        if status.start_s is not None:
            body["replicatedJobsStatus"] = [
                _job_counts(name, each, status) for name, each in _replicated(one).items()
            ]
        return body

    def pod_labels(self, one: Object) -> dict[str, str]:
        """See `ServedKind`."""
        return {"jobset.sigs.k8s.io/jobset-name": one["metadata"]["name"]}

    def rank_labels(self, wanted: ServedObject, node_rank: int) -> dict[str, str]:
        """See `ServedKind`."""
        return {
            "jobset.sigs.k8s.io/replicatedjob-name": wanted.role_of(node_rank),
            "jobset.sigs.k8s.io/job-global-index": str(node_rank),
        }


def _nodes(spec: Object) -> NodeRange | None:
    """The nodes of a Job; None for a size that a gang cannot have."""
    pods = 1 if spec.get("parallelism") is None else whole(spec, "parallelism")
    ends = pods if spec.get("completions") is None else whole(spec, "completions")
    return (pods, pods) if pods and ends == pods else None


def _replicated(one: Object) -> dict[str, Object]:
    """The replicated jobs of a JobSet by their names, in order."""
    found = entries(section(one, "spec"), "replicatedJobs")
    return {str(each.get("name", "")): each for each in found}


def _jobs(each: Object) -> int:
    return whole(each, "replicas") or 1


def _pods(each: Object) -> int:
    return whole(section(section(each, "template"), "spec"), "parallelism") or 1


def _job_counts(name: str, each: Object, status: LifeStatus) -> Object:
    jobs, active = _jobs(each), status.replicas.get(name, ReplicaCounts()).active
    return {
        "name": name,
        "active": jobs if active else 0,
        "ready": jobs if active >= jobs * _pods(each) else 0,
        "succeeded": jobs if status.holds(ConditionKind.SUCCEEDED) else 0,
        "failed": jobs if status.holds(ConditionKind.FAILED) else 0,
        "suspended": jobs if status.holds(ConditionKind.SUSPENDED) else 0,
    }


def _running(counts: ReplicaCounts) -> Conditions:
    """The condition that these kinds do not write: their counts tell it."""
    if not counts.active:
        return ()
    return (ObjectCondition(ConditionKind.RUNNING, True, "", "", 0, 0),)
