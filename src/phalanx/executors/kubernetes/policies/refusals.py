"""Read why an API server refuses a pod: the policy, and the key of the job spec that it is about."""

from __future__ import annotations

import re

from phalanx.core.contract.pods import PodContract
from phalanx.errors import Problem
from phalanx.executors.kubernetes.client import KubernetesRefused

_SECURITY = re.compile(r'violates PodSecurity "(?P<level>[^"]+)": (?P<said>.*)', re.S)
_LIMIT = re.compile(
    r"(?P<said>(?:maximum|minimum) (?P<resource>\S+) usage per (?:Container|Pod) is [^,]+, but .+?)"
    r"(?:, (?=maximum |minimum )|\.?$)"
)
_RATIO = re.compile(r"(?P<resource>\S+) max limit to request ratio per \S+ is .+")
_WEBHOOK = re.compile(r'admission webhook "(?P<name>[^"]+)" denied the request: (?P<said>.*)', re.S)
_POLICY = re.compile(
    r"ValidatingAdmissionPolicy '(?P<name>[^']+)' with binding '[^']+' denied request: (?P<said>.*)",
    re.S,
)
_CONTAINER = re.compile(r'container "([^"]+)"')
# Words of a message and the key that they are about, the first that matches.
_WORDS = (
    ("hostnetwork", "kubernetes.host_network"),
    ("host namespaces", "kubernetes.host_network"),
    ("image", "image"),
    ("serviceaccount", "kubernetes.service_account"),
    ("service account", "kubernetes.service_account"),
    ("priorityclass", "kubernetes.priority_class"),
    ("runtimeclass", "kubernetes.runtime_class"),
    ("toleration", "kubernetes.tolerations"),
    ("nodeselector", "kubernetes.node_selector"),
    ("annotation", "kubernetes.annotations"),
    ("label", "kubernetes.labels"),
    ("memory", "resources.memory"),
    ("cpu", "resources.cpus"),
)
_RESOURCES = {"memory": "resources.memory", "cpu": "resources.cpus"}


def is_for_now(refused: KubernetesRefused) -> bool:
    """Whether a refusal says nothing about the job: a quota may be free later, a name be there already."""
    return refused.status == 409 or "exceeded quota" in refused.message


def policy_problems(
    refused: KubernetesRefused, namespace: str, pod: PodContract, slot: str
) -> list[Problem]:
    """What a refusal of a pod means for the job spec; `slot` is the resource of its slots."""
    if refused.status == 404:
        said = f"namespace {namespace} does not exist in the cluster: create it, or change the pool"
        return [Problem("pool", said)]
    text = refused.message
    if found := _SECURITY.search(text):
        where = f"the Pod Security level {found['level']} of namespace {namespace} forbids it"
        # The list of violations has commas in brackets too.
        parts = re.split(r", (?![^(]*\))", found["said"])
        return [Problem(_place(one, pod), f"{where}: {one.strip()}") for one in parts]
    if limits := [*_LIMIT.finditer(text)] or [*_RATIO.finditer(text)]:
        where = f"a LimitRange of namespace {namespace} forbids it"
        return [
            Problem(_resource(one["resource"], slot), f"{where}: {_said(one)}") for one in limits
        ]
    for pattern, kind in ((_WEBHOOK, "webhook"), (_POLICY, "policy")):
        if found := pattern.search(text):
            said = f"the {kind} {found['name']} of the cluster forbids it: {found['said']}"
            return [Problem(_place(found["said"], pod), said)]
    return [Problem(_place(text, pod), f"Kubernetes refuses the pods: {text}")]


def _said(found: re.Match[str]) -> str:
    return found.groupdict().get("said") or found[0]


def _resource(name: str, slot: str) -> str:
    if name == slot and slot != "cpu":
        return "resources.slots_per_node"
    return _RESOURCES.get(name, f"kubernetes.resources.{name}")


def _place(text: str, pod: PodContract) -> str:
    """The key that a message is about; `pool` where it names none that the job has."""
    names = _CONTAINER.findall(text)
    for section, containers in (("sidecars", pod.sidecars), ("init", pod.init)):
        for number, one in enumerate(containers):
            if one.name in names:
                return f"kubernetes.{section}[{number}]"
    lower = text.lower()
    if "hostpath" in lower:
        found = [n for n, one in enumerate(pod.mounts) if one.kind == "hostpath"]
        return f"mounts[{found[0]}].source" if found else "pool"
    if "runasnonroot" in lower or "runasuser" in lower:
        return "image"  # that of the pool has the user of the pool
    return next((key for word, key in _WORDS if word in lower), "pool")
