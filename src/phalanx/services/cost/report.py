"""Reports of slot time and money by project, user, job and other groups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from phalanx.core.cost.forecast import forecast
from phalanx.core.cost.ledger import DAY_US
from phalanx.core.cost.storage import StorageTotals, storage_added
from phalanx.core.cost.totals import Totals, added, usd_of
from phalanx.errors import UserError
from phalanx.schemas.api.body import at_or_none
from phalanx.schemas.api.cost import GROUPS, CostGroupView, CostReport, CostView, ForecastView
from phalanx.services.ledger.accounts import dearest_jobs, grouped, name_of_day, totals_by_day
from phalanx.services.ledger.storage import accrued, storage_by, storage_of_jobs
from phalanx.services.platform import Platform
from phalanx.store.cost import days, job_sums, prices
from phalanx.store.cost.rows import LABEL, CostFilter
from phalanx.store.database import Tx
from phalanx.store.storage import days as storage_days
from phalanx.store.storage import objects

_BY_TIME = ("day", "week", "month")
# The longest month, which is longer than the two weeks of a trend.
_FORECAST_DAYS = 31
_HOUR_US = 3600 * 1_000_000
_SETTLED_EVERY_US = 300 * 1_000_000
_LOGS_EVERY_US = _HOUR_US
DAYS_AT_ONCE = 2
"""The days that one transaction settles, at most."""
OBJECTS_AT_ONCE = 10_000
"""Kept objects that begin, and those that end, in the time that one transaction settles, at most."""


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
        if by == "store":
            return {}, Totals()
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
    stored, all_stored = platform.store.view(lambda tx: _storage(tx, by, wanted, found, now))
    every = {*found, *stored}
    if by in _BY_TIME:
        kept = sorted(every)[-limit:]
    else:
        kept = sorted(every, key=lambda key: _rank(key, found, stored))[:limit]
    nothing = Totals()
    return CostReport(
        by=by,
        since=at_or_none(wanted.since),
        until=at_or_none(wanted.until),
        groups=[
            CostGroupView(
                key=key, cost=CostView.from_core(found.get(key, nothing), stored.get(key))
            )
            for key in kept
        ],
        total=CostView.from_core(total, all_stored),
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


def _storage(
    tx: Tx, by: str, wanted: CostFilter, found: Mapping[str, Totals], now: int
) -> tuple[dict[str, StorageTotals], StorageTotals | None]:
    """Kept and moved bytes by group, and of all; nothing for groups that stored bytes do not have."""
    if wanted.job is not None:
        if (wanted.since, wanted.until) != (None, None) or by not in (*_BY_TIME, "job"):
            return {}, None
        mine = storage_of_jobs(tx, [wanted.job], now).get(wanted.job) if _sees(found) else None
        return ({str(wanted.job): mine} if mine and by == "job" else {}), mine
    if by == "job":
        if not job_sums.serves(wanted) or wanted.study is not None:
            return {}, None
        some = storage_of_jobs(tx, [int(key) for key in found], now)
        total = storage_added(storage_by(tx, "project", wanted, now).values())
        return {str(num): one for num, one in some.items()}, _or_none(total)
    if by not in ("project", "user", "store", *_BY_TIME):
        return {}, None
    column = "day" if by in _BY_TIME else by
    groups = storage_by(tx, column, wanted, now, name_of_day(by))
    return groups, _or_none(storage_added(groups.values()))


def _sees(found: Mapping[str, Totals]) -> bool:
    """Whether the caller may see the one job that is asked for: its slots are in the report."""
    return bool(found)


def _or_none(one: StorageTotals) -> StorageTotals | None:
    return None if one == StorageTotals() else one


def _rank(
    key: str, found: Mapping[str, Totals], stored: Mapping[str, StorageTotals]
) -> tuple[int, int, int, str]:
    slots, kept = found.get(key, Totals()), stored.get(key, StorageTotals())
    nano = slots.nano_usd + kept.storage_nano + kept.transfer_nano
    return (-nano, -slots.held_us, -kept.byte_us, key)


def day_of(at: int) -> int:
    """The begin of a time's day (UTC)."""
    return at // DAY_US * DAY_US


def fold_step(platform: Platform) -> None:
    """Add settled rows of the ledger to the sums by day, a few thousand at a time."""
    while platform.store.view(days.is_behind):
        platform.store.transact(days.fold)


def storage_step(platform: Platform, now: int) -> bool:
    """Settle kept and moved bytes, every five minutes; True: more is left for the next call.

    One transaction settles a part of the time: other writers do not wait for months. A price that is set
    meanwhile waits for the lock, or is seen (docs/decisions/0130).
    """

    def work(tx: Tx) -> bool:
        objects.note_logs(tx, now, now - _LOGS_EVERY_US)
        settled = objects.lock(tx) or objects.first_begin(tx) or now
        end = settle_end(tx, settled, now)
        storage_days.add(tx, accrued(tx, prices.table(tx), settled, end))
        objects.set_settled(tx, max(end, settled))
        return end < now

    if now - platform.store.view(objects.settled_to) < _SETTLED_EVERY_US:
        return False
    return platform.store.transact(work)


def settle_end(tx: Tx, begin: int, now: int) -> int:
    """The end of the time that one transaction settles.

    It has `DAYS_AT_ONCE` days at most, and `OBJECTS_AT_ONCE` objects at most begin or end in it.
    """
    last = min(now, begin + DAYS_AT_ONCE * DAY_US)
    return objects.end_of_some(tx, begin, last, OBJECTS_AT_ONCE)
