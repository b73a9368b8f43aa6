"""What the state of a pod and of its node proves: whether its processes are gone, and why they ended."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from phalanx.core.reasons import Cause
from phalanx.errors import ExecutorUnavailable
from phalanx.executors.kubernetes import kueue
from phalanx.executors.kubernetes.inventory import condition
from phalanx.executors.kubernetes.manifests import CONTAINER
from phalanx.schemas.pools.kubernetes_pools import KubernetesPool

# A gap between two looks counts as at most so much silence of a node.
_POLL_S = 10.0
_MAX_IMAGE = 512
_OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"
_PULL_TROUBLE = ("ErrImagePull", "ImagePullBackOff", "RegistryUnavailable")
_FINAL_TROUBLE = (
    "InvalidImageName",
    "ErrImageNeverPull",
    "SignatureValidationFailed",
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
)
# Answers of registries that another try does not change.
_NOT_THERE = ("not found", "denied", "unauthorized", "manifest unknown", "invalid reference")


class PodFault(StrEnum):
    """Why a pod ended or does not begin, where Kubernetes says it."""

    IMAGE = "image"
    CONTAINER = "container"
    UNSCHEDULABLE = "unschedulable"
    GATED = "gated"
    NOT_ADMITTED = "not_admitted"
    OUT_OF_MEMORY = "out_of_memory"
    EVICTED = "evicted"
    DRAINED = "drained"
    PREEMPTED = "preempted"
    ADMISSION = "admission"
    NODE_LOST = "node_lost"
    DELETED = "deleted"
    FORCED = "forced"
    ENDED = "ended"


CAUSES: Mapping[PodFault, Cause] = {
    PodFault.IMAGE: Cause.START_FAILED,
    PodFault.CONTAINER: Cause.START_FAILED,
    PodFault.ADMISSION: Cause.START_FAILED,
    PodFault.GATED: Cause.START_FAILED,
    # Counts where the supervisor never reported: the image lacks something.
    PodFault.ENDED: Cause.START_FAILED,
    PodFault.UNSCHEDULABLE: Cause.UNSCHEDULABLE,
    # The quota of a queue, as that of a namespace: the job waits for it.
    PodFault.NOT_ADMITTED: Cause.CLUSTER_QUOTA,
    PodFault.OUT_OF_MEMORY: Cause.OOM,
    PodFault.EVICTED: Cause.NODE_LOST,
    PodFault.DRAINED: Cause.NODE_DRAINED,
    PodFault.PREEMPTED: Cause.PREEMPTED,
    PodFault.NODE_LOST: Cause.NODE_LOST,
    PodFault.DELETED: Cause.NODE_LOST,
    PodFault.FORCED: Cause.NODE_LOST,
}
"""The cause that a fault of a pod is for its job; none of them counts as a crash of a rank."""


@dataclass(frozen=True, slots=True)
class PodVerdict:
    """`dead` is proof that nothing of the pod runs; `record` is what it left as its exit record."""

    dead: bool
    fault: PodFault | None = None
    message: str = ""
    record: str = ""


def verdict(
    pod: Mapping[str, Any],
    node: Mapping[str, Any] | None,
    boot_id: str,
    pool: KubernetesPool,
    silent_s: float,
) -> PodVerdict:
    """What is known of a pod that was seen; `boot_id` is that of its node when the pod was started.

    `silent_s` is how long the node has been without contact while the API was there. A pod that is gone
    from the API, or was marked as failed by a controller, proves nothing: only a kubelet, the end of the
    machine or an administrator does.
    """
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    deleted = bool(pod["metadata"].get("deletionTimestamp"))
    if not spec.get("nodeName"):
        failed = status.get("phase") == "Failed"
        if not deleted and not failed:
            return PodVerdict(False, *trouble(pod))
        return PodVerdict(True, *why(pod))
    containers = status.get("containerStatuses") or []
    ended = [(one.get("state") or {}).get("terminated") for one in containers]
    if ended and all(ended) and not _sidecar_runs(status):
        fault, said = why(pod)
        return PodVerdict(True, fault, said, str((ended[0] or {}).get("message") or ""))
    failed = _failed_init(status)
    if failed and status.get("phase") == "Failed" and not _sidecar_runs(status):
        # The kubelet starts no container of a pod after one of its init containers has failed.
        return PodVerdict(True, PodFault.CONTAINER, failed)
    never_began = not containers and status.get("phase") == "Failed" and _by_kubelet(status)
    if never_began:
        fault, said = why(pod)
        return PodVerdict(True, fault, said)
    proof = node_ended(node, boot_id, pool, silent_s)
    if proof:
        return PodVerdict(True, PodFault.NODE_LOST, proof)
    return PodVerdict(False, *trouble(pod))


def _sidecar_runs(status: Mapping[str, Any]) -> bool:
    """Whether a container beside the ranks still runs; it holds what it requested."""
    return any(
        "running" in (one.get("state") or {}) for one in status.get("initContainerStatuses") or ()
    )


def _failed_init(status: Mapping[str, Any]) -> str:
    """Which container before the ranks failed, and how; empty: none."""
    for one in status.get("initContainerStatuses") or ():
        ended = (one.get("state") or {}).get("terminated") or {}
        if ended.get("exitCode"):
            said = f"container {one.get('name')}, which runs before the ranks, ended with code"
            return f"{said} {ended['exitCode']}{_more(ended.get('reason'))}"
    return ""


def _by_kubelet(status: Mapping[str, Any]) -> bool:
    """Whether a kubelet refused the pod: a controller that marks orphans as failed gives other reasons."""
    refused = ("OutOf", "UnexpectedAdmissionError", "TopologyAffinityError", "NodeAffinity")
    return str(status.get("reason", "")).startswith((*refused, "NodePorts", "NodeUnschedulable"))


def node_ended(
    node: Mapping[str, Any] | None, boot_id: str, pool: KubernetesPool, silent_s: float
) -> str:
    """Why all processes that were started on a node are gone; empty: nothing proves it."""
    if node is None:
        if pool.trust_node_deletion == "cloud":
            return "the cloud has removed the node"
    else:
        taints = (node.get("spec") or {}).get("taints") or ()
        if any(one.get("key") == _OUT_OF_SERVICE for one in taints):
            return "an administrator has marked the node as out of service"
        now = ((node.get("status") or {}).get("nodeInfo") or {}).get("bootID", "")
        if boot_id and now and boot_id != now:
            return "the node was started again"
    if silent_s >= pool.fence:
        return f"the node has had no contact with Kubernetes for {silent_s:.0f} s"
    return ""


def is_silent(node: Mapping[str, Any] | None) -> bool:
    """Whether the node is gone from the API, or its kubelet has lost contact."""
    return node is None or condition(node, "Ready").get("status") not in ("True", "False")


def why(pod: Mapping[str, Any]) -> tuple[PodFault, str]:
    """The reason for which a pod ended, as far as Kubernetes tells it."""
    status = pod.get("status") or {}
    evicted = kueue.evicted_by(pod)
    if evicted is not None:
        return PodFault.PREEMPTED, f"Kueue took back the quota of the gang: {evicted}"
    target = condition(pod, "DisruptionTarget")
    reason, said = str(target.get("reason", "")), str(target.get("message", ""))
    by_reason = {
        "EvictionByEvictionAPI": (PodFault.DRAINED, "evicted, as in a drain of its node"),
        "DeletionByTaintManager": (PodFault.NODE_LOST, "removed because of a taint of its node"),
        "PreemptionByScheduler": (PodFault.PREEMPTED, "preempted by the scheduler of Kubernetes"),
        "PreemptionByKubeScheduler": (PodFault.PREEMPTED, "preempted by the scheduler"),
        "TerminationByKubelet": (PodFault.EVICTED, "ended by the kubelet"),
    }
    if reason in by_reason:
        fault, text = by_reason[reason]
        return fault, f"the pod was {text}{': ' + said if said else ''}"
    if status.get("reason") == "Evicted":
        return PodFault.EVICTED, f"the kubelet evicted the pod: {status.get('message', '')}"
    for one in status.get("containerStatuses") or ():
        ended = (one.get("state") or {}).get("terminated") or {}
        if ended.get("reason") == "OOMKilled":
            return PodFault.OUT_OF_MEMORY, "the pod used more memory than its limit (OOMKilled)"
        if ended.get("reason") == "ContainerStatusUnknown":
            return PodFault.NODE_LOST, "the node lost the container"
        if ended and pod["metadata"].get("deletionTimestamp"):
            return PodFault.DELETED, "the pod was deleted"
        if ended:
            said = f"the container ended with code {ended.get('exitCode')}"
            return PodFault.ENDED, f"{said}{_more(ended.get('reason'))}"
    if status.get("phase") == "Failed":
        said = f"{status.get('reason', '')}: {status.get('message', '')}".strip(": ")
        return PodFault.ADMISSION, f"the node refused the pod: {said}"
    return PodFault.DELETED, "the pod was deleted"


def _more(reason: Any) -> str:
    return f" ({reason})" if reason and reason not in ("Error", "Completed") else ""


def trouble(pod: Mapping[str, Any]) -> tuple[PodFault | None, str]:
    """What keeps a living pod from running; None: nothing, or it runs."""
    if condition(pod, "PodScheduled").get("reason") == "Unschedulable":
        return PodFault.UNSCHEDULABLE, str(condition(pod, "PodScheduled").get("message", ""))
    if kueue.is_gated(pod) and kueue.queue_of(pod):
        return PodFault.NOT_ADMITTED, f"waits for the queue {kueue.queue_of(pod)} of Kueue"
    if condition(pod, "PodScheduled").get("reason") == "SchedulingGated":
        gates = [one.get("name") for one in (pod.get("spec") or {}).get("schedulingGates") or ()]
        said = f"the gate {', '.join(map(str, gates))} holds the pod: another program manages it"
        return PodFault.GATED, said
    for waiting in _waits(pod):
        reason, message = str(waiting.get("reason", "")), str(waiting.get("message", ""))
        if reason in _PULL_TROUBLE or reason in _FINAL_TROUBLE[:3]:
            return PodFault.IMAGE, f"the image cannot be pulled: {reason}: {message}"
        if reason in _FINAL_TROUBLE:
            return PodFault.CONTAINER, f"the container cannot be created: {reason}: {message}"
    return None, ""


def _waits(pod: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What each container of a pod waits for."""
    status = pod.get("status") or {}
    keys = ("initContainerStatuses", "containerStatuses")
    found = [one for key in keys for one in status.get(key) or ()]
    return [(one.get("state") or {}).get("waiting") or {} for one in found]


def is_final(pod: Mapping[str, Any], pulling_s: float, pool: KubernetesPool) -> bool:
    """Whether a pod that does not begin never will: waiting longer does not help."""
    for waiting in _waits(pod):
        reason, message = str(waiting.get("reason", "")), str(waiting.get("message", "")).lower()
        if reason in _FINAL_TROUBLE:
            return True
        if reason in _PULL_TROUBLE:
            return pulling_s >= pool.pull_within or any(word in message for word in _NOT_THERE)
    return False


def began(pod: Mapping[str, Any]) -> bool:
    """Whether the container of the ranks runs or has run."""
    states = [
        one.get("state") or {} for one in (pod.get("status") or {}).get("containerStatuses") or ()
    ]
    return bool(states) and all("running" in one or "terminated" in one for one in states)


def image_of(pod: Mapping[str, Any]) -> str:
    """The image that the ranks of a pod run in, as its node resolved it; empty: not known yet.

    Some runtimes put their own name in front of it.
    """
    for one in (pod.get("status") or {}).get("containerStatuses") or ():
        if one.get("name") == CONTAINER:
            found = str(one.get("imageID") or "")
            return found.rpartition("://")[2][:_MAX_IMAGE]
    return ""


def hopeless(
    pod: Mapping[str, Any], waited_s: float, pool: KubernetesPool
) -> tuple[PodFault | None, str]:
    """Why a living pod that has not begun is given up after so many seconds; None: it is not."""
    if began(pod) or pod["metadata"].get("deletionTimestamp"):
        return None, ""
    fault, said = trouble(pod)
    name = pod["metadata"]["name"]
    if fault is PodFault.NOT_ADMITTED:
        late = waited_s > pool.admit_within
        return (fault, f"pod {name} {said}") if late else (None, "")
    if fault is PodFault.GATED or (fault is not None and is_final(pod, waited_s, pool)):
        return fault, f"pod {name}: {said}"
    if not (pod.get("spec") or {}).get("nodeName") and waited_s > pool.reserve_within:
        return PodFault.UNSCHEDULABLE, slowest([pod])
    return None, ""


def slowest(pods: Sequence[Mapping[str, Any]]) -> str:
    """The sentence for a gang that is not complete: the pod that keeps it waiting, and why."""
    for pod in pods:
        fault, said = trouble(pod)
        if fault is not None:
            return f"pod {pod['metadata']['name']}: {said}"
    waiting = [one for one in pods if not (one.get("spec") or {}).get("nodeName")]
    names = ", ".join(str(one["metadata"]["name"]) for one in waiting[:3])
    return f"Kubernetes has not bound pod {names} to its node" if waiting else ""


class NodeSilence:
    """Adds up the seconds without contact of each node.

    Time in which the API server did not answer, or in which nothing looked, counts for nothing.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._silent: dict[str, float] = {}
        self._looked_at: float | None = None

    def seconds(self, node: str) -> float:
        """For how long a node has had no contact."""
        return self._silent.get(node, 0.0)

    def look(
        self, nodes: Callable[[], Iterable[Mapping[str, Any]]], used: Callable[[], set[str]]
    ) -> None:
        """Take a look at all nodes; `used` are the names of nodes with own pods.

        Raises ExecutorUnavailable, after which the next look counts no time.
        """
        now = self._monotonic()
        passed = 0.0 if self._looked_at is None else min(_POLL_S, now - self._looked_at)
        try:
            found = list(nodes())
            names = used()
        except ExecutorUnavailable:
            self._looked_at = None
            raise
        self._looked_at = now
        there = {one["metadata"]["name"] for one in found}
        silent = {one["metadata"]["name"] for one in found if is_silent(one)}
        absent = {name for name in names | self._silent.keys() if name and name not in there}
        self._silent = {name: self._silent.get(name, 0.0) + passed for name in silent | absent}
