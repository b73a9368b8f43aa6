"""Read and write what trials have reported. The first report of a unit stands."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sqlalchemy import Integer, Select, bindparam, func, select

from phalanx.store.database import Tx, numbers_of, plain_numbers, take_numbers
from phalanx.store.tables import trial_reports

TRIAL_REPORTS = "trial_reports"
"""The notification topic of new reports."""
_KNOWN = select(trial_reports.c.unit, trial_reports.c.value, trial_reports.c.checkpoint).where(
    trial_reports.c.job == bindparam("_job"),
    trial_reports.c.unit.in_(bindparam("_units", expanding=True)),
)
_INSERT = trial_reports.insert()
_ORDERED = (
    select(trial_reports).order_by(trial_reports.c.id).limit(bindparam("_limit", type_=Integer))
)
_AFTER = _ORDERED.where(trial_reports.c.id > bindparam("_after"))
_OF_JOBS = _ORDERED.where(trial_reports.c.job.in_(bindparam("_jobs", expanding=True)))


@dataclass(frozen=True, slots=True)
class TrialReportRow:
    """A trial has completed `unit` units."""

    id: int  # in the order of arrival
    job: int  # number of the trial's job
    unit: int  # units completed
    attempt: int  # number in the job
    generation: int  # number in the attempt
    value: float | None  # of the objective, NaN and infinities included; None: not in the report
    metrics: Mapping[str, float]  # all values of the report
    checkpoint: str | None  # path or URL of the one committed at this unit; None: none
    final: bool  # it was the trial's target
    at: int  # µs UTC


class Taken(StrEnum):
    """What became of a report."""

    STORED = "stored"  # the first one of its unit
    COMPLETED = "completed"  # it names the checkpoint that the first one of its unit lacked
    REPEATED = "repeated"  # the same value again
    DIFFERS = "differs"  # another value than the first one of its unit, which stands


def add(tx: Tx, report: Mapping[str, Any]) -> Taken:
    """`add_many` for one report."""
    return add_many(tx, report["job"], [report])[0]


def add_many(tx: Tx, job: int, reports: Sequence[Mapping[str, Any]]) -> list[Taken]:
    """Store reports of one job, but those of units that have one; returns what became of each.

    A report has the table's columns, but `id`. Values that are not finite are texts, as JSON has none.
    """
    if not reports:
        return []
    where = {"_job": job, "_units": sorted({one["unit"] for one in reports})}
    # (value, checkpoint) by unit
    known = {row.unit: (row.value, row.checkpoint) for row in tx.conn.execute(_KNOWN, where)}
    fresh: dict[int, dict[str, Any]] = {}
    taken: list[Taken] = []
    for report in map(_as_json, reports):
        unit, value, checkpoint = report["unit"], report["value"], report["checkpoint"]
        before = known.get(unit)
        if before is None:
            known[unit], fresh[unit] = (value, checkpoint), report
            taken.append(Taken.STORED)
        elif before[0] != value:
            taken.append(Taken.DIFFERS)
        elif before[1] is None and checkpoint is not None:
            known[unit] = (value, checkpoint)
            changes = {"checkpoint": checkpoint, "final": report["final"]}
            if unit in fresh:
                fresh[unit] |= changes
            else:
                _complete(tx, job, unit, changes)
            taken.append(Taken.COMPLETED)
        else:
            taken.append(Taken.REPEATED)
    if fresh:
        first = take_numbers(tx, "trial_report", len(fresh))
        rows = [{"id": first + index, **row} for index, row in enumerate(fresh.values())]
        tx.conn.execute(_INSERT, rows)
        tx.touched.topics.add(TRIAL_REPORTS)
    return taken


def _as_json(report: Mapping[str, Any]) -> dict[str, Any]:
    value = report["value"]
    plain = str(value) if isinstance(value, float) and not math.isfinite(value) else value
    return {**report, "value": plain, "metrics": plain_numbers(report["metrics"])}


def _complete(tx: Tx, job: int, unit: int, changes: Mapping[str, Any]) -> None:
    """Change a stored report. It gets a new number, so that readers that go by it see the row again."""
    here = trial_reports.c
    same = (here.job == job) & (here.unit == unit)
    number = take_numbers(tx, "trial_report")
    tx.conn.execute(trial_reports.update().where(same).values(id=number, **changes))
    tx.touched.topics.add(TRIAL_REPORTS)


def after(tx: Tx, last: int, *, limit: int = 1000) -> list[TrialReportRow]:
    """Reports of all jobs behind an id, in the order of arrival."""
    return _rows(tx, _AFTER, {"_after": last, "_limit": limit})


def of_jobs(tx: Tx, jobs: Sequence[int], *, limit: int = 10_000) -> list[TrialReportRow]:
    """Reports of these jobs, in the order of arrival."""
    return _rows(tx, _OF_JOBS, {"_jobs": list(jobs), "_limit": limit})


def last_unit(tx: Tx, job: int) -> int:
    """The highest unit that a job has reported; 0 without any."""
    query = select(func.max(trial_reports.c.unit)).where(trial_reports.c.job == job)
    return int(tx.conn.execute(query).scalar() or 0)


def last_id(tx: Tx) -> int:
    """The id of the newest report; 0 without any."""
    return int(tx.conn.execute(select(func.max(trial_reports.c.id))).scalar() or 0)


def _rows(tx: Tx, query: Select[Any], values: Mapping[str, Any]) -> list[TrialReportRow]:
    return [
        TrialReportRow(
            **{
                **row,
                "value": None if row["value"] is None else float(row["value"]),
                "metrics": numbers_of(row["metrics"]),
            }
        )
        for row in tx.conn.execute(query, values).mappings()
    ]
