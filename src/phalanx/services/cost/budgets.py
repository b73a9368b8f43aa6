"""Budgets: set, list and remove them; the step that warns, holds, pauses and releases.

What a budget has used is read from the ledger each time, and what it has told is in its row: a control
plane that starts anew continues where the last one ended.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from decimal import Decimal

from phalanx.core.cost.budgets import (
    BudgetPeriod,
    BudgetScope,
    BudgetState,
    CostBudget,
    Spending,
    judged,
    percent_of,
    period_start,
)
from phalanx.core.cost.price_table import PriceTable
from phalanx.core.cost.prices import NANO
from phalanx.core.cost.totals import usd_of
from phalanx.core.jobs.events import Resumed, StopRequested
from phalanx.core.jobs.model import JobState, StopGoal
from phalanx.core.reasons import Reason, ReasonCode
from phalanx.errors import NotFound
from phalanx.schemas.api.body import at_of
from phalanx.schemas.api.cost import BudgetAlertView, BudgetView, SetBudgetRequest
from phalanx.services.ledger.settle import held_by
from phalanx.services.lifecycle.commit import QUEUE, commit_events
from phalanx.services.platform import Platform
from phalanx.store import jobs
from phalanx.store.cost import budgets, prices
from phalanx.store.cost.budgets import BUDGETS
from phalanx.store.database import Tx
from phalanx.store.jobs import StoredJob
from phalanx.store.tenancy import audit

_LOG = logging.getLogger(__name__)
_ACTOR = "budgets"
_HOUR_US = 3600 * 1_000_000


def set_budget(
    platform: Platform, scope: BudgetScope, name: str, request: SetBudgetRequest, now: int
) -> BudgetView:
    """Set or change a budget; jobs that it held or paused go on once it has room for them.

    Raises NotFound for a job that does not exist.
    """
    usd, hours = request.usd, request.slot_hours
    fresh = CostBudget(
        scope,
        name,
        nano_usd=None if usd is None else int(usd * NANO),
        slot_us=None if hours is None else round(hours * _HOUR_US),
        period=BudgetPeriod(request.period),
        warn=tuple(sorted(set(request.warn))),
        pause_percent=request.pause_percent,
    )

    def work(tx: Tx) -> BudgetView:
        if scope is BudgetScope.JOB:
            jobs.load(tx, int(name))
        known = {(one.scope, one.name): one for one in budgets.budgets_now(tx)}
        before = known.get((scope, name))
        kept = fresh if before is None else replace(fresh, since=before.since, alerts=before.alerts)
        _, holding = platform.scheduler_cache.rows.jobs(tx)
        spent = spent_of(tx, kept, holding, prices.table(tx), now)
        done = judged(kept, spent, now)
        audit.describe(tx, _place(scope, name), _audited(before), _audited(done))
        budgets.put_budget(tx, done)
        tx.touched.topics.update((BUDGETS, QUEUE))
        return _view(done, spent)

    return platform.store.transact(work)


def remove_budget(platform: Platform, scope: BudgetScope, name: str) -> None:
    """Remove a budget; what it held or paused goes on. Raises NotFound."""

    def work(tx: Tx) -> None:
        known = {(one.scope, one.name): one for one in budgets.budgets_now(tx)}
        if not budgets.remove_budget(tx, scope, name):
            raise NotFound(f"there is no budget of {scope} {name}", "`phalanx budgets` lists them")
        audit.describe(tx, _place(scope, name), _audited(known.get((scope, name))), None)
        tx.touched.topics.update((BUDGETS, QUEUE))

    platform.store.transact(work)


def _place(scope: BudgetScope, name: str) -> str:
    return f"budget of {scope} {name}"


def _audited(one: CostBudget | None) -> dict[str, object] | None:
    """What the audit log shows of a budget: its limits."""
    if one is None:
        return None
    return {
        "usd": None if one.nano_usd is None else str(usd_of(one.nano_usd)),
        "slot_hours": None if one.slot_us is None else one.slot_us / _HOUR_US,
        "period": one.period.value,
        "warn": one.warn,
        "pause_percent": one.pause_percent,
    }


def list_budgets(platform: Platform, projects: Sequence[str] | None, now: int) -> list[BudgetView]:
    """All budgets with what they have used; of `projects`, where these are given, only theirs."""

    def work(tx: Tx) -> list[BudgetView]:
        _, holding = platform.scheduler_cache.rows.jobs(tx)
        table = prices.table(tx)
        return [
            _view(one, spent_of(tx, one, holding, table, now))
            for one in budgets.budgets_now(tx)
            if projects is None or (one.scope is BudgetScope.PROJECT and one.name in projects)
        ]

    return platform.store.view(work)


def _view(one: CostBudget, spent: Spending) -> BudgetView:
    return BudgetView(
        scope=one.scope.value,
        name=one.name,
        label=one.label,
        usd=None if one.nano_usd is None else usd_of(one.nano_usd),
        slot_hours=None if one.slot_us is None else one.slot_us / _HOUR_US,
        period=one.period.value,
        warn=list(one.warn),
        pause_percent=one.pause_percent,
        state=one.state.value,
        used_usd=usd_of(spent.nano_usd) if spent.nano_usd else Decimal(0),
        used_slot_hours=spent.slot_us / _HOUR_US,
        used_percent=percent_of(one, spent),
        alerts=[
            BudgetAlertView(percent=alert.percent, at=at_of(alert.at), message=alert.message)
            for alert in one.alerts
        ],
    )


def budgets_step(platform: Platform, now: int) -> None:
    """Compare all budgets with the ledger: warn, hold, pause and release."""

    def look(tx: Tx) -> bool:
        return bool(budgets.budgets_now(tx) or budgets.paused_by_budgets(tx))

    if platform.store.view(look):
        platform.store.transact(lambda tx: _apply(platform, tx, now))


def _apply(platform: Platform, tx: Tx, now: int) -> None:
    _, holding = platform.scheduler_cache.rows.jobs(tx)
    known, table = [], prices.table(tx)
    for before in budgets.budgets_now(tx):
        after = judged(before, spent_of(tx, before, holding, table, now), now)
        known.append(after)
        if after != before:
            budgets.put_state(tx, after)
            tx.touched.topics.add(QUEUE)
            for alert in set(after.alerts) - set(before.alerts):
                _LOG.warning("%s", alert.message)
    pausing = [one for one in known if one.state is BudgetState.PAUSING]
    for stored in holding:
        reason = _reason(pausing, stored)
        if reason is not None and stored.job.state is not JobState.STOPPING:
            event = StopRequested(StopGoal.PAUSE, reason)
            commit_events(tx, stored.job.num, [event], now, _ACTOR)
    held = [one for one in known if one.state is not BudgetState.OPEN]
    for num in budgets.paused_by_budgets(tx):
        if _reason(held, jobs.load(tx, num)) is None:
            commit_events(tx, num, [Resumed()], now, _ACTOR)


def _reason(among: list[CostBudget], stored: StoredJob) -> Reason | None:
    """Why a budget among these pauses a job; None: none is its own."""
    facts = stored.facts
    found = budgets.hold_reason(among, stored.job.num, facts.project, facts.owner)
    if found is None:
        return None
    said = found.message.removesuffix(": no job of it starts")
    return Reason(ReasonCode.COST_BUDGET, f"{said}; raise the budget to continue")


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
