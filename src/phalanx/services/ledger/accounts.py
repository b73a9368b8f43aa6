"""Sums of the ledger with what live jobs have used since their last rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta

from phalanx.core.cost.ledger import DAY_US
from phalanx.core.cost.totals import Totals, added
from phalanx.services.ledger.settle import live_rows
from phalanx.store.cost import days, job_sums, rows
from phalanx.store.cost.rows import LABEL, CostFilter, CostRow
from phalanx.store.database import Tx
from phalanx.store.jobs import StoredJob


def cost_of_job(tx: Tx, stored: StoredJob, now: int) -> Totals:
    """What a job has used up to now."""
    live = live_rows(tx, [stored], now).get(stored.job.num, [])
    return added(map(totals_of, [*rows.of_job(tx, stored.job.num), *live]))


def cost_of_trials(tx: Tx, study: int, live: Iterable[StoredJob], now: int) -> dict[int, Totals]:
    """What the jobs of each trial of a study have used; `live` are jobs that wait or hold slots."""
    found = rows.sums(tx, "trial", CostFilter(study=study))
    parts = {int(key): [one] for key, one in found.items()}
    ours = [one for one in live if one.facts.study == study]
    for fresh in live_rows(tx, ours, now).values():
        for one in fresh:
            parts.setdefault(one.owner.trial or 0, []).append(totals_of(one))
    return {trial: added(some) for trial, some in parts.items()}


def grouped(
    tx: Tx, by: str, wanted: CostFilter, live: Sequence[StoredJob], now: int
) -> dict[str, Totals]:
    """Totals by the text of a group: see `rows.sums` for what `by` may be, or `week` or `month`."""
    folded = by in _FOLDED
    column = "day" if folded else by
    name = name_of_day(by)
    parts: dict[str, list[Totals]] = {}
    for found in _settled(tx, column, wanted):
        for key, one in found.items():
            parts.setdefault(name(key), []).append(one)
    labels = {one.job.num: one.facts.labels for one in live}
    for some in live_rows(tx, live, now).values():
        for row in some:
            if wanted.takes(row):
                key = name(rows.key_of(row, "day" if folded else by, labels[row.owner.job]))
                parts.setdefault(key, []).append(totals_of(row))
    return {key: added(some) for key, some in parts.items()}


def _settled(tx: Tx, by: str, wanted: CostFilter) -> list[dict[str, Totals]]:
    """What is settled, from the sums that can answer, and the rows behind them."""
    if days.serves(by, wanted):
        return [days.sums(tx, by, wanted)]
    if (by == "study" or by.startswith(LABEL)) and job_sums.serves(wanted):
        fresh = rows.sums(tx, by, wanted, after=days.folded(tx))
        return [job_sums.by_group(tx, by, wanted), fresh]
    return [rows.sums(tx, by, wanted)]


def dearest_jobs(
    tx: Tx, wanted: CostFilter, live: Sequence[StoredJob], now: int, limit: int
) -> dict[str, Totals]:
    """The most expensive jobs of all time, and those that have used something since the sums by job.

    What a job has used only grows: a job that is the same as in its sum cannot rise.
    """
    parts = {
        int(key): [one] for key, one in rows.sums(tx, "job", wanted, after=days.folded(tx)).items()
    }
    for num, some in live_rows(tx, live, now).items():
        ours = [totals_of(row) for row in some if wanted.takes(row)]
        if ours:
            parts.setdefault(num, []).extend(ours)
    for num, one in job_sums.of_jobs(tx, list(parts)).items():
        parts[num].append(one)
    found = {str(num): added(some) for num, some in parts.items()}
    known = job_sums.dearest(tx, wanted, limit)
    return found | {str(num): one for num, one in known.items() if num not in parts}


def totals_by_day(
    tx: Tx, wanted: CostFilter, live: Sequence[StoredJob], now: int
) -> dict[int, Totals]:
    """Totals by day, counted from 1970 (UTC)."""
    found = grouped(tx, _NUMBER, wanted, live, now)
    return {int(key): one for key, one in found.items()}


def name_of_day(by: str) -> Callable[[str], str]:
    """Names a day, a week or a month by the number of a day; other groups keep their text."""
    return _FOLDED.get(by, str)


def totals_of(one: CostRow) -> Totals:
    """One row as totals."""
    return Totals(dict(one.row.amounts), one.nano_usd)


def _date(key: str) -> datetime:
    return datetime.fromtimestamp(int(key) * DAY_US // 1_000_000, UTC)


def _day(key: str) -> str:
    return _date(key).strftime("%Y-%m-%d")


def _week(key: str) -> str:
    """The Monday of a day's week."""
    at = _date(key)
    return (at - timedelta(days=at.weekday())).strftime("%Y-%m-%d")


def _month(key: str) -> str:
    return _date(key).strftime("%Y-%m")


_NUMBER = "number of the day"
_FOLDED: Mapping[str, Callable[[str], str]] = {
    "day": _day,
    "week": _week,
    "month": _month,
    _NUMBER: str,
}
