"""The bars that the scheduler is held to, in one table: the bar, what was measured, and whether it is met.

A bar gathers the goals of many scenarios and seeds; it is met only if every one of them is.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from bench.scheduler.table import Found, Table


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar: patterns that the scenario and the name of its goals match at their beginning."""

    text: str
    scenario: str
    goal: str
    unit: str = "x"


_JUDGED = "judging: "
_T4_TO_T8 = r"T4$|T5$|T6$|T7$|T8$"
BARS = (
    Bar("judging sets of GPU jobs: mean <= 0.85 x best tuned peer", _JUDGED, r"mean <= 0\.85"),
    Bar("median of the judging sets of GPU jobs <= 0.75", "judging$", "median"),
    Bar("other judging sets: mean <= 1.0 x best tuned peer", _JUDGED, r"mean <= 1\.0 x best"),
    Bar("judging sets: p99 <= 1.0 x that peer", _JUDGED, "p99"),
    Bar("judging sets: max <= 1.2 x LAS", _JUDGED, "max"),
    Bar("judging sets: gangs of 8 and more wait <= EASY's", _JUDGED, "gangs"),
    Bar("T1: gangs of 8 and more wait <= 6 h", "T1$", "gangs", "h"),
    Bar("judging sets: mean <= 1.3 x SRPT oracle", _JUDGED, "mean <= 1.3"),
    Bar("priority at a full limit: next pass after the grace (150 s)", "R$", "quota", "s"),
    Bar("gangs of 8 in a stream of small jobs: wait <= 1.5 x EASY", "R$", "gangs of 8"),
    Bar("waits above 10 x the median of their class, beside EASY", "R$", "waits above"),
    Bar("T4 to T8", _T4_TO_T8, ""),
    Bar("T9: pass p99 <= 10 ms", "T9$", "pass p99", "ms"),
    Bar("judging sets: evictions <= 2 a job", _JUDGED, "evictions <= 2 a", ""),
    Bar("judging sets: evictions <= 8 in any hour of a job", _JUDGED, "evictions <= 8", ""),
    Bar("kill mode: evictions of jobs that never save", _JUDGED, "kill mode: evictions", ""),
    Bar("kill mode: lost <= 0.3 x LAS", _JUDGED, "kill mode: lost"),
    Bar("tenants: mean <= best tuned peer at equal guarantees", "tenants", "mean"),
    Bar("tenants: guarantees honoured in 150 s", "tenants", "guarantee", "s"),
)
"""Kueue's load shapes are measured apart, with `bench/kueue_shapes.py`."""


def found_for(bar: Bar, table: Table) -> list[tuple[str, Found]]:
    """What was measured for a bar, each with its scenario."""
    return [
        (scenario, one)
        for (scenario, what), found in table.goals.items()
        if re.match(bar.scenario, scenario) and re.match(bar.goal, what)
        for one in found
    ]


def _figure(bar: Bar, found: Sequence[tuple[str, Found]]) -> str:
    met = sum(one.met for _, one in found)
    numbers = [(one.value, where) for where, one in found if one.value is not None]
    if len(found) == 1:
        return found[0][1].measured
    worst = ""
    if numbers and bar.scenario != _T4_TO_T8:
        value, where = max(numbers)
        name = where.removeprefix(_JUDGED)
        worst = f"; worst {value:.2f} {bar.unit}".rstrip() + f" ({name})"
    return f"{met} of {len(found)}{worst}"


def lines(table: Table) -> str:
    """The bars as a table in Markdown; those that no scenario of this run measured say so."""
    rows = ["| bar | figure | met |", "|---|---|---|"]
    for bar in BARS:
        found = found_for(bar, table)
        if not found:
            rows.append(f"| {bar.text} | not run | |")
            continue
        met = "yes" if all(one.met for _, one in found) else "**no**"
        rows.append(f"| {bar.text} | {_figure(bar, found)} | {met} |")
    return "\n".join(rows)
