"""What studies with a budget have used by now, running trials included, so that they end in time.

What a trial has used is settled when it pauses or ends. Between, a study with a limit of slot-hours or
money is looked at when its trials can have used the next share of the budget.
"""

from __future__ import annotations

from phalanx.core.cost.price_table import PriceTable
from phalanx.core.cost.prices import NANO
from phalanx.core.search.events import BudgetSpent
from phalanx.core.search.model import Study, StudyState
from phalanx.services.ledger.settle import held_by
from phalanx.services.platform import Platform
from phalanx.services.studies.commit import StudyWork, transact_studies
from phalanx.services.studies.facts import used
from phalanx.store.cost import prices

_US = 1_000_000
_HOUR_NANO = 3600 * NANO
# Of the budget: what is used is told to the study after each such share, which bounds its log.
_SHARE = 0.02
_SHORTEST_S, _LONGEST_S = 1.0, 60.0


def spending_step(platform: Platform, now: int) -> None:
    """Look at the budgets that are due."""
    cache = platform.studies
    due = cache.budgets_due(now)
    if due:

        def work(here: StudyWork) -> dict[int, int]:
            here.load(due)
            table = prices.table(here.tx)
            return {num: _look(here, num, table) for num in due if here.has(num)}

        for num, at in transact_studies(platform, now, work).items():
            cache.look_at_budget(num, at)


def _look(here: StudyWork, num: int, table: PriceTable) -> int:
    """Tell a study what it has used; returns when to look again."""
    study = here.study(num)
    slot_s, usd, slots, rate = _spent(here, study, table)
    budget, facts = study.policy.budget, study.facts
    waits: list[float] = []
    for limit, amount, known, speed in (
        ((budget.slot_hours or 0) * 3600, slot_s, facts.slot_s, slots),
        (budget.usd or 0, usd, facts.usd, rate),
    ):
        if limit:
            mark = min(limit, known + _SHARE * limit)
            if amount >= mark and study.state is StudyState.RUNNING:
                here.apply(num, [BudgetSpent(slot_s, usd)])
                mark = min(limit, amount + _SHARE * limit)
            waits.append((mark - amount) / speed if speed else _LONGEST_S)
    wait_s = min(max(min(waits, default=_LONGEST_S), _SHORTEST_S), _LONGEST_S)
    return here.now + round(wait_s * _US)


def _spent(here: StudyWork, study: Study, table: PriceTable) -> tuple[float, float, float, float]:
    """Slot-seconds and money so far, and what is used in each second now: slots, money."""
    placed = [study.trials[number] for number in study.index.placed]
    slot_s = study.index.used_us / _US - sum(one.slot_s for one in placed)
    usd = study.index.usd_micro / _US - sum(one.usd for one in placed)
    slots = rate = 0.0
    nums = [one.job for one in placed if one.job is not None]
    for stored in here.platform.scheduler_cache.rows.some(here.tx, nums).values():
        ended_s, ended_usd = used(here.tx, stored)
        slot_s, usd = slot_s + ended_s, usd + ended_usd
        attempt = stored.job.attempt
        if not stored.job.holds_slots or attempt is None or attempt.placed_at is None:
            continue
        running_s = (here.now - attempt.placed_at) / _US
        holds = held_by(stored, attempt)
        slots, rate = (
            slots + attempt.num_slots,
            rate + table.nano_per_hour(holds, here.now) / _HOUR_NANO,
        )
        slot_s += running_s * attempt.num_slots
        usd += table.nano_usd(holds, attempt.placed_at, here.now) / NANO
    return slot_s, usd, slots, rate
