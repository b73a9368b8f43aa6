# ruff: noqa: D102 - the names of the tests say what they promise
"""Contract tests of the tables of studies, which every database passes.

Subclass `StudyStoreContract` and supply a fixture `reopen`, as for `StoreContract`.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from phalanx.errors import NotFound, StaleRow
from phalanx.store import Store, Tx, jobs
from phalanx.store.studies import rows
from phalanx.store.studies.rows import StudyFilter, StudyHeader, StudyProgress, TrialRow
from phalanx.testing.stores import NOW, Reopen, add_job

_PROGRESS = StudyProgress("running", "submitted", "", {}, None, 0.0, 0.0, None, None, None, 9, 2)


def study_header(num: int, **changes: object) -> StudyHeader:
    """Some study."""
    header = StudyHeader(num, "vision", "lr", "ada", {}, {"schema": 1}, {}, None, NOW)
    return replace(header, **changes)  # type: ignore[arg-type]


def trial_row(study: int, number: int, **changes: object) -> TrialRow:
    """Some trial."""
    plain: dict[str, object] = {
        **{"study": study, "trial": number, "job": None, "status": "suggested", "reason": ""},
        **{"params": {"lr": 0.1}, "origin": {"sampler": "random"}, "rung": None, "until": None},
        **{"unit": None, "value": None, "checkpoint": None, "slot_s": 0.0, "usd": 0.0},
        **{"submitted_at": NOW, "started_at": None, "ended_at": None, **changes},
    }
    return TrialRow(**plain)  # type: ignore[arg-type]


def add_study(tx: Tx, **changes: object) -> int:
    """Insert a study."""
    num = rows.new_num(tx)
    rows.insert(tx, study_header(num, **changes), _PROGRESS)
    return num


class StudyStoreContract:
    """What the service of studies relies on, whatever the database."""

    @pytest.fixture
    def store(self, reopen: Reopen) -> Store:
        return reopen()

    def test_a_study_comes_back_as_it_was_saved(self, store: Store) -> None:
        num = store.transact(add_study)
        before = store.view(lambda tx: rows.load(tx, num))
        assert (before.header, before.progress) == (study_header(num), _PROGRESS)
        ended = replace(
            _PROGRESS,
            state="succeeded",
            reason_code="all_trials_ended",
            counts={"completed": 2},
            best_trial=1,
        )
        saved = store.transact(lambda tx: rows.save(tx, before, ended, 3))
        assert store.view(lambda tx: rows.load(tx, num)) == saved
        assert (saved.version, saved.last_seq) == (2, 4)
        with pytest.raises(StaleRow):
            store.transact(lambda tx: rows.save(tx, before, ended, 1))
        with pytest.raises(NotFound, match="s-9"):
            store.view(lambda tx: rows.load(tx, 9))

    def test_studies_are_listed_by_state_project_and_owner(self, store: Store) -> None:
        for project, owner in (("vision", "ada"), ("speech", "ada"), ("vision", "bob")):
            store.transact(lambda tx, p=project, o=owner: add_study(tx, project=p, owner=o))  # type: ignore[misc]
        first = store.view(lambda tx: rows.load(tx, 1))
        over = replace(_PROGRESS, state="failed", ended_at=NOW)
        store.transact(lambda tx: rows.save(tx, first, over, 1))
        second = store.view(lambda tx: rows.load(tx, 2))
        wakes = replace(_PROGRESS, state="paused", wake_at=NOW + 5)
        store.transact(lambda tx: rows.save(tx, second, wakes, 1))

        def page(wanted: StudyFilter, before: int | None = None) -> list[int]:
            found = store.view(lambda tx: rows.page(tx, wanted, before=before, limit=2))
            return [one.header.num for one in found]

        assert (page(StudyFilter()), page(StudyFilter(), before=2)) == ([3, 2], [1])
        assert page(StudyFilter(states=("failed",))) == [1]
        assert page(StudyFilter(project="vision", owner="bob", name="lr")) == [3]
        assert store.view(rows.live) == [2, 3]
        assert store.view(rows.count_working) == 1
        assert store.view(rows.next_wake_at) == NOW + 5
        assert store.view(lambda tx: rows.waking(tx, NOW + 4)) == []
        assert store.view(lambda tx: rows.waking(tx, NOW + 5)) == [2]
        assert set(store.view(lambda tx: rows.load_many(tx, [3, 1, 7]))) == {1, 3}

    def test_trials_are_listed_without_their_study(self, store: Store) -> None:
        def work(tx: Tx) -> None:
            fresh = [trial_row(1, number) for number in range(4)]
            rows.put_trials(tx, [*fresh, trial_row(2, 0)], [])
            done = trial_row(1, 2, status="completed", value=0.5, job=7, params={"a": None})
            rows.put_trials(tx, [], [done])

        store.transact(work)

        def numbers(**wanted: object) -> list[int]:
            found = store.view(lambda tx: rows.trials_of(tx, 1, **wanted))  # type: ignore[arg-type]
            return [one.trial for one in found]

        assert numbers() == [0, 1, 2, 3]
        assert numbers(after=1, limit=1) == [2]
        assert numbers(statuses=("suggested",)) == [0, 1, 3]
        one = store.view(lambda tx: rows.trial(tx, 1, 2))
        assert (one.status, one.value, one.job, one.params) == ("completed", 0.5, 7, {"a": None})
        keys = [(1, 2), (2, 0), (9, 9)]
        assert set(store.view(lambda tx: rows.some_trials(tx, keys))) == {(1, 2), (2, 0)}
        with pytest.raises(NotFound, match="s-1/9"):
            store.view(lambda tx: rows.trial(tx, 1, 9))

    def test_the_code_of_a_study_is_in_use_while_it_lives(self, store: Store) -> None:
        num = store.transact(lambda tx: add_study(tx, code_digest="c" * 64))
        assert store.view(lambda tx: rows.code_in_use(tx, since=NOW)) == {"c" * 64}
        before = store.view(lambda tx: rows.load(tx, num))
        over = replace(_PROGRESS, state="succeeded", ended_at=NOW)
        store.transact(lambda tx: rows.save(tx, before, over, 1))
        assert store.view(lambda tx: rows.code_in_use(tx, since=NOW)) == {"c" * 64}
        assert store.view(lambda tx: rows.code_in_use(tx, since=NOW + 1)) == set()

    def test_a_job_names_its_trial(self, store: Store) -> None:
        num = store.transact(lambda tx: add_job(tx, study=3, trial=7))
        facts = store.view(lambda tx: jobs.load(tx, num)).facts
        assert (facts.study, facts.trial) == (3, 7)
