"""The plot of a comparison: load, queue, fragmentation over time; waits and costs by project.

It is SVG written without a plotting library, so that a replay has no other dependencies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

from phalanx.sim.cluster.timeline import Sample
from phalanx.sim.output.report import ProjectRow
from phalanx.sim.scenario import Outcome

_COLOURS = ("#0b6e99", "#d9480f", "#2b8a3e", "#862e9c", "#a98600", "#495057", "#c2255c", "#1864ab")
_WIDTH, _HEIGHT = 860.0, 190.0
_LEFT, _TOP, _GAP = 70.0, 34.0, 62.0
_MAX_POINTS = 600

_Panel = tuple[str, Callable[[Sample], float], float | None]
_PANELS: tuple[_Panel, ...] = (
    ("slots held, %", lambda s: 100.0 * s.held_slots / max(s.num_slots, 1), 100.0),
    ("slots waited for", lambda s: float(s.queued_slots), None),
    ("free slots on broken nodes, %", lambda s: 100.0 * s.fragmented, 100.0),
)
_BARS: tuple[tuple[str, Callable[[ProjectRow], float]], ...] = (
    ("mean wait by project, hours", lambda row: row.wait_h),
    ("cost by project, of the slots it held", lambda row: row.cost),
)


def svg(outcomes: Sequence[Outcome]) -> str:
    """Return the plot as SVG: one colour a scenario, hours from the first submission."""
    parts: list[str] = []
    top = 40.0 + 20.0 * ((len(outcomes) + 2) // 3)
    for i, outcome in enumerate(outcomes):
        x, y = _LEFT + 270.0 * (i % 3), 24.0 + 20.0 * (i // 3)
        parts.append(f'<rect x="{x}" y="{y - 10}" width="12" height="12" fill="{_colour(i)}"/>')
        parts.append(_text(x + 18, y, outcome.figures.policy))
    for title, value, ceiling in _PANELS:
        parts += _panel(outcomes, title, value, ceiling, top)
        top += _HEIGHT + _GAP
    bars = [_BARS[0]]
    if any(outcome.scenario.price > 0 for outcome in outcomes):
        bars.append(_BARS[1])
    for title, of in bars:
        parts += _by_project(outcomes, title, of, top)
        top += _HEIGHT + _GAP
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_LEFT + _WIDTH + 30:.0f}" '
        f'height="{top:.0f}" font-family="sans-serif" font-size="12">'
        '<rect width="100%" height="100%" fill="white"/>' + "".join(parts) + "</svg>\n"
    )


def _colour(i: int) -> str:
    return _COLOURS[i % len(_COLOURS)]


def _text(x: float, y: float, words: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def _frame(title: str, top: float, most: float) -> list[str]:
    parts = [_text(_LEFT, top + _TOP - 10, title)]
    for part in (0.0, 0.5, 1.0):
        y = top + _TOP + (_HEIGHT - _TOP) * (1.0 - part)
        parts.append(
            f'<line x1="{_LEFT}" x2="{_LEFT + _WIDTH}" y1="{y:.1f}" y2="{y:.1f}" stroke="#dee2e6"/>'
        )
        parts.append(_text(_LEFT - 6, y + 4, f"{most * part:.4g}", "end"))
    return parts


def _panel(
    outcomes: Sequence[Outcome],
    title: str,
    value: Callable[[Sample], float],
    ceiling: float | None,
    top: float,
) -> list[str]:
    series = [_thinned(outcome.result.timeline.samples) for outcome in outcomes]
    last_s = max((one.at_s for samples in series for one in samples), default=0.0) or 1.0
    most = ceiling or max((value(one) for samples in series for one in samples), default=0.0) or 1.0
    parts = _frame(title, top, most)
    for i, samples in enumerate(series):
        points = " ".join(
            f"{_LEFT + _WIDTH * one.at_s / last_s:.1f},"
            f"{top + _TOP + (_HEIGHT - _TOP) * (1.0 - min(value(one) / most, 1.0)):.1f}"
            for one in samples
        )
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{_colour(i)}" stroke-width="1.4" '
            'stroke-opacity="0.85"/>'
        )
    for part in (0.0, 0.25, 0.5, 0.75, 1.0):
        hours = part * last_s / 3600.0
        parts.append(_text(_LEFT + _WIDTH * part, top + _HEIGHT + 16, f"{hours:.4g} h", "middle"))
    return parts


def _thinned(samples: Sequence[Sample]) -> Sequence[Sample]:
    step = max(1, len(samples) // _MAX_POINTS)
    return samples[::step]


def _by_project(
    outcomes: Sequence[Outcome], title: str, of: Callable[[ProjectRow], float], top: float
) -> list[str]:
    names = sorted({row.project for outcome in outcomes for row in outcome.projects})[:16]
    most = max((of(r) for o in outcomes for r in o.projects), default=0.0) or 1.0
    parts = _frame(title, top, most)
    group = _WIDTH / max(len(names), 1)
    bar = group * 0.8 / max(len(outcomes), 1)
    for j, name in enumerate(names):
        for i, outcome in enumerate(outcomes):
            value = next((of(r) for r in outcome.projects if r.project == name), 0.0)
            tall = (_HEIGHT - _TOP) * value / most
            x, y = _LEFT + group * j + bar * i + group * 0.1, top + _HEIGHT - tall
            parts.append(
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{bar:.1f}" height="{tall:.1f}" '
                f'fill="{_colour(i)}"/>'
            )
        middle = _LEFT + group * (j + 0.5)
        parts.append(_text(middle, top + _HEIGHT + 16, name or "(none)", "middle"))
    return parts
