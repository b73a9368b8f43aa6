"""The protocol between the control plane and the executors, which start supervisors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from phalanx.core.contract.job import JobContract
from phalanx.core.gang.devices import DeviceState
from phalanx.core.gang.placement import Node, Placement
from phalanx.core.reasons import Cause
from phalanx.core.scaling.model import PoolDemand, ScalingBounds, ScalingPolicy
from phalanx.errors import Problem
from phalanx.schemas.pools.scaling import ScalingSection
from phalanx.schemas.wire.assignments import Assignment
from phalanx.schemas.wire.supervision import ExitRecord


@dataclass(frozen=True, slots=True)
class SupervisorRef:
    """The name of a supervisor: at most one exists per (job, attempt, node rank, incarnation).

    `incarnation` is the number of supervisors that the node rank had before in the attempt. `pool` selects
    the executor where there are several; it is no part of the name.
    """

    job: int
    attempt: int
    node_rank: int
    pool: str = field(default="", compare=False)
    incarnation: int = 0

    @classmethod
    def of(cls, assignment: Assignment) -> SupervisorRef:
        """The name of the supervisor that an assignment is for."""
        gang = assignment.gang
        rank, incarnation = assignment.node_rank, assignment.incarnation
        return cls(gang.job.num, gang.attempt, rank, incarnation=incarnation)


@dataclass(frozen=True, slots=True)
class OutputSize:
    """How many bytes one output stream of a rank has on the disk of its node."""

    generation: int
    rank: int
    stream: str  # out or err
    num_bytes: int

    @property
    def key(self) -> tuple[int, int, str]:
        """The stream, in its attempt."""
        return self.generation, self.rank, self.stream


@dataclass(frozen=True, slots=True)
class SupervisorStatus:
    """The state of one supervisor.

    `alive` False is a promise: the supervisor and everything it started are gone, so that its slots may
    be given to others. `exit` is the exit record it left, if any. `output` are the sizes of what its ranks
    wrote, where that is on another machine and could be looked at. `cause` is why it ended, or could not
    start, where the executor knows it. `image` names the image that its ranks run in with its digest;
    empty where there is none, or it is not known (yet).
    """

    ref: SupervisorRef
    alive: bool
    exit: ExitRecord | None = None
    message: str = ""
    output: tuple[OutputSize, ...] = ()
    cause: Cause | None = None
    image: str = ""


class Executor(Protocol):
    """Starts and ends supervisors. Every call is idempotent and may be repeated after a crash."""

    def inventory(self) -> Sequence[Node]:
        """The nodes of this executor's pool as they are now."""

    def start(self, node: Node, assignment: Assignment) -> None:
        """Start the supervisor of one node rank, unless it was started before.

        Raises LaunchError when it cannot be started and nothing of it is left, and
        ExecutorUnavailable when that is not known.
        """

    def stop(self, ref: SupervisorRef) -> None:
        """Kill a supervisor with everything it started; `poll` confirms. Unknown ones are no error."""

    def poll(self, refs: Sequence[SupervisorRef]) -> Sequence[SupervisorStatus]:
        """The state of these supervisors. One that was never started, or is forgotten, is not alive."""


@runtime_checkable
class GangReserver(Protocol):
    """An executor that holds a whole gang's resources in one piece before its supervisors start."""

    def reserve(self, placement: Placement, gang: Sequence[Assignment]) -> None:
        """Hold exactly this placement, all of it or nothing; `poll` gives it back with the last one.

        Raises LaunchError when it cannot be had, and ExecutorUnavailable when that is not known.
        """


@runtime_checkable
class PodChecker(Protocol):
    """An executor that runs jobs in containers, and can say what it does not allow in them."""

    def refusals(
        self, pool: str, project: str, contract: JobContract, num_nodes: int
    ) -> Sequence[Problem]:
        """Why pods of a job of a project on at most so many nodes could never start in a pool.

        Empty where nothing speaks against them, or the cluster does not answer. A quota that is used up
        is no reason: the job waits for it.
        """


@runtime_checkable
class NodeReplacer(Protocol):
    """An executor that can start another supervisor for one node rank while the others stay."""

    def may_replace(self, pool: str) -> bool:
        """Whether it can in this pool: `start` then takes an assignment of a later incarnation."""


@dataclass(frozen=True, slots=True)
class Leftovers:
    """The pods of one control plane in the cluster of a pool."""

    owner: str  # the name of the control plane in the cluster
    is_own: bool  # whether this one has that name
    num_pods: int
    num_running: int
    jobs: tuple[str, ...]  # the first ones, as that control plane numbers them
    namespaces: tuple[str, ...]


@runtime_checkable
class LeftoverCleaner(Protocol):
    """An executor with objects that outlive their control plane, and must be removed without it."""

    def leftovers(self, pool: str) -> Sequence[Leftovers]:
        """What control planes have in the cluster of a pool, this one included.

        Raises ExecutorUnavailable.
        """

    def forget(self, pool: str, owner: str) -> int:
        """Remove all objects of a control plane, without waiting for their ends; returns the pods.

        Raises ExecutorUnavailable; it may be repeated.
        """


@runtime_checkable
class ClosableExecutor(Protocol):
    """An executor with connections and threads of its own."""

    def close(self) -> None:
        """End them. What runs continues."""


@runtime_checkable
class ChangeTeller(Protocol):
    """An executor that tells of changes in its cluster, so that they are noticed before the next poll."""

    def tell(self, changed: Callable[[str], None]) -> None:
        """Call `changed` with the name of a pool when a supervisor there may have another state.

        It replaces the one before, is called from any thread, and must not wait.
        """


@runtime_checkable
class DeviceReporter(Protocol):
    """An executor that sees the accelerators behind the slots of its nodes."""

    def devices(self) -> Sequence[DeviceState]:
        """The device behind every slot as it was last seen; its reader must not have to wait."""


@runtime_checkable
class ScalableExecutor(Protocol):
    """An executor with a pool that can grow, because its cluster has an autoscaler."""

    def scaling_policies(self) -> Mapping[str, ScalingPolicy]:
        """The policies of the pools that can grow, as their pool files say; may be empty."""

    def request(self, pool: str, demand: PoolDemand) -> Mapping[int, str]:
        """Make what is requested from the autoscaler exactly this; returns why gangs were refused.

        Nodes are requested for all of a gang or not at all. Raises ExecutorUnavailable.
        """

    def growth(self, pool: str, jobs: Sequence[int]) -> Mapping[int, str]:
        """What the autoscaler says about the nodes for these gangs; nothing where it is silent."""


@runtime_checkable
class BoundedExecutor(ScalableExecutor, Protocol):
    """An executor of several pools with bounds that are set beside their pool files."""

    def bound_pools(self, bounds: Mapping[str, ScalingBounds]) -> None:
        """The inventory has the nodes that could come within these bounds, by pool."""


@runtime_checkable
class AdjustableExecutor(Protocol):
    """An executor of a pool with bounds that may change while it is in use."""

    def set_scaling(self, scaling: ScalingSection | None) -> None:
        """Use another section `scaling` of the pool from now on."""

    def set_bounds(self, bounds: ScalingBounds | None) -> None:
        """The inventory has the nodes that could come within these bounds; None: those of the section."""
