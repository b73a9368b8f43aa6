"""Burn rates over two windows: how many times faster than allowed an error budget is spent.

An objective of 99 % has a budget of 1 %. A burn rate of 1 spends it in exactly the period of the
objective, 30 days here. A pair of windows fires when both are above its burn rate: the long one says that
it matters, the short one that it still lasts.
"""

from __future__ import annotations

from dataclasses import dataclass

_MINUTE_S, _HOUR_S, _DAY_S = 60, 3600, 86_400
MIN_BAD = 3
"""Fewer bad events in the long window never fire: one failure in a quiet hour is a burn rate of 100."""


@dataclass(frozen=True, slots=True)
class BurnWindow:
    """A pair of windows with the burn rate that both must exceed."""

    burn: float  # times the allowed rate
    long_s: int  # window that says that it matters
    short_s: int  # window that says that it lasts
    pages: bool  # whether a human is called, or a ticket is made


BURN_WINDOWS = (
    BurnWindow(14.4, _HOUR_S, 5 * _MINUTE_S, pages=True),  # 2 % of a budget of 30 days
    BurnWindow(6.0, 6 * _HOUR_S, 30 * _MINUTE_S, pages=True),  # 5 %
    BurnWindow(3.0, _DAY_S, 2 * _HOUR_S, pages=False),  # 10 %
    BurnWindow(1.0, 3 * _DAY_S, 6 * _HOUR_S, pages=False),  # 10 %
)
"""The pairs of the SRE workbook."""


def windows_for(target: float, *, pages: bool) -> tuple[BurnWindow, ...]:
    """The pairs that can fire for an objective: a share of bad events above 1 is impossible."""
    return tuple(
        one for one in BURN_WINDOWS if one.pages is pages and one.burn * (1.0 - target) < 1.0
    )


def span(duration_s: int) -> str:
    """A duration as Prometheus writes it: `5m`, `6h`, `3d`."""
    for unit, size in (("d", _DAY_S), ("h", _HOUR_S), ("m", _MINUTE_S)):
        if duration_s and duration_s % size == 0:
            return f"{duration_s // size}{unit}"
    return f"{duration_s}s"
