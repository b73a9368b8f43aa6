"""The scheduler cache: rows of the store and the host of the planner, each under its own lock.

No method holds both locks, and none waits for the planner's lock while it holds that of the rows, so a long
plan delays neither an explanation nor the dispatcher. Nothing here is authoritative: a control plane that
starts builds the same state from the store.
"""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.core.gang.placement import Node
from phalanx.core.scheduling import Plan
from phalanx.services.caches.planner_host import PlannerHost
from phalanx.services.caches.row_cache import (
    PlanningPolicy,
    RowCache,
    SchedulerView,
    WrittenReasons,
)
from phalanx.store.database import Tx


class SchedulerCache:
    """What the scheduler keeps from one pass to the next."""

    def __init__(self) -> None:
        self.rows = RowCache()
        self.host = PlannerHost()
        self.reasons = WrittenReasons()
        self._planned_projects: object = None

    def start_fresh(self) -> None:
        """Forget everything: another process has planned since."""
        self.rows.start_fresh()
        self.host.start_fresh()
        self.reasons.start_fresh()
        self._planned_projects = None

    def view(self, tx: Tx, real: Sequence[Node], policy: PlanningPolicy, now: int) -> SchedulerView:
        """Return everything a plan may depend on. `real` are the executor's own nodes."""
        self.host.note_finished(self.rows.newly_finished(tx))
        return self.rows.view(tx, real, policy, self.host.history, now)

    def plan(self, view: SchedulerView, now: int) -> Plan:
        """Plan on the indexes of the last pass, brought up to date."""
        decided = self.host.plan(view.snapshot, now)
        self._planned_projects = view.projects_stamp
        return decided

    def only_longer_classes(self, view: SchedulerView) -> bool:
        """Return whether only more jobs of classes that were blocked have come since the last pass."""
        if self._planned_projects is not view.projects_stamp:
            return False
        return self.host.only_longer_classes(view.snapshot)
