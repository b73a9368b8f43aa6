"""Calls of supervisors as bytes: bodies of `POST /api/v1/supervisors/sync` with the type `REPORTS_TYPE`.

Four bytes say what it is and its version, and four the length of the head (little endian). The head is
the JSON of a `SyncRequest`, in which reports of metrics are `metric_columns`: with the number of rows, and
the name and the number of values of each metric. The columns of these reports follow, one report after the
other, in the order of the head. All numbers are little endian and lie side by side:

* the rank of each row, four bytes; its step, eight bytes; its time in microseconds, eight bytes
* for each metric: where not every row has a value, the rows that have one, ascending, four bytes each; then
  the values, IEEE 754 numbers of eight bytes

A control plane that reads this says so in the header `Accept-Post` of its answers. Supervisors write it
with the standard library alone; only readers need numpy.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from phalanx.schemas.wire.supervision import (
    MAX_REPORT_METRICS,
    MAX_REPORT_ROWS,
    MAX_REPORT_VALUES,
    MetricColumnsReport,
    MetricsReport,
    SyncRequest,
    size_of_columns,
)

if TYPE_CHECKING:
    from phalanx.core.contract.records import MetricPoint
    from phalanx.core.curves.columns import MetricColumns

REPORTS_TYPE = "application/vnd.phalanx.reports"
ACCEPTED = f"application/json, {REPORTS_TYPE}"
"""The value of `Accept-Post`."""
_MAGIC = b"PHR\x01"
_START = 8


def encode_request(request: SyncRequest) -> bytes | None:
    """The bytes of a call; None where it has no metrics, or some that do not fit in columns."""
    parts: list[bytes] = []
    reports = []
    for one in request.reports:
        if isinstance(one, MetricsReport):
            columns = _columns_report(one)
            if columns is None:
                return None
            parts.append(columns.data)
            reports.append(columns)
        else:
            reports.append(one)  # type: ignore[arg-type]
    if not parts:
        return None
    head = request.model_copy(update={"reports": reports}).model_dump_json().encode()
    return b"".join((_MAGIC, len(head).to_bytes(4, "little"), head, *parts))


def _columns_report(report: MetricsReport) -> MetricColumnsReport | None:
    points = report.points
    if not 0 < len(points) <= MAX_REPORT_ROWS:
        return None
    columns = _columns_of(points)
    num_values = sum(len(values) for _, values in columns.values())
    if len(columns) > MAX_REPORT_METRICS or num_values > MAX_REPORT_VALUES:
        return None
    ranks, steps, times, _ = zip(*points, strict=True)
    try:
        parts = [_packed("i", ranks), _packed("q", steps), _packed("q", times)]
        for rows, values in columns.values():
            parts += [] if rows is None else [_packed("I", rows)]
            parts.append(_packed("d", values))
    except OverflowError:
        return None
    return MetricColumnsReport(
        seq=report.seq,
        generation=report.generation,
        leads=report.leads,
        rows=len(points),
        metrics=[(name, len(values)) for name, (_, values) in columns.items()],
        data=b"".join(parts),
    )


def _columns_of(
    points: Sequence[MetricPoint],
) -> dict[str, tuple[list[int] | None, Sequence[float]]]:
    """The values by metric, with the rows that they are in; None for all rows."""
    cells = [one.values for one in points]
    first = cells[0]
    if all(one.keys() == first.keys() for one in cells):
        return {name: (None, [one[name] for one in cells]) for name in first}
    found: dict[str, tuple[list[int], list[float]]] = {}
    for row, one in enumerate(cells):
        for name, value in one.items():
            rows, values = found.setdefault(name, ([], []))
            rows.append(row)
            values.append(value)
    return {
        name: (None if len(rows) == len(cells) else rows, values)
        for name, (rows, values) in found.items()
    }


def _packed(kind: str, values: Sequence[float]) -> bytes:
    """The bytes of numbers. Raises OverflowError for one that is too large."""
    found = array(kind, values)
    if sys.byteorder == "big":
        found.byteswap()
    return found.tobytes()


def decode_request(body: bytes, read_head: Callable[[bytes], Any]) -> Any:
    """The head of a call, as `read_head` reads it, with the bytes of columns in `data` of their reports.

    The models then check the sizes. Raises ValueError for what is no call of this version, and what
    `read_head` raises.
    """
    if body[:4] != _MAGIC:
        raise ValueError("is not a call of a version that is known")
    at = _START + int.from_bytes(body[4:_START], "little")
    if at > len(body):
        raise ValueError("is cut off in its head")
    head = read_head(body[_START:at])
    reports = head.get("reports") if isinstance(head, dict) else None
    for one in reports if isinstance(reports, list) else ():
        if isinstance(one, dict) and one.get("kind") == MetricColumnsReport.KIND:
            end = at + _size_of(one)
            if end > len(body):
                raise ValueError("is cut off in its columns")
            one["data"], at = body[at:end], end
    if at != len(body):
        raise ValueError("has bytes behind its last column")
    return head


def _size_of(report: Mapping[str, Any]) -> int:
    """Bytes of the columns of a report that was not checked yet. Raises ValueError."""
    rows, metrics = report.get("rows"), report.get("metrics")
    if type(rows) is not int or not isinstance(metrics, list):
        raise ValueError("has a report of metrics without its rows or metrics")
    counts = []
    for one in metrics:
        if not isinstance(one, list) or len(one) != 2 or type(one[1]) is not int or one[1] < 0:
            raise ValueError("has a metric that is not a name with a number of values")
        counts.append(one[1])
    return size_of_columns(max(0, rows), counts)


def decode_columns(report: MetricColumnsReport) -> MetricColumns:
    """The columns of a report that its model has checked. Raises ValueError for wrong rows or ranks."""
    import numpy as np

    from phalanx.core.curves.columns import MetricColumns

    data, rows, at = report.data, report.rows, 0

    def take(kind: str, many: int) -> Any:
        nonlocal at
        found = np.frombuffer(data, kind, many, at)
        at += found.nbytes
        return found

    ranks, steps, times = (take("<i4", rows), take("<i8", rows), take("<i8", rows))
    if int(ranks.min()) < 0:
        raise ValueError("a rank is negative")
    values = {}
    everywhere = np.arange(rows, dtype=np.int64)
    for name, many in report.metrics:
        places = everywhere
        if many < rows:
            places = take("<u4", many).astype(np.int64)
            if places[-1] >= rows or not (np.diff(places) > 0).all():
                raise ValueError(
                    f"the rows of metric {name[:100]!r} do not ascend up to {rows - 1}"
                )
        values[name] = places, take("<f8", many).astype(np.float64)
    return MetricColumns(
        ranks.astype(np.int64), steps.astype(np.int64), times.astype(np.int64), values
    )
