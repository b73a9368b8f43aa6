"""The planner's picture: what this process stored is not read back, and never replaces what is newer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from phalanx.core.gang.placement import GangShape, NodeShare, Placement
from phalanx.core.jobs import events as e
from phalanx.core.jobs.model import JobPolicy, JobState, StopGoal
from phalanx.core.reasons import Reason, ReasonCode
from phalanx.errors import InvariantBroken
from phalanx.services.caches.row_cache import REWORDED_AT_ONCE
from phalanx.services.caches.scheduler_cache import SchedulerCache
from phalanx.services.lifecycle.commit import commit_events, commit_new
from phalanx.store import jobs, open_store
from phalanx.store.database import Store, Touched, Tx
from phalanx.store.jobs import JobFacts, StoredJob

pytestmark = pytest.mark.unit

NOW = 1_000_000
FACTS = JobFacts("p", "n", "me", {}, "none", "submit", 50, (), 0, {}, None, None, None)


class Told:
    """Commits of one store, told to a picture when the test says so."""

    def __init__(self, path: Path) -> None:
        self.store: Store = open_store(path)
        self.heard: list[Touched] = []
        self.store.on_commit(self.heard.append)
        self.scheduler_cache = SchedulerCache()

    def submit(self, num: int) -> None:
        config = JobPolicy(GangShape(1, 1, 1))
        self.store.transact(lambda tx: commit_new(tx, e.Submitted(num, config), FACTS, NOW, "user"))

    def place(self, num: int) -> None:
        placed = e.AttemptPlaced(1, Placement("p", (NodeShare("n1", "h", (0,)),)))
        self.store.transact(lambda tx: commit_events(tx, num, [placed], NOW, "scheduler"))

    def seen(self) -> dict[int, JobState]:
        waiting, holding = self.store.view(self.scheduler_cache.rows.jobs)
        return {one.job.num: one.job.state for one in (*waiting, *holding)}


@pytest.fixture
def told(tmp_path: Path) -> Iterator[Told]:
    made = Told(tmp_path / "a.sqlite")
    yield made
    made.store.close()


def test_what_this_process_stored_is_not_read_back(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    told.submit(1)
    assert told.seen() == {1: JobState.QUEUED}
    reads: list[object] = []
    for name in ("versions", "load_many"):
        real = getattr(jobs, name)
        monkeypatch.setattr(jobs, name, lambda *a, r=real: (reads.append(a), r(*a))[1])
    told.place(1)
    told.scheduler_cache.rows.remember(told.heard[-1])
    assert told.seen() == {1: JobState.STARTING} and not reads
    told.submit(2)  # nobody tells of this one, as if another process had stored it
    assert told.seen() == {1: JobState.STARTING, 2: JobState.QUEUED} and reads


def test_a_commit_that_is_told_late_replaces_nothing_newer(told: Told) -> None:
    told.submit(1)
    told.seen()
    told.place(1)
    assert told.seen() == {1: JobState.STARTING}
    told.scheduler_cache.rows.remember(
        told.heard[0]
    )  # the thread that stored the submission comes only now
    assert told.seen() == {1: JobState.STARTING}


def test_commits_told_in_the_wrong_order_end_in_the_newest_state(told: Told) -> None:
    told.submit(1)
    told.seen()
    told.submit(2)
    told.place(2)
    late, early = told.heard[-1], told.heard[-2]
    told.scheduler_cache.rows.remember(late)
    told.scheduler_cache.rows.remember(early)
    assert told.seen() == {1: JobState.QUEUED, 2: JobState.STARTING}


def test_a_picture_of_what_may_never_be_committed_is_refused(told: Told) -> None:
    def work(tx: Tx) -> None:
        config = JobPolicy(GangShape(1, 1, 1))
        commit_new(tx, e.Submitted(1, config), FACTS, NOW, "user")
        told.scheduler_cache.rows.jobs(tx)

    with pytest.raises(InvariantBroken):
        told.store.transact(work)
    told.submit(1)
    assert told.seen() == {1: JobState.QUEUED}


def test_some_jobs_are_found_whether_they_are_over_or_not(told: Told) -> None:
    told.submit(1)
    told.submit(2)
    cancel = e.StopRequested(StopGoal.CANCEL)
    told.store.transact(lambda tx: commit_events(tx, 1, [cancel], NOW, "user"))
    found = told.store.view(lambda tx: told.scheduler_cache.rows.some(tx, [1, 2, 3]))
    assert {num: one.job.state for num, one in found.items()} == {
        1: JobState.CANCELLED,
        2: JobState.QUEUED,
    }
    assert all(isinstance(one, StoredJob) for one in found.values())


class TestReasons:
    COUNT = REWORDED_AT_ONCE * 2 + 50
    VERSIONS = dict.fromkeys(range(COUNT), 1)

    def pending(self, text: str) -> list[tuple[int, Reason]]:
        return [(num, Reason(ReasonCode.WAITING_FOR_QUOTA, text)) for num in range(self.COUNT)]

    def step(self, scheduler_cache: SchedulerCache, pending: list[tuple[int, Reason]]) -> set[int]:
        unwritten = scheduler_cache.reasons.unwritten(pending, self.VERSIONS)
        scheduler_cache.reasons.mark_written(unwritten, self.VERSIONS)
        return {num for num, _ in unwritten}

    def test_new_words_are_written_in_turns_until_all_are(self) -> None:
        scheduler_cache = SchedulerCache()
        assert len(self.step(scheduler_cache, self.pending("a"))) == self.COUNT
        turns = [self.step(scheduler_cache, self.pending(text)) for text in "bcd"]
        assert [len(one) for one in turns] == [REWORDED_AT_ONCE] * 3
        assert set().union(*turns) == set(range(self.COUNT))
        while self.step(scheduler_cache, self.pending("d")):
            pass
        assert not scheduler_cache.reasons.unwritten(self.pending("d"), self.VERSIONS)

    def test_another_reason_is_written_at_once(self) -> None:
        scheduler_cache = SchedulerCache()
        self.step(scheduler_cache, self.pending("a"))
        other = [(n, Reason(ReasonCode.WAITING_FOR_SLOTS, "a")) for n in range(self.COUNT)]
        assert len(self.step(scheduler_cache, other)) == self.COUNT
