"""Cost by day for people: the figure of `phalanx cost --plot`, and a line of bars on the terminal."""

from __future__ import annotations

import calendar
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phalanx.cli.terminal.cost_plot import CostFigure, check_name, write_figure
from phalanx.cli.terminal.output import note, sparkline
from phalanx.core.cost.forecast import days_ahead

if TYPE_CHECKING:
    from phalanx.schemas.api.cost import CostReport, CostView
    from phalanx.sdk import PhalanxClient

SHOWN_DAYS = 35
"""Days of a figure without --since."""
TREND_DAYS = 30
"""Days of the line on the terminal."""
MOST_DAYS = 366
_HISTORY_DAYS = 42
_MOST_PROJECTS = 6
_NANO = 1e9
Filters = Mapping[str, Any]


def plot_cost(
    client: PhalanxClient,
    path: Path,
    now: datetime,
    since: datetime | None,
    until: datetime | None,
    filters: Filters,
) -> None:
    """Draw the cost by day: stacked by project, or by user where one project is asked for.

    Raises UserError for a file of another format, and where matplotlib is not installed.
    """
    check_name(path)
    last = min(until or now, now).date()
    first = (last - timedelta(days=SHOWN_DAYS - 1)) if since is None else since.date()
    first = max(first, last - timedelta(days=MOST_DAYS - 1))
    # The forecast looks at six weeks, whatever is shown.
    begin = min(first, last - timedelta(days=_HISTORY_DAYS))

    def by_day(**more: Any) -> dict[date, CostView]:
        wanted = {**filters, **more}
        found = client.costs.report(
            "day", since=_midnight(begin), until=_midnight(last), limit=1000, **wanted
        )
        return _by_date(found)

    total = by_day()
    in_money = any(one.usd for one in total.values())
    amount = _usd if in_money else _slot_hours
    days = [first + timedelta(days=index) for index in range((last - first).days + 1)]
    group = "user" if filters.get("project") else "project"
    names = [
        one.key
        for one in client.costs.report(
            group, since=_midnight(first), until=_midnight(last), limit=_MOST_PROJECTS, **filters
        ).groups
    ]
    parts = {name: _series(by_day(**{group: name}), days, amount) for name in names if name}
    everything = _series(total, days, amount)
    rest = [
        max(whole - sum(values[index] for values in parts.values()), 0.0)
        for index, whole in enumerate(everything)
    ]
    if any(one > 1e-6 * max(everything, default=0) for one in rest):
        parts["others"] = rest
    ahead, expected, low, high = _forecast(total, amount, now.date(), last)
    write_figure(
        path,
        CostFigure(
            title=_title(first, last, filters, group),
            unit="US dollars" if in_money else "slot-hours",
            days=days,
            projects=parts,
            accounts=_accounts(total, days),
            ahead=ahead,
            expected=expected,
            low=low,
            high=high,
        ),
    )
    note(f"{path} is written")


def _forecast(
    total: Mapping[date, CostView], amount: Callable[[CostView], float], today: date, last: date
) -> tuple[list[date], list[float], list[float], list[float]]:
    """The days from the present one to the end of the month, where the figure ends at the present."""
    if last != today or not total:
        return [], [], [], []
    before = [today - timedelta(days=back) for back in range(_HISTORY_DAYS, 0, -1)]
    history = [round(one * _NANO) for one in _series(total, before, amount)]
    end = calendar.monthrange(today.year, today.month)[1]
    ahead = [today + timedelta(days=index) for index in range(end - today.day + 1)]
    found = days_ahead(history, len(ahead))
    return (
        ahead,
        [one.amount / _NANO for one in found],
        [one.low / _NANO for one in found],
        [one.high / _NANO for one in found],
    )


def trend_line(client: PhalanxClient, now: datetime, filters: Filters) -> str | None:
    """The last 30 whole days as a line of bars; None: nothing was used in them."""
    today = now.date()
    days = [today - timedelta(days=back) for back in range(TREND_DAYS, 0, -1)]
    found = _by_date(
        client.costs.report(
            "day", since=_midnight(days[0]), until=_midnight(days[-1]), limit=100, **filters
        )
    )
    if not any(one.held for one in found.values()):
        return None
    in_money = any(one.usd for one in found.values())
    values = _series(found, days, _usd if in_money else _slot_hours)
    unit = "USD" if in_money else "slot-hours"
    mean = sum(values) / len(values)
    said = f"{mean:.1f} {unit} a day, {values[-1]:.1f} yesterday"
    return f"last {TREND_DAYS} days: {sparkline(values)} {said}"


def _by_date(found: CostReport) -> dict[date, CostView]:
    return {date.fromisoformat(one.key): one.cost for one in found.groups}


def _series(
    found: Mapping[date, CostView], days: Sequence[date], amount: Callable[[CostView], float]
) -> list[float]:
    return [amount(found[day]) if day in found else 0.0 for day in days]


def _accounts(found: Mapping[date, CostView], days: Sequence[date]) -> dict[str, list[float]]:
    names = [name for name in next(iter(found.values())).accounts.model_dump()] if found else []
    return {
        name: _series(found, days, lambda one, key=name: getattr(one.accounts, key) / 3600)  # type: ignore[misc]
        for name in names
        if name != "queued"
    }


def _usd(one: CostView) -> float:
    return float(one.usd or 0)


def _slot_hours(one: CostView) -> float:
    return one.held / 3600


def _midnight(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=UTC)


def _title(first: date, last: date, filters: Filters, group: str) -> str:
    said = ", ".join(f"{name} {value}" for name, value in filters.items() if value is not None)
    return f"Cost of slots by {group}, {first} to {last}{f' ({said})' if said else ''}"
