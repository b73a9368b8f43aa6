"""Makes a cluster have exactly the requests for nodes that are wanted, and tells what became of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from phalanx.core.scaling.model import PoolDemand, WantedGang
from phalanx.errors import ExecutorUnavailable
from phalanx.executors.kubernetes.client import (
    MERGE_PATCH,
    KubernetesClient,
    KubernetesRefused,
    Object,
)
from phalanx.executors.kubernetes.inventory import condition
from phalanx.executors.kubernetes.launching import delete
from phalanx.executors.kubernetes.scaling import provisioning
from phalanx.executors.kubernetes.scaling.placeholders import (
    CLAIM_LABEL,
    Body,
    ScalingNames,
    gang_pods,
    hold_pod,
)
from phalanx.schemas.pools.kubernetes_pools import KubernetesPool

_ENDED = ("Succeeded", "Failed")
_SILENT = "NotTriggerScaleUp"


class NodeRequests:
    """The requests of one pool. Its state is in the API server, under names that follow from the demand."""

    def __init__(self, client: KubernetesClient, pool: KubernetesPool, owner: str) -> None:
        self._client = client
        self._names = ScalingNames(pool, owner)
        self._is_empty = False  # known to be: nothing is read where nothing is wanted
        self._by_request: bool | None = None

    def make(self, demand: PoolDemand) -> dict[int, str]:
        """Create what is wanted and delete everything else; returns why gangs were refused.

        Raises ExecutorUnavailable.
        """
        if self._is_empty and not demand.gangs and not demand.keep:
            return {}
        self._is_empty = False
        pods = self._listed(self._names.path("pods"))
        holds = [hold_pod(self._names, node) for node in demand.keep]
        refused: dict[int, str] = {}
        if self._uses_requests():
            self._tidy(pods, [one["metadata"]["name"] for one in holds])
            refused |= self._make_requests(demand.gangs)
        else:
            wanted = {gang.job: gang_pods(self._names, gang) for gang in demand.gangs}
            flat = [one for gang in wanted.values() for one in gang]
            self._tidy(pods, [one["metadata"]["name"] for one in (*flat, *holds)])
            for job, bodies in wanted.items():
                said = self._make_gang(bodies, pods)
                if said:
                    refused[job] = said
        for body in holds:
            if body["metadata"]["name"] not in pods:
                # A node that cannot be held is only released earlier.
                self._create(self._names.path("pods"), body)
        self._is_empty = not demand.gangs and not demand.keep
        return refused

    def drop(self, job: int) -> None:
        """Delete the placeholders of a gang that starts: their nodes are for its pods."""
        for name, pod in self._listed(self._names.path("pods")).items():
            if self._names.job_of(_claim(pod)) == job:
                self._delete(self._names.path("pods", name))

    def said(self, jobs: Sequence[int]) -> dict[int, str]:
        """What the autoscaler, else the scheduler, says about the gangs. Raises ExecutorUnavailable."""
        found: dict[int, str] = {}
        if self._uses_requests():
            for one in self._listed(provisioning.path(self._names)).values():
                job, text = self._names.job_of(_claim(one)), provisioning.said(one)
                if job in jobs and job is not None and text:
                    found[job] = text
            return found
        pods = self._listed(self._names.path("pods"))
        for pod in pods.values():
            job = self._names.job_of(_claim(pod))
            scheduled = condition(pod, "PodScheduled")
            if job in jobs and job is not None and scheduled.get("status") == "False":
                found[job] = str(scheduled.get("message") or "")
        for name, text in self._events():
            job = self._names.job_of(_claim(pods[name])) if name in pods else None
            if job in jobs and job is not None:
                found[job] = text
        return {job: text for job, text in found.items() if text}

    # -- inside ------------------------------------------------------------------------------------

    def _uses_requests(self) -> bool:
        scaling = self._names.pool.scaling
        assert scaling is not None
        if scaling.mechanism != "auto":
            return scaling.mechanism == "provisioning_request"
        if self._by_request is None:
            self._by_request = provisioning.is_served(self._client)
        return self._by_request

    def _listed(self, path: str) -> dict[str, Object]:
        try:
            found = self._client.list(path, {"labelSelector": self._names.selector})
        except KubernetesRefused as refused:
            raise ExecutorUnavailable(f"{path}: {refused.message}") from refused
        return {str(one["metadata"]["name"]): one for one in found.items}

    def _tidy(self, pods: dict[str, Object], wanted: Iterable[str]) -> None:
        """Delete pods that are not wanted, and those that have ended: the wanted ones are made again."""
        keep = set(wanted)
        for name, pod in list(pods.items()):
            ended = (pod.get("status") or {}).get("phase") in _ENDED
            if ended or name not in keep:
                self._delete(self._names.path("pods", name))
                del pods[name]

    def _make_gang(self, bodies: Sequence[Body], pods: Mapping[str, Object]) -> str:
        """Create all pods of a gang, then open their gates; returns why one of them was refused."""
        for body in bodies:
            if body["metadata"]["name"] in pods:
                continue
            said = self._create(self._names.path("pods"), body)
            if said:
                for one in bodies:
                    self._delete(self._names.path("pods", one["metadata"]["name"]))
                return said
        for body in bodies:
            name = body["metadata"]["name"]
            known = pods.get(name, body)
            if (known.get("spec") or {}).get("schedulingGates"):
                self._open(name)
        return ""

    def _open(self, name: str) -> None:
        patch = {"spec": {"schedulingGates": None}}
        try:
            self._client.call("PATCH", self._names.path("pods", name), patch, kind=MERGE_PATCH)
        except KubernetesRefused as refused:
            # The pod is gone: the next time it is made again.
            if refused.status != 404:
                raise ExecutorUnavailable(f"pod {name}: {refused.message}") from refused

    def _create(self, path: str, body: Body) -> str:
        """Create an object; returns why it was refused. One of its name is the same."""
        try:
            self._client.call("POST", path, body)
        except KubernetesRefused as refused:
            if refused.status != 409 or refused.reason != "AlreadyExists":
                return f"Kubernetes refuses {body['kind']}: {refused.message}"
        return ""

    def _delete(self, path: str) -> None:
        delete(self._client, path, {"gracePeriodSeconds": 0})

    def _make_requests(self, gangs: Sequence[WantedGang]) -> dict[int, str]:
        scaling = self._names.pool.scaling
        assert scaling is not None
        there = self._listed(provisioning.path(self._names))
        templates = self._listed(self._names.path("podtemplates"))
        wanted = {self._names.claim(gang): gang for gang in gangs}
        refused: dict[int, str] = {}
        for name, gang in wanted.items():
            text = provisioning.failure(there[name]) if name in there else ""
            if not text and name not in there:
                text = self._request(gang, scaling.provisioning_class)
            if text:
                refused[gang.job] = text
        keep = {name for name, gang in wanted.items() if gang.job not in refused}
        for name in there.keys() - keep:
            self._delete(provisioning.path(self._names, name))
        for name, one in templates.items():
            if _claim(one) not in keep:
                self._delete(self._names.path("podtemplates", name))
        return refused

    def _request(self, gang: WantedGang, provisioning_class: str) -> str:
        for body in provisioning.templates(self._names, gang):
            said = self._create(self._names.path("podtemplates"), body)
            if said:
                return said
        body = provisioning.request(self._names, gang, provisioning_class)
        return self._create(provisioning.path(self._names), body)

    def _events(self) -> list[tuple[str, str]]:
        """Pods and why the autoscaler adds no node for them; none where events may not be read."""
        query = {"fieldSelector": f"reason={_SILENT}"}
        try:
            found = self._client.list(self._names.path("events"), query)
        except KubernetesRefused:
            return []
        return [
            (str((one.get("involvedObject") or {}).get("name", "")), str(one.get("message", "")))
            for one in found.items
        ]


def _claim(one: Object) -> str:
    return str((one["metadata"].get("labels") or {}).get(CLAIM_LABEL, ""))
