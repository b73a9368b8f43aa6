"""Rows of budgets, and the jobs that budgets have paused."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from sqlalchemy import func, select

from phalanx.core.codec import decode, encode
from phalanx.core.cost.budgets import BudgetScope, BudgetState, CostBudget, Spending
from phalanx.core.cost.ledger import Account
from phalanx.core.jobs.model import JobState
from phalanx.core.reasons import Reason, ReasonCode
from phalanx.store.database import Tx
from phalanx.store.tables import cost_budgets, cost_rows, jobs

BUDGETS = "cost_budgets"
"""The notification topic of changed budgets."""
_ALL = select(cost_budgets).order_by(cost_budgets.c.scope, cost_budgets.c.name)
_HELD = _ALL.where(cost_budgets.c.state != BudgetState.OPEN.value)
_NAMES = tuple(one.name for one in fields(CostBudget))
_COLUMN = {BudgetScope.PROJECT: "project", BudgetScope.USER: "owner", BudgetScope.JOB: "job"}


def budgets_now(tx: Tx) -> list[CostBudget]:
    """All budgets, by scope and name."""
    return [_budget(row) for row in tx.conn.execute(_ALL).mappings()]


def find(tx: Tx, scope: BudgetScope, name: str) -> CostBudget | None:
    """The budget of a scope and name; None: there is none."""
    here = cost_budgets.c
    query = select(cost_budgets).where(here.scope == scope.value, here.name == name)
    row = tx.conn.execute(query).mappings().first()
    return None if row is None else _budget(row)


def holding(tx: Tx) -> list[CostBudget]:
    """The budgets that let no job start."""
    return [_budget(row) for row in tx.conn.execute(_HELD).mappings()]


def _budget(row: Any) -> CostBudget:
    return decode(CostBudget, {name: row[name] for name in _NAMES})


def put_budget(tx: Tx, one: CostBudget) -> None:
    """Store a budget; it replaces that of the same scope and name."""
    remove_budget(tx, one.scope, one.name)
    tx.conn.execute(cost_budgets.insert(), encode(one))


def put_state(tx: Tx, one: CostBudget) -> None:
    """Store what a budget does and has told; its limits may have changed since it was read."""
    here, new = cost_budgets.c, encode(one)
    changed = {name: new[name] for name in ("state", "since", "alerts")}
    where = (here.scope == one.scope.value) & (here.name == one.name)
    tx.conn.execute(cost_budgets.update().where(where).values(**changed))


def remove_budget(tx: Tx, scope: BudgetScope, name: str) -> bool:
    """Delete a budget; False when there is none."""
    here = cost_budgets.c
    query = cost_budgets.delete().where(here.scope == scope.value, here.name == name)
    return tx.conn.execute(query).rowcount > 0


def settled(tx: Tx, budget: CostBudget, since: int | None) -> Spending:
    """What the ended waits and attempts of a budget have used since a time."""
    here = cost_rows.c
    held = sum(here[one.value] for one in Account if one is not Account.QUEUED)
    own = int(budget.name) if budget.scope is BudgetScope.JOB else budget.name
    query = select(func.sum(here.nano_usd), func.sum(held)).where(
        here[_COLUMN[budget.scope]] == own
    )
    if since is not None:
        query = query.where(here.from_at >= since)
    nano_usd, slot_us = tx.conn.execute(query).one()
    return Spending(int(nano_usd or 0), int(slot_us or 0))


def paused_by_budgets(tx: Tx) -> list[int]:
    """Numbers of the jobs that budgets have paused."""
    query = select(jobs.c.num).where(
        jobs.c.state == JobState.PAUSED.value, jobs.c.reason_code == ReasonCode.COST_BUDGET.value
    )
    return list(tx.conn.execute(query).scalars())


def hold_reason(held: list[CostBudget], num: int, project: str, owner: str) -> Reason | None:
    """Why a job may not start, of the budgets that hold; None: it may."""
    mine = {
        BudgetScope.PROJECT: project,
        BudgetScope.USER: owner,
        BudgetScope.JOB: str(num),
    }
    for one in held:
        if mine[one.scope] == one.name:
            said = f"{one.alerts[-1].message}: no job of it starts" if one.alerts else one.label
            return Reason(ReasonCode.COST_BUDGET, said)
    return None
