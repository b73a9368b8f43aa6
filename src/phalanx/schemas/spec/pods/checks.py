"""Problems of `mounts` and `kubernetes` that show without a cluster."""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.core.contract.secrecy import is_secret
from phalanx.errors import Problem
from phalanx.schemas.spec.pods.mounts import Mount, is_below, twice_mounted
from phalanx.schemas.spec.pods.section import KubernetesSection


def pod_problems(
    volumes: Sequence[Mount],
    own: KubernetesSection | None,
    role: str = "",
    of_role: Sequence[Mount] = (),
) -> list[Problem]:
    """What is wrong with the keys of containers and volumes, or with those of a role."""
    found: list[Problem] = []
    at = f"roles.{role}." if role else ""
    mounts = [one.to_core() for one in (*volumes, *of_role)]
    path = twice_mounted(mounts)
    if path is not None:
        found.append(Problem(f"{at}mounts", "two volumes have this path; choose another one", path))
    for number, one in enumerate(mounts, -len(volumes) if role else 0):
        if one.kind in ("configmap", "secret") and any(
            other.path != one.path and is_below(other.path, [one.path]) for other in mounts
        ):
            said = "another volume is mounted below it, where a volume of this kind is read only"
            found.append(Problem(f"{at}mounts[{max(number, 0)}]", said, one.path))
    return found + _secrets_in_clear(own)


def _secrets_in_clear(own: KubernetesSection | None) -> list[Problem]:
    """Secret variables of containers beside the ranks, which would be stored with the job."""
    if own is None:
        return []
    said = "is a secret, and is stored in clear here: mount a Secret: `mounts: [secret:NAME:/path]`"
    return [
        Problem(f"kubernetes.{section}[{number}].env.{name}", said)
        for section, containers in (("sidecars", own.sidecars), ("init", own.init))
        for number, one in enumerate(containers)
        for name, value in one.env.items()
        if is_secret(name, value)
    ]
