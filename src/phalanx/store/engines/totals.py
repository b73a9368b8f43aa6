"""Totals of metrics in the database: what one transaction adds to them, and their values.

Each transaction adds what it counted as its last statement, in the order of the keys: the rows are locked
for the shortest time, and two transactions never wait for one another in a circle.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from sqlalchemy import Connection, select, text

from phalanx.store.tables import metric_totals

TotalKey: TypeAlias = tuple[str, tuple[str, ...]]
"""(name of the family, values of its labels)."""
SUM = "|sum"
_BUCKET = "|"
_ADD = text(
    "INSERT INTO metric_totals (name, labels, value) VALUES (:name, :labels, :value) "
    "ON CONFLICT (name, labels) DO UPDATE SET value = metric_totals.value + excluded.value"
)


@dataclass(frozen=True, slots=True)
class Exemplar:
    """One observation of a histogram, and the trace that it is of."""

    value: float
    trace: str  # 32 hexadecimal digits
    at: int  # microseconds UTC


class AddedTotals:
    """What a transaction adds to the totals. `exemplars` are not stored: listeners get them."""

    __slots__ = ("_added", "_at", "_trace", "exemplars")

    def __init__(self) -> None:
        self._added: dict[TotalKey, float] = {}
        self._trace, self._at = "", 0
        self.exemplars: dict[TotalKey, Exemplar] = {}  # the newest one of each bucket

    def about(self, trace: str, at: int) -> None:
        """What is observed from now on is of this trace; empty: of none."""
        self._trace, self._at = trace, at

    def add(self, name: str, *labels: str, by: float = 1) -> None:
        """Count `by` more of a family for these values of its labels."""
        key = (name, labels)
        self._added[key] = self._added.get(key, 0.0) + by

    def observe(self, name: str, bounds: Sequence[float], value: float, *labels: str) -> None:
        """Add an observation to a histogram with these bounds."""
        bucket = bucket_key(name, bisect_left(bounds, value))
        self.add(bucket, *labels)
        if self._trace:
            self.exemplars[bucket, labels] = Exemplar(value, self._trace, self._at)
        self.add(f"{name}{SUM}", *labels, by=value)

    def store(self, conn: Connection) -> None:
        """Add everything to the stored totals."""
        if self._added:
            rows = [
                {"name": name, "labels": json.dumps(labels, separators=(",", ":")), "value": by}
                for (name, labels), by in sorted(self._added.items())
            ]
            conn.execute(_ADD, rows)


def read_totals(conn: Connection) -> dict[TotalKey, float]:
    """All totals; parts of histograms under `name|index` and `name|sum`."""
    rows = conn.execute(select(metric_totals)).all()
    return {(name, tuple(json.loads(labels))): float(value) for name, labels, value in rows}


def bucket_key(name: str, index: int) -> str:
    """The name of the total of one bucket of a histogram."""
    return f"{name}{_BUCKET}{index}"
