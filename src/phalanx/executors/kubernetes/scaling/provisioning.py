"""ProvisioningRequests: the autoscaler adds the nodes of a whole gang, or none of them.

A request names PodTemplates, one for each different share of the gang.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from phalanx.core.scaling.model import NodeWish, WantedGang
from phalanx.executors.kubernetes.client import KubernetesClient, KubernetesRefused, Object
from phalanx.executors.kubernetes.scaling.placeholders import Body, ScalingNames, pod_spec

GROUP = "/apis/autoscaling.x-k8s.io/v1"
_PLURAL = "provisioningrequests"


def is_served(client: KubernetesClient) -> bool:
    """Whether the cluster has the kind. Raises ExecutorUnavailable."""
    try:
        found = client.call("GET", GROUP)
    except KubernetesRefused:
        return False
    return any(one.get("name") == _PLURAL for one in found.get("resources") or ())


def path(names: ScalingNames, name: str = "") -> str:
    """Where the requests of a pool are in the API."""
    return f"{GROUP}/namespaces/{names.namespace}/{_PLURAL}" + (f"/{name}" if name else "")


def templates(names: ScalingNames, gang: WantedGang) -> list[Body]:
    """A PodTemplate for each different share of a gang."""
    claim = names.claim(gang)
    return [
        {
            "apiVersion": "v1",
            "kind": "PodTemplate",
            "metadata": {"name": f"{claim}-{number}", "labels": names.labels(claim)},
            "template": {
                "metadata": {"labels": names.labels(claim)},
                "spec": pod_spec(names, gang, wish),
            },
        }
        for number, wish in enumerate(_different(gang))
    ]


def request(names: ScalingNames, gang: WantedGang, provisioning_class: str) -> Body:
    """The ProvisioningRequest for a gang."""
    claim = names.claim(gang)
    return {
        "apiVersion": "autoscaling.x-k8s.io/v1",
        "kind": "ProvisioningRequest",
        "metadata": {"name": claim, "labels": names.labels(claim)},
        "spec": {
            "provisioningClassName": provisioning_class,
            "podSets": [
                {"podTemplateRef": {"name": f"{claim}-{number}"}, "count": gang.nodes.count(wish)}
                for number, wish in enumerate(_different(gang))
            ],
        },
    }


def _different(gang: WantedGang) -> list[NodeWish]:
    return list(dict.fromkeys(gang.nodes))


def failure(found: Object) -> str:
    """Why a request cannot be met any more; empty: it can."""
    for kind in ("Failed", "CapacityRevoked"):
        one = _condition(found, kind)
        if one.get("status") == "True":
            return str(one.get("message") or one.get("reason") or kind)
    return ""


def said(found: Object) -> str:
    """What the autoscaler says about a request that is open."""
    for kind in ("Failed", "Provisioned", "Accepted"):
        one = _condition(found, kind)
        if one.get("message"):
            return str(one["message"])
    return ""


def _condition(found: Object, kind: str) -> Mapping[str, Any]:
    conditions = (found.get("status") or {}).get("conditions") or ()
    return next((one for one in conditions if one.get("type") == kind), {})
