"""Advice needs enough measurements, and begins at its threshold."""

from __future__ import annotations

import pytest

from phalanx.core.cost.advice import (
    AdviceRule,
    SpotOffer,
    Utilisation,
    checkpoint_advice,
    idle_advice,
    ranked,
    spot_advice,
    utilisation_advice,
    wasted_advice,
)
from phalanx.core.cost.ledger import Account
from phalanx.core.cost.prices import NANO
from phalanx.core.cost.totals import Totals

pytestmark = pytest.mark.unit
HOUR = 3600 * 1_000_000


def used(scale: int, **amounts: int) -> Totals:
    return Totals({Account(name): one * scale for name, one in amounts.items()}, 1000)


def test_idle_slots_are_told_from_a_fifth_on_with_their_share_of_the_money() -> None:
    found = idle_advice(7, used(HOUR // 10, productive=8, idle=2))
    assert found is not None and (found.slot_us, found.nano_usd) == (HOUR // 5, 200)
    assert found.evidence == "20 % of 1.0 slot-hours passed without steps"
    assert idle_advice(7, used(HOUR // 10, productive=81, idle=19)) is None
    assert idle_advice(7, used(HOUR // 10, productive=1, idle=8)) is None  # less than an hour
    assert idle_advice(7, used(HOUR, queued=100)) is None
    assert idle_advice(7, Totals()) is None


def test_waste_is_told_with_what_its_largest_part_asks_for() -> None:
    actions = []
    for most in ("redone", "lost_to_failure", "lost_to_preemption"):
        amounts = {"redone": 5, "lost_to_failure": 5, "lost_to_preemption": 5} | {most: 10}
        found = wasted_advice(7, used(HOUR, productive=80, **amounts))
        assert found is not None and most.replace("_", " ") in found.evidence
        assert (found.slot_us, found.nano_usd) == (20 * HOUR, 200)
        actions.append(found.action)
    assert len(set(actions)) == 3
    assert wasted_advice(7, used(HOUR, productive=81, redone=19)) is None
    assert wasted_advice(7, used(HOUR // 100, redone=99)) is None


def test_more_than_twenty_checkpoints_are_told() -> None:
    assert checkpoint_advice(7, 20, 20) is None
    priced = checkpoint_advice(7, 25, 2500, 50 * NANO)
    assert priced is not None and priced.nano_usd == 10 * NANO
    assert priced.evidence == "25 checkpoints are kept, for 50.00 USD a month"
    found = checkpoint_advice(7, 25, 2500)
    assert found is not None and found.num_bytes == 500


def test_low_utilisation_is_told_below_its_threshold_and_devices_go_before_data() -> None:
    ten = used(HOUR, productive=10)
    found = utilisation_advice(7, ten, Utilisation(30.0, 0.9))
    assert found is not None and (found.slot_us, found.nano_usd) == (5 * HOUR, 500)
    assert "busy for 30 %" in found.evidence
    assert utilisation_advice(7, ten, Utilisation(60.0, 0.9)) is None
    waits = utilisation_advice(7, ten, Utilisation(None, 0.7))
    assert waits is not None and waits.slot_us == 5 * HOUR and "data" in waits.evidence
    assert utilisation_advice(7, ten, Utilisation(None, 0.4)) is None
    assert utilisation_advice(7, ten, Utilisation()) is None
    assert utilisation_advice(7, used(HOUR // 20, productive=10), Utilisation(10.0)) is None


def test_spot_is_told_where_it_saves_more_than_its_preemptions_cost() -> None:
    usd = 1_000_000_000
    paid = Totals({Account.PRODUCTIVE: 10 * HOUR}, 30 * usd)
    found = spot_advice(7, paid, SpotOffer(3 * usd, usd, 100_000))
    # 10 hours × 2 USD less, and one more hour at 1 USD.
    assert found is not None and found.nano_usd == 19 * usd and "10 % more time" in found.evidence
    assert spot_advice(7, paid, SpotOffer(3 * usd, usd, 2_000_000)) is None  # three times the work
    assert spot_advice(7, paid, SpotOffer(3 * usd, 0, 0)) is None
    assert spot_advice(7, paid, SpotOffer(3 * usd, 3 * usd, 0)) is None
    spot = Totals({Account.PRODUCTIVE: 10 * HOUR}, 10 * usd)
    assert spot_advice(7, spot, SpotOffer(3 * usd, usd, 0)) is None  # it held spot slots


def test_the_largest_saving_comes_first() -> None:
    told = [
        checkpoint_advice(1, 25, 2500),
        idle_advice(2, used(HOUR, productive=5, idle=5)),
        wasted_advice(3, used(HOUR, redone=10)),
    ]
    rules = [one.rule for one in ranked([one for one in told if one is not None])]
    assert rules == [AdviceRule.WASTED, AdviceRule.IDLE, AdviceRule.CHECKPOINTS]
