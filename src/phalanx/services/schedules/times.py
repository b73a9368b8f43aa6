"""Due times of cron expressions in time zones.

The meaning is that of Debian's cron: a job at a fixed hour runs once a day, also where daylight saving time
leaves its hour out (it then runs at the first moment after the gap) or repeats it (the first time counts).
One with `*` as its minute or hour follows the time that passes.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from phalanx.errors import Problem, SpecInvalid
from phalanx.schemas.api.body import at_of

_US = 1_000_000
_HOUR_US = 3600 * _US
_FIELDS = 5
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def check_times(cron: str, timezone: str, now: int) -> None:
    """Raise SpecInvalid for an expression or a zone that cannot be read, or that names no time."""
    from cronsim import CronSim, CronSimError

    problems = []
    try:
        zone: ZoneInfo | None = ZoneInfo(timezone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        zone = None
        said = "there is no such time zone; write a name such as Europe/Berlin or UTC"
        problems.append(Problem("timezone", said, timezone))
    said = "write five fields: minute hour day month weekday, such as `0 3 * * 1-5`"
    if len(cron.split()) != _FIELDS:
        problems.append(Problem("cron", said, cron))
    else:
        try:
            next(CronSim(cron, at_of(now)))
        except CronSimError as error:
            problems.append(Problem("cron", f"{error}; {said}", cron))
        except StopIteration:
            problems.append(Problem("cron", "no day of the next 50 years matches", cron))
    if problems or zone is None:
        raise SpecInvalid(problems)


def due_after(cron: str, timezone: str, after: int) -> Iterator[int]:
    """Due times after a moment, in order; microseconds UTC."""
    from cronsim import CronSim

    for found in CronSim(cron, at_of(after).astimezone(ZoneInfo(timezone))):
        since = found.astimezone(UTC) - _EPOCH
        at = (since.days * 86_400 + since.seconds) * _US
        # A search that begins in a repeated hour would find the first of its two moments.
        if at > after:
            after = at
            yield at


def next_due(cron: str, timezone: str, after: int) -> int | None:
    """The first due time after a moment; None: no day of the next 50 years matches."""
    return next(due_after(cron, timezone, after), None)


def newest_due(cron: str, timezone: str, first: int, now: int, count: int) -> list[int]:
    """The newest `count` due times from `first` to now, oldest first. A long time back costs little."""
    window = _HOUR_US
    while True:
        since = max(first, now - window)
        found = []
        for at in due_after(cron, timezone, since - 1):
            if at > now:
                break
            found.append(at)
        if len(found) >= count or since == first:
            return found[-count:]
        window *= 24
