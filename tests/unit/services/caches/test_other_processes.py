"""Caches of a process that is not the only one: what others commit, and what is forgotten on a takeover."""

from __future__ import annotations

import pytest

from phalanx.core.reasons import Reason, ReasonCode
from phalanx.services.caches.scheduler_cache import SchedulerCache
from phalanx.services.caches.study_cache import TRIAL_JOBS, StudyCache
from phalanx.store.database import Touched

pytestmark = pytest.mark.unit


def test_trials_jobs_that_another_process_has_changed_are_looked_at() -> None:
    cache = StudyCache()
    cache.last_report = 7
    cache.remember(Touched({3, 4}, {TRIAL_JOBS}))
    cache.remember(Touched({5}, {"queue"}))
    assert cache.take() == {3, 4} and cache.last_report == 7


def test_after_a_gap_everything_is_looked_at_even_if_a_step_is_under_way() -> None:
    cache = StudyCache()
    cache.last_report = 7
    assert cache.take() == set()
    cache.look_again()
    cache.last_report = 8  # the end of the step that had begun before the gap
    cache.take()
    assert cache.last_report is None


def test_a_standby_notes_a_bounded_number_of_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phalanx.services.caches.study_cache._MOST_CHANGED", 10)
    cache = StudyCache()
    cache.last_report = 7
    for num in range(25):
        cache.note([num])
    assert len(cache.take()) <= 10 and cache.last_report is None


def test_a_new_leader_writes_pending_reasons_again() -> None:
    """Another leader may have written others since: without the reset they would stay."""
    cache = SchedulerCache()
    pending = [(1, Reason(ReasonCode.WAITING_FOR_SLOTS, "wait"))]
    cache.reasons.mark_written(pending, {1: 1})
    cache.rows._feed_seq = 9
    assert cache.reasons.unwritten(pending, {1: 1}) == []
    cache.start_fresh()
    assert cache.reasons.unwritten(pending, {1: 1}) == pending
    assert cache.rows._feed_seq is None and cache.rows._lock.acquire(blocking=False)
    cache.rows._lock.release()
