"""What a pod says of itself in events of its object: why it waits, and how it ended."""

from __future__ import annotations

from phalanx.core.serving.life import ObjectEvent
from phalanx.executors.kubernetes.manifests import CONTAINER
from phalanx.operator.kinds import Object, section

_ENDED = ("Succeeded", "Failed")


def node_rank(pod: str) -> int:
    """The node rank of a pod: its name ends with it."""
    text = pod.rpartition("-n")[2]
    return int(text) if text.isdecimal() else 0


def exit_code(pod: Object) -> int | None:
    """The exit code of the container with the ranks; None while it has not ended."""
    for one in _statuses(pod, "containerStatuses"):
        ended = section(section(one, "state"), "terminated")
        if one.get("name") == CONTAINER and ended:
            return int(ended.get("exitCode", 0))
    return None


def troubles(pod: Object) -> list[ObjectEvent]:
    """One event for each container of a live pod that waits or has failed; else for a pod that waits.

    Its words are those of the training-operator. An event that only differs in its message is the same one.
    """
    meta, status = pod["metadata"], pod["status"]
    if status.get("phase") in _ENDED or meta.get("deletionTimestamp"):
        return []
    for key in ("containerStatuses", "initContainerStatuses"):
        statuses = _statuses(pod, key)
        if statuses:
            return [event for one in statuses if (event := _trouble(pod, one)) is not None]
    conditions = [one for one in status.get("conditions") or () if isinstance(one, dict)]
    last = max(conditions, key=lambda one: str(one.get("lastTransitionTime", "")), default=None)
    if last is None or last.get("status") == "True":
        return []
    return [_event(pod, "", last, f"condition message: {last.get('message', '')}")]


def _trouble(pod: Object, one: Object) -> ObjectEvent | None:
    name, state = str(one.get("name", "")), section(one, "state")
    waiting, ended = section(state, "waiting"), section(state, "terminated")
    if waiting.get("message"):
        return _event(pod, name, waiting, f"waiting message: {waiting['message']}")
    # The container with the ranks leaves a record there, which the status of the object tells in words.
    if ended.get("exitCode") and name != CONTAINER:
        said = f"exitCode: {ended['exitCode']} terminated message: {ended.get('message', '')}"
        return _event(pod, name, ended, said)
    return None


def _event(pod: Object, container: str, state: Object, said: str) -> ObjectEvent:
    meta, reason = pod["metadata"], str(state.get("reason") or "Pending")
    where = f"Error pod {meta['name']}" + (f" container {container}" if container else "")
    return ObjectEvent(reason, f"{where} {said}", warning=True, about=f"{meta['uid']} {container}")


def _statuses(pod: Object, key: str) -> list[Object]:
    return [one for one in pod["status"].get(key) or () if isinstance(one, dict)]
