"""Tables of a scaling benchmark: speed-up, efficiency, and the cost of an epoch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile

_HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class ScalingRow:
    """One number of ranks. `cost` is None where nothing has a price."""

    ranks: int
    samples_per_s: float
    step_s: float
    speed_up: float
    efficiency: float
    epoch_s: float
    cost: float | None


def rows(
    steps_s: Mapping[int, float], batches: Mapping[int, int], samples: int, price: float | None
) -> list[ScalingRow]:
    """Median step times (seconds) and global batches by number of ranks, as a table in that order.

    The smallest number of ranks is what the others are compared with, as if it scaled perfectly itself.
    `samples` make an epoch; `price` is that of one rank for an hour.
    """
    found: list[ScalingRow] = []
    if not steps_s:
        return found
    least = min(steps_s)
    per_rank = batches[least] / steps_s[least] / least
    for ranks in sorted(steps_s):
        rate = batches[ranks] / steps_s[ranks]
        epoch_s = samples / rate
        found.append(
            ScalingRow(
                ranks=ranks,
                samples_per_s=rate,
                step_s=steps_s[ranks],
                speed_up=rate / per_rank,
                efficiency=rate / per_rank / ranks,
                epoch_s=epoch_s,
                cost=None if price is None else epoch_s / _HOUR_S * ranks * price,
            )
        )
    return found


def in_words(table: list[ScalingRow]) -> str:
    """A summary in words: up to how many ranks scaling is efficient."""
    if len(table) < 2:
        return "scaling needs two numbers of ranks or more"
    last, most = table[-1], table[0].ranks
    for row in takewhile(lambda row: row.efficiency >= 0.8, table):
        most = row.ranks
    said = (
        f"{last.ranks} ranks are {last.speed_up:.2f} times as fast as one would be"
        f" ({last.efficiency:.0%} of perfect scaling)"
    )
    if most == last.ranks:
        return said + "; efficiency is at least 80% up to that number"
    return said + f"; efficiency falls below 80% beyond {most} ranks"
