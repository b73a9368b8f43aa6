"""Decay of past usage in fair-share accounting."""

from __future__ import annotations


def decayed_average(average: float, held: float, elapsed_s: float, half_life_s: float) -> float:
    """Return the average of slots after `elapsed_s` seconds with `held` slots in use.

    What was used a half-life ago counts half.
    """
    kept: float = 0.5 ** (max(0.0, elapsed_s) / half_life_s)
    return average * kept + held * (1.0 - kept)
