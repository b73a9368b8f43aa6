"""Advice about cost, from what was measured; each rule is a function with its threshold beside it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from phalanx.core.cost.ledger import WASTED, Account
from phalanx.core.cost.prices import priced
from phalanx.core.cost.totals import Totals, usd_of

LEAST_SLOT_US = 3600 * 1_000_000
"""A job that held less slot time is no evidence."""
IDLE_PERCENT = 20
"""Share of the held slot time without steps from which a job is told."""
WASTED_PERCENT = 20
"""Share of the held slot time that interruptions have cost from which a job is told."""
MOST_CHECKPOINTS = 20
"""Kept checkpoints of a job above which it is told."""

LEAST_UTILISATION = 60
"""Mean utilisation of the accelerators in percent below which a job is told."""
LEAST_SPOT_SAVING = 10
"""Share of the money in percent that spot slots must save."""
_TOLERANCE = 5


class AdviceRule(StrEnum):
    """What was found."""

    IDLE = "idle"  # slots were held without steps
    WASTED = "wasted"  # failures and preemptions cost much
    CHECKPOINTS = "checkpoints"  # more are kept than are used
    UTILISATION = "utilisation"  # accelerators were busy for a small share of the time
    SPOT = "spot"  # spot slots would have been cheaper


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


def checkpoint_advice(job: int, kept: int, num_bytes: int, month_nano: int = 0) -> Advice | None:
    """For a job with many kept checkpoints, which have `num_bytes` together.

    `month_nano` is what they cost in a month of 30 days; 0: nothing has a price.
    """
    if kept <= MOST_CHECKPOINTS:
        return None
    return Advice(
        AdviceRule.CHECKPOINTS,
        job,
        f"{kept} checkpoints are kept"
        + (f", for {usd_of(month_nano):.2f} USD a month" if month_nano else ""),
        f"keep fewer: `checkpoint: {{keep: {{last: {MOST_CHECKPOINTS}}}}}` or less",
        nano_usd=month_nano * (kept - MOST_CHECKPOINTS) // kept,
        num_bytes=num_bytes * (kept - MOST_CHECKPOINTS) // kept,
    )


@dataclass(frozen=True, slots=True)
class Utilisation:
    """What samples of a job's metrics say; None: it was not measured."""

    busy_percent: float | None = None  # of the accelerators
    data_wait: float | None = None  # share of the step time that waits for data


def utilisation_advice(job: int, used: Totals, seen: Utilisation) -> Advice | None:
    """For a job that used its slots for less than it could; the devices' own measure goes first."""
    busy = seen.busy_percent
    text = "the accelerators were busy for {} % of the time"
    action = "look for the slow part: `phalanx profile`; raise the batch size or take fewer slots"
    if busy is None and seen.data_wait is not None:
        busy = 100 * (1 - seen.data_wait)
        text = "steps trained for {} % of their time and waited for data in the rest"
        action = "read data faster: more loader workers, larger shards, or a cache on the nodes"
    if used.held_us < LEAST_SLOT_US or busy is None or not 0 <= busy < LEAST_UTILISATION:
        return None
    # The same work at the threshold takes a smaller part of the time.
    saved = round(used.slot_us.get(Account.PRODUCTIVE, 0) * (1 - busy / LEAST_UTILISATION))
    if saved <= 0:
        return None
    evidence = text.format(f"{busy:.0f}") + f", of {_hours(used.held_us)} slot-hours"
    return Advice(AdviceRule.UTILISATION, job, evidence, action, saved, _share(used, saved))


@dataclass(frozen=True, slots=True)
class SpotOffer:
    """Prices of a slot in nano US dollars an hour, and the part of the time that preemptions cost."""

    price: int  # not spot
    spot_price: int
    rework_ppm: int  # time that preemptions cost, in millionths of the held slot time


def spot_advice(job: int, used: Totals, offer: SpotOffer) -> Advice | None:
    """For a job that can resume and held slots at their full price.

    The saving is what was held times the difference of the prices, less what repeated work would cost.
    """
    if used.held_us < LEAST_SLOT_US or not 0 < offer.spot_price < offer.price:
        return None
    # A job that paid less than the full price held spot slots already, at least in part.
    full = priced(used.held_us, offer.price)
    if 100 * used.nano_usd < (100 - _TOLERANCE) * full:
        return None
    rework_us = used.held_us * offer.rework_ppm // 1_000_000
    saved = priced(used.held_us, offer.price - offer.spot_price) - priced(
        rework_us, offer.spot_price
    )
    if 100 * saved < LEAST_SPOT_SAVING * full:
        return None
    prices = f"{usd_of(offer.price):f} USD; spot slots cost {usd_of(offer.spot_price):f} USD"
    return Advice(
        AdviceRule.SPOT,
        job,
        f"{_hours(used.held_us)} slot-hours at {prices}, with "
        f"{offer.rework_ppm / 10_000:.0f} % more time for repeated work",
        "it resumes from checkpoints: let it run on spot slots",
        nano_usd=saved,
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
