"""How much each parameter of a study matters: PED-ANOVA over the trials that it has.

Watanabe, Bansal and Hutter 2023 (arXiv 2304.10255), written anew from the paper. A parameter matters as
far as its values in the best trials are distributed otherwise than in all trials. It needs no model, so it
takes milliseconds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from phalanx.core.search.sampling import Observation
from phalanx.core.search.space import ChoiceParameter, Parameter, Space

MIN_TRIALS = 10
"""Number of trials with a result from which importance is computed."""
TOP = 0.1
"""The share of trials that count as the best."""
MIN_TOP = 5
"""Number of trials that count as the best at least: a density of fewer is noise."""
_CELLS = 50


def importance(space: Space, observations: Sequence[Observation]) -> dict[str, float]:
    """The share of each searched parameter, largest first; they add up to 1. Empty with too few trials.

    Trials without a finite value count as not known. A parameter that is not active in every trial is
    judged by those in which it is.
    """
    known = [one for one in observations if one.value is not None and math.isfinite(one.value)]
    if len(known) < MIN_TRIALS:
        return {}
    known.sort(key=lambda one: (one.value, one.number))
    top = {one.number for one in known[: max(MIN_TOP, math.ceil(TOP * len(known)))]}
    found = {}
    for name in space.searched:
        active = [one for one in known if name in one.params]
        best = [one for one in active if one.number in top]
        one = space.parameters[name]
        places = [one.unit_of(each.params[name]) for each in active]
        chosen = [one.unit_of(each.params[name]) for each in best]
        found[name] = _divergence(one, chosen, places) if chosen else 0.0
    total = sum(found.values())
    shares = {name: value / total if total > 0 else 0.0 for name, value in found.items()}
    return dict(sorted(shares.items(), key=lambda one: -one[1]))


def _divergence(one: Parameter, top: Sequence[float], every: Sequence[float]) -> float:
    """Mean over all trials' density of (density of the best / density of all - 1) squared."""
    cells = min(one.num_levels or _CELLS, _CELLS)
    density = _counted if isinstance(one, ChoiceParameter) else _smoothed
    p, q = density(top, cells), density(every, cells)
    return sum(b * (a / b - 1) ** 2 for a, b in zip(p, q, strict=True))


def _counted(places: Sequence[float], cells: int) -> list[float]:
    """The share of each cell, with one trial spread over all of them."""
    counts = [1 / cells] * cells
    for place in places:
        counts[min(int(place * cells), cells - 1)] += 1
    return [count / (len(places) + 1) for count in counts]


def _smoothed(places: Sequence[float], cells: int) -> list[float]:
    """A kernel density over the cells with Scott's width, and one trial spread over all of them."""
    mean = sum(places) / len(places)
    deviation = math.sqrt(sum((place - mean) ** 2 for place in places) / len(places))
    width = max(1.06 * deviation * len(places) ** -0.2, 1 / cells)
    density = [1 / cells] * cells
    for place in places:
        kernel = [math.exp(-0.5 * (((i + 0.5) / cells - place) / width) ** 2) for i in range(cells)]
        total = sum(kernel)
        for i, value in enumerate(kernel):
            density[i] += value / total
    return [value / (len(places) + 1) for value in density]
