"""A figure of cost by day: by project, with the forecast of the month, and what slots were used for.

It needs matplotlib, the extra `plots`, which is imported when a figure is drawn.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from phalanx.errors import UserError

SUFFIXES = (".svg", ".png")
# Colours that differ for people with colour blindness too (Okabe and Ito).
_COLORS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#999999")
_ACCOUNTS = {
    "productive": "#009e73",
    "saving": "#56b4e9",
    "starting": "#f0e442",
    "redone": "#e69f00",
    "lost_to_failure": "#d55e00",
    "lost_to_preemption": "#cc79a7",
    "idle": "#bbbbbb",
}
_SIZE, _DPI = (10.0, 6.4), 120


@dataclass(frozen=True, slots=True)
class CostFigure:
    """What a figure shows. Each sequence has a value for each day, or for each day of the forecast."""

    title: str  # above the figure
    unit: str  # of the upper part: US dollars or slot-hours
    days: Sequence[date]  # without a gap; the last one may not be over
    projects: Mapping[str, Sequence[float]]  # the largest first
    accounts: Mapping[str, Sequence[float]]  # slot-hours
    ahead: Sequence[date] = ()  # days of the forecast
    expected: Sequence[float] = ()  # in the unit of the upper part
    low: Sequence[float] = field(default=())  # of four days in five, this much at least
    high: Sequence[float] = ()  # and this much at most


def check_name(path: Path) -> None:
    """Raise UserError where the suffix of a file is of no format that is written."""
    if path.suffix.lower() not in SUFFIXES:
        raise UserError(f"--plot: {path.name!r}", "name a file that ends with .svg or .png")


def write_figure(path: Path, shown: CostFigure) -> None:
    """Draw a figure into an SVG or PNG file. Raises UserError where it cannot be drawn or written."""
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError:
        raise UserError("--plot needs matplotlib", "pip install 'phalanx[plots]'") from None
    check_name(path)
    # Text stays text in SVG, and nothing in the file depends on the time or on chance.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "phalanx", "font.size": 10}):
        figure = Figure(figsize=_SIZE, dpi=_DPI, layout="constrained")
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[3, 2])
        _draw_projects(upper, shown)
        _draw_accounts(lower, shown)
        figure.suptitle(shown.title, x=0.01, ha="left", fontsize=12)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of characters that the font does not have
                is_svg = path.suffix.lower() == ".svg"
                figure.savefig(path, metadata={"Date": None} if is_svg else None)
        except OSError as error:
            raise UserError(f"{path} cannot be written: {error}") from None


def _draw_projects(axes: Any, shown: CostFigure) -> None:
    base = [0.0] * len(shown.days)
    for (name, values), color in zip(shown.projects.items(), _cycled(), strict=False):
        axes.bar(shown.days, values, bottom=base, width=0.9, color=color, label=_plain(name))
        base = [one + value for one, value in zip(base, values, strict=True)]
    if shown.ahead:
        band = {"color": "#444444", "alpha": 0.18, "linewidth": 0, "step": "mid"}
        text = "expected, four days in five"
        axes.fill_between(shown.ahead, shown.low, shown.high, label=text, **band)
        line = {"color": "#444444", "linestyle": "--", "where": "mid"}
        axes.step(shown.ahead, shown.expected, label="expected", **line)
    axes.set_ylabel(f"{shown.unit} a day")
    _finish(axes)


def _draw_accounts(axes: Any, shown: CostFigure) -> None:
    base = [0.0] * len(shown.days)
    for name, color in _ACCOUNTS.items():
        values = shown.accounts.get(name, ())
        if any(values):
            label = name.replace("_", " ")
            axes.bar(shown.days, values, bottom=base, width=0.9, color=color, label=label)
            base = [one + value for one, value in zip(base, values, strict=True)]
    axes.set_ylabel("slot-hours a day")
    _finish(axes)


def _finish(axes: Any) -> None:
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    locator = AutoDateLocator()
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))
    axes.set_ylim(bottom=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=9)


def _cycled() -> list[str]:
    return list(_COLORS)


def _plain(name: str) -> str:
    """A name as a label: not as mathematics, and short."""
    text = "".join(one if one.isprintable() else "?" for one in name).replace("$", r"\$")
    text = text if len(text) <= 28 else f"{text[:27]}…"
    # Labels that begin with an underscore are not shown.
    return f" {text}" if text.startswith("_") else text or "-"
