"""The families of one scrape, in the order of the catalogue; nothing outside of it can be added."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from prometheus_client.core import Metric
from prometheus_client.samples import Sample

from phalanx.core.metrics.catalogue import CATALOGUE
from phalanx.core.metrics.family import Family, MetricOrigin
from phalanx.core.telemetry.instruments import Kind
from phalanx.store.engines.totals import SUM, TotalKey, bucket_key

Buckets = Sequence[tuple[str, float]]
"""Pairs of (upper bound, observations up to it)."""


class Sheet:
    """The samples of one scrape. A family without any is left out, with its explanation as well."""

    def __init__(self) -> None:
        self._metrics: dict[str, Metric] = {}
        self._names: dict[str, tuple[Family, str, tuple[str, ...]]] = {}
        self.num_series = 0

    def put(self, name: str, value: float, *labels: str) -> None:
        """Add a sample of a gauge or a counter. Raises KeyError for a name that is in no catalogue."""
        family, exported, label_names = self._known(name)
        given = dict(zip(label_names, labels, strict=True))
        self._metric(family).samples.append(Sample(exported, given, value))
        self.num_series += 1

    def put_histogram(self, name: str, buckets: Buckets, total: float, *labels: str) -> None:
        """Add a distribution: its cumulative buckets, the last of which is `+Inf`, and its sum."""
        family, _, label_names = self._known(name)
        given = dict(zip(label_names, labels, strict=True))
        samples = self._metric(family).samples
        for bound, count in buckets:
            samples.append(Sample(f"{name}_bucket", {**given, "le": bound}, count))
        samples.append(Sample(f"{name}_count", given, buckets[-1][1]))
        samples.append(Sample(f"{name}_sum", given, total))
        self.num_series += len(buckets) + 2

    def put_totals(self, totals: Mapping[TotalKey, float]) -> None:
        """Add every family that is kept in the table of totals, with 0 where nothing was counted.

        A series that is born with 1 has no increase: the first failure would be invisible to every alert.
        """
        by_name: dict[str, set[tuple[str, ...]]] = {}
        for name, labels in totals:
            by_name.setdefault(name.partition("|")[0], set()).add(labels)
        for family in CATALOGUE.values():
            if not family.total:
                continue
            counted = by_name.get(family.name, set())
            for labels in sorted({*family.known_series(), *counted}):
                if len(labels) != len(family.labels):
                    continue  # of another release
                if family.kind is Kind.HISTOGRAM:
                    self._put_total_histogram(family, labels, totals)
                else:
                    self.put(family.name, totals.get((family.name, labels), 0), *labels)

    def _put_total_histogram(
        self, family: Family, labels: tuple[str, ...], totals: Mapping[TotalKey, float]
    ) -> None:
        running, found = 0.0, list[tuple[str, float]]()
        for index, bound in enumerate((*map(str, family.bounds), "+Inf")):
            running += totals.get((bucket_key(family.name, index), labels), 0)
            found.append((bound, running))
        self.put_histogram(family.name, found, totals.get((family.name + SUM, labels), 0), *labels)

    def take(self, metric: Metric) -> None:
        """Add a whole family of the Prometheus library, which the catalogue must have."""
        family, _, _ = self._known(metric.name)
        self._metric(family).samples.extend(metric.samples)
        self.num_series += len(metric.samples)

    def collect(self) -> Iterator[Metric]:
        """The families with samples, in the order of the catalogue, as the Prometheus library wants it."""
        for name in CATALOGUE:
            if name in self._metrics:
                yield self._metrics[name]

    def _known(self, name: str) -> tuple[Family, str, tuple[str, ...]]:
        found = self._names.get(name)
        if found is None:
            family = CATALOGUE[name]
            if family.origin is MetricOrigin.OPERATOR:
                raise KeyError(name)
            found = self._names[name] = (family, family.exported, family.label_names)
        return found

    def _metric(self, family: Family) -> Metric:
        found = self._metrics.get(family.name)
        if found is None:
            found = self._metrics[family.name] = Metric(family.name, family.help, family.kind.value)
        return found
