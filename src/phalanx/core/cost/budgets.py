"""Budgets of money and slot time: when they warn, hold new starts, and pause what runs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum

from phalanx.core.cost.totals import usd_of

_HOUR_US = 3600 * 1_000_000
_HOLD = 100


class BudgetScope(StrEnum):
    """What a budget limits."""

    PROJECT = "project"
    USER = "user"
    JOB = "job"


class BudgetPeriod(StrEnum):
    """The time that a budget is for."""

    TOTAL = "total"
    MONTH = "month"  # a calendar month, UTC


class BudgetState(StrEnum):
    """What a budget does at present."""

    OPEN = "open"
    HOLDING = "holding"  # no job of it starts
    PAUSING = "pausing"  # its running jobs are paused too


@dataclass(frozen=True, slots=True)
class BudgetAlert:
    """A share of the budget was reached; each is told once in a period."""

    percent: int
    at: int  # microseconds UTC
    message: str


@dataclass(frozen=True, slots=True)
class CostBudget:
    """A limit of money, slot time or both, and what has been told in its period."""

    scope: BudgetScope  # what it limits
    name: str  # of the project or user; number of the job
    nano_usd: int | None = None  # None: no limit of money
    slot_us: int | None = None  # microseconds times slots; None: no limit of slot time
    period: BudgetPeriod = BudgetPeriod.TOTAL  # the time that it is for
    warn: tuple[int, ...] = (50, 80)  # percent
    pause_percent: int = 110  # at which running jobs pause
    state: BudgetState = BudgetState.OPEN  # what it does at present
    since: int | None = None  # begin of the period that `alerts` are of; None: of all time
    alerts: tuple[BudgetAlert, ...] = ()  # told in the period, in their order

    @property
    def label(self) -> str:
        """The name for users, such as `project vision`."""
        return (
            f"job j-{self.name}" if self.scope is BudgetScope.JOB else f"{self.scope} {self.name}"
        )


@dataclass(frozen=True, slots=True)
class Spending:
    """What was used in the period of a budget."""

    nano_usd: int = 0
    slot_us: int = 0


def period_start(period: BudgetPeriod, now: int) -> int | None:
    """The begin of the period of a time; None: there is none."""
    if period is BudgetPeriod.TOTAL:
        return None
    at = datetime.fromtimestamp(now // 1_000_000, UTC)
    first = at.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    return round(first.timestamp()) * 1_000_000


def percent_of(budget: CostBudget, spent: Spending) -> int:
    """The share of the budget that is used, in whole percent; the larger one of two limits."""
    pairs = ((spent.nano_usd, budget.nano_usd), (spent.slot_us, budget.slot_us))
    shares = [
        (100 if limit == 0 else 100 * used // limit) for used, limit in pairs if limit is not None
    ]
    return max(shares, default=0)


def judged(budget: CostBudget, spent: Spending, now: int) -> CostBudget:
    """The budget with its new state, and with an alert for each share that was reached first now."""
    start = period_start(budget.period, now)
    if start != budget.since:
        budget = replace(budget, since=start, alerts=())
    percent = percent_of(budget, spent)
    steps = sorted({*budget.warn, _HOLD, budget.pause_percent})
    reached = [step for step in steps if percent >= step]
    told = {one.percent for one in budget.alerts}
    fresh = tuple(
        BudgetAlert(step, now, f"{budget.label} has used {percent} % of {limit_text(budget)}")
        for step in reached
        if step not in told
    )
    # A raised budget tells its shares anew once they are reached again.
    kept = tuple(one for one in budget.alerts if one.percent in reached)
    state = BudgetState.OPEN
    if percent >= _HOLD:
        state = BudgetState.HOLDING
    if percent >= max(budget.pause_percent, _HOLD):
        state = BudgetState.PAUSING
    return replace(budget, state=state, alerts=(*kept, *fresh))


def limit_text(budget: CostBudget) -> str:
    """The limits for users, such as `400 USD a month`."""
    limits = []
    if budget.nano_usd is not None:
        limits.append(f"{usd_of(budget.nano_usd):f} USD")
    if budget.slot_us is not None:
        limits.append(f"{budget.slot_us / _HOUR_US:g} slot-hours")
    return " or ".join(limits) + (" a month" if budget.period is BudgetPeriod.MONTH else "")
