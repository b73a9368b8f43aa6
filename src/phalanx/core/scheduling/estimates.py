"""Learned durations: how likely a job of this kind is to end soon, given what it has had already.

Service is counted in slot-seconds, in bins that grow by a third. Until a kind has a history of its
own it borrows from jobs of its size, then from all jobs, then from a prior under which the index is
that of least-attained-service.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable
from dataclasses import dataclass, field
from itertools import accumulate
from math import log1p
from typing import TypeVar

_FIRST = 60.0
_LAST = 5e7
_NUM_BINS = 48
_RATIO = (_LAST / _FIRST) ** (1 / (_NUM_BINS - 1))
EDGES: tuple[float, ...] = (0.0, *(_FIRST * _RATIO**i for i in range(_NUM_BINS)))
"""Borders of the service bins, in slot-seconds."""

_PRIOR_WEIGHT = 20.0
_OWN_WEIGHT = 20.0
_REFRESH = 12.0
_TRUSTED = 20

_T = TypeVar("_T")


def bin_of(slot_s: float) -> int:
    """The bin that holds this much service."""
    return min(bisect_right(EDGES, slot_s) - 1, _NUM_BINS - 1)


def size_class(num_slots: int) -> int:
    """Jobs of the same power of two learn from one another."""
    return max(num_slots, 1).bit_length() - 1


@dataclass(frozen=True, slots=True)
class KindKey:
    """Whose history a job shares."""

    project: str
    kind: str
    size: int


@dataclass(slots=True)
class _Table:
    index: list[float]
    tail: list[float]


@dataclass(slots=True)
class History:
    """How long finished jobs ran and how long jobs of each size waited.

    The caller records; the planner only reads. Two histories with the same observations in the same
    order answer alike.
    """

    counts: dict[Hashable, list[float]] = field(default_factory=dict)
    num_observed: int = 0
    requeue_s: dict[int, float] = field(default_factory=dict)
    _tables: dict[KindKey, _Table] = field(default_factory=dict, repr=False, compare=False)
    _fresh: int = field(default=-1, repr=False, compare=False)

    def observe(self, key: KindKey, slot_s: float) -> None:
        """A job of this kind ended by itself after so much service."""
        spot = bin_of(slot_s)
        for name in ("*", key.size, key):
            row = self.counts.get(name)
            if row is None:
                row = self.counts[name] = [0.0] * _NUM_BINS
            row[spot] += 1.0
        self.num_observed += 1

    def observe_wait(self, num_slots: int, wait_s: float) -> None:
        """A job of this size waited so long before it started."""
        size = size_class(num_slots)
        self.requeue_s[size] = 0.9 * self.requeue_s.get(size, wait_s) + 0.1 * wait_s

    def index(self, key: KindKey, attained_bin: int) -> float:
        """Chance of an end per slot-second invested, at the best moment to stop investing."""
        return self._table(key).index[attained_bin]

    def version(self) -> int:
        """Changes when answers may change: after every twelfth more observations."""
        return int(_REFRESH * log1p(self.num_observed))

    def remaining_slot_s(
        self, key: KindKey, attained_slot_s: float, quantile: float
    ) -> float | None:
        """Service still needed at this quantile; None while too little is known to say."""
        total = self.total_slot_s(key, attained_slot_s, quantile)
        return None if total is None else max(total - attained_slot_s, 1.0)

    def total_slot_s(self, key: KindKey, attained_slot_s: float, quantile: float) -> float | None:
        """Service it will have had in the end; the same throughout a service bin."""
        own = self.counts.get(key)
        known = self.counts.get("*") if own is None else own
        if known is None or self.num_observed < _TRUSTED:
            return None
        spot = bin_of(attained_slot_s)
        tail = self._table(key).tail
        left = tail[spot] * (1.0 - quantile)
        for b in range(spot, _NUM_BINS):
            after = tail[b + 1] if b + 1 < _NUM_BINS else 0.0
            if after <= left:
                return EDGES[b + 1]
        return 2 * _LAST

    def _table(self, key: KindKey) -> _Table:
        if self.version() != self._fresh:
            self._tables.clear()
            self._fresh = self.version()
        table = self._tables.get(key)
        if table is None:
            table = self._tables[key] = _tabulate(self._weights(key))
        return table

    def _weights(self, key: KindKey) -> list[float]:
        everyone = self.counts.get("*")
        size = self.counts.get(key.size)
        own = self.counts.get(key)
        weights = [_PRIOR_WEIGHT / _NUM_BINS] * _NUM_BINS
        for row, factor in ((everyone, 0.5), (size, 1.0), (own, _OWN_WEIGHT)):
            if row is not None:
                weights = [w + factor * n for w, n in zip(weights, row, strict=True)]
        return weights


def _tabulate(weights: list[float]) -> _Table:
    widths = [hi - lo for lo, hi in zip(EDGES, (*EDGES[1:], 2 * _LAST), strict=False)][:_NUM_BINS]
    tail = [0.0] * _NUM_BINS
    total = 0.0
    for b in range(_NUM_BINS - 1, -1, -1):
        total += weights[b]
        tail[b] = total
    after = [*tail[1:], 0.0]
    spent = list(accumulate(t * w for t, w in zip(tail, widths, strict=True)))
    index = []
    for start, total in enumerate(tail):
        before = spent[start - 1] if start else 0.0
        rates = zip(after[start:], spent[start:], strict=True)
        index.append(max((total - left) / (cost - before) for left, cost in rates))
    return _Table(index, tail)
