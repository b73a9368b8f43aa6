"""The newest value of each metric of a job: what lists and summaries show, without a look at chunks.

A row has the value that arrived last of the lowest rank that reports the metric. It is written in the
transaction that stores the report.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import bindparam, select, text

from phalanx.core.telemetry.instruments import is_part
from phalanx.store.database import Tx, columns_of
from phalanx.store.schema.metrics import metric_last

if TYPE_CHECKING:
    from phalanx.core.curves.columns import Ints, MetricColumns

MAX_NAMES = 1000
"""A job with more names of metrics gets no further rows."""
_OF_JOB = select(metric_last).where(metric_last.c.job == bindparam("_job")).order_by("name")
_PUT = text(
    "INSERT INTO metric_last (job, name, rank, step, at, value) "
    "VALUES (:job, :name, :rank, :step, :at, :value) ON CONFLICT (job, name) "
    "DO UPDATE SET rank = excluded.rank, step = excluded.step, at = excluded.at, value = excluded.value "
    "WHERE excluded.rank <= metric_last.rank"
)
_CHANGE = text(
    "UPDATE metric_last SET rank = :rank, step = :step, at = :at, value = :value "
    "WHERE job = :job AND name = :name AND :rank <= rank"
)


@dataclass(frozen=True, slots=True)
class LastValue:
    """The newest value of a metric."""

    job: int  # job number
    name: str  # of the metric
    rank: int  # the lowest one that reports it
    step: int  # of the value
    at: int  # µs UTC
    value: float | None  # None: it is not a number


def of_job(tx: Tx, job: int) -> list[LastValue]:
    """The newest values of a job, by name."""
    return [LastValue(*row) for row in tx.conn.execute(_OF_JOB, {"_job": job})]


def put(tx: Tx, reports: Sequence[tuple[int, MetricColumns]], full: Collection[int] = ()) -> None:
    """Take over the values of reports, each with its job, in order; jobs in `full` get no new names."""
    found: dict[tuple[int, str], LastValue] = {}
    for job, columns in reports:
        for name, one in newest_of(job, columns).items():
            known = found.get((job, name))
            if known is None or one.rank <= known.rank:
                found[job, name] = one
    # In one order, so that two transactions do not wait for each other.
    rows = [columns_of(one) for _, one in sorted(found.items())]
    for statement, some in (
        (_PUT, [row for row in rows if row["job"] not in full]),
        (_CHANGE, [row for row in rows if row["job"] in full]),
    ):
        if some:
            tx.conn.execute(statement, some)


def newest_of(job: int, columns: MetricColumns) -> Mapping[str, LastValue]:
    """The last value of the lowest rank for each metric of a report; not of parts of histograms."""
    everywhere = _last_of_lowest(columns.ranks)
    found = {}
    for name, (rows, values) in columns.values.items():
        if not len(rows) or is_part(name):
            continue
        place = everywhere
        if len(rows) < columns.num_rows:
            place = _last_of_lowest(columns.ranks[rows])
        row, value = int(rows[place]), float(values[place])
        found[name] = LastValue(
            job,
            name,
            int(columns.ranks[row]),
            int(columns.steps[row]),
            int(columns.times[row]),
            None if math.isnan(value) else value,
        )
    return found


def _last_of_lowest(ranks: Ints) -> int:
    """The last place of the lowest rank."""
    return len(ranks) - 1 - int(ranks[::-1].argmin())
