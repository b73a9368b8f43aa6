"""The decisions of a pass: append-only lists that become the plan."""

from __future__ import annotations

from dataclasses import dataclass, field

from phalanx.core.reasons import Reason
from phalanx.core.scheduling.index.cluster_index import EquivalenceClass
from phalanx.core.scheduling.model.outcome import (
    Migration,
    PendingReasons,
    Plan,
    Preemption,
    Resize,
    Start,
)
from phalanx.core.scheduling.model.planner_state import Reservation
from phalanx.core.scheduling.model.planning_input import RunningJob


@dataclass(slots=True)
class Decisions:
    """Everything that a pass has decided so far."""

    #: Starts in the order in which they were decided.
    starts: list[Start] = field(default_factory=list)
    started: set[int] = field(default_factory=set)  # job numbers in `starts`
    #: Running jobs that will be asked to leave or to change their size.
    leaving: set[int] = field(default_factory=set)
    preemptions: list[Preemption] = field(default_factory=list)  # jobs to stop
    resizes: list[Resize] = field(default_factory=list)  # elastic jobs to shrink or grow
    migrations: list[Migration] = field(default_factory=list)  # jobs to restart elsewhere
    #: Reservations that are honoured or new.
    reservations: list[Reservation] = field(default_factory=list)
    #: Reasons of single jobs.
    reasons: dict[int, Reason] = field(default_factory=dict)
    #: Classes that found no room, with the position of the first job that was tried.
    blocked: list[tuple[EquivalenceClass, int]] = field(default_factory=list)
    #: Classes that a limit keeps out, with the reason.
    limited: list[tuple[EquivalenceClass, Reason]] = field(default_factory=list)
    #: What becomes `Plan.pending_reasons`; the last stage sets it.
    pending: PendingReasons | None = None
    #: Work of the pass: placements tried, and jobs and nodes looked at.
    num_steps: int = 0

    def resize(self, held: RunningJob, decided: Resize) -> None:
        """Decide that a running job leaves its slots for a placement of another size."""
        self.resizes.append(decided)
        self.leaving.add(held.job)

    def plan(self, wake_at: int | None) -> Plan:
        """Return the decisions as an immutable plan."""
        return Plan(
            tuple(self.starts),
            self.pending if self.pending is not None else (),
            wake_at,
            tuple(self.preemptions),
            # A job that started elsewhere needs its reservation no longer.
            tuple(one for one in self.reservations if one.job not in self.started),
            tuple(self.resizes),
            tuple(self.migrations),
            self.num_steps,
        )
