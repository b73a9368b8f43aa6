"""How the speed of an elastic job depends on its number of nodes: measured where it ran, else assumed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise

# Assumed where nothing is measured: n nodes are n to this power times as fast as one.
SCALING = 0.8


def speed(speeds: tuple[float, ...], nodes: int) -> float:
    """Return the speed of a job on so many nodes, by its own curve or the assumed one."""
    if speeds:
        return speeds[min(nodes, len(speeds)) - 1]
    return float(nodes**SCALING)


def speed_curve(measured: Mapping[int, float], most: int) -> tuple[float, ...]:
    """Speeds on 1, 2, … `most` nodes, relative to one node; empty where too little is measured.

    `measured` are rates by number of nodes, such as steps per second. One rate says nothing about
    scaling. Between two sizes the speed follows the power law through both; below and above all of them
    that of the nearest two, but never a better one than is assumed without measurements, and never one
    by which more nodes are slower.
    """
    known = sorted((nodes, rate) for nodes, rate in measured.items() if nodes > 0 and rate > 0)
    if len(known) < 2:
        return ()
    parts = [
        (left, right, math.log(right[1] / left[1]) / math.log(right[0] / left[0]))
        for left, right in pairwise(known)
    ]
    found = []
    for nodes in range(1, most + 1):
        (base, rate), power = known[-1], _beyond(parts[-1][2])
        for left, right, own in parts:
            if nodes <= right[0]:
                (base, rate), power = left, own if nodes >= left[0] else _beyond(own)
                break
        found.append(rate * (nodes / base) ** power)
    return tuple(float(f"{one / found[0]:.3g}") for one in found)


def _beyond(power: float) -> float:
    """The power by which speeds go on beyond measured sizes."""
    return min(max(power, 0.0), SCALING)
