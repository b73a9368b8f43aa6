"""Which jobs of trials are looked at after a commit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from phalanx.core.gang.placement import GangShape
from phalanx.core.jobs.events import Submitted
from phalanx.core.jobs.machine import create
from phalanx.core.jobs.model import JobPolicy, JobState
from phalanx.services.caches.study_cache import StudyCache
from phalanx.store.database import Touched
from phalanx.store.jobs import JobFacts, StoredJob

pytestmark = pytest.mark.unit

FACTS = JobFacts("p", "n", "me", {}, "none", "submit", 50, (), 0, {}, None, None, None)


def told(cache: StudyCache, version: int, state: JobState, study: int | None = 1) -> set[int]:
    """The jobs to look at after a commit of job 7 at this version and in this state."""
    job = replace(create(Submitted(7, JobPolicy(GangShape(1, 1, 1))), 1), state=state)
    row = StoredJob(job, replace(FACTS, study=study, trial=0), version, version, None)
    cache.remember(Touched(jobs={7}, rows={7: row}))
    return cache.take()


def test_only_states_that_a_study_learns_from_are_looked_at() -> None:
    cache = StudyCache()
    assert told(cache, 1, JobState.QUEUED) == set()
    assert told(cache, 2, JobState.STARTING) == set()
    assert told(cache, 3, JobState.RUNNING) == {7}
    assert (
        told(cache, 4, JobState.RUNNING) == set()
    )  # a checkpoint, or another event without a new state
    assert told(cache, 5, JobState.PAUSED) == {7}
    assert told(cache, 6, JobState.QUEUED) == set()
    assert told(cache, 7, JobState.PAUSED) == {7}
    assert told(cache, 8, JobState.CANCELLED) == {7}
    assert told(cache, 9, JobState.RUNNING, study=None) == set()


def test_a_commit_that_is_reported_late_hides_no_later_state() -> None:
    cache = StudyCache()
    assert told(cache, 1, JobState.QUEUED) == set()
    assert told(cache, 3, JobState.QUEUED) == set()
    assert told(cache, 2, JobState.PAUSED) == set()  # reported behind the commit that followed it
    assert told(cache, 4, JobState.PAUSED) == {7}
