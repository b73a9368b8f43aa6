"""What budgets have used, and the budget of one job with its use."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal

from phalanx.core.cost.budgets import BudgetScope, CostBudget, Spending, percent_of, period_start
from phalanx.core.cost.price_table import PriceTable
from phalanx.core.cost.totals import usd_of
from phalanx.schemas.api.body import at_of
from phalanx.schemas.api.cost import BudgetAlertView, BudgetView
from phalanx.services.ledger.settle import held_by
from phalanx.store.cost import budgets, prices
from phalanx.store.database import Tx
from phalanx.store.jobs import StoredJob

HOUR_US = 3600 * 1_000_000


def budget_of_job(tx: Tx, stored: StoredJob, now: int) -> BudgetView | None:
    """The budget of one job with what it has used; None: it has none."""
    found = budgets.find(tx, BudgetScope.JOB, str(stored.job.num))
    if found is None:
        return None
    return budget_view(found, spent_of(tx, found, [stored], prices.table(tx), now))


def budget_view(one: CostBudget, spent: Spending) -> BudgetView:
    """A budget as the API shows it, with what it has used."""
    return BudgetView(
        scope=one.scope.value,
        name=one.name,
        label=one.label,
        usd=None if one.nano_usd is None else usd_of(one.nano_usd),
        slot_hours=None if one.slot_us is None else one.slot_us / HOUR_US,
        period=one.period.value,
        warn=list(one.warn),
        pause_percent=one.pause_percent,
        state=one.state.value,
        used_usd=usd_of(spent.nano_usd) if spent.nano_usd else Decimal(0),
        used_slot_hours=spent.slot_us / HOUR_US,
        used_percent=percent_of(one, spent),
        alerts=[
            BudgetAlertView(percent=alert.percent, at=at_of(alert.at), message=alert.message)
            for alert in one.alerts
        ],
    )


def spent_of(
    tx: Tx, budget: CostBudget, holding: Iterable[StoredJob], table: PriceTable, now: int
) -> Spending:
    """What a budget has used in its present period, running jobs included."""
    since = period_start(budget.period, now)
    found = budgets.settled(tx, budget, since)
    nano_usd, slot_us = found.nano_usd, found.slot_us
    for stored in holding:
        attempt, facts = stored.job.attempt, stored.facts
        if attempt is None or attempt.placed_at is None:
            continue
        mine = budgets.hold_reason([budget], stored.job.num, facts.project, facts.owner)
        if mine is not None:
            begin = min(max(attempt.placed_at, since or 0), now)
            nano_usd += table.nano_usd(held_by(stored, attempt), begin, now)
            slot_us += (now - begin) * attempt.num_slots
    return Spending(nano_usd, slot_us)
