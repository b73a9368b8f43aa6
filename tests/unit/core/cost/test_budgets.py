"""When a budget warns, holds and pauses; each alert once in a period."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.cost.budgets import (
    BudgetPeriod,
    BudgetScope,
    BudgetState,
    CostBudget,
    Spending,
    judged,
    percent_of,
)

pytestmark = pytest.mark.unit

BUDGET = CostBudget(BudgetScope.PROJECT, "vision", nano_usd=400 * 10**9)
DAY = 86_400 * 1_000_000


def usd(amount: float) -> Spending:
    return Spending(nano_usd=round(amount * 1e9))


@given(st.lists(st.integers(0, 600), min_size=1, max_size=20))
def test_each_share_is_told_once_and_the_state_follows_what_is_used(steps: list[int]) -> None:
    budget, told = BUDGET, []
    for at, amount in enumerate(sorted(steps)):
        before = {one.percent for one in budget.alerts}
        budget = judged(budget, usd(amount), at)
        told += [one.percent for one in budget.alerts if one.percent not in before]
    percent = percent_of(budget, usd(max(steps)))
    assert told == [step for step in (50, 80, 100, 110) if step <= percent]
    expected = BudgetState.OPEN if percent < 100 else BudgetState.HOLDING
    assert budget.state is (BudgetState.PAUSING if percent >= 110 else expected)
    assert judged(budget, usd(max(steps)), 99) == budget


def test_the_larger_share_of_two_limits_counts() -> None:
    both = CostBudget(BudgetScope.USER, "ada", nano_usd=10**9, slot_us=100)
    assert percent_of(both, Spending(nano_usd=10**8, slot_us=90)) == 90
    assert percent_of(CostBudget(BudgetScope.USER, "ada", slot_us=0), Spending()) == 100


def test_a_new_month_begins_anew() -> None:
    budget = CostBudget(BudgetScope.USER, "ada", nano_usd=10**9, period=BudgetPeriod.MONTH)
    january = judged(budget, usd(2), 10 * DAY)
    assert january.state is BudgetState.PAUSING and len(january.alerts) == 4
    february = judged(january, usd(0), 40 * DAY)
    assert (february.state, february.alerts) == (BudgetState.OPEN, ())
    assert february.since == 31 * DAY


def test_a_raised_budget_tells_its_shares_anew() -> None:
    full = judged(BUDGET, usd(400), 1)
    raised = judged(CostBudget(**{**_fields(full), "nano_usd": 1000 * 10**9}), usd(400), 2)
    assert (raised.state, raised.alerts) == (BudgetState.OPEN, ())
    again = judged(raised, usd(500), 3)
    assert [(one.percent, one.at) for one in again.alerts] == [(50, 3)]
    assert again.alerts[0].message == "project vision has used 50 % of 1000 USD"


def _fields(one: CostBudget) -> dict[str, object]:
    return {name: getattr(one, name) for name in CostBudget.__dataclass_fields__}
