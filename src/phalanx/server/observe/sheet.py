"""The families of one scrape, in the order of the catalogue; nothing outside of it can be added."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client.core import Metric

from phalanx.core.metrics.catalogue import CATALOGUE
from phalanx.core.metrics.family import Family, MetricOrigin
from phalanx.core.notify.samples import Series
from phalanx.core.telemetry.instruments import Kind
from phalanx.store.engines.totals import SUM, Exemplar, TotalKey, bucket_key

Buckets = Sequence[tuple[str, float]]
"""Pairs of (upper bound, observations up to it)."""


_LABEL = re.compile(r'([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(r"\\(.)")


class Sheet:
    """The samples of one scrape as lines of text. A family without any is left out.

    The Prometheus library writes a sample in 10 µs, this in 1: a scrape has tens of thousands of them.
    """

    def __init__(
        self, exemplars: Mapping[TotalKey, Exemplar] | None = None, *, openmetrics: bool = False
    ) -> None:
        """With `openmetrics` the text has that format, and `exemplars` behind their buckets."""
        self._openmetrics = openmetrics
        self._exemplars = (exemplars or {}) if openmetrics else {}
        self._lines: dict[str, list[str]] = {}
        self._known_names: dict[str, _Known] = {}
        self.num_series = 0

    def put(self, name: str, value: float, *labels: str) -> None:
        """Add a sample of a gauge or a counter. Raises KeyError for a name that is in no catalogue."""
        known = self._known(name)
        given = known.text_of(labels)
        known.lines.append(
            f"{known.exported}{{{given}}} {_number(value)}"
            if given
            else f"{known.exported} {_number(value)}"
        )
        self.num_series += 1

    def put_histogram(
        self,
        name: str,
        buckets: Buckets,
        total: float,
        *labels: str,
        exemplars: Mapping[int, Exemplar] | None = None,
    ) -> None:
        """Add a distribution: its cumulative buckets, the last of which is `+Inf`, and its sum.

        `exemplars` are observations by the indices of their buckets.
        """
        found = exemplars or {}
        known = self._known(name)
        given = known.text_of(labels)
        before = f'{name}_bucket{{{given}{"," if given else ""}le="'
        lines = known.lines
        for index, (bound, count) in enumerate(buckets):
            behind = _exemplar(found[index]) if index in found else ""
            lines.append(f'{before}{bound}"}} {_number(count)}{behind}')
        after = f"{{{given}}}" if given else ""
        lines.append(f"{name}_count{after} {_number(buckets[-1][1])}")
        lines.append(f"{name}_sum{after} {_number(total)}")
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
        keys = ((index, (bucket_key(family.name, index), labels)) for index in range(len(found)))
        total = totals.get((family.name + SUM, labels), 0)
        exemplars = {at: self._exemplars[key] for at, key in keys if key in self._exemplars}
        self.put_histogram(family.name, found, total, *labels, exemplars=exemplars)

    def take(self, metric: Metric) -> None:
        """Add a whole family of the Prometheus library without labels, which the catalogue must have."""
        for sample in metric.samples:
            self.put(metric.name, sample.value)

    def text(self) -> bytes:
        """The families with samples in the order of the catalogue, as Prometheus reads them."""
        found: list[str] = []
        for name, family in CATALOGUE.items():
            if name in self._lines:
                shown = name if self._openmetrics else family.exported
                found.append(f"# HELP {shown} {family.help}")
                found.append(f"# TYPE {shown} {family.kind.value}")
                found.extend(self._lines[name])
        if self._openmetrics:
            found.append("# EOF")
        return ("\n".join(found) + "\n").encode()

    def samples(self, names: Collection[str]) -> dict[Series, float]:
        """The samples of these exported names, with their labels in the order of the names."""
        found: dict[Series, float] = {}
        for family in (CATALOGUE[name] for name in self._lines):
            parts = ("", "_count", "_sum", "_bucket") if family.bounds else ("",)
            if not any(family.exported + part in names for part in parts):
                continue
            for line in self._lines[family.name]:
                series, _, value = line.rpartition(" ")
                name, _, given = series.partition("{")
                if name in names:
                    pairs = ((key, _plain(text)) for key, text in _LABEL.findall(given))
                    found[name, tuple(sorted(pairs))] = float(value)
        return found

    def _known(self, name: str) -> _Known:
        found = self._known_names.get(name)
        if found is None:
            family = CATALOGUE[name]
            if family.origin is MetricOrigin.OPERATOR:
                raise KeyError(name)
            lines = self._lines.setdefault(name, [])
            found = self._known_names[name] = _Known(family.exported, family.label_names, lines)
        return found


@dataclass(frozen=True, slots=True)
class _Known:
    """What is needed to write a sample of one family."""

    exported: str
    label_names: tuple[str, ...]
    lines: list[str]

    def text_of(self, values: tuple[str, ...]) -> str:
        """The labels as they stand between braces, in the order of their names."""
        pairs = zip(self.label_names, values, strict=True)
        return ",".join(sorted(f'{name}="{_escaped(value)}"' for name, value in pairs))


def _exemplar(one: Exemplar) -> str:
    return f' # {{trace_id="{one.trace}"}} {_number(one.value)} {one.at / 1e6:.3f}'


def _escaped(value: str) -> str:
    if "\\" in value or '"' in value or "\n" in value:
        return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
    return value


def _plain(text: str) -> str:
    """The text of a label that was escaped."""
    return _ESCAPE.sub(lambda found: "\n" if found[1] == "n" else found[1], text)


def _number(value: float) -> str:
    number = float(value)
    if math.isfinite(number):
        return repr(number)
    return "NaN" if math.isnan(number) else "+Inf" if number > 0 else "-Inf"
