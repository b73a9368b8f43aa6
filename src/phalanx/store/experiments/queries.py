"""Queries over runs as SQL: conditions on the table that listings of jobs read."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, false, func, or_, select

from phalanx.core.cost.prices import NANO
from phalanx.core.experiments.query import DURATIONS, IDS, SUMMARIES, Comparison, Term, Value
from phalanx.store.database import Tx
from phalanx.store.experiments import terms
from phalanx.store.schema.experiments import run_params, run_terms
from phalanx.store.schema.listings import job_data, job_listing
from phalanx.store.schema.metrics import metric_last, metric_series
from phalanx.store.tables import job_labels

_HERE = job_listing.c
_OPERATORS: Mapping[Comparison, Callable[[Any, Any], Any]] = {
    Comparison.EQUAL: operator.eq,
    Comparison.NOT_EQUAL: operator.ne,
    Comparison.BELOW: operator.lt,
    Comparison.AT_MOST: operator.le,
    Comparison.ABOVE: operator.gt,
    Comparison.AT_LEAST: operator.ge,
}
# Columns by the name of their field.
_COLUMNS: Mapping[str, ColumnElement[Any]] = {
    **{name: _HERE[name] for name in ("state", "project", "name", "cause", "framework", "pool")},
    **{name: _HERE[name] for name in ("kind", "image", "algorithm", "priority", "restarts")},
    **{name: _HERE[name] for name in ("slot_seconds", "study", "array")},
    "user": _HERE.owner,
    "script": _HERE.entry_point,
    "slots": _HERE.num_slots,
    "nodes": _HERE.num_nodes,
    "usd": _HERE.nano_usd,
    "duration": _HERE.duration_s,
    "queue": _HERE.queue_s,
    "job": _HERE.num,
}
_TERM_KINDS = {"tag": terms.TAG, "group": terms.GROUP, "note": terms.NOTE, "commit": terms.COMMIT}
_RANGES = {"min": metric_series.c.min_value, "max": metric_series.c.max_value}
_MOST = 1.7976931348623157e308
_MOST_JOBS = 500
_LEAST = -_MOST


@dataclass(frozen=True, slots=True)
class MetricSummary:
    """What is known of one metric of a run; values that are not finite are None."""

    job: int
    name: str
    step: int  # of the newest value
    last: float | None  # the newest value
    least: float | None  # of rank 0, as far as its roll-ups are
    most: float | None


def summaries(tx: Tx, jobs: Sequence[int], names: Sequence[str] = ()) -> list[MetricSummary]:
    """The metrics of some runs, or some of them."""
    here, series = metric_last.c, metric_series.c
    mine = and_(series.job == here.job, series.name == here.name, series.rank == 0)
    columns = (here.job, here.name, here.step, here.value, series.min_value, series.max_value)
    every = select(*columns).select_from(metric_last.outerjoin(metric_series, mine))
    found: list[MetricSummary] = []
    for start in range(0, len(jobs), _MOST_JOBS):
        query = every.where(here.job.in_(list(jobs[start : start + _MOST_JOBS])))
        query = query.where(here.name.in_(list(names))) if names else query
        for job, name, step, last, least, most in tx.conn.execute(query):
            finite = last if last is not None and math.isfinite(last) else None
            found.append(MetricSummary(job, name, step, finite, least, most))
    return found


def condition(term: Term, dialect: str) -> ColumnElement[bool]:
    """The condition of a term."""
    found = _condition(term, dialect)
    return ~func.coalesce(found, false()) if term.negated else found


def _condition(term: Term, dialect: str) -> ColumnElement[bool]:
    if term.field == "metric":
        return _HERE.num.in_(_metric(term))
    if term.field == "param":
        return _HERE.num.in_(_param(term, dialect))
    if term.field in _JOINED:
        found = _HERE.num.in_(_JOINED[term.field](term, dialect))
        # `tag!=x`: what has no such tag at all.
        return ~found if term.comparison is Comparison.NOT_EQUAL else found
    if term.field == "since":
        return _HERE.submitted_at >= term.values[0]
    if term.field == "until":
        return _HERE.submitted_at < term.values[0]
    if term.field in IDS:
        found = _COLUMNS[term.field].in_(term.values)
        return ~func.coalesce(found, false()) if _is_unequal(term) else found
    if isinstance(term.values[0], str):
        return _words(term, dialect)
    value: Any = term.values[0]
    column = _COLUMNS[term.field]
    value = round(value * NANO) if term.field == "usd" else value
    value = float(value) if term.field in DURATIONS else value
    return _OPERATORS[term.comparison](column, value)  # type: ignore[no-any-return]


def _is_unequal(term: Term) -> bool:
    return term.comparison is Comparison.NOT_EQUAL


def _words(term: Term, dialect: str) -> ColumnElement[bool]:
    columns = (_HERE.reason, _HERE.pending) if term.field == "reason" else (_COLUMNS[term.field],)
    found = or_(*(matching(column, term.values, dialect) for column in columns))
    return ~found if _is_unequal(term) else found


def matching(column: Any, values: Sequence[Value], dialect: str) -> ColumnElement[bool]:
    """Whether a text is one of some patterns."""
    whole = [value for value in values if "*" not in str(value)]
    parts = [matches(column, str(value), dialect) for value in values if "*" in str(value)]
    return or_(*([column.in_(whole)] if whole else []), *parts)


def matches(column: Any, pattern: str, dialect: str) -> ColumnElement[bool]:
    """Whether a text has the form of a pattern, with `*` for any text; upper and lower case differ."""
    if "*" not in pattern:
        return column == pattern  # type: ignore[no-any-return]
    if dialect == "sqlite":
        # LIKE takes `A` and `a` for the same there, and only these: GLOB compares as PostgreSQL does.
        return column.op("GLOB", is_comparison=True)(  # type: ignore[no-any-return]
            pattern.replace("[", "[[]").replace("?", "[?]")
        )
    plain = pattern.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return column.like(plain.replace("*", "%"), escape="\\")  # type: ignore[no-any-return]


def _metric(term: Term) -> Select[tuple[int]]:
    here, value = metric_last.c, metric_last.c.value
    compare = None if term.comparison is Comparison.HAS else _OPERATORS[term.comparison]
    if term.summary in _RANGES:
        series = metric_series.c
        query = select(series.job).where(series.name == term.name, series.rank == 0)
        column = _RANGES[term.summary]
        return query if compare is None else query.where(compare(column, term.values[0]))
    query = select(here.job).where(here.name == term.name)
    if compare is None:
        return query
    return query.where(compare(value, term.values[0]), value.between(_LEAST, _MOST))


def _param(term: Term, dialect: str) -> Select[tuple[int]]:
    here = run_params.c
    query = select(here.job).where(here.name == term.name, here.counts == 1)
    if term.comparison is Comparison.HAS:
        return query
    if term.comparison in (Comparison.EQUAL, Comparison.NOT_EQUAL):
        numbers = [one for one in map(_number, term.values) if one is not None]
        same = matching(here.value, term.values, dialect)
        same = or_(same, func.coalesce(here.number.in_(numbers), false())) if numbers else same
        return query.where(~same if _is_unequal(term) else same)
    return query.where(_OPERATORS[term.comparison](here.number, term.values[0]))


def _number(value: Value) -> float | None:
    try:
        return float(value)
    except ValueError:
        return None


def _of_terms(term: Term, dialect: str) -> Select[tuple[int]]:
    here, kind = run_terms.c, _TERM_KINDS[term.field]
    values = term.values
    if kind == terms.NOTE:
        values = tuple(f"*{value}*" for value in values)
    elif kind == terms.COMMIT:
        values = tuple(f"{value}*" for value in values)
    return select(here.job).where(here.kind == kind, matching(here.value, values, dialect))


def _of_labels(term: Term, dialect: str) -> Select[tuple[int]]:
    here = job_labels.c
    query = select(here.job).where(here.name == term.name)
    return query.where(matching(here.value, term.values, dialect)) if term.values else query


def _of_data(term: Term, dialect: str) -> Select[tuple[int]]:
    return select(job_data.c.job).where(matching(job_data.c.path, term.values, dialect))


_JOINED: Mapping[str, Callable[[Term, str], Select[tuple[int]]]] = {
    **dict.fromkeys(_TERM_KINDS, _of_terms),
    "label": _of_labels,
    "data": _of_data,
}


def sort_key(by: str) -> ColumnElement[Any] | None:
    """What `metric:NAME`, `metric:max(NAME)` or `param:NAME` sorts by; None: another text.

    A run without the value counts as the smallest.
    """
    field, colon, name = by.partition(":")
    if not colon or not name:
        return None
    if field == "param":
        here = run_params.c
        mine = and_(here.job == _HERE.num, here.name == name, here.counts == 1)
        return func.coalesce(select(here.number).where(mine).scalar_subquery(), _LEAST)
    if field != "metric":
        return None
    summary, bracket, rest = name.partition("(")
    if bracket and summary in SUMMARIES and rest.endswith(")"):
        name = rest[:-1]
    if bracket and summary in _RANGES:
        series = metric_series.c
        mine = and_(series.job == _HERE.num, series.name == name, series.rank == 0)
        return func.coalesce(select(_RANGES[summary]).where(mine).scalar_subquery(), _LEAST)
    newest = metric_last.c
    mine = and_(newest.job == _HERE.num, newest.name == name)
    mine = and_(mine, newest.value.between(_LEAST, _MOST))
    return func.coalesce(select(newest.value).where(mine).scalar_subquery(), _LEAST)


def names(tx: Tx, projects: Sequence[str] | None, *, limit: int) -> dict[str, list[str]]:
    """Names in the newest `limit` runs of some projects, None: of all; at most `limit` of each kind."""
    newest = select(_HERE.num).order_by(_HERE.num.desc()).limit(limit)
    if projects is not None:
        newest = newest.where(_HERE.project.in_(projects))
    nums = list(tx.conn.execute(newest).scalars())
    words, values = run_terms.c, metric_last.c
    wanted: dict[str, tuple[ColumnElement[str], ColumnElement[bool]]] = {
        "params": (run_params.c.name, run_params.c.job.in_(nums)),
        "metrics": (values.name, values.job.in_(nums)),
        "tags": (words.value, and_(words.job.in_(nums), words.kind == terms.TAG)),
        "groups": (words.value, and_(words.job.in_(nums), words.kind == terms.GROUP)),
    }
    found: dict[str, list[str]] = {}
    for kind, (column, mine) in wanted.items():
        query = select(column).where(mine).distinct().order_by(column).limit(limit)
        found[kind] = list(tx.conn.execute(query).scalars())
    return found
