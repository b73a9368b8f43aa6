"""Many jobs in one commit: the same rows, events and commands as one by one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from phalanx.core.gang.placement import GangShape, NodeShare, Placement
from phalanx.core.jobs import events as e
from phalanx.core.jobs.model import JobPolicy, JobState
from phalanx.errors import InvalidTransition, InvariantBroken, StaleRow
from phalanx.services.lifecycle.commit import commit_events, commit_many, commit_new
from phalanx.store import events, jobs, open_store, outbox
from phalanx.store.database import Store, Tx
from phalanx.store.jobs import JobFacts

pytestmark = pytest.mark.unit

NOW = 1_000_000
FACTS = JobFacts("p", "n", "me", {}, "none", "submit", 50, (), 0, {}, None, None, None)
Told = list[tuple[int, list[e.JobEvent]]]


def a_store(path: Path, count: int = 3) -> Store:
    store = open_store(path)

    def work(tx: Tx) -> None:
        for num in range(1, count + 1):
            commit_new(tx, e.Submitted(num, JobPolicy(GangShape(1, 1, 1))), FACTS, NOW, "user")

    store.transact(work)
    return store


def placed(num: int) -> e.JobEvent:
    return e.AttemptPlaced(1, Placement("p", (NodeShare(f"n{num}", "h", (0,)),)))


LIFE: list[Callable[[int], list[e.JobEvent]]] = [
    lambda num: [placed(num)],
    lambda num: [e.NodeReady(1, 0, 1), e.NodeReady(1, 0, 1), e.RanksStarted(1, 0, 0)],
    lambda num: [e.NodeReady(1, 0, 1)],  # late: changes nothing
    lambda num: [e.CheckpointCommitted(1, 0, 5, "x")],
]


def everything(store: Store) -> object:
    def work(tx: Tx) -> object:
        rows = [jobs.load(tx, num) for num in (1, 2, 3)]
        story = [(one.job, one.seq, one.kind, one.data) for one in events.feed(tx)]
        taken = outbox.lease(tx, owner="o", token="t", now=NOW, expires_at=NOW * 9, limit=9)
        return rows, sorted(story, key=lambda one: (one[0], one[1])), taken

    return store.transact(work)


def test_a_batch_stores_what_single_commits_store(tmp_path: Path) -> None:
    one, many = a_store(tmp_path / "a.sqlite"), a_store(tmp_path / "b.sqlite")
    for step, make in enumerate(LIFE):
        at = NOW + step
        for num in (1, 2, 3):
            one.transact(lambda tx, n=num, m=make, t=at: commit_events(tx, n, m(n), t, "x"))
        batch = [(num, make(num)) for num in (1, 2, 3)]
        many.transact(lambda tx, b=batch, t=at: commit_many(tx, b, t, "x"))
    assert everything(one) == everything(many)


def test_a_batch_with_one_stale_job_stores_nothing(tmp_path: Path) -> None:
    store = a_store(tmp_path / "a.sqlite")
    known = {num: store.view(lambda tx, n=num: jobs.load(tx, n)) for num in (1, 2)}
    store.transact(lambda tx: commit_events(tx, 2, [placed(2)], NOW, "x"))
    batch: Told = [(1, [placed(1)]), (2, [placed(2)])]
    with pytest.raises(StaleRow):
        store.transact(lambda tx: commit_many(tx, batch, NOW, "x", known=known))
    assert store.view(lambda tx: jobs.load(tx, 1)).job.state is JobState.QUEUED


def test_a_bug_in_one_job_stores_nothing_of_the_batch(tmp_path: Path) -> None:
    store = a_store(tmp_path / "a.sqlite")
    batch: Told = [(1, [placed(1)]), (2, [e.Resumed()])]
    with pytest.raises(InvalidTransition):
        store.transact(lambda tx: commit_many(tx, batch, NOW, "x"))
    assert store.view(lambda tx: jobs.load(tx, 1)).job.state is JobState.QUEUED


def test_a_job_stands_once_and_strangers_are_skipped(tmp_path: Path) -> None:
    store = a_store(tmp_path / "a.sqlite")
    with pytest.raises(InvariantBroken):
        store.transact(lambda tx: commit_many(tx, [(1, []), (1, [])], NOW, "x"))
    store.transact(lambda tx: commit_many(tx, [(99, [placed(99)])], NOW, "x"))
