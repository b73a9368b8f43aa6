"""Objectives of job classes: which events are good, how much of an error budget is left, how fast it goes.

Everything is a sum of bad over a sum of all, over events with a time: never a mean of ratios. A percentile
is an objective, too: that 95 % of the events are below a limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from phalanx.core.slo.burn import BURN_WINDOWS, MIN_BAD, BurnWindow

DEFAULT_CLASS = "default"
"""The class of jobs that name none."""
QUANTILE = 0.95
"""The share of starts and recoveries that must be within their limits."""


class Indicator(StrEnum):
    """What an objective measures."""

    SUCCESS = "success"  # jobs that the platform did not make fail, cancelled ones left out
    GOODPUT = "goodput"  # held slot time in steps that were made for the first time
    START = "start_p95"  # placements within the limit, counted from the queue
    RECOVERY = "recovery_p95"  # failures after which all ranks ran again within the limit


@dataclass(frozen=True, slots=True)
class ServiceObjective:
    """The share of good events that a class of jobs must reach."""

    indicator: Indicator
    target: float  # between 0 and 1, both excluded
    limit_s: float | None = None  # of starts and recoveries


@dataclass(frozen=True, slots=True)
class JobClass:
    """A class of jobs with its objectives. One that never pages has tickets in place of pages."""

    name: str
    objectives: tuple[ServiceObjective, ...]
    pages: bool = True


STANDARD = JobClass(DEFAULT_CLASS, (ServiceObjective(Indicator.SUCCESS, 0.99),))
"""The default class, unless the settings have another one of its name."""


@dataclass(frozen=True, slots=True)
class SliEvent:
    """One event of an indicator: a job, a start, a recovery, or the slot time of a job."""

    at: int  # microseconds UTC
    total: float  # 1 of things that are counted, or seconds
    bad: float  # at most `total`


@dataclass(frozen=True, slots=True)
class Tally:
    """Sums over the events of a window."""

    total: float = 0.0
    bad: float = 0.0
    num_bad: int = 0  # events that have a bad part

    @property
    def share(self) -> float:
        """The bad share; 0 without events."""
        return self.bad / self.total if self.total else 0.0

    def __add__(self, other: Tally) -> Tally:
        """The tally of both."""
        return Tally(self.total + other.total, self.bad + other.bad, self.num_bad + other.num_bad)


@dataclass(frozen=True, slots=True)
class BurnRate:
    """A pair of windows with the rates at which the budget was spent in them."""

    window: BurnWindow
    long: float
    short: float
    fires: bool


@dataclass(frozen=True, slots=True)
class Judgement:
    """An objective over a period. `budget_left` is 1 before a bad event, and 0 when all is spent."""

    objective: ServiceObjective
    tally: Tally
    budget_left: float
    burns: tuple[BurnRate, ...]

    @property
    def state(self) -> str:
        """`no data`, `ok`, `burning` or `spent`."""
        if not self.tally.total:
            return "no data"
        if self.budget_left <= 0:
            return "spent"
        return "burning" if any(one.fires for one in self.burns) else "ok"


def tally(events: Iterable[SliEvent], since: int, until: int) -> Tally:
    """The sums over the events behind `since`, up to `until`."""
    total, bad, num_bad = 0.0, 0.0, 0
    for one in events:
        if since < one.at <= until:
            total += one.total
            bad += one.bad
            num_bad += one.bad > 0
    return Tally(total, bad, num_bad)


def judge(
    objective: ServiceObjective,
    events: Sequence[SliEvent],
    now: int,
    period_s: float,
    *,
    pages: bool,
) -> Judgement:
    """Judge an objective by the events of a period that ends now."""
    whole = tally(events, now - round(period_s * 1e6), now)
    budget = 1.0 - objective.target
    rates = (
        _rate(objective, events, now, one)
        for one in BURN_WINDOWS
        if one.burn * budget < 1.0 and (pages or not one.pages) and one.long_s <= period_s
    )
    return Judgement(objective, whole, 1.0 - whole.share / budget, tuple(rates))


def _rate(
    objective: ServiceObjective, events: Sequence[SliEvent], now: int, window: BurnWindow
) -> BurnRate:
    long = tally(events, now - window.long_s * 1_000_000, now)
    short = tally(events, now - window.short_s * 1_000_000, now)
    budget = 1.0 - objective.target
    rates = long.share / budget, short.share / budget
    fires = min(rates) > window.burn and long.num_bad >= MIN_BAD
    return BurnRate(window, *rates, fires)


def class_name(spec: Mapping[str, Any]) -> str:
    """The class that a stored spec names, or the default one."""
    return str(spec.get("class") or DEFAULT_CLASS)


def class_of(name: str, classes: Mapping[str, JobClass]) -> JobClass:
    """The class of a job: the default one where it names none, or one that the settings dropped."""
    return classes.get(name or DEFAULT_CLASS) or classes.get(DEFAULT_CLASS, STANDARD)
