"""The life of an anomaly of cost: open, acknowledged, closed; one for each cause.

The same days are judged again and again while they grow, so every function here may be repeated: the
amounts of a day replace those that were known of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from phalanx.core.cost.anomalies import AnomalyKey, Finding, Use
from phalanx.core.cost.ledger import Account

MOST_DAYS = 60
"""Days that one anomaly may last; the next day is a new one."""


class AnomalyState(StrEnum):
    """The life of an anomaly. Closed is final."""

    OPEN = "open"  # it lasts, or its last day has not been followed by a whole one
    ACKNOWLEDGED = "acknowledged"  # the same, and an operator has seen it
    CLOSED = "closed"  # a whole day was as expected again


LIVE = (AnomalyState.OPEN, AnomalyState.ACKNOWLEDGED)


@dataclass(frozen=True, slots=True)
class AnomalyCause:
    """What changed most against the mean of the week before; each has its own extra amount.

    Amounts are of the unit of the anomaly; that of the account is always slot time.
    """

    job: int | None = None  # number of the job; None: no job has grown
    job_extra: int = 0
    pool: str = ""  # empty: no pool has grown
    pool_extra: int = 0
    account: Account | None = None  # None: no account has grown
    account_extra_us: int = 0  # microseconds times slots


@dataclass(frozen=True, slots=True)
class AnomalyDay:
    """What a day of an anomaly used and was expected to use."""

    day: int  # from 1970, UTC
    actual: int
    expected: int


@dataclass(frozen=True, slots=True)
class CostAnomaly:
    """Days of a group in a row that cost much more than expected."""

    num: int  # 0: it has not been stored
    key: AnomalyKey  # its main group
    in_money: bool  # amounts are nano US dollars; else microseconds times slots
    days: tuple[AnomalyDay, ...]  # in order
    cause: AnomalyCause  # of the day with the largest extra amount
    also: tuple[AnomalyKey, ...]  # other groups with the same cause
    state: AnomalyState  # open, acknowledged or closed
    found_at: int  # microseconds UTC
    acknowledged_at: int | None = None  # microseconds UTC; None: it was not
    acknowledged_by: str = ""  # id of a principal; empty: it was not
    closed_at: int | None = None  # microseconds UTC; None: it is not closed

    @property
    def actual(self) -> int:
        """What its days used."""
        return sum(one.actual for one in self.days)

    @property
    def expected(self) -> int:
        """What they were expected to use."""
        return sum(one.expected for one in self.days)

    @property
    def extra(self) -> int:
        """What was used above the expectation."""
        return self.actual - self.expected

    @property
    def keys(self) -> tuple[AnomalyKey, ...]:
        """All groups that it stands for."""
        return (self.key, *self.also)


def judged_day(
    before: Sequence[CostAnomaly],
    found: Sequence[tuple[Finding, AnomalyCause]],
    day: int,
    now: int,
    *,
    is_whole: bool,
) -> list[CostAnomaly]:
    """The live anomalies after a day was judged, those that it has closed or begun among them.

    `found` are the findings of the day in the order of their ranks; `is_whole`: the day has ended. A group
    that has grown because of the same job as another one is added to the anomaly of that one.
    """
    live = [one for one in before if one.state in LIVE]
    after: list[CostAnomaly] = []
    by_key = {finding.key: (finding, cause) for finding, cause in found}
    for one in live:
        mine = next((by_key[key] for key in one.keys if key in by_key), None)
        same = by_key.get(one.key, mine)
        if same is not None and one.days[-1].day >= day - 1 and len(one.days) < MOST_DAYS:
            after.append(_grown(one, *same, day))
        elif is_whole and one.days[-1].day < day:
            after.append(replace(one, state=AnomalyState.CLOSED, closed_at=now))
        else:
            after.append(one)
    known = {key for one in after if one.state in LIVE for key in one.keys}
    for finding, cause in found:
        if finding.key in known:
            continue
        index = _same_cause(after, finding, cause, day)
        if index is None:
            first = (AnomalyDay(day, finding.actual, finding.expected),)
            key, money = finding.key, finding.in_money
            after.append(CostAnomaly(0, key, money, first, cause, (), AnomalyState.OPEN, now))
        else:
            after[index] = replace(after[index], also=(*after[index].also, finding.key))
    return after


def _grown(one: CostAnomaly, finding: Finding, cause: AnomalyCause, day: int) -> CostAnomaly:
    """An anomaly with the newest amounts of a day; its main group counts, else one with the same cause."""
    if finding.in_money != one.in_money:
        return one  # its group got its first price: the amounts cannot be added
    fresh = AnomalyDay(day, finding.actual, finding.expected)
    others = [known for known in one.days if known.day != day]
    most = max((known.actual - known.expected for known in others), default=-1)
    days = tuple(sorted([*others, fresh], key=lambda known: known.day))
    return replace(one, days=days, cause=cause if finding.extra >= most else one.cause)


def _same_cause(
    among: Sequence[CostAnomaly], finding: Finding, cause: AnomalyCause, day: int
) -> int | None:
    """The index of the anomaly of the same day, and of the same job, if there is one."""
    if cause.job is None:
        return None
    for index, one in enumerate(among):
        lasts = one.state in LIVE and one.days[-1].day == day
        if lasts and one.cause.job == cause.job and one.in_money == finding.in_money:
            return index
    return None


def acknowledged(one: CostAnomaly, by: str, now: int) -> CostAnomaly:
    """An open anomaly after an operator has seen it; others stay as they are."""
    if one.state is not AnomalyState.OPEN:
        return one
    state = AnomalyState.ACKNOWLEDGED
    return replace(one, state=state, acknowledged_at=now, acknowledged_by=by)


@dataclass(frozen=True, slots=True)
class Breakdown:
    """The use of a group by job, pool and account."""

    jobs: Mapping[int, Use]
    pools: Mapping[str, Use]
    accounts: Mapping[Account, int]  # microseconds times slots


def cause_of(present: Breakdown, week: Breakdown, *, in_money: bool) -> AnomalyCause:
    """What has grown most from the mean day of the week before, of which `week` has the sums."""

    def amount(one: Use) -> int:
        return one.nano_usd if in_money else one.slot_us

    def most(grown: Iterable[tuple[int, str, object]]) -> tuple[int, object]:
        extra, _, what = max(grown, default=(0, "", None))
        return (extra, what) if extra > 0 else (0, None)

    jobs = [
        (amount(one) - amount(week.jobs.get(num, Use())) // 7, f"{-num:020d}", num)
        for num, one in present.jobs.items()
    ]
    pools = [
        (amount(one) - amount(week.pools.get(name, Use())) // 7, name, name)
        for name, one in present.pools.items()
    ]
    accounts = [
        (used - week.accounts.get(account, 0) // 7, account.value, account)
        for account, used in present.accounts.items()
        if account is not Account.QUEUED
    ]
    job_extra, job = most(jobs)
    pool_extra, pool = most(pools)
    account_extra, account = most(accounts)
    return AnomalyCause(
        job if isinstance(job, int) else None,
        job_extra,
        pool if isinstance(pool, str) else "",
        pool_extra,
        account if isinstance(account, Account) else None,
        account_extra,
    )
