"""Selections and decisions of the verbs on jobs and of `bench`."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from phalanx.cli.verbs import bench, jobs
from phalanx.errors import UserError

pytestmark = pytest.mark.unit


def event(kind: str, state: str, code: str = "x", **data: object) -> SimpleNamespace:
    return SimpleNamespace(kind=kind, state=state, reason=(code,), data=data)


def test_only_changes_of_state_or_reason_and_warnings_are_turns() -> None:
    events = [
        event("submitted", "queued"),
        event("progressed", "queued"),
        event("warned", "queued", message="slow"),
        event("progressed", "queued", "y"),
        event("started", "running", "y"),
    ]
    assert [one.kind for one in jobs._turns(events)] == [
        "submitted",
        "warned",
        "progressed",
        "started",
    ]


def test_live_jobs_come_before_ended_ones_up_to_the_limit() -> None:
    def page(*nums: int) -> SimpleNamespace:
        return SimpleNamespace(jobs=[SimpleNamespace(num=num) for num in nums])

    def client(states: tuple[str, ...], limit: int) -> SimpleNamespace:
        return page(9, 4) if "running" in states else page(8, 7, 6)

    chosen = jobs._current(SimpleNamespace(jobs=client), 4)
    assert [job.num for job in chosen] == [9, 8, 7, 4]


def test_counts_are_sorted_and_unique() -> None:
    assert bench._numbers("8,1,2,2") == [1, 2, 8]
    for text in ("", "a", "0,1", "1,,2"):
        with pytest.raises(UserError, match="must be numbers of ranks"):
            bench._numbers(text)


def test_the_measurement_job_names_its_pool_only_when_given() -> None:
    assert bench._part(4, 2, None)["resources"] == {"nodes": 2, "slots_per_node": 2}
    assert "pool" not in bench._part(4, 2, None)
    assert bench._part(4, None, "lab")["pool"] == ["lab"]
