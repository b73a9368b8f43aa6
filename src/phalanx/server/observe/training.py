"""Metrics of live jobs: the newest values of gauges and the sums of counters and histograms."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from phalanx.core.contract.records import MetricPoint
from phalanx.core.metrics import training as limits
from phalanx.core.metrics.training import STEP_TIME
from phalanx.core.telemetry.instruments import INSTRUMENTS, PARTS, Distribution, Kind, is_part

if TYPE_CHECKING:
    from phalanx.core.curves.columns import MetricColumns

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

    def add(self, columns: MetricColumns) -> None:
        """Add a new report: what a name is, is looked up once for all of its values."""
        ranks: list[int] = columns.ranks.tolist()
        for name, (rows, found) in columns.values.items():
            part, known = PARTS.get(name), INSTRUMENTS.get(name)
            if part is None and known is None and is_part(name):
                continue  # of another release
            values: list[float] = found.tolist()
            owners = ranks
            if len(values) < len(ranks):
                owners = [ranks[row] for row in rows.tolist()]
            if part is not None:
                self._parts(*part, owners, values)
            elif known is not None:
                for rank, value in zip(owners, values, strict=True):
                    self._own(rank, name, value)
            else:
                for rank, value in zip(owners, values, strict=True):
                    if rank == 0:
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

    def _parts(self, name: str, index: int, ranks: Sequence[int], values: Sequence[float]) -> None:
        """Add parts of distributions: to those of their ranks, or to that of the whole job."""
        if name != STEP_TIME:
            found = self.sections.get(name)
            if found is None:
                found = self.sections[name] = Distribution.empty()
            for value in values:
                found.add(index, value)
            return
        for rank, value in zip(ranks, values, strict=True):
            series = self._rank(rank)
            if series is not None:
                series.steps = series.steps or Distribution.empty()
                series.steps.add(index, value)

    def _named(self, name: str, value: float) -> None:
        if name in self.values or len(self.values) < limits.MAX_NAMES:
            self.values[name] = value

    def first_of(self, names: Sequence[str]) -> float | None:
        """The value under the first of these names that the script uses."""
        return next((self.values[name] for name in names if name in self.values), None)
