"""Budgets: set, list and remove them; the step that warns, holds, pauses and releases.

What a budget has used is read from the ledger each time, and what it has told is in its row: a control
plane that starts anew continues where the last one ended.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from phalanx.core.cost.budgets import (
    BudgetPeriod,
    BudgetScope,
    BudgetState,
    CostBudget,
    judged,
)
from phalanx.core.cost.prices import NANO
from phalanx.core.cost.totals import usd_of
from phalanx.core.jobs.events import Resumed, StopRequested
from phalanx.core.jobs.model import JobState, StopGoal
from phalanx.core.reasons import Reason, ReasonCode
from phalanx.errors import NotFound
from phalanx.schemas.api.cost import BudgetView, SetBudgetRequest
from phalanx.services.ledger.budgets import HOUR_US, budget_view, spent_of
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
        slot_us=None if hours is None else round(hours * HOUR_US),
        period=BudgetPeriod(request.period),
        warn=tuple(sorted(set(request.warn))),
        pause_percent=request.pause_percent,
    )

    def work(tx: Tx) -> BudgetView:
        if scope is BudgetScope.JOB:
            jobs.load(tx, int(name))
        before = budgets.find(tx, scope, name)
        kept = fresh if before is None else replace(fresh, since=before.since, alerts=before.alerts)
        _, holding = platform.scheduler_cache.rows.jobs(tx)
        spent = spent_of(tx, kept, holding, prices.table(tx), now)
        done = judged(kept, spent, now)
        audit.describe(tx, _place(scope, name), _audited(before), _audited(done))
        budgets.put_budget(tx, done)
        tx.touched.topics.update((BUDGETS, QUEUE))
        return budget_view(done, spent)

    return platform.store.transact(work)


def remove_budget(platform: Platform, scope: BudgetScope, name: str) -> None:
    """Remove a budget; what it held or paused goes on. Raises NotFound."""

    def work(tx: Tx) -> None:
        before = budgets.find(tx, scope, name)
        if not budgets.remove_budget(tx, scope, name):
            raise NotFound(f"there is no budget of {scope} {name}", "`phalanx budgets` lists them")
        audit.describe(tx, _place(scope, name), _audited(before), None)
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
        "slot_hours": None if one.slot_us is None else one.slot_us / HOUR_US,
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
            budget_view(one, spent_of(tx, one, holding, table, now))
            for one in budgets.budgets_now(tx)
            if projects is None or (one.scope is BudgetScope.PROJECT and one.name in projects)
        ]

    return platform.store.view(work)


def show_budget(
    platform: Platform, scope: BudgetScope, name: str, projects: Sequence[str] | None, now: int
) -> BudgetView:
    """One budget with what it has used. Raises NotFound, also for one that is not of `projects`."""
    for one in list_budgets(platform, projects, now):
        if (one.scope, one.name) == (scope.value, name):
            return one
    raise NotFound(f"there is no budget of {scope} {name}", "`phalanx budgets` lists them")


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
