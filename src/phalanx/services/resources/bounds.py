"""The bounds of pools that can grow: those of the pool file, and those that were set beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from phalanx.core.scaling.model import ScalingBounds, ScalingPolicy
from phalanx.executors.protocol import ScalableExecutor
from phalanx.schemas.api.body import at_or_none
from phalanx.schemas.api.pools import PoolBoundsView
from phalanx.services.platform import Platform
from phalanx.store import planning


@dataclass(frozen=True, slots=True)
class BoundedPolicy:
    """The policy of a pool file, and the bounds that precede its own."""

    file: ScalingPolicy
    bounds: ScalingBounds | None

    @property
    def policy(self) -> ScalingPolicy:
        """The policy in effect."""
        return self.file if self.bounds is None else self.bounds.over(self.file)

    def view(self) -> PoolBoundsView:
        """The bounds as the API shows them."""
        policy, bounds = self.policy, self.bounds
        return PoolBoundsView(
            min_nodes=policy.min_nodes,
            max_nodes=policy.max_nodes,
            autoscaling="off" if policy.is_off else "on",
            source="file" if bounds is None else "set",
            file_min_nodes=self.file.min_nodes,
            file_max_nodes=self.file.max_nodes,
            set_at=at_or_none(None if bounds is None else bounds.set_at),
            set_by=None if bounds is None else bounds.set_by,
        )


def file_policies(platform: Platform) -> Mapping[str, ScalingPolicy]:
    """The policies of the pools that can grow, as their pool files say."""
    executor = platform.executor
    return executor.scaling_policies() if isinstance(executor, ScalableExecutor) else {}


def bounded_policies(platform: Platform) -> dict[str, BoundedPolicy]:
    """The policies of the pools that can grow, with the bounds that were set."""
    policies = file_policies(platform)
    bounds = platform.store.view(planning.scaling_bounds) if policies else {}
    return {name: BoundedPolicy(one, bounds.get(name)) for name, one in policies.items()}


def scaling_policies(platform: Platform) -> dict[str, ScalingPolicy]:
    """The policies in effect of the pools that can grow."""
    return {name: one.policy for name, one in bounded_policies(platform).items()}
