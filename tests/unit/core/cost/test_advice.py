"""Advice needs enough measurements, and begins at its threshold."""

from __future__ import annotations

import pytest

from phalanx.core.cost.advice import (
    AdviceRule,
    checkpoint_advice,
    idle_advice,
    ranked,
    wasted_advice,
)
from phalanx.core.cost.ledger import Account
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
    found = checkpoint_advice(7, 25, 2500)
    assert found is not None and found.num_bytes == 500


def test_the_largest_saving_comes_first() -> None:
    told = [
        checkpoint_advice(1, 25, 2500),
        idle_advice(2, used(HOUR, productive=5, idle=5)),
        wasted_advice(3, used(HOUR, redone=10)),
    ]
    rules = [one.rule for one in ranked([one for one in told if one is not None])]
    assert rules == [AdviceRule.WASTED, AdviceRule.IDLE, AdviceRule.CHECKPOINTS]
