"""Metrics of live jobs: the newest values of gauges and the sums of counters and histograms."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from phalanx.core.contract.records import MetricPoint
from phalanx.core.telemetry.instruments import INSTRUMENTS, Distribution, Kind, is_part, split_part

MAX_RANKS = 512
MAX_RANKS_OF_A_JOB = 64
MAX_NAMES = 20
"""Limits of exposed series: ranks in all, ranks of one job, metric names of one script."""

LOSSES = ("loss", "train_loss")
ACCURACIES = ("accuracy", "acc", "train_acc", "train_accuracy")


@dataclass(slots=True)
class RankSeries:
    """The series of one rank."""

    gauges: dict[str, float] = field(default_factory=dict)
    counters: dict[str, float] = field(default_factory=dict)
    distributions: dict[str, Distribution] = field(default_factory=dict)

    def add(self, name: str, value: float) -> None:
        """Add a value of one of the platform's instruments."""
        if is_part(name):
            base, part = split_part(name)
            if base in INSTRUMENTS:
                one = self.distributions.setdefault(base, Distribution.empty())
                one.add_part(part, value)
        elif INSTRUMENTS[name].kind is Kind.COUNTER:
            self.counters[name] = self.counters.get(name, 0.0) + value
        else:
            self.gauges[name] = value


@dataclass(slots=True)
class JobSeries:
    """The series of one live job. `values` are the metrics that the script logs on rank 0, by name."""

    ranks: dict[int, RankSeries] = field(default_factory=dict)
    values: dict[str, float] = field(default_factory=dict)

    def add(self, points: Iterable[MetricPoint]) -> None:
        """Add new points."""
        for point in points:
            for name, value in point.values.items():
                if is_part(name) or name in INSTRUMENTS:
                    self._own(point.rank, name, value)
                elif point.rank == 0:
                    self._named(name, value)

    def show(self, points: Iterable[MetricPoint]) -> None:
        """Take the newest gauge values of points reported before counting began; sums begin at 0."""
        for point in points:
            for name, value in point.values.items():
                known = INSTRUMENTS.get(name)
                if known is None:
                    if point.rank == 0 and not is_part(name):
                        self._named(name, value)
                elif known.kind is not Kind.COUNTER:
                    self._own(point.rank, name, value)

    def _own(self, rank: int, name: str, value: float) -> None:
        series = self.ranks.get(rank)
        if series is None:
            if len(self.ranks) >= MAX_RANKS_OF_A_JOB:
                return
            series = self.ranks[rank] = RankSeries()
        series.add(name, value)

    def _named(self, name: str, value: float) -> None:
        if name in self.values or len(self.values) < MAX_NAMES:
            self.values[name] = value

    def first_of(self, names: Sequence[str]) -> float | None:
        """The value under the first of these names that the script uses."""
        return next((self.values[name] for name in names if name in self.values), None)
