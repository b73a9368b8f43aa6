"""Indicators and objectives as recording rules of Prometheus, and objectives as OpenSLO documents."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from phalanx.core.metrics.aliases import one_of
from phalanx.core.metrics.catalogue import family
from phalanx.core.slo.burn import BURN_WINDOWS, span
from phalanx.core.slo.indicators import INDICATORS, counted, ratio
from phalanx.core.slo.objectives import Indicator

ENDS, SLOT_SECONDS = "phalanx_class_jobs_ended_total", "phalanx_class_slot_seconds_total"
"""The counters by job class that the objectives success and goodput have in Prometheus."""
_MONTH_S = 30 * 86_400
_WINDOWS = sorted({*(s for one in BURN_WINDOWS for s in (one.long_s, one.short_s)), _MONTH_S})
_NOT_LABEL = re.compile(r"[^a-z0-9]+")
_LONGEST_NAME = 63


@dataclass(frozen=True, slots=True)
class _Counters:
    """The bad events of an objective and all of them, as selectors."""

    bad: tuple[str, str]  # name, and matcher
    total: tuple[str, str]


_COUNTERS = {
    Indicator.SUCCESS: _Counters((ENDS, 'fault="platform"'), (ENDS, 'fault=~"none|platform|user"')),
    Indicator.GOODPUT: _Counters((SLOT_SECONDS, 'use="other"'), (SLOT_SECONDS, "")),
}
_HISTOGRAMS = {
    Indicator.START: "phalanx_class_queue_wait_seconds",
    Indicator.RECOVERY: "phalanx_class_recovery_seconds",
}


def _selector(of: tuple[str, str], *more: str) -> str:
    name, matcher = of
    given = ",".join(one for one in (*more, matcher) if one)
    return f"{name}{{{given}}}" if given else name


def slo_rule_file() -> dict[str, Any]:
    """The rules as Prometheus reads them from a file: shares of bad events by class, and M1 to M15.

    A burn rate is such a share by the error budget, which is 1 % at an objective of 99 %.
    """
    budgets = [
        {
            "record": f"phalanx:class_{indicator.value}:bad_ratio_{span(window_s)}",
            "expr": ratio(
                counted(_selector(found.bad), span(window_s), "class"),
                counted(_selector(found.total), span(window_s), "class"),
            ),
        }
        for indicator, found in _COUNTERS.items()
        for window_s in _WINDOWS
    ]
    measured = [
        {"record": one.recorded, "expr": one.query, "labels": {"indicator": one.code}}
        for one in INDICATORS
    ]
    return {
        "groups": [
            {"name": "phalanx-objectives", "rules": budgets},
            # Windows of days change little within minutes.
            {"name": "phalanx-indicators", "interval": "5m", "rules": measured},
        ]
    }


@dataclass(frozen=True, slots=True)
class ExportedObjective:
    """An objective of a class, as documents of OpenSLO need it."""

    job_class: str
    indicator: str
    target: float
    limit_s: float | None = None  # of starts and recoveries


def openslo(objectives: Iterable[ExportedObjective], days: int) -> list[dict[str, Any]]:
    """The documents of OpenSLO v1: a service, a source of data, and an SLO for each objective."""
    found = [
        _document(
            "Service", "phalanx", "Phalanx", {"description": "Training jobs of the platform."}
        ),
        _document(
            "DataSource",
            "phalanx-prometheus",
            "Prometheus that scrapes Phalanx",
            {"type": "Prometheus", "connectionDetails": {}},
        ),
    ]
    names = set[str]()
    for one in objectives:
        measured = _measured(one)
        if measured is not None:
            name = _free_name(f"{one.job_class}-{one.indicator}", names)
            names.add(name)
            found.append(_slo(one, measured, name, days))
    return found


@dataclass(frozen=True, slots=True)
class _Measured:
    """What is read for an objective, and a sentence about it."""

    kind: str  # bad or good
    events: tuple[str, str]  # of that kind: name, and matcher
    total: tuple[str, str]
    note: str = ""


def _measured(one: ExportedObjective) -> _Measured | None:
    """None: the limit is below the smallest bound of the histogram."""
    indicator = Indicator(one.indicator)
    if indicator in _COUNTERS:
        counters = _COUNTERS[indicator]
        return _Measured("bad", counters.bad, counters.total)
    name, limit_s = _HISTOGRAMS[indicator], one.limit_s or 0.0
    below = [bound for bound in family(name).bounds if bound <= limit_s]
    if not below:
        return None
    good = f"{name}_bucket", f'le="{below[-1]}"'
    note = f" Events up to {below[-1]:g} s are good, the largest bound that is not above {limit_s:g} s."
    return _Measured("good", good, (f"{name}_count", ""), note)


def _slo(one: ExportedObjective, read: _Measured, name: str, days: int) -> dict[str, Any]:
    of_class = f'class="{one.job_class}"'

    def source(of: tuple[str, str]) -> dict[str, Any]:
        query = f"sum({one_of(_selector(of, of_class))})"
        found = {"metricSourceRef": "phalanx-prometheus", "type": "Prometheus"}
        return {"metricSource": {**found, "spec": {"query": query}}}

    measured = {"counter": True, read.kind: source(read.events), "total": source(read.total)}
    spec = {
        "service": "phalanx",
        "description": f"Objective `{one.indicator}` of the job class {one.job_class}.{read.note}",
        "indicator": {"metadata": {"name": f"{name}-sli"[:63]}, "spec": {"ratioMetric": measured}},
        "timeWindow": [{"duration": f"{days}d", "isRolling": True}],
        "budgetingMethod": "Occurrences",
        "objectives": [{"displayName": one.indicator, "target": one.target}],
    }
    return _document("SLO", name, f"{one.indicator} of {one.job_class}", spec)


def _document(kind: str, name: str, title: str, spec: dict[str, Any]) -> dict[str, Any]:
    metadata = {"name": name, "displayName": title}
    return {"apiVersion": "openslo/v1", "kind": kind, "metadata": metadata, "spec": spec}


def _free_name(text: str, taken: set[str]) -> str:
    """A name of small letters, digits and hyphens that no other document has."""
    short = _NOT_LABEL.sub("-", text.lower()).strip("-")[: _LONGEST_NAME - 8].rstrip("-")
    name, number = short, 2
    while name in taken:
        name, number = f"{short}-{number}", number + 1
    return name
