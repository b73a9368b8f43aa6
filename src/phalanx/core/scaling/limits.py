"""How many more nodes a pool may ask for, what limits it, and what its nodes have cost today."""

from __future__ import annotations

from dataclasses import dataclass, replace

from phalanx.core.cost.prices import HOUR_US, NANO, priced
from phalanx.core.scaling.model import PoolFacts, PoolScaling, ScalingPolicy

DAY_US = 24 * HOUR_US


@dataclass(frozen=True, slots=True)
class Room:
    """The nodes that a pool may have beyond the present ones, and what limits them."""

    num_nodes: int
    text: str


def room_of(policy: ScalingPolicy, state: PoolScaling, facts: PoolFacts) -> Room:
    """How many nodes may be added, by the tightest limit."""
    return min(_rooms(policy, state, facts), key=lambda one: one.num_nodes)


def _rooms(policy: ScalingPolicy, state: PoolScaling, facts: PoolFacts) -> list[Room]:
    if policy.is_off:
        return [Room(0, "autoscaling of the pool is off")]
    there = len(facts.nodes)
    found = [Room(max(0, policy.max_nodes - there), f"the pool may have {policy.max_nodes} nodes")]
    if policy.max_slots is not None:
        left = policy.max_slots - sum(one.num_slots for one in facts.nodes)
        text = f"the pool may have {policy.max_slots} slots"
        found.append(Room(max(0, left // max(1, facts.new_slots)), text))
    if not policy.has_budget:
        return found
    if not facts.new_nano or any(not one.nano_per_hour for one in facts.nodes):
        said = "the pool has a budget, and its nodes have no price: set `price` in the pool file"
        return [*found, Room(0, said)]
    rate = facts.nano_per_hour
    if policy.hourly_nano is not None:
        left = policy.hourly_nano - rate
        text = f"the pool may cost {usd(policy.hourly_nano)} an hour, and costs {usd(rate)}"
        found.append(Room(max(0, left // facts.new_nano), text))
    if policy.daily_nano is not None:
        # The grown pool must be paid for an hour at least.
        left = policy.daily_nano - state.spent_nano - rate
        text = f"the pool may cost {usd(policy.daily_nano)} a day, and has cost {usd(state.spent_nano)}"
        found.append(Room(max(0, left // facts.new_nano), text))
    return found


def ceiling(policy: ScalingPolicy, facts: PoolFacts) -> tuple[int, str]:
    """The nodes that the pool may keep, and the limit in words.

    The budget of a day does not count: jobs that run are not ended for it.
    """
    found = [(policy.max_nodes, f"the pool may have {policy.max_nodes} nodes")]
    sizes = sorted(one.num_slots for one in facts.nodes)
    if policy.max_slots is not None:
        text = f"the pool may have {policy.max_slots} slots"
        found.append((_fitting(sizes, policy.max_slots), text))
    prices = sorted(one.nano_per_hour for one in facts.nodes)
    if policy.hourly_nano is not None and all(prices):
        text = f"the pool may cost {usd(policy.hourly_nano)} an hour"
        found.append((_fitting(prices, policy.hourly_nano), text))
    return min(found)


def _fitting(amounts: list[int], most: int) -> int:
    """How many of these amounts, the smallest first, are within a sum."""
    total = 0
    for number, amount in enumerate(amounts):
        total += amount
        if total > most:
            return number
    # Nodes that are not there do not bind.
    return max(len(amounts), most)


def is_day_spent(policy: ScalingPolicy, state: PoolScaling) -> bool:
    """Whether the budget of the day is used up."""
    return policy.daily_nano is not None and state.spent_nano >= policy.daily_nano


def account(state: PoolScaling, facts: PoolFacts, now: int) -> PoolScaling:
    """The state with the cost of the present nodes up to now; a new day begins at zero."""
    since = now if state.counted_at is None else state.counted_at
    spent, midnight = state.spent_nano, now - now % DAY_US
    if since < midnight:
        spent, since = 0, midnight
    spent += priced(max(0, now - since), facts.nano_per_hour)
    return replace(state, counted_at=max(now, since), spent_nano=spent)


def usd(nano: int) -> str:
    """An amount in words."""
    return f"{nano / NANO:,.2f} USD"
