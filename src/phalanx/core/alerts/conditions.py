"""Conditions of alerts as data, and the query of Prometheus that each one stands for.

A value is one number for each combination of the labels `by`. A condition keeps those of its values that
hold. Both sides of a comparison have the same labels, so that no rule needs a matching of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from phalanx.core.metrics.aliases import one_of
from phalanx.core.slo.burn import MIN_BAD, BurnWindow, span, windows_for

MINUTE_S, HOUR_S, DAY_S = 60, 3600, 86400


@dataclass(frozen=True, slots=True)
class Reading:
    """The samples of one exported name, combined over the labels that are not in `by`.

    With a window it is the increase of a counter over that time, rounded where it counts whole things:
    Prometheus extrapolates, and two failures must not become 2.2.
    """

    name: str  # as it is exported
    by: tuple[str, ...] = ()  # labels that are kept
    where: tuple[tuple[str, str], ...] = ()  # label and value, or several values between bars
    window_s: int = 0  # 0: the newest value
    how: str = "sum"  # sum, min, max or avg over the other labels
    whole: bool = True  # the increase is a number of things


@dataclass(frozen=True, slots=True)
class Ratio:
    """One value by another, where the latter is above 0."""

    part: Value
    total: Value


@dataclass(frozen=True, slots=True)
class Times:
    """A value times a number."""

    factor: float
    of: Value


@dataclass(frozen=True, slots=True)
class Plus:
    """The sum of two values."""

    left: Value
    right: Value


Value = Reading | Ratio | Times | Plus


@dataclass(frozen=True, slots=True)
class Compare:
    """The values for which the comparison holds. `op` is one of `>`, `>=`, `<`, `==`."""

    left: Value
    op: str
    right: Value | float


@dataclass(frozen=True, slots=True)
class AllOf:
    """Where all conditions hold; the value is that of the first."""

    parts: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class AnyOf:
    """Where one of the conditions holds; the value is that of the first that does."""

    parts: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Unless:
    """Where a condition holds, and the reading has no value at all with the same labels."""

    of: Condition
    there: Reading


@dataclass(frozen=True, slots=True)
class Query:
    """A query that only Prometheus can answer."""

    text: str


Condition = Compare | AllOf | AnyOf | Unless | Query


def promql(one: Value | Condition) -> str:
    """The query that gives the same values."""
    match one:
        case Reading():
            return _reading(one)
        case Ratio(part, total):
            return f"({promql(part)} / ({promql(total)} > 0))"
        case Times(factor, of):
            return f"({factor:.12g} * {promql(of)})"
        case Plus(left, right):
            return f"({promql(left)} + {promql(right)})"
        case Compare(left, op, right):
            against = f"{right:.12g}" if isinstance(right, int | float) else promql(right)
            return f"{promql(left)} {op} {against}"
        case AllOf(parts):
            return " and ".join(f"({promql(part)})" for part in parts)
        case AnyOf(parts):
            return " or ".join(f"({promql(part)})" for part in parts)
        case Unless(of, there):
            return f"({promql(of)}) unless ({promql(there)})"
        case Query(text):
            return text


def _reading(one: Reading) -> str:
    matchers = ",".join(
        f'{label}=~"{value}"' if "|" in value else f'{label}="{value}"'
        for label, value in one.where
    )
    found = f"{one.name}{{{matchers}}}" if matchers else one.name
    if one.window_s:
        found = f"increase({found}[{span(one.window_s)}])"
    by = f" by ({', '.join(one.by)})" if one.by else ""
    combined = f"{one.how}{by} ({one_of(found)})"
    return f"round({combined})" if one.window_s and one.whole else combined


def readings(one: Value | Condition) -> Iterator[Reading]:
    """Every reading in it."""
    match one:
        case Reading():
            yield one
        case Ratio(left, right) | Plus(left, right) | Compare(left, _, right):
            yield from readings(left)
            if not isinstance(right, int | float):
                yield from readings(right)
        case Times(_, of):
            yield from readings(of)
        case AllOf(parts) | AnyOf(parts):
            for part in parts:
                yield from readings(part)
        case Unless(of, there):
            yield from readings(of)
            yield there
        case Query():
            return


_NAME = re.compile(r"\b(?:phalanx|training|step|gpu|process)_[a-z0-9_]+")


def names_read(one: Condition) -> frozenset[str]:
    """The exported names that a condition reads."""
    return frozenset(_NAME.findall(promql(one))) - {"phalanx_job"}


CountOver = Callable[[int], Value]
"""The number of events within a window of so many seconds."""


def burns(bad: CountOver, total: CountOver, target: float, *, pages: bool) -> Condition | None:
    """The condition for an objective; None: no pair of windows can fire.

    Both windows of a pair must be above its burn rate. Shares are sums of bad over sums of all, never means
    of ratios, which a quiet hour would distort.
    """
    found = tuple(
        _pair(bad, total, one, one.burn * (1.0 - target))
        for one in windows_for(target, pages=pages)
    )
    return AnyOf(found) if found else None


def _pair(bad: CountOver, total: CountOver, one: BurnWindow, share: float) -> AllOf:
    """Both windows are above this share of bad events, and the long one has enough of them."""
    return AllOf(
        (
            Compare(Ratio(bad(one.long_s), total(one.long_s)), ">", share),
            Compare(Ratio(bad(one.short_s), total(one.short_s)), ">", share),
            # Increases are extrapolated to the whole window: three events may read as 2.9.
            Compare(bad(one.long_s), ">", MIN_BAD - 0.5),
        )
    )
