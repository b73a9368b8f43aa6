"""One family of exported metrics, as data: its name, type, labels, meaning and origin."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from phalanx.core.telemetry.instruments import Kind


class MetricOrigin(StrEnum):
    """The process that counts a family, which says how replicas of the control plane are combined."""

    DATABASE = "database"  # every replica exports the same number: take the maximum over them
    REPLICA = "replica"  # of one process: each replica exports its own
    OPERATOR = "operator"  # of `phalanx operator`


@dataclass(frozen=True, slots=True)
class Label:
    """A label of a family. `values` are all that it can have, where they are known beforehand.

    Each of them is exported from the first scrape on, with 0 where nothing was counted. `most` bounds
    the others.
    """

    name: str
    values: tuple[str, ...] = ()
    most: int = 0

    @property
    def bound(self) -> int:
        """The most values that are exported."""
        return self.most or len(self.values)


@dataclass(frozen=True, slots=True)
class Family:
    """One family. `name` is without the `_total` of counters, as the Prometheus library wants it."""

    name: str  # unique in the catalogue
    kind: Kind  # gauge, counter or histogram
    help: str  # one line, which the exposition contains as well
    labels: tuple[Label, ...] = ()  # in the order in which values are given
    bounds: tuple[float, ...] = ()  # upper bounds of a histogram's buckets
    origin: MetricOrigin = MetricOrigin.DATABASE  # the process that counts
    total: bool = False  # kept in the table of totals, in the transaction of what is counted
    unit: str = ""  # empty: it is a number of things
    where: str = ""  # what counts it
    condition: str = ""  # when it has series; empty: always

    @property
    def exported(self) -> str:
        """The name in the exposition and in queries."""
        return f"{self.name}_total" if self.kind is Kind.COUNTER else self.name

    @property
    def label_names(self) -> tuple[str, ...]:
        """The names of its labels, in order."""
        return tuple(one.name for one in self.labels)

    @property
    def most_series(self) -> int:
        """The most series that one scrape can contain of it."""
        found = len(self.bounds) + 3 if self.kind is Kind.HISTOGRAM else 1
        for one in self.labels:
            found *= one.bound
        return found

    def known_series(self) -> Iterator[tuple[str, ...]]:
        """The values of the labels that are known beforehand, where all of them are; one without labels."""
        if all(one.values for one in self.labels):
            yield from itertools.product(*(one.values for one in self.labels))


def counter(name: str, text: str, *labels: Label, unit: str = "", where: str = "") -> Family:
    """A counter that is kept in the table of totals."""
    return Family(name, Kind.COUNTER, text, labels, total=True, unit=unit, where=where)


def histogram(
    name: str, text: str, bounds: tuple[float, ...], *labels: Label, where: str = ""
) -> Family:
    """A histogram of durations that is kept in the table of totals."""
    return Family(
        name, Kind.HISTOGRAM, text, labels, bounds=bounds, total=True, unit="seconds", where=where
    )


def gauge(
    name: str, text: str, *labels: Label, unit: str = "", where: str = "", condition: str = ""
) -> Family:
    """A gauge that is read from the database at each scrape."""
    return Family(name, Kind.GAUGE, text, labels, unit=unit, where=where, condition=condition)
