"""The sentences of `phalanx why`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from phalanx.cli.verbs import why
from phalanx.schemas.api.jobs import ReasonView
from phalanx.schemas.api.why import (
    ConstraintView,
    CounterfactualView,
    EvictionView,
    VictimView,
    WhyView,
)

pytestmark = pytest.mark.unit
NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


def view(**more: object) -> WhyView:
    reason = ReasonView(code="waiting_for_slots")
    return WhyView(num=7, label="j-7", state="queued", reason=reason, **more)


def test_a_job_that_does_not_wait_has_no_lines_about_waiting() -> None:
    assert why._waiting(view(constraints=[ConstraintView(binding="slots", text="x")])) == []


def test_position_constraints_and_changes_are_listed_in_order() -> None:
    found = view(
        position=2,
        num_waiting=5,
        constraints=[ConstraintView(binding="slots", text="needs 8 slots, 3 are free")],
        changes=[CounterfactualView(kind="nodes", text="one node less", by_preemption=False)],
    )
    assert why._waiting(found) == [
        "position 2 of 5 in the queue; the start cannot be estimated yet",
        "blocked by: needs 8 slots, 3 are free",
        "one node less",
    ]


@pytest.mark.parametrize(
    ("victims", "names"),
    [
        ([], "others"),
        ([3], "j-3"),
        ([1, 2, 3, 4], "j-1, j-2, j-3, j-4"),
        ([1, 2, 3, 4, 5, 6], "j-1, j-2, j-3, j-4 and 2 more"),
    ],
)
def test_a_change_by_preemption_names_at_most_four_victims(victims, names) -> None:
    change = CounterfactualView(kind="x", text="x", by_preemption=True, victims=victims)
    assert why._once(change) == f", once {names} have saved and exited"


def test_both_estimates_of_the_start_are_given_when_known() -> None:
    likely = why._eta(view(eta_p50_at=NOON))
    both = why._eta(view(eta_p50_at=NOON, eta_p90_at=NOON + timedelta(hours=2)))
    assert likely.startswith("expected to start at ") and "90%" not in likely
    assert both.startswith(likely) and both.endswith("with a probability of 90%")


def test_victims_and_the_job_that_preempts_this_one() -> None:
    victim = VictimView(job=3, beneficiary=7, price_slot_s=1, lost_slot_s=1, text="saves for j-7")
    assert why._victims(view(victims=[victim])) == ["j-3 saves for j-7"]
    assert why._victims(view(preempted_for=victim)) == ["the job saves for j-7"]


def test_an_eviction_without_a_next_step_has_no_cost_yet() -> None:
    one = EvictionView(at=NOON, code="preempted", text="made room for j-7")
    assert "next step" not in why._eviction(one)
    assert why._eviction(one.model_copy(update={"lost_s": 65.0})).endswith("1m05s to its next step")
