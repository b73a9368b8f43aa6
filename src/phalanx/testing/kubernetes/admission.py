"""Admission of the fake API server: quotas, Pod Security and limits, in the words of the real ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from phalanx.executors.kubernetes.quantities import amounts, requested
from phalanx.testing.kubernetes.objects import ApiError, KubernetesObjects

Object = dict[str, Any]


@dataclass(slots=True)
class FakeAdmission:
    """What namespaces allow. Quotas count resources as `requests.NAME`, and `pods`."""

    quotas: dict[str, tuple[str, Mapping[str, str]]] = field(default_factory=dict)
    """Name and hard limits of the quota of a namespace."""
    restricted: set[str] = field(default_factory=set)
    """Namespaces that enforce the Pod Security profile restricted."""
    max_memory: dict[str, str] = field(default_factory=dict)
    """Most memory of one container, by namespace."""
    webhook: str = ""  # the message with which a webhook denies every pod; empty: none does

    def check(self, store: KubernetesObjects, namespace: str, pod: Object) -> None:
        """Raise ApiError where a pod is not allowed. Nothing is stored of it."""
        if self.webhook:
            raise ApiError(403, "Forbidden", self.webhook)
        name = pod["metadata"]["name"]
        for said in (self._security(namespace, pod), self._limits(namespace, pod)):
            if said:
                raise ApiError(403, "Forbidden", f'pods "{name}" is forbidden: {said}')
        said = self._quota(store, namespace, pod)
        if said:
            raise ApiError(403, "Forbidden", f'pods "{name}" is forbidden: {said}')

    def _security(self, namespace: str, pod: Object) -> str:
        if namespace not in self.restricted:
            return ""
        spec, found = pod["spec"], []
        if spec.get("hostNetwork"):
            found.append("host namespaces (hostNetwork=true)")
        if not (spec.get("securityContext") or {}).get("runAsNonRoot"):
            found.append("runAsNonRoot != true (pod must set securityContext.runAsNonRoot=true)")
        if any("hostPath" in one for one in spec.get("volumes") or ()):
            found.append('restricted volume types (uses restricted volume type "hostPath")')
        for one in (*spec.get("initContainers", ()), *spec["containers"]):
            inner = one.get("securityContext") or {}
            if inner.get("allowPrivilegeEscalation") is not False:
                found.append(f'allowPrivilegeEscalation != false (container "{one["name"]}")')
            capabilities = inner.get("capabilities") or {}
            if capabilities.get("drop") != ["ALL"] or set(capabilities.get("add", ())):
                found.append(f'unrestricted capabilities (container "{one["name"]}")')
        return f'violates PodSecurity "restricted:latest": {", ".join(found)}' if found else ""

    def _limits(self, namespace: str, pod: Object) -> str:
        most = self.max_memory.get(namespace)
        if most is None:
            return ""
        for one in pod["spec"]["containers"]:
            limit = amounts((one.get("resources") or {}).get("limits")).get("memory")
            if limit is not None and limit > amounts({"memory": most})["memory"]:
                return f"maximum memory usage per Container is {most}, but limit is {limit}"
        return ""

    def _quota(self, store: KubernetesObjects, namespace: str, pod: Object) -> str:
        name, hard = self.quotas.get(namespace, ("", {}))
        pods = [
            one
            for (plural, place, _), one in store.objects.items()
            if (plural, place) == ("pods", namespace)
            and (one.get("status") or {}).get("phase") not in ("Succeeded", "Failed")
        ]
        for key, most in hard.items():
            resource = key.removeprefix("requests.")
            used = sum((_of(one, resource) for one in pods), Decimal(0))
            wanted = _of(pod, resource)
            if wanted and used + wanted > amounts({key: most})[key]:
                return (
                    f"exceeded quota: {name}, requested: {key}={wanted}, used: {key}={used}, "
                    f"limited: {key}={most}"
                )
        return ""


def _of(pod: Object, resource: str) -> Decimal:
    return Decimal(1) if resource == "pods" else requested(pod).get(resource, Decimal(0))
