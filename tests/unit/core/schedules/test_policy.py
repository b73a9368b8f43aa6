"""What becomes of due times under each catch-up policy."""

from __future__ import annotations

import pytest

from phalanx.core.schedules.policy import ON_TIME_US, CatchUp, DueTimes, decide_due, num_wanted

pytestmark = pytest.mark.unit
MINUTE = 60_000_000


@pytest.mark.parametrize(
    ("catch_up", "late", "expected"),
    [
        (CatchUp.NONE, 0, DueTimes((3 * MINUTE,), 2 * MINUTE)),
        (CatchUp.NONE, ON_TIME_US, DueTimes((3 * MINUTE,), 2 * MINUTE)),
        (CatchUp.NONE, ON_TIME_US + 1, DueTimes((), 3 * MINUTE)),
        (CatchUp.LAST, 999 * MINUTE, DueTimes((3 * MINUTE,), 2 * MINUTE)),
        (CatchUp.ALL, 999 * MINUTE, DueTimes((2 * MINUTE, 3 * MINUTE), MINUTE)),
    ],
)
def test_due_times_start_a_job_or_are_left_out(
    catch_up: CatchUp, late: int, expected: DueTimes
) -> None:
    due = [MINUTE, 2 * MINUTE, 3 * MINUTE][-num_wanted(catch_up, 2) :]
    assert decide_due(due, catch_up, 2, 3 * MINUTE + late) == expected


def test_a_time_that_is_handled_at_once_misses_none() -> None:
    for catch_up in CatchUp:
        assert decide_due([MINUTE], catch_up, 10, MINUTE) == DueTimes((MINUTE,), None)
        assert decide_due([], catch_up, 10, MINUTE) == DueTimes((), None)
