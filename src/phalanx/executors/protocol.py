"""The narrow seam between the control plane and whatever starts processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from phalanx.core.placement import Node
from phalanx.schemas.supervision import Assignment, ExitRecord


@dataclass(frozen=True, slots=True)
class SupervisorRef:
    """Which supervisor: at most one exists per (job, attempt, node rank)."""

    job: int
    attempt: int
    node_rank: int


@dataclass(frozen=True, slots=True)
class SupervisorStatus:
    """What the executor knows of one supervisor it was asked to start.

    `alive` False is a promise: the supervisor and everything it started are gone, so that its slots may
    be given to others. `exit` is the exit record it left, if any.
    """

    ref: SupervisorRef
    alive: bool
    exit: ExitRecord | None = None
    message: str = ""


class Executor(Protocol):
    """Starts and ends supervisors. Every call is idempotent and may be repeated after a crash."""

    def inventory(self) -> Sequence[Node]:
        """The nodes of this executor's pool as they are now."""
        ...

    def start(self, node: Node, assignment: Assignment) -> None:
        """Start the supervisor of one node rank, unless it was started before.

        Raises LaunchFailed when it cannot be started and nothing of it is left, and
        ExecutorUnavailable when that is not known.
        """
        ...

    def stop(self, ref: SupervisorRef) -> None:
        """Kill a supervisor with everything it started; `poll` confirms. Unknown ones are no error."""
        ...

    def poll(self, refs: Sequence[SupervisorRef]) -> Sequence[SupervisorStatus]:
        """The state of these supervisors. One that was never started, or is forgotten, is not alive."""
        ...
