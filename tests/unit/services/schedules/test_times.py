"""Due times of cron expressions: zones, gaps, repeated hours, long outages and mistakes."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import islice

import pytest

from phalanx.errors import SpecInvalid
from phalanx.services.schedules.times import check_times, due_after, newest_due, next_due

pytest.importorskip("cronsim")  # an environment of an earlier release does not have it
pytestmark = pytest.mark.unit
BERLIN = "Europe/Berlin"


def us(text: str) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1e6)


def shown(at: int) -> str:
    return datetime.fromtimestamp(at / 1e6, UTC).strftime("%m-%d %H:%M")


def coming(cron: str, after: str, count: int, zone: str = BERLIN) -> list[str]:
    return [shown(at) for at in islice(due_after(cron, zone, us(after)), count)]


def test_a_fixed_time_runs_once_where_its_hour_is_left_out_and_where_it_is_repeated() -> None:
    # The clocks go from 02:00 to 03:00 at 01:00 UTC on 2026-03-29, and back at 01:00 UTC on 2026-10-25.
    assert coming("30 2 * * *", "2026-03-28T00:00", 3) == [
        "03-28 01:30",
        "03-29 01:00",
        "03-30 00:30",
    ]
    assert coming("30 2 * * *", "2026-10-24T12:00", 2) == ["10-25 00:30", "10-26 01:30"]


def test_hourly_times_follow_the_time_that_passes() -> None:
    hours = ["10-24 23:30", "10-25 00:30", "10-25 01:30", "10-25 02:30"]
    assert coming("30 * * * *", "2026-10-24T23:00", 4) == hours
    assert coming("30 * * * *", "2026-03-29T00:00", 3) == [
        "03-29 00:30",
        "03-29 01:30",
        "03-29 02:30",
    ]


@pytest.mark.parametrize("minute", range(0, 60, 5))
def test_no_due_time_comes_before_the_start_of_the_search(minute: int) -> None:
    """In the repeated hour a search would else find the first of two moments again."""
    after = us(f"2026-10-25T01:{minute:02}")
    found = next_due("45 2 * * *", BERLIN, after)
    assert found is not None and found > after and shown(found) == "10-26 01:45"


def test_an_outage_of_years_costs_little() -> None:
    first, now = us("1999-01-01T00:00"), us("2026-11-24T03:00")
    found = newest_due("* * * * *", BERLIN, first, now, 3)
    assert [shown(at) for at in found] == ["11-24 02:58", "11-24 02:59", "11-24 03:00"]
    assert newest_due("0 5 1 1 *", "UTC", us("2026-01-01T05:00"), now, 5) == [
        us("2026-01-01T05:00")
    ]
    assert newest_due("0 5 1 1 *", "UTC", us("2026-01-01T05:01"), now, 5) == []


@pytest.mark.parametrize(
    ("cron", "zone", "says"),
    [
        ("* * * *", "UTC", "write five fields"),
        ("* * * * * *", "UTC", "write five fields"),
        ("61 * * * *", "UTC", "Bad minute"),
        ("0 0 31 2 *", "UTC", "Bad day-of-month"),
        ("0 0 * * *", "Mars/Olympus", "no such time zone"),
        ("0 0 * * *", "../../etc/passwd", "no such time zone"),
        ("0 0 * * *", "", "no such time zone"),
    ],
)
def test_mistakes_are_told(cron: str, zone: str, says: str) -> None:
    with pytest.raises(SpecInvalid, match=says):
        check_times(cron, zone, us("2026-01-01T00:00"))
