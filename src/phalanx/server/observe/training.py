"""Metrics of live jobs: the newest values of gauges and the sums of counters and histograms."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from phalanx.core.contract.records import MetricPoint
from phalanx.core.metrics import training as limits
from phalanx.core.metrics.training import STEP_TIME
from phalanx.core.telemetry.instruments import INSTRUMENTS, PARTS, Distribution, Kind, is_part

LOSSES = ("loss", "train_loss")
ACCURACIES = ("accuracy", "acc", "train_acc", "train_accuracy")


@dataclass(slots=True)
class RankSeries:
    """The series of one rank. `means` are those of the newest window, by section of the step."""

    gauges: dict[str, float] = field(default_factory=dict)
    counters: dict[str, float] = field(default_factory=dict)
    means: dict[str, float] = field(default_factory=dict)
    steps: Distribution | None = None

    def add(self, name: str, value: float) -> None:
        """Add a value of one of the platform's instruments."""
        kind = INSTRUMENTS[name].kind
        if kind is Kind.COUNTER:
            self.counters[name] = self.counters.get(name, 0.0) + value
        elif kind is Kind.HISTOGRAM:
            self.means[name] = value
        else:
            self.gauges[name] = value


@dataclass(slots=True)
class JobSeries:
    """The series of one live job. `values` are the metrics that the script logs on rank 0, by name."""

    ranks: dict[int, RankSeries] = field(default_factory=dict)
    values: dict[str, float] = field(default_factory=dict)
    sections: dict[str, Distribution] = field(default_factory=dict)  # over all ranks

    def add(self, points: Iterable[MetricPoint]) -> None:
        """Add new points."""
        for point in points:
            for name, value in point.values.items():
                part = PARTS.get(name)
                if part is not None:
                    self._part(point.rank, *part, value)
                elif name in INSTRUMENTS:
                    self._own(point.rank, name, value)
                elif is_part(name):
                    continue  # of another release
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

    def _rank(self, rank: int) -> RankSeries | None:
        series = self.ranks.get(rank)
        if series is None and len(self.ranks) < limits.MAX_RANKS_OF_A_JOB:
            series = self.ranks[rank] = RankSeries()
        return series

    def _own(self, rank: int, name: str, value: float) -> None:
        series = self._rank(rank)
        if series is not None:
            series.add(name, value)

    def _part(self, rank: int, name: str, index: int, value: float) -> None:
        """Add a part of a distribution: to that of its rank, or of the whole job."""
        if name != STEP_TIME:
            found = self.sections.get(name)
            if found is None:
                found = self.sections[name] = Distribution.empty()
        else:
            series = self._rank(rank)
            if series is None:
                return
            found = series.steps = series.steps or Distribution.empty()
        found.add(index, value)

    def _named(self, name: str, value: float) -> None:
        if name in self.values or len(self.values) < limits.MAX_NAMES:
            self.values[name] = value

    def first_of(self, names: Sequence[str]) -> float | None:
        """The value under the first of these names that the script uses."""
        return next((self.values[name] for name in names if name in self.values), None)
