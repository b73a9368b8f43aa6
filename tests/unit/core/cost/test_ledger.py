"""Where the time of an attempt goes: one short history for each account."""

from __future__ import annotations

import pytest

from phalanx.core.cost.ledger import (
    Account,
    AttemptHistory,
    GenerationTimes,
    Interruption,
    Save,
    slices_of,
)

pytestmark = pytest.mark.unit


def spent(history: AttemptHistory, now: int) -> dict[str, int]:
    found: dict[str, int] = {}
    for one in slices_of(history, now):
        found[one.account.value] = found.get(one.account.value, 0) + one.to_at - one.from_at
    return found


def ran(number: int = 0, **changes: object) -> GenerationTimes:
    """Ten steps from 100 to 200, that began at 90."""
    base = {
        "up_at": 90,
        "first_step_at": 100,
        "last_step_at": 200,
        "first_step": 1,
        "last_step": 11,
    }
    return GenerationTimes(number=number, **(base | changes))  # type: ignore[arg-type]


def test_a_complete_attempt() -> None:
    history = AttemptHistory(50, 230, generations=(ran(ended_at=220),))
    assert spent(history, 999) == {"starting": 50, "productive": 100, "idle": 30}


def test_training_waits_for_a_save() -> None:
    saves = (Save(0, 150, 20), Save(0, 215, 10), Save(0, 110, 0))
    history = AttemptHistory(50, 230, generations=(ran(ended_at=220),), saves=saves)
    assert spent(history, 999) == {"starting": 50, "productive": 80, "saving": 30, "idle": 20}


def test_a_generation_after_a_failure_repeats_steps() -> None:
    second = ran(
        1,
        up_at=240,
        first_step_at=250,
        last_step_at=350,
        first_step=7,
        last_step=17,
        ended_at=360,
    )
    history = AttemptHistory(50, 370, generations=(ran(ended_at=210, failed=True), second))
    # Steps 7 to 11 were made twice: 4 of 10 in the second generation.
    expected = {"starting": 50, "productive": 160, "lost_to_failure": 50, "redone": 40, "idle": 20}
    assert spent(history, 999) == expected


def test_a_preempted_attempt_and_the_one_that_follows() -> None:
    first = AttemptHistory(
        50, 260, ended_by=Interruption.PREEMPTION, generations=(ran(ended_at=220),)
    )
    assert spent(first, 999) == {"starting": 50, "productive": 100, "lost_to_preemption": 60}
    second = AttemptHistory(
        50, 230, after=Interruption.PREEMPTION, high_step=6, generations=(ran(ended_at=220),)
    )
    assert spent(second, 999) == {
        "lost_to_preemption": 50,
        "redone": 50,
        "productive": 50,
        "idle": 30,
    }


def test_a_script_without_steps_loses_what_is_behind_its_last_checkpoint() -> None:
    whole = GenerationTimes(0, up_at=90, ended_at=220)
    assert spent(AttemptHistory(50, 220, generations=(whole,)), 999) == {
        "starting": 40,
        "productive": 130,
    }
    failed = AttemptHistory(
        50, 220, ended_by=Interruption.FAILURE, generations=(whole,), saves=(Save(0, 180),)
    )
    assert spent(failed, 999) == {"starting": 40, "productive": 90, "lost_to_failure": 40}


def test_a_start_that_failed_is_lost() -> None:
    assert spent(AttemptHistory(50, 80, ended_by=Interruption.FAILURE), 999) == {
        "lost_to_failure": 30
    }
    assert spent(AttemptHistory(50), 80) == {"starting": 30}


def test_a_running_job_without_a_new_step_becomes_idle() -> None:
    history = AttemptHistory(50, generations=(ran(),))
    assert spent(history, 215)["productive"] == 115
    assert spent(history, 300) == {"starting": 50, "productive": 120, "idle": 80}
    assert Account.IDLE in {one.account for one in slices_of(history, 300)}
