"""The host of the planner: indexes and history that are kept from pass to pass, under one lock.

The lock is held for the whole of a pass. Nothing that must answer meanwhile takes it: finished jobs are
noted without it and learned from at the next opportunity; explanations plan on indexes of their own.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable

from phalanx.core.jobs.model import JobState
from phalanx.core.scheduling import ClusterIndex, Plan, PlanningInput, plan_pass
from phalanx.core.scheduling.model.durations import History, KindKey, size_class
from phalanx.kit import garbage
from phalanx.services.caches.index_sync import only_longer_classes, sync
from phalanx.services.caches.planner_input import kind_of
from phalanx.store.jobs import Finished

_US = 1_000_000


class PlannerHost:
    """Runs passes one at a time, on indexes that are brought up to date instead of built anew."""

    def __init__(self) -> None:
        self.history = History()
        self._lock = threading.Lock()
        self._cluster: ClusterIndex | None = None
        self._started: frozenset[int] = frozenset()
        self._finished: deque[Finished] = deque()

    def start_fresh(self) -> None:
        """Forget the indexes and the history."""
        with self._lock:
            self.history, self._cluster, self._started = History(), None, frozenset()
            self._finished.clear()

    def plan(self, snapshot: PlanningInput, now: int) -> Plan:
        """Plan on the indexes of the last pass, brought up to date."""
        with self._lock:
            self._learn()
            self._cluster = sync(self._cluster, snapshot)
            with garbage.collection_paused():
                decided = plan_pass(self._cluster, now)
            self._started = frozenset(start.job for start in decided.starts)
            return decided

    def only_longer_classes(self, snapshot: PlanningInput) -> bool:
        """Return whether only more jobs of classes that were blocked have come since the last pass.

        Then there is hardly anything to start: if the first job of a class cannot start, none can. This
        disregards that time has passed, that more demand of one project may lower the share of another,
        and that room which a pass kept for one job may lie elsewhere once its own starts are done.
        """
        with self._lock:
            if self._cluster is None:
                return False
            return only_longer_classes(self._cluster, snapshot, self._started)

    def note_finished(self, ended: Iterable[Finished]) -> None:
        """Learn from jobs that ended: at once, or before the next pass if one is running now."""
        self._finished.extend(ended)
        if self._lock.acquire(blocking=False):
            try:
                self._learn()
            finally:
                self._lock.release()

    def _learn(self) -> None:
        while self._finished:
            one = self._finished.popleft()
            if one.started_at is not None:
                wait_s = (one.started_at - one.submitted_at) / _US
                self.history.observe_wait(one.num_slots, wait_s)
            # A cancelled job does not show how long jobs of its kind run.
            if one.state != JobState.CANCELLED and one.attained_slot_s > 0:
                kind = kind_of(one.owner, one.name)
                key = KindKey(one.project, kind, size_class(one.num_slots))
                self.history.observe(key, one.attained_slot_s)
