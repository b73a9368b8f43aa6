"""Learned durations: the chance that a job of a kind ends soon, given its attained service.

Service is counted in slot-seconds, in bins that grow by a third. Until a kind has a history of its
own it borrows from jobs of its size, then from all jobs, then from a prior under which the index is
that of least-attained-service.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable
from dataclasses import dataclass, field
from itertools import pairwise
from math import log1p
from typing import NamedTuple

_FIRST = 60.0
_RATIO = (5e7 / _FIRST) ** (1 / 47)
# The last bin begins beyond a year on two hundred slots, or two months on a thousand.
_NUM_BINS = 64
EDGES: tuple[float, ...] = (0.0, *(_FIRST * _RATIO**i for i in range(_NUM_BINS)))
"""Borders of the service bins, in slot-seconds."""

_NO_ENDS = [0.0] * _NUM_BINS
_PRIOR_PER_BIN = 20.0 / 48
_OWN_WEIGHT = 20.0
_ALL_WEIGHT = 0.5
_REFRESH = 12.0
_TRUSTED = 20
KINDS_KEPT = 10_000
"""The number of kinds with stored history: those with the latest job ends."""


def bin_of(slot_s: float) -> int:
    """The bin that holds this much service."""
    return min(bisect_right(EDGES, slot_s) - 1, _NUM_BINS - 1)


def size_class(num_slots: int) -> int:
    """Jobs of the same power of two learn from one another."""
    return max(num_slots, 1).bit_length() - 1


class KindKey(NamedTuple):
    """The key of the history that a job shares; a named tuple, since it is looked up all the time."""

    project: str
    kind: str
    size: int


@dataclass(slots=True)
class _Table:
    """The index and the total service of one kind by service bin."""

    version: int
    index: list[float]
    tail: list[float]
    totals: dict[tuple[int, float], float] = field(default_factory=dict)

    def total(self, spot: int, quantile: float) -> float:
        """Return the total service at this quantile of a job that has reached this bin."""
        known = self.totals.get((spot, quantile))
        if known is None:
            tail = self.tail
            left, after = tail[spot] * (1.0 - quantile), spot + 1
            while tail[after] > left:
                after += 1
            known = self.totals[spot, quantile] = EDGES[after]
        return known


@dataclass(slots=True)
class History:
    """How long finished jobs ran and how long jobs of each size waited.

    The caller records; the planner only reads. The estimates of a kind are recomputed when its
    evidence has grown by a twelfth, so that not all kinds change at once. To bound the memory, the
    kind seen longest ago is dropped beyond `KINDS_KEPT`, and its jobs are estimated as others of
    their size.
    """

    counts: dict[Hashable, list[float]] = field(default_factory=dict)
    num_observed: int = 0
    requeue_s: dict[int, float] = field(default_factory=dict)
    _seen: dict[KindKey, None] = field(default_factory=dict, repr=False, compare=False)
    _totals: dict[Hashable, float] = field(default_factory=dict, repr=False, compare=False)
    _tables: dict[KindKey, _Table] = field(default_factory=dict, repr=False, compare=False)

    def observe(self, key: KindKey, slot_s: float) -> None:
        """A job of this kind ended by itself after so much service."""
        spot = bin_of(slot_s)
        for name in ("*", key.size, key):
            row = self.counts.get(name)
            if row is None:
                row = self.counts[name] = [0.0] * _NUM_BINS
            row[spot] += 1.0
            self._totals[name] = self._totals.get(name, 0.0) + 1.0
        self.num_observed += 1
        self._seen.pop(key, None)
        self._seen[key] = None
        if len(self._seen) > KINDS_KEPT:
            oldest = next(iter(self._seen))
            del self._seen[oldest], self.counts[oldest], self._totals[oldest]

    def observe_wait(self, num_slots: int, wait_s: float) -> None:
        """A job of this size waited so long before it started."""
        size = size_class(num_slots)
        self.requeue_s[size] = 0.9 * self.requeue_s.get(size, wait_s) + 0.1 * wait_s

    def index(self, key: KindKey, attained_bin: int) -> float:
        """Chance of an end per slot-second invested, at the best moment to stop investing."""
        return self._table(key).index[attained_bin]

    def version(self, key: KindKey) -> int:
        """Changes when answers about this kind may change: after every twelfth more evidence."""
        totals = self._totals
        evidence = _OWN_WEIGHT * totals.get(key, 0.0) + totals.get(key.size, 0.0)
        evidence += _ALL_WEIGHT * totals.get("*", 0.0)
        return 2 * int(_REFRESH * log1p(evidence)) + (self.num_observed >= _TRUSTED)

    def remaining_slot_s(
        self, key: KindKey, attained_slot_s: float, quantile: float
    ) -> float | None:
        """Service still needed at this quantile; None while too little is known to say."""
        total = self.total_slot_s(key, attained_slot_s, quantile)
        return None if total is None else max(total - attained_slot_s, 1.0)

    def total_slot_s(self, key: KindKey, attained_slot_s: float, quantile: float) -> float | None:
        """Service it will have had in the end; the same throughout a service bin."""
        if self.num_observed < _TRUSTED:
            return None
        return self._table(key).total(bin_of(attained_slot_s), quantile)

    def quantile_slot_s(self, key: KindKey, quantile: float) -> float | None:
        """Total service of a new job at this quantile; None while too little is known.

        It changes no table, so that it may be asked while a pass runs.
        """
        if self.num_observed < _TRUSTED:
            return None
        weights = self._weights(key)
        left, after = sum(weights) * (1.0 - quantile), 0
        tail = sum(weights)
        while tail > left and after < _NUM_BINS:
            tail -= weights[after]
            after += 1
        return EDGES[after]

    def _table(self, key: KindKey) -> _Table:
        version, table = self.version(key), self._tables.get(key)
        if table is None or table.version != version:
            self._tables.pop(key, None)
            if len(self._tables) >= KINDS_KEPT:
                del self._tables[next(iter(self._tables))]
            table = self._tables[key] = _tabulate(self._weights(key), version)
        return table

    def _weights(self, key: KindKey) -> list[float]:
        every = self.counts.get("*", _NO_ENDS)
        size = self.counts.get(key.size, _NO_ENDS)
        own = self.counts.get(key, _NO_ENDS)
        return [
            _PRIOR_PER_BIN + _ALL_WEIGHT * every[b] + size[b] + _OWN_WEIGHT * own[b]
            for b in range(_NUM_BINS)
        ]


_WIDTHS = tuple(hi - lo for lo, hi in pairwise(EDGES))


def _tabulate(weights: list[float], version: int) -> _Table:
    """Tabulate the best rate of ends from each bin on.

    From the last bin backwards, the run of bins that starts at a bin takes in the best runs after it for
    as long as they raise its rate.
    """
    tail = [0.0] * (_NUM_BINS + 1)
    index = [0.0] * _NUM_BINS
    stretches: list[tuple[float, float, float]] = []
    total = 0.0
    for b in range(_NUM_BINS - 1, -1, -1):
        ends = weights[b]
        tail[b] = total = total + ends
        cost = total * _WIDTHS[b]
        rate = ends / cost
        while stretches and stretches[-1][0] > rate:
            _, more_ends, more_cost = stretches.pop()
            ends, cost = ends + more_ends, cost + more_cost
            rate = ends / cost
        stretches.append((rate, ends, cost))
        index[b] = rate
    return _Table(version, index, tail)
