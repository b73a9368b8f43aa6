"""Pages of jobs: filters, orders, and cursors."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, bindparam, func, or_, select, tuple_
from sqlalchemy.sql import text

from phalanx.core.experiments.query import Term
from phalanx.core.jobs.model import JobState
from phalanx.errors import UserError
from phalanx.store.database import Tx
from phalanx.store.experiments.queries import condition, matches, sort_key
from phalanx.store.jobs import StoredJob, load_brief
from phalanx.store.schema.listings import job_data, job_listing
from phalanx.store.schema.retention import job_marks
from phalanx.store.tables import job_labels

_HERE = job_listing.c
# Smaller than any value of the columns that may be missing.
_NOTHING = text("-1")
_LEAST = text("-1.7976931348623157e308")
_ARCHIVED = select(job_marks.c.job).where(job_marks.c.kind == "archived")
NUM = "num"
_WORDS = ("name", "project", "owner", "state", "reason", "cause", "framework", "kind", "pool")
_SORTED_WORDS = (*_WORDS, "slot_type", "image", "entry_point", "algorithm")
SORTS: dict[str, ColumnElement[Any]] = {
    **{name: _HERE[name] for name in (NUM, *_SORTED_WORDS)},
    **{name: _HERE[name] for name in ("priority", "num_slots", "num_nodes", "restarts")},
    "submitted_at": _HERE.submitted_at,
    "started_at": func.coalesce(_HERE.started_at, _NOTHING),
    "ended_at": func.coalesce(_HERE.ended_at, _NOTHING),
    "queue_s": func.coalesce(_HERE.queue_s, _NOTHING),
    "duration_s": func.coalesce(_HERE.duration_s, _NOTHING),
    "slot_seconds": _HERE.slot_seconds,
    "usd": _HERE.nano_usd,
    "metric": func.coalesce(_HERE.best, _LEAST),
    "study": func.coalesce(_HERE.study, _NOTHING),
}
"""What listings can be sorted by. A job without the value counts as the smallest."""
RANGES: dict[str, ColumnElement[Any]] = {
    "priority": _HERE.priority,
    "slots": _HERE.num_slots,
    "nodes": _HERE.num_nodes,
    "restarts": _HERE.restarts,
    "submitted": _HERE.submitted_at,
    "started": _HERE.started_at,
    "ended": _HERE.ended_at,
    "queue_s": _HERE.queue_s,
    "duration_s": _HERE.duration_s,
    "slot_seconds": _HERE.slot_seconds,
    "usd": _HERE.nano_usd,
    "metric_value": _HERE.best,
}
"""What listings can be limited to a range of; a job without the value is in none."""
_EQUAL = (
    *("project", "owner", "reason", "cause", "framework", "kind", "pool", "slot_type", "metric"),
    *("study", "array", "algorithm"),
)
_PATTERNS = ("name", "image", "entry_point")


@dataclass(frozen=True, slots=True)
class ListingRange:
    """Values of a key of `RANGES`: times in µs UTC, durations in s, money in 1e-9 US dollars."""

    of: str
    least: float | None = None  # this one or higher
    end: float | None = None  # before this one
    most: float | None = None  # this one or lower


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFilter:
    """A filter of jobs; an empty field matches every job. All fields that are given must match."""

    states: tuple[JobState, ...] = ()  # any of these
    project: str | None = None  # its name
    owner: str | None = None  # submitting user
    name: str | None = None  # `*` stands for any text
    labels: tuple[tuple[str, str], ...] = ()  # all of these
    projects: tuple[str, ...] | None = None  # those that the caller may see; None: all
    framework: str | None = None  # name of the adapter
    pool: str | None = None  # of the newest placement
    slot_type: str | None = None  # accelerator that the spec asks for
    image: str | None = None  # of the container; `*` stands for any text
    entry_point: str | None = None  # what its ranks run; `*` stands for any text
    data: str | None = None  # path or URL of one of its inputs; `*` stands for any text
    algorithm: str | None = None  # search method of the study
    kind: str | None = None  # `run` or `submit`
    reason: str | None = None  # of the state, or why a queued job waits
    cause: str | None = None  # of the last failure
    metric: str | None = None  # name of the metric that the job is compared by
    study: int | None = None  # jobs of the trials of this study
    trials: bool | None = None  # whether the job is of a trial
    array: int | None = None  # number of the first job of an array
    ranges: tuple[ListingRange, ...] = ()  # all of these
    archived: bool | None = None  # archived ones alone, or none of them; None: both
    terms: tuple[Term, ...] = ()  # of a query; all of these


@dataclass(frozen=True, slots=True)
class Order:
    """The order of a listing: a key of `SORTS`, a metric or a parameter, as `metric:val_acc`.

    Jobs that are equal in it go by their number.
    """

    by: str = NUM
    descending: bool = True

    @classmethod
    def parse(cls, wanted: str) -> Order:
        """From `name` or `-submitted_at`; `-` means the largest first. Raises UserError."""
        by = wanted.removeprefix("-")
        if by not in SORTS and sort_key(by) is None:
            said = f"write one of {', '.join(SORTS)}, metric:NAME or param:NAME"
            raise UserError(f"jobs cannot be sorted by {by!r}", said)
        return cls(by, wanted.startswith("-"))

    @property
    def key(self) -> ColumnElement[Any]:
        """What it sorts by. Raises UserError."""
        found = SORTS[self.by] if self.by in SORTS else sort_key(self.by)
        if found is None:
            raise UserError(f"jobs cannot be sorted by {self.by!r}")
        return found

    def __str__(self) -> str:
        """The text that `parse` reads."""
        return f"-{self.by}" if self.descending else self.by


NEWEST = Order()


@dataclass(frozen=True, slots=True)
class ListedFacts:
    """What a listing knows of a job beside its row and its facts."""

    image: str  # of the container; empty: none
    num_nodes: int  # of the gang at full size
    cause: str  # of the last failure; empty: none
    queue_s: float | None  # in the queue before all placements; None: none so far
    duration_s: float | None  # from the first start to the end; None: not both are known
    nano_usd: int  # 1e-9 US dollars for attempts that are over
    metric: str  # that the job is compared by; empty: none
    best: float | None  # the best value of `metric`; None: none so far
    entry_point: str  # script, module or program that the leading ranks run
    algorithm: str  # search method of its study; empty: it is no trial


_SOME = select(_HERE.num, *(_HERE[one.name] for one in fields(ListedFacts))).where(
    _HERE.num.in_(bindparam("_nums", expanding=True))
)


@dataclass(frozen=True, slots=True)
class ListedJob:
    """A job, and what a listing knows beside it."""

    stored: StoredJob
    beside: ListedFacts

    @property
    def num(self) -> int:
        """The number of the job."""
        return self.stored.job.num


@dataclass(frozen=True, slots=True)
class JobsPage:
    """Some jobs, and the cursor of the next page; None: there is none."""

    jobs: list[ListedJob]
    cursor: str | None


def page(
    tx: Tx, wanted: JobFilter, *, order: Order = NEWEST, cursor: str | None = None, limit: int
) -> JobsPage:
    """One page of jobs behind a cursor.

    Jobs that are added meanwhile appear on no page that lies before the cursor, and none appears twice,
    unless the value that it is sorted by changes. Raises UserError for a cursor of another order.
    """
    key = order.key
    dialect = tx.conn.dialect.name
    query = _filtered(select(_HERE.num, key.label("sorted_by")), wanted, dialect)
    if cursor is not None:
        query = query.where(_behind(order, key, _read_cursor(cursor, order)))
    ends = [_HERE.num] if order.by == NUM else [key, _HERE.num]
    query = query.order_by(*(one.desc() if order.descending else one.asc() for one in ends))
    if replace(wanted, archived=None) != JobFilter():
        # Without statistics SQLite walks the index of the order, and reads a row for each job in it.
        query = query.with_hint(job_listing, "NOT INDEXED", "sqlite")
    rows = tx.conn.execute(query.limit(limit + 1)).all()
    shown = rows[:limit]
    nums = [row.num for row in shown]
    found = {one.job.num: one for one in load_brief(tx, nums)}
    known = beside(tx, nums)
    more = None
    if len(rows) > limit:
        last = shown[-1]
        more = _write_cursor(order, [last.num] if order.by == NUM else [last.sorted_by, last.num])
    return JobsPage([ListedJob(found[num], known[num]) for num in nums if num in found], more)


def beside(tx: Tx, nums: Sequence[int]) -> dict[int, ListedFacts]:
    """What a listing shows of some jobs beside their rows, of those that exist; at most 1000."""
    return {num: ListedFacts(*rest) for num, *rest in tx.conn.execute(_SOME, {"_nums": nums})}


def _behind(order: Order, key: ColumnElement[Any], place: Sequence[Any]) -> ColumnElement[bool]:
    here: Any = _HERE.num if order.by == NUM else tuple_(key, _HERE.num)
    there: Any = place[0] if order.by == NUM else tuple_(*place)
    return here < there if order.descending else here > there  # type: ignore[no-any-return]


def _filtered(query: Select[Any], wanted: JobFilter, dialect: str) -> Select[Any]:
    terms: list[ColumnElement[bool]] = []
    if wanted.states:
        terms.append(_HERE.state.in_([state.value for state in wanted.states]))
    if wanted.projects is not None:
        terms.append(_HERE.project.in_(wanted.projects))
    for name in _PATTERNS:
        if getattr(wanted, name) is not None:
            terms.append(matches(_HERE[name], getattr(wanted, name), dialect))
    if wanted.data is not None:
        found = matches(job_data.c.path, wanted.data, dialect)
        terms.append(_HERE.num.in_(select(job_data.c.job).where(found)))
    for name in _EQUAL:
        value = getattr(wanted, name)
        if value is not None:
            same = _HERE[name] == value
            terms.append(or_(same, _HERE.pending == value) if name == "reason" else same)
    if wanted.trials is not None:
        terms.append(_HERE.study.is_not(None) if wanted.trials else _HERE.study.is_(None))
    terms += [term for one in wanted.ranges for term in _within(one)]
    if wanted.archived is not None:
        marked = _HERE.num.in_(_ARCHIVED)
        terms.append(marked if wanted.archived else ~marked)
    terms += [condition(one, dialect) for one in wanted.terms]
    for name, value in wanted.labels:
        same = and_(job_labels.c.name == name, job_labels.c.value == value)
        terms.append(_HERE.num.in_(select(job_labels.c.job).where(same)))
    return query.where(*terms)


def _within(one: ListingRange) -> list[ColumnElement[bool]]:
    column, terms = RANGES[one.of], []
    if one.least is not None:
        terms.append(column >= one.least)
    if one.end is not None:
        terms.append(column < one.end)
    if one.most is not None:
        terms.append(column <= one.most)
    return terms


def _write_cursor(order: Order, place: Sequence[Any]) -> str:
    text_ = json.dumps([str(order), *place], separators=(",", ":"))
    return base64.urlsafe_b64encode(text_.encode()).decode().rstrip("=")


def _read_cursor(cursor: str, order: Order) -> list[Any]:
    """The place of a cursor: the value that it is sorted by, and the number. Raises UserError."""
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        body = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
        said, *place = body
    except (binascii.Error, ValueError, TypeError):
        raise UserError("this is not a cursor", "send the `cursor` of a page as it is") from None
    if said != str(order):
        raise UserError(
            f"the cursor is of a listing by {str(said)[:40]!r}, not by {str(order)!r}",
            "begin again without a cursor",
        )
    number = isinstance(place[-1], int) and not isinstance(place[-1], bool) if place else False
    kind: Any = str if order.by in _SORTED_WORDS else (int, float)
    right = len(place) == 1 if order.by == NUM else len(place) == 2 and isinstance(place[0], kind)
    if not number or not right or not abs(place[-1]) < 2**63:
        raise UserError("this is not a cursor", "send the `cursor` of a page as it is")
    return [*place]
