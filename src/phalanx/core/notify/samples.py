"""Conditions of the table of alerts on samples that were taken one after another.

A gauge has its newest value. The increase of a counter over a window is the sum of its steps up, counted
from the sample at the beginning of the window; after a step down it began anew at 0. Nothing is
extrapolated.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from phalanx.core.alerts.conditions import (
    AllOf,
    AnyOf,
    Compare,
    Condition,
    Plus,
    Query,
    Ratio,
    Reading,
    Times,
    Unless,
    Value,
    readings,
)
from phalanx.core.alerts.table import ALERTS, Alert

Labels = tuple[tuple[str, str], ...]
"""Names and values of labels, in the order of the names."""
Series = tuple[str, Labels]
"""An exported name with its labels."""
Values = dict[Labels, float]

ALWAYS = "vector(1)"
"""The one query that needs no Prometheus: it always holds."""
_NO_LEADER = "PhalanxNoLeader"  # the leader evaluates alerts: it cannot tell that there is none
_MINUTE_US = 60_000_000
#: How long samples are kept, and at which distance, in minutes: windows of days need fewer of them.
_KEPT = ((75, 1), (26 * 60, 10), (74 * 60, 60))
_OPS: Mapping[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "==": operator.eq,
}
_HOW: Mapping[str, Callable[[Sequence[float]], float]] = {
    "sum": sum,
    "min": min,
    "max": max,
    "avg": lambda found: sum(found) / len(found),
}


@dataclass(frozen=True, slots=True)
class Sampled:
    """All series that conditions read, at one time."""

    at: int  # microseconds UTC
    values: Mapping[Series, float]


def needs_prometheus(alert: Alert) -> bool:
    """Whether only Prometheus can evaluate it: it is about the scrape, or about the leader itself."""
    condition = alert.condition
    if isinstance(condition, Query):
        return condition.text != ALWAYS
    return alert.name == _NO_LEADER


BUILT_IN: tuple[Alert, ...] = tuple(one for one in ALERTS if not needs_prometheus(one))
"""The alerts that are evaluated on samples."""
READ: frozenset[str] = frozenset(
    reading.name for alert in BUILT_IN for reading in readings(alert.condition)
)
"""The exported names that they read."""


def kept(times: Iterable[int], now: int) -> set[int]:
    """The times of samples to keep, of those that there are: the fewer, the older they are."""
    found, buckets = set[int](), set[tuple[int, int]]()
    for at in sorted(times):
        for within_m, every_m in _KEPT:
            if now - at <= within_m * _MINUTE_US:
                bucket = (every_m, at // (every_m * _MINUTE_US))
                if bucket not in buckets:
                    buckets.add(bucket)
                    found.add(at)
                break
    return found | {max(times, default=now)} if found else found


def condition_values(one: Condition, history: Sequence[Sampled]) -> Values:
    """What holds now, with its values by labels; `history` is in the order of time, and not empty."""
    match one:
        case Compare(left, op, right):
            found, holds = value_of(left, history), _OPS[op]
            if isinstance(right, int | float):
                return {key: value for key, value in found.items() if holds(value, right)}
            against = value_of(right, history)
            return {
                key: value
                for key, value in found.items()
                if key in against and holds(value, against[key])
            }
        case AllOf(parts):
            first, *others = (condition_values(part, history) for part in parts)
            return {k: v for k, v in first.items() if all(k in other for other in others)}
        case AnyOf(parts):
            merged: Values = {}
            for part in parts:
                merged = condition_values(part, history) | merged
            return merged
        case Unless(of, there):
            without = value_of(there, history)
            return {k: v for k, v in condition_values(of, history).items() if k not in without}
        case Query(text):
            return {(): 1.0} if text == ALWAYS else {}


def value_of(one: Value, history: Sequence[Sampled]) -> Values:
    """The numbers of a value by the labels that it keeps."""
    match one:
        case Reading():
            return _read(one, history)
        case Ratio(part, total):
            parts, totals = value_of(part, history), value_of(total, history)
            return {k: v / totals[k] for k, v in parts.items() if totals.get(k, 0.0) > 0}
        case Times(factor, of):
            return {k: factor * v for k, v in value_of(of, history).items()}
        case Plus(left, right):
            lefts, rights = value_of(left, history), value_of(right, history)
            return {k: v + rights[k] for k, v in lefts.items() if k in rights}


def _read(one: Reading, history: Sequence[Sampled]) -> Values:
    grouped: defaultdict[Labels, list[float]] = defaultdict(list)
    newest = history[-1]
    window = _window(history, newest.at - one.window_s * 1_000_000) if one.window_s else ()
    for series, value in newest.values.items():
        if series[0] != one.name or not _fits(one, dict(series[1])):
            continue
        key = tuple((name, text) for name, text in series[1] if name in one.by)
        grouped[key].append(_increase(series, window) if one.window_s else value)
    return {key: _HOW[one.how](found) for key, found in grouped.items()}


def _fits(one: Reading, labels: Mapping[str, str]) -> bool:
    return all(labels.get(name, "") in wanted.split("|") for name, wanted in one.where)


def _window(history: Sequence[Sampled], since: int) -> Sequence[Sampled]:
    """The samples since then, and the newest one before."""
    first = next((at for at, one in enumerate(history) if one.at > since), len(history))
    return history[max(0, first - 1) :]


def _increase(series: Series, window: Iterable[Sampled]) -> float:
    before, found = None, 0.0
    for one in window:
        value = one.values.get(series)
        if value is None:
            continue
        if before is not None:
            found += value - before if value >= before else value
        before = value
    return found
