"""Reports of trials and pins in the store: the first report of a unit stands."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from phalanx.store import lineage
from phalanx.store.database import Store, open_store
from phalanx.store.studies import checkpoint_pins, trial_reports
from phalanx.store.studies.trial_reports import TRIAL_REPORTS, Taken

pytestmark = pytest.mark.unit


@pytest.fixture
def store(tmp_path: Path) -> Any:
    made = open_store(tmp_path / "store.sqlite")
    yield made
    made.close()


def report(unit: int = 1, value: Any = 0.5, **changes: Any) -> dict[str, Any]:
    row = {"job": 7, "unit": unit, "attempt": 1, "generation": 0, "value": value, "at": 5}
    return row | {"metrics": {"loss": value}, "checkpoint": None, "final": False} | changes


def add(store: Store, **changes: Any) -> Taken:
    return store.transact(lambda tx: trial_reports.add(tx, report(**changes)))


def test_the_first_report_of_a_unit_stands(store: Store) -> None:
    assert add(store, value=0.5) is Taken.STORED
    assert add(store, value=0.5, attempt=2) is Taken.REPEATED
    assert add(store, value=0.6, attempt=2) is Taken.DIFFERS
    assert add(store, unit=2, value=0.6) is Taken.STORED
    rows = store.view(lambda tx: trial_reports.after(tx, 0))
    assert [(row.unit, row.value, row.attempt) for row in rows] == [(1, 0.5, 1), (2, 0.6, 1)]
    assert store.view(lambda tx: trial_reports.after(tx, rows[0].id)) == rows[1:]
    assert store.view(lambda tx: trial_reports.of_jobs(tx, [7])) == rows
    assert store.view(trial_reports.last_id) == rows[1].id


def test_reports_of_one_call_become_what_they_would_one_by_one(store: Store) -> None:
    add(store, unit=2, value=0.2)
    call = [
        report(unit=1, value=0.5),
        report(unit=1, value=0.6),
        report(unit=1, value=0.5, checkpoint="/c/step-1", final=True),
        report(unit=1, value=0.5),
        report(unit=2, value=0.2, checkpoint="/c/step-2"),
        report(unit=2, value=0.2, checkpoint="/c/step-2"),
        report(unit=3, value="nan"),
    ]
    became = store.transact(lambda tx: trial_reports.add_many(tx, 7, call))
    assert became == [
        *(Taken.STORED, Taken.DIFFERS, Taken.COMPLETED, Taken.REPEATED),
        *(Taken.COMPLETED, Taken.REPEATED, Taken.STORED),
    ]
    rows = {row.unit: row for row in store.view(lambda tx: trial_reports.after(tx, 0))}
    kept = [(unit, row.checkpoint, row.final) for unit, row in sorted(rows.items())]
    assert kept == [(1, "/c/step-1", True), (2, "/c/step-2", False), (3, None, False)]
    assert store.transact(lambda tx: trial_reports.add_many(tx, 7, [])) == []


def test_a_report_without_a_checkpoint_is_completed_and_seen_again(store: Store) -> None:
    add(store)
    last = store.view(trial_reports.last_id)
    assert add(store, checkpoint="/c/step-1", final=True) is Taken.COMPLETED
    (row,) = store.view(lambda tx: trial_reports.after(tx, last))
    assert (row.checkpoint, row.final) == ("/c/step-1", True)
    assert add(store) is Taken.REPEATED


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", None, 1e300])
def test_values_that_are_not_finite_survive(store: Store, value: Any) -> None:
    metrics = {} if value is None else {"loss": value}
    add(store, value=value, metrics=metrics)
    (row,) = store.view(lambda tx: trial_reports.after(tx, 0))
    wanted = None if value is None else float(value)
    assert repr(row.value) == repr(wanted)
    assert all(repr(one) == repr(wanted) for one in row.metrics.values())
    assert add(store, value=value, metrics=metrics) is Taken.REPEATED
    assert value != "nan" or math.isnan(row.value or 0.0)


def test_a_new_report_wakes_the_listeners(store: Store) -> None:
    seen: list[Any] = []
    store.on_commit(seen.append)
    add(store)
    add(store)
    assert [TRIAL_REPORTS in one.topics for one in seen] == [True]


def test_only_a_checkpoint_that_is_there_can_be_pinned(store: Store) -> None:
    def commit(tx: Any) -> None:
        values = {"path": "/c/a", "step": 1, "size_bytes": 0, "metrics": {}, "created_at": 1}
        lineage.add_checkpoint(tx, (7, 1, 0), values)

    def pin(by: str) -> bool:
        return store.transact(lambda tx: checkpoint_pins.pin(tx, 7, "/c/a", by, 9))

    assert not pin("s-1")
    store.transact(commit)
    assert (pin("s-1"), pin("s-1"), pin("s-2")) == (True, True, True)
    assert store.view(lambda tx: checkpoint_pins.pinned(tx, 7)) == {"/c/a"}
    assert store.transact(lambda tx: checkpoint_pins.unpin(tx, "s-1")) == 1
    assert store.view(lambda tx: checkpoint_pins.pinned(tx, 7)) == {"/c/a"}
    assert store.transact(lambda tx: checkpoint_pins.unpin(tx, "s-2", ["/c/b"])) == 0
    assert store.transact(lambda tx: checkpoint_pins.unpin(tx, "s-2", ["/c/a"])) == 1
    store.transact(lambda tx: lineage.mark_checkpoint(tx, 7, "/c/a", "removed"))
    assert not pin("s-1")
