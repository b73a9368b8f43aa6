"""Points of metrics as arrays: one row for each point, one column of values for each metric."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from phalanx.core.contract.records import MetricPoint

Ints: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class MetricColumns:
    """Rows in the order of arrival. `values` has, by metric, the rows that have a value, and the values."""

    ranks: Ints
    steps: Ints
    times: Ints  # µs UTC
    values: dict[str, tuple[Ints, Floats]]

    @property
    def num_rows(self) -> int:
        """The number of points."""
        return len(self.steps)

    @property
    def num_values(self) -> int:
        """The number of values of all metrics."""
        return sum(len(found) for _, found in self.values.values())

    def points(self, begin: int, end: int) -> list[MetricPoint]:
        """The points in rows [begin, end)."""
        cells: list[dict[str, float]] = [{} for _ in range(end - begin)]
        for name, (rows, found) in self.values.items():
            lo, hi = np.searchsorted(rows, (begin, end))
            places = (rows[lo:hi] - begin).tolist()
            for place, value in zip(places, found[lo:hi].tolist(), strict=True):
                cells[place][name] = value
        parts = (one[begin:end].tolist() for one in (self.ranks, self.steps, self.times))
        return [MetricPoint(*row) for row in zip(*parts, cells, strict=True)]

    def part(self, begin: int, end: int) -> MetricColumns:
        """The rows [begin, end) as columns of their own."""
        if (begin, end) == (0, self.num_rows):
            return self
        values = {}
        for name, (rows, found) in self.values.items():
            lo, hi = np.searchsorted(rows, (begin, end))
            if lo < hi:
                values[name] = rows[lo:hi] - begin, found[lo:hi]
        ranks, steps, times = (one[begin:end] for one in (self.ranks, self.steps, self.times))
        return MetricColumns(ranks, steps, times, values)

    def series(self, names: Collection[str] = ()) -> dict[tuple[int, str], Samples]:
        """The samples by (rank, name), in the order of arrival; of all metrics without `names`."""
        found: dict[tuple[int, str], Samples] = {}
        wanted = frozenset(names)
        alone = self.num_rows > 0 and bool((self.ranks == self.ranks[0]).all())
        for name, (rows, values) in self.values.items():
            if not len(rows) or (wanted and name not in wanted):
                continue
            whole = Samples(self.steps[rows], values, self.times[rows])
            if alone:
                found[int(self.ranks[0]), name] = whole
                continue
            ranks = self.ranks[rows]
            order = np.argsort(ranks, kind="stable")
            starts = np.flatnonzero(np.diff(ranks[order], prepend=ranks[order[0]] - 1))
            for place in np.split(order, starts[1:]):
                found[int(ranks[place[0]]), name] = whole.take(place)
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """Values of one metric of one rank."""

    steps: Ints
    values: Floats
    times: Ints  # µs UTC

    def __len__(self) -> int:
        return len(self.steps)

    def take(self, places: Any) -> Samples:
        """The samples at these places, or in a slice."""
        return Samples(self.steps[places], self.values[places], self.times[places])

    def between(self, first: int, last: int) -> Samples:
        """The samples of steps from `first` to `last`, both included."""
        return self.take((self.steps >= first) & (self.steps <= last))

    def newest(self) -> Samples:
        """Sorted by step; of a repeated step only the sample that arrived last."""
        if (np.diff(self.steps) > 0).all():
            return self
        order = np.argsort(self.steps, kind="stable")
        steps = self.steps[order]
        return self.take(order[np.append(steps[1:] != steps[:-1], True)])


NO_SAMPLES = Samples(np.empty(0, np.int64), np.empty(0, np.float64), np.empty(0, np.int64))


def joined(parts: Sequence[Samples]) -> Samples:
    """The samples of several parts, one after the other."""
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return NO_SAMPLES
    return Samples(
        np.concatenate([one.steps for one in parts]),
        np.concatenate([one.values for one in parts]),
        np.concatenate([one.times for one in parts]),
    )


def columns_of(points: Sequence[MetricPoint]) -> MetricColumns:
    """The columns of some points. Raises OverflowError for a number with more than 64 bits."""
    ranks, steps, times, cells = zip(*points, strict=True) if points else ((), (), (), ())
    rows = np.array(ranks, np.int64), np.array(steps, np.int64), np.array(times, np.int64)
    names = list(map(tuple, cells))
    if all(one == names[0] for one in names):
        return MetricColumns(*rows, _table(np.arange(len(points)), cells))
    groups: dict[tuple[str, ...], list[int]] = {}
    for place, one in enumerate(names):
        groups.setdefault(one, []).append(place)
    found: dict[str, list[tuple[Ints, Floats]]] = {}
    for places in groups.values():
        table = _table(np.array(places, np.int64), [cells[place] for place in places])
        for name, column in table.items():
            found.setdefault(name, []).append(column)
    return MetricColumns(*rows, {name: _one_column(parts) for name, parts in found.items()})


def _table(rows: Ints, cells: Sequence[dict[str, float]]) -> dict[str, tuple[Ints, Floats]]:
    """The columns of rows that have the same metrics."""
    if not cells:
        return {}
    many = len(cells) * len(cells[0])
    flat = np.fromiter(chain.from_iterable(one.values() for one in cells), np.float64, many)
    table = flat.reshape(len(cells), -1)
    return {name: (rows, table[:, number]) for number, name in enumerate(cells[0])}


def _one_column(parts: Sequence[tuple[Ints, Floats]]) -> tuple[Ints, Floats]:
    """One column of those that groups of points have, in the order of the rows."""
    if len(parts) == 1:
        return parts[0]
    rows = np.concatenate([one for one, _ in parts])
    order = np.argsort(rows, kind="stable")
    return rows[order], np.concatenate([one for _, one in parts])[order]


def stacked(parts: Sequence[MetricColumns]) -> MetricColumns:
    """The rows of several columns, one after the other."""
    found: dict[str, list[tuple[Ints, Floats]]] = {}
    begin = 0
    for part in parts:
        for name, (rows, values) in part.values.items():
            found.setdefault(name, []).append((rows + begin, values))
        begin += part.num_rows
    return MetricColumns(
        np.concatenate([one.ranks for one in parts]),
        np.concatenate([one.steps for one in parts]),
        np.concatenate([one.times for one in parts]),
        {name: _one_column(columns) for name, columns in found.items()},
    )
