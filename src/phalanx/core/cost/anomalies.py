"""The detector of days that cost much more than expected; `anomaly_life` keeps what it found.

The expectation of a day is the median of the same weekday in the last six weeks, and of weekdays that are
like it, with the trend of these weeks added. Its spread is the median absolute deviation (MAD) of all days
from their expectations. The few days that were anomalies themselves do not move medians. Amounts are
integers, in microseconds times slots or in nano US dollars.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import sqrt
from statistics import median

from phalanx.core.cost.prices import HOUR_US, NANO

WEEK = 7
WINDOW_DAYS = 6 * WEEK
"""Days before a day that its expectation is computed from, at most."""
LEAST_DAYS = 2 * WEEK
"""Days since the first use of a group from which its days are judged."""
RATIO = 1.5
"""A day is an anomaly from this multiple of its expectation on, and not below."""
SPREADS = 4.0
"""A day is an anomaly from this many spreads above its expectation on."""
QUIET_SHARE = 0.25
"""Share of days without any use from which a group counts as irregular: it is compared with its maximum."""
# The MAD of a normal distribution, and its root mean square without the largest tenth, times these are its
# standard deviation.
_MAD_TO_SPREAD = 1.4826
_TRIMMED_TO_SPREAD = 1.267
# A spread of a few days is a poor estimate; this share of the expectation is the least one.
_LEAST_SPREAD = 0.08


class AnomalyScope(StrEnum):
    """What an anomaly is of, in the order in which equal ones are kept."""

    PROJECT = "project"
    USER = "user"
    LABEL = "label"
    POOL = "pool"


@dataclass(frozen=True, slots=True)
class AnomalyKey:
    """The group of costs that an anomaly is of."""

    scope: AnomalyScope
    name: str  # of a label: NAME=VALUE

    @property
    def text(self) -> str:
        """The key in words, such as `project vision`."""
        return f"{self.scope.value} {self.name}"

    @property
    def rank(self) -> tuple[int, str]:
        """The place of the group among others: projects first, pools last."""
        return (list(AnomalyScope).index(self.scope), self.name)


@dataclass(frozen=True, slots=True)
class AnomalyLimits:
    """The least extra amounts that are told."""

    nano_usd: int = 10 * NANO  # of groups that have cost money
    slot_us: int = 24 * HOUR_US  # of groups without any price: microseconds times slots


@dataclass(frozen=True, slots=True)
class Expectation:
    """What a day was expected to use, and the use from which it is an anomaly."""

    amount: int
    spread: int  # a standard deviation
    threshold: int


@dataclass(frozen=True, slots=True)
class Use:
    """What a group used in a day."""

    nano_usd: int = 0
    slot_us: int = 0  # microseconds times slots

    def plus(self, other: Use) -> Use:
        """The sum of both."""
        return Use(self.nano_usd + other.nano_usd, self.slot_us + other.slot_us)


@dataclass(frozen=True, slots=True)
class Finding:
    """A day of a group that is an anomaly. Amounts are nano US dollars, or microseconds times slots."""

    key: AnomalyKey
    in_money: bool  # False: nothing of the group has a price
    actual: int
    expected: int

    @property
    def extra(self) -> int:
        """What was used above the expectation."""
        return self.actual - self.expected


def find_anomalies(
    uses: Mapping[AnomalyKey, Mapping[int, Use]], day: int, limits: AnomalyLimits
) -> list[Finding]:
    """The groups of which a day is an anomaly, from their uses by day, which is counted from 1970.

    A day that has not ended may be one already: what it has used so far is above the threshold of a whole
    day, and only grows.
    """
    found = [_finding(key, by_day, day, limits) for key, by_day in uses.items()]
    return sorted((one for one in found if one is not None), key=lambda one: one.key.rank)


def _finding(
    key: AnomalyKey, by_day: Mapping[int, Use], day: int, limits: AnomalyLimits
) -> Finding | None:
    nothing = Use()
    present = by_day.get(day, nothing)
    if present.nano_usd < limits.nano_usd and present.slot_us < limits.slot_us:
        return None  # the extra amount cannot be large enough: most groups end here
    before = [by_day.get(one, nothing) for one in range(day - WINDOW_DAYS, day)]
    in_money = present.nano_usd > 0 or any(one.nano_usd for one in before)
    history = [one.nano_usd if in_money else one.slot_us for one in before]
    actual, least = (
        (present.nano_usd, limits.nano_usd) if in_money else (present.slot_us, limits.slot_us)
    )
    usual = expectation(history)
    if usual is None or actual < usual.threshold or actual - usual.amount < least:
        return None
    return Finding(key, in_money, actual, usual.amount)


def expectation(history: Sequence[int]) -> Expectation | None:
    """The expectation of the day behind `history`, the use of whole days, the newest last.

    None while fewer than two weeks since the first use are known.
    """
    first = next((index for index, used in enumerate(history) if used > 0), len(history))
    days = history[max(first, len(history) - WINDOW_DAYS) :]
    if len(days) < LEAST_DAYS:
        return None
    slope = _slope(days)
    # Each day as if it were the day in question: the trend since then is added.
    level = [used + slope * (len(days) - index) for index, used in enumerate(days)]
    typical = _weekday_medians(level)
    expected = max(typical[0], 0.0)
    if is_irregular(days):
        most = max(days)
        return Expectation(round(expected), round(most - expected), round(RATIO * most))
    share = _share_of_spread(level, typical)
    pooled = [_pooled(level, typical, share, day) for day in range(WEEK)]
    share = _share_of_spread(level, pooled)
    expected = pooled[0]
    spread = expected * share
    threshold = max(expected * RATIO, expected + SPREADS * spread)
    return Expectation(round(expected), round(spread), round(threshold))


def _weekday(index: int, num_days: int) -> int:
    """The weekday of one of some days; 0: that of the day behind them."""
    return (num_days - index) % WEEK


def _slope(days: Sequence[int]) -> float:
    """The trend a day: the median of the differences between days that are whole weeks apart."""
    found = [
        (days[later] - days[index]) / (later - index)
        for index in range(len(days))
        for later in range(index + WEEK, len(days), WEEK)
    ]
    return median(found) if found else 0.0


def _weekday_medians(level: Sequence[float]) -> list[float]:
    groups: list[list[float]] = [[] for _ in range(WEEK)]
    for index, one in enumerate(level):
        groups[_weekday(index, len(level))].append(one)
    return [median(one) for one in groups]


def _share_of_spread(level: Sequence[float], typical: Sequence[float]) -> float:
    """The spread of days about the median of their weekday, as a share of it."""
    floor = max(median(level), 1.0) * 0.1
    away = []
    for index, one in enumerate(level):
        usual = typical[_weekday(index, len(level))]
        away.append(abs(one - usual) / max(usual, floor))
    weeks = len(level) / WEEK
    # The values themselves have made their median, which is too near to them.
    near = sqrt(weeks / (weeks - 1))
    return max(_MAD_TO_SPREAD * median(away) * near, _trimmed(away) * near, _LEAST_SPREAD)


def _trimmed(away: Sequence[float]) -> float:
    """The root mean square of all but the largest tenth, as a standard deviation of a normal distribution.

    It varies less than the MAD of some weeks, and a few anomalies do not move it either.
    """
    kept = sorted(away)[: max(len(away) * 9 // 10, 1)]
    return _TRIMMED_TO_SPREAD * sqrt(sum(one * one for one in kept) / len(kept))


def _pooled(level: Sequence[float], typical: Sequence[float], share: float, day: int) -> float:
    """The median of all weekdays that are like one of them: few weeks alone are a poor estimate."""
    usual = max(typical[day], 0.0)
    alike = {other for other in range(WEEK) if abs(typical[other] - usual) <= share * usual}
    some = [one for index, one in enumerate(level) if _weekday(index, len(level)) in alike]
    return max(median(some), 0.0) if some else usual


def is_irregular(days: Sequence[int]) -> bool:
    """Whether many days are without use, and not because of their weekday."""
    quiet = sum(used <= 0 for used in days)
    return quiet >= QUIET_SHARE * len(days) and not _is_weekly(days)


def _is_weekly(days: Sequence[int]) -> bool:
    """Whether the days without use are the same weekdays each week."""
    groups: list[list[bool]] = [[] for _ in range(WEEK)]
    for index, used in enumerate(days):
        groups[_weekday(index, len(days))].append(used <= 0)
    odd = sum(min(sum(one), len(one) - sum(one)) for one in groups)
    return odd <= len(days) // 10
