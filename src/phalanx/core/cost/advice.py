"""Advice about cost, from what was measured; each rule is a function with its threshold beside it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from phalanx.core.cost.ledger import WASTED, Account
from phalanx.core.cost.totals import Totals

LEAST_SLOT_US = 3600 * 1_000_000
"""A job that held less slot time is no evidence."""
IDLE_PERCENT = 20
"""Share of the held slot time without steps from which a job is told."""
WASTED_PERCENT = 20
"""Share of the held slot time that interruptions have cost from which a job is told."""
MOST_CHECKPOINTS = 20
"""Kept checkpoints of a job above which it is told."""


class AdviceRule(StrEnum):
    """What was found."""

    IDLE = "idle"  # slots were held without steps
    WASTED = "wasted"  # failures and preemptions cost much
    CHECKPOINTS = "checkpoints"  # more are kept than are used


@dataclass(frozen=True, slots=True)
class Advice:
    """What could be saved, and from which measurements that follows."""

    rule: AdviceRule
    job: int
    evidence: str
    action: str
    slot_us: int = 0  # that would have been saved: microseconds times slots
    nano_usd: int = 0  # their money; 0: no slot had a price
    num_bytes: int = 0  # of storage that would be saved


def idle_advice(job: int, used: Totals) -> Advice | None:
    """For a job that held slots for long without steps."""
    idle_us = used.slot_us.get(Account.IDLE, 0)
    if used.held_us < LEAST_SLOT_US or 100 * idle_us < IDLE_PERCENT * used.held_us:
        return None
    return Advice(
        AdviceRule.IDLE,
        job,
        f"{_percent(idle_us, used.held_us)} % of {_hours(used.held_us)} slot-hours passed without steps",
        "move the work after the last step (evaluation, export) into a job without accelerators",
        idle_us,
        _share(used, idle_us),
    )


def wasted_advice(job: int, used: Totals) -> Advice | None:
    """For a job of which interruptions have cost much."""
    if used.held_us < LEAST_SLOT_US or 100 * used.wasted_us < WASTED_PERCENT * used.held_us:
        return None
    most = max(WASTED, key=lambda account: used.slot_us.get(account, 0))
    actions = {
        Account.REDONE: "save checkpoints more often: `checkpoint: {every: auto}`",
        Account.LOST_TO_FAILURE: "look at the causes of its restarts: `phalanx show`",
        Account.LOST_TO_PREEMPTION: "give it a pool or a priority with fewer preemptions",
    }
    return Advice(
        AdviceRule.WASTED,
        job,
        f"interruptions cost {_percent(used.wasted_us, used.held_us)} % of {_hours(used.held_us)} "
        f"slot-hours, most of it {most.value.replace('_', ' ')}",
        actions[most],
        used.wasted_us,
        _share(used, used.wasted_us),
    )


def checkpoint_advice(job: int, kept: int, num_bytes: int) -> Advice | None:
    """For a job with many kept checkpoints, which have `num_bytes` together."""
    if kept <= MOST_CHECKPOINTS:
        return None
    return Advice(
        AdviceRule.CHECKPOINTS,
        job,
        f"{kept} checkpoints are kept",
        f"keep fewer: `checkpoint: {{keep: {{last: {MOST_CHECKPOINTS}}}}}` or less",
        num_bytes=num_bytes * (kept - MOST_CHECKPOINTS) // kept,
    )


def ranked(found: list[Advice]) -> list[Advice]:
    """The largest savings first: money, slot time, storage."""
    return sorted(found, key=lambda one: (-one.nano_usd, -one.slot_us, -one.num_bytes, one.job))


def _share(used: Totals, part_us: int) -> int:
    return used.nano_usd * part_us // used.held_us


def _percent(part: int, whole: int) -> int:
    return 100 * part // whole


def _hours(slot_us: int) -> str:
    return f"{slot_us / 3.6e9:.1f}"
