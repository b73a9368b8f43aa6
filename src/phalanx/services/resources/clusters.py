"""Pools that are clusters of their own: whoever runs the control plane connects to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from phalanx.errors import ServerError
from phalanx.schemas.api.pools import ChangeView
from phalanx.schemas.pools.ray_pools import RayPool


@dataclass(frozen=True, slots=True)
class Kept:
    """What became of one cluster's entry in a pool file; `warning` empty: nothing to say."""

    change: ChangeView
    warning: str = ""


class Clusters(Protocol):
    """The clusters of one home."""

    def names(self) -> Sequence[str]:
        """Those that are known."""
        ...

    def keep(self, pool: RayPool) -> Kept:
        """Connect to a cluster, now and at every later start. Raises ServerError, Conflict."""
        ...

    def forget(self, name: str) -> None:
        """Let go of it, now and for good. Raises NotFound."""
        ...


class NoClusters:
    """A control plane that has no home to remember them in."""

    def names(self) -> Sequence[str]:
        """None."""
        return ()

    def keep(self, pool: RayPool) -> Kept:
        """Cannot. Raises ServerError."""
        raise ServerError(f"this control plane connects to no clusters, pool {pool.name} is one")

    def forget(self, name: str) -> None:
        """Nothing is there."""
