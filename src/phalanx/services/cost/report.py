"""Reports of slot time and money by project, user, job and other groups."""

from __future__ import annotations

from dataclasses import replace

from phalanx.core.cost.forecast import forecast
from phalanx.core.cost.ledger import DAY_US
from phalanx.core.cost.totals import Totals, added, usd_of
from phalanx.errors import UserError
from phalanx.schemas.api.body import at_or_none
from phalanx.schemas.api.cost import GROUPS, CostGroupView, CostReport, CostView, ForecastView
from phalanx.services.ledger.accounts import dearest_jobs, grouped, totals_by_day
from phalanx.services.platform import Platform
from phalanx.store.cost import days, job_sums
from phalanx.store.cost.rows import LABEL, CostFilter
from phalanx.store.database import Tx

_BY_TIME = ("day", "week", "month")
# The longest month, which is longer than the two weeks of a trend.
_FORECAST_DAYS = 31
_HOUR_US = 3600 * 1_000_000


def cost_report(
    platform: Platform, by: str, wanted: CostFilter, now: int, *, limit: int
) -> CostReport:
    """Totals by group, those of live jobs up to `now` included. Raises UserError for an unknown group."""
    if by not in GROUPS and (not by.startswith(LABEL) or by == LABEL):
        said = f"one of {', '.join(GROUPS)}, or label:NAME"
        raise UserError(f"there is no group {by!r} of costs", f"write {said}")

    def work(tx: Tx) -> tuple[dict[str, Totals], Totals]:
        waiting, holding = platform.scheduler_cache.rows.jobs(tx)
        live = [*waiting, *holding]
        if by == "job" and wanted.job is None and job_sums.serves(wanted):
            of_all = grouped(tx, "project", wanted, live, now)
            return dearest_jobs(tx, wanted, live, now, limit), added(of_all.values())
        found = grouped(tx, by, wanted, live, now)
        return found, added(found.values())

    def by_day(tx: Tx) -> dict[int, Totals]:
        waiting, holding = platform.scheduler_cache.rows.jobs(tx)
        month_ago = replace(wanted, since=(now // DAY_US - _FORECAST_DAYS) * DAY_US, until=None)
        return totals_by_day(tx, month_ago, [*waiting, *holding], now)

    found, total = platform.store.view(work)
    by_days = platform.store.view(by_day) if by in _BY_TIME else None
    keys = sorted(found) if by in _BY_TIME else sorted(found, key=lambda key: _rank(key, found))
    kept = keys[-limit:] if by in _BY_TIME else keys[:limit]
    return CostReport(
        by=by,
        since=at_or_none(wanted.since),
        until=at_or_none(wanted.until),
        groups=[CostGroupView(key=key, cost=CostView.from_core(found[key])) for key in kept],
        total=CostView.from_core(total),
        forecast=None if by_days is None else _forecast(by_days, now),
    )


def _forecast(found: dict[int, Totals], now: int) -> ForecastView:
    one = forecast(found, now)
    return ForecastView(
        used_slot_hours=one.used.held_us / _HOUR_US,
        used_usd=one.used.usd if one.used.nano_usd else None,
        expected_slot_hours=one.expected_us / _HOUR_US,
        expected_usd=usd_of(one.expected_nano) if one.expected_nano else None,
        trend=one.trend,
    )


def _rank(key: str, found: dict[str, Totals]) -> tuple[int, int, str]:
    return (-found[key].nano_usd, -found[key].held_us, key)


def day_of(at: int) -> int:
    """The begin of a time's day (UTC)."""
    return at // DAY_US * DAY_US


def fold_step(platform: Platform) -> None:
    """Add settled rows of the ledger to the sums by day, a few thousand at a time."""
    while platform.store.view(days.is_behind):
        platform.store.transact(days.fold)
