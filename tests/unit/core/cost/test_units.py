"""The cost of an epoch, step, sample and token is all of the cost over their number."""

from __future__ import annotations

from decimal import Decimal

import pytest

from phalanx.core.cost.ledger import Account
from phalanx.core.cost.totals import Totals
from phalanx.core.cost.units import CostUnit, MadeUnits, tokens_of, unit_costs

pytestmark = pytest.mark.unit
HOUR = 3600 * 1_000_000
USED = Totals({Account.PRODUCTIVE: 6 * HOUR, Account.REDONE: 2 * HOUR}, 12_000_000_000)


def test_interruptions_are_in_the_cost_of_each_unit() -> None:
    found = {one.unit: one for one in unit_costs(USED, MadeUnits(epochs=2.5, steps=1000))}
    assert set(found) == {CostUnit.EPOCH, CostUnit.STEP}
    assert (found[CostUnit.EPOCH].slot_s, found[CostUnit.EPOCH].usd) == (11520, Decimal("4.8"))
    assert found[CostUnit.STEP].usd == Decimal("0.012")


def test_tokens_keep_their_digits_and_nothing_is_invented() -> None:
    (one,) = unit_costs(USED, MadeUnits(epochs=0, tokens=3e12))
    assert (one.unit, one.usd, one.estimated) == (CostUnit.TOKEN, Decimal("4E-12"), False)
    assert unit_costs(USED, MadeUnits()) == []
    assert unit_costs(Totals({Account.QUEUED: HOUR}), MadeUnits(epochs=1)) == []
    (free,) = unit_costs(Totals({Account.IDLE: HOUR}), MadeUnits(epochs=1))
    assert (free.usd, free.slot_s) == (None, 3600)


def test_a_count_of_tokens_goes_before_a_rate() -> None:
    assert tokens_of({"tokens": 5e6, "tokens_per_s": 7}, USED, 2) == (5e6, False)
    # 6 productive slot-hours on 2 slots are 3 hours.
    assert tokens_of({"tokens_per_s": 10}, USED, 2) == (108_000, True)
    assert tokens_of({"loss": 1}, USED, 2) == (0, False)
