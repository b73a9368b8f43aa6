"""One executor for all pools, which passes each call to the executor of the pool."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from phalanx.core.contract.job import JobContract
from phalanx.core.gang.devices import DeviceState
from phalanx.core.gang.placement import Node, Placement
from phalanx.core.scaling.model import PoolDemand, ScalingBounds, ScalingPolicy
from phalanx.errors import ExecutorUnavailable, LaunchError, Problem
from phalanx.executors.protocol import (
    AdjustableExecutor,
    ChangeTeller,
    ClosableExecutor,
    DeviceReporter,
    Executor,
    GangReserver,
    LeftoverCleaner,
    Leftovers,
    NodeReplacer,
    PodChecker,
    ScalableExecutor,
    SupervisorRef,
    SupervisorStatus,
)
from phalanx.schemas.pools.scaling import ScalingSection
from phalanx.schemas.wire.assignments import Assignment

_LOG = logging.getLogger(__name__)


class RoutedExecutor:
    """The `Executor` of all pools. One that is unavailable does not affect the others.

    Pools without an executor of their own are parts of `shared`, this machine, where there is one.
    """

    def __init__(self, pools: Mapping[str, Executor], shared: Executor | None = None) -> None:
        self._pools, self._shared = dict(pools), shared
        self._last: dict[str, tuple[Node, ...]] = {}
        self._troubled: set[str] = set()
        self._changed: Callable[[str], None] = lambda pool: None

    def add(self, name: str, executor: Executor) -> None:
        """Add a pool."""
        self._pools = {**self._pools, name: executor}
        self.tell(self._changed)

    def tell(self, changed: Callable[[str], None]) -> None:
        """See `ChangeTeller`; pools that are added later tell as well."""
        self._changed = changed
        for executor in self._pools.values():
            if isinstance(executor, ChangeTeller):
                executor.tell(changed)

    def drop(self, name: str) -> None:
        """Remove a pool, and end the connections to its cluster. What runs there continues."""
        gone: object = self._pools.get(name)
        if isinstance(gone, ScalableExecutor) and name in gone.scaling_policies():
            with contextlib.suppress(ExecutorUnavailable):
                gone.request(name, PoolDemand())
        self._pools = {key: one for key, one in self._pools.items() if key != name}
        self._last.pop(name, None)
        if isinstance(gone, ClosableExecutor):
            gone.close()

    def inventory(self) -> Sequence[Node]:
        """Nodes of all pools; those of an unavailable pool are closed, as last known."""
        nodes: list[Node] = []
        for name, executor in self._pools.items():
            try:
                self._last[name] = tuple(executor.inventory())
                nodes += self._last[name]
                self._troubled.discard(name)
            except ExecutorUnavailable as error:
                self._note(name, error)
                nodes += [replace(node, closed=error.message) for node in self._last.get(name, ())]
        return nodes

    def devices(self) -> Sequence[DeviceState]:
        """See `DeviceReporter`."""
        return [
            state
            for executor in self._pools.values()
            if isinstance(executor, DeviceReporter)
            for state in executor.devices()
        ]

    def refusals(
        self, pool: str, project: str, contract: JobContract, num_nodes: int
    ) -> Sequence[Problem]:
        """See `PodChecker`. A pool without containers refuses all pods."""
        executor: object = self._pools.get(pool, self._shared)
        if isinstance(executor, PodChecker):
            return executor.refusals(pool, project, contract, num_nodes)
        if not contract.pods:
            return []
        said = f"pool {pool} runs no containers; remove it, or name a pool of Kubernetes"
        return [Problem("image" if contract.pods[0].image else "kubernetes", said)]

    def may_replace(self, pool: str) -> bool:
        """See `NodeReplacer`."""
        executor: object = self._pools.get(pool, self._shared)
        return isinstance(executor, NodeReplacer) and executor.may_replace(pool)

    def leftovers(self, pool: str) -> Sequence[Leftovers]:
        """See `LeftoverCleaner`; nothing where the objects of a pool end with their control plane."""
        executor: object = self._pools.get(pool)
        return executor.leftovers(pool) if isinstance(executor, LeftoverCleaner) else []

    def forget(self, pool: str, owner: str) -> int:
        """See `LeftoverCleaner`."""
        executor: object = self._pools.get(pool)
        return executor.forget(pool, owner) if isinstance(executor, LeftoverCleaner) else 0

    def reserve(self, placement: Placement, gang: Sequence[Assignment]) -> None:
        """See `GangReserver`; nothing where the pool's executor needs no reservation."""
        executor = self._of(placement.pool)
        if isinstance(executor, GangReserver):
            executor.reserve(placement, gang)

    def start(self, node: Node, assignment: Assignment) -> None:
        """See `Executor`."""
        self._of(node.pool).start(node, assignment)

    def stop(self, ref: SupervisorRef) -> None:
        """See `Executor`."""
        executor = self._pools.get(ref.pool, self._shared)
        if executor is not None:
            executor.stop(ref)

    def poll(self, refs: Sequence[SupervisorRef]) -> Sequence[SupervisorStatus]:
        """See `Executor`. Supervisors of an unavailable pool count as alive: nothing is known.

        A pool that was taken away from this control plane leaves its supervisors alive as well.
        """
        found: dict[SupervisorRef, SupervisorStatus] = {}
        for name in dict.fromkeys(ref.pool for ref in refs):
            asked = [ref for ref in refs if ref.pool == name]
            executor = self._pools.get(name, self._shared)
            try:
                if executor is None:
                    raise ExecutorUnavailable(f"this control plane has no pool {name!r}")
                found |= {one.ref: one for one in executor.poll(asked)}
                self._troubled.discard(name)
            except ExecutorUnavailable as error:
                self._note(name, error)
                found |= {ref: SupervisorStatus(ref, True, None, error.message) for ref in asked}
        return [found[ref] for ref in refs]

    def scaling_policies(self) -> Mapping[str, ScalingPolicy]:
        """See `ScalableExecutor`."""
        return {
            name: policy
            for executor in self._pools.values()
            if isinstance(executor, ScalableExecutor)
            for name, policy in executor.scaling_policies().items()
        }

    def request(self, pool: str, demand: PoolDemand) -> Mapping[int, str]:
        """See `ScalableExecutor`."""
        executor: object = self._pools.get(pool)
        if pool in self._troubled:
            raise ExecutorUnavailable("its nodes are not known at present")
        return executor.request(pool, demand) if isinstance(executor, ScalableExecutor) else {}

    def growth(self, pool: str, jobs: Sequence[int]) -> Mapping[int, str]:
        """See `ScalableExecutor`."""
        executor: object = self._pools.get(pool)
        return executor.growth(pool, jobs) if isinstance(executor, ScalableExecutor) else {}

    def set_scaling(self, name: str, scaling: ScalingSection | None) -> None:
        """Use another section `scaling` of a pool from now on."""
        executor: object = self._pools.get(name)
        if isinstance(executor, AdjustableExecutor):
            executor.set_scaling(scaling)

    def bound_pools(self, bounds: Mapping[str, ScalingBounds]) -> None:
        """See `BoundedExecutor`; pools without an entry have the bounds of their sections."""
        for name, executor in self._pools.items():
            one: object = executor
            if isinstance(one, AdjustableExecutor):
                one.set_bounds(bounds.get(name))

    def _of(self, pool: str) -> Executor:
        executor = self._pools.get(pool, self._shared)
        if executor is None:
            raise LaunchError(f"there is no pool {pool!r} any more")
        return executor

    def _note(self, name: str, error: ExecutorUnavailable) -> None:
        if name not in self._troubled:
            self._troubled.add(name)
            _LOG.warning("pool %s: %s", name, error.message)
