"""Pages of jobs: filters, orders, and cursors."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, func, select, tuple_
from sqlalchemy.sql import text

from phalanx.core.jobs.model import JobState
from phalanx.errors import UserError
from phalanx.store.database import Tx
from phalanx.store.jobs import StoredJob, load_many
from phalanx.store.tables import job_labels, jobs

_INDEX = "ix_jobs_listing"
_NOTHING = text("0")
NUM = "num"
SORTS: dict[str, ColumnElement[Any]] = {
    NUM: jobs.c.num,
    "name": jobs.c.name,
    "project": jobs.c.project,
    "owner": jobs.c.owner,
    "state": jobs.c.state,
    "framework": jobs.c.framework,
    "pool": func.coalesce(jobs.c.pool, text("''")),
    "slot_type": jobs.c.slot_type,
    "priority": jobs.c.priority,
    "num_slots": jobs.c.num_slots,
    "restarts": jobs.c.restarts,
    "submitted_at": jobs.c.submitted_at,
    "started_at": func.coalesce(jobs.c.started_at, _NOTHING),
    "ended_at": func.coalesce(jobs.c.ended_at, _NOTHING),
    "slot_seconds": jobs.c.attained_slot_s,
}
"""What listings can be sorted by. A job that has not started or ended counts as the earliest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFilter:
    """A filter of jobs; an empty field matches every job. Times are µs UTC, ends are left out."""

    states: tuple[JobState, ...] = ()  # any of these
    project: str | None = None  # its name
    owner: str | None = None  # submitting user
    name: str | None = None  # `*` stands for any text
    labels: tuple[tuple[str, str], ...] = ()  # all of these
    projects: tuple[str, ...] | None = None  # those that the caller may see; None: all
    framework: str | None = None  # name of the adapter
    pool: str | None = None  # of the newest placement
    slot_type: str | None = None  # accelerator that the spec asks for
    kind: str | None = None  # `run` or `submit`
    study: int | None = None  # jobs of the trials of this study
    array: int | None = None  # number of the first job of an array
    min_priority: int | None = None  # this one or higher
    min_slots: int | None = None  # so many or more
    submitted_from: int | None = None  # at this time or later
    submitted_to: int | None = None  # before this time
    ended_from: int | None = None  # at this time or later
    ended_to: int | None = None  # before this time


@dataclass(frozen=True, slots=True)
class Order:
    """The order of a listing: a key of `SORTS`; jobs that are equal in it go by their number."""

    by: str = NUM
    descending: bool = True

    @classmethod
    def parse(cls, wanted: str) -> Order:
        """From `name` or `-submitted_at`; `-` means the largest first. Raises UserError."""
        by = wanted.removeprefix("-")
        if by not in SORTS:
            raise UserError(f"jobs cannot be sorted by {by!r}", f"write one of {', '.join(SORTS)}")
        return cls(by, wanted.startswith("-"))

    def __str__(self) -> str:
        """The text that `parse` reads."""
        return f"-{self.by}" if self.descending else self.by


NEWEST = Order()


@dataclass(frozen=True, slots=True)
class JobsPage:
    """Some jobs, and the cursor of the next page; None: there is none."""

    jobs: list[StoredJob]
    cursor: str | None


def page(
    tx: Tx, wanted: JobFilter, *, order: Order = NEWEST, cursor: str | None = None, limit: int
) -> JobsPage:
    """One page of jobs behind a cursor.

    Jobs that are added meanwhile appear on no page that lies before the cursor, and none appears twice,
    unless the value that it is sorted by changes. Raises UserError for a cursor of another order.
    """
    key = SORTS[order.by]
    columns = [jobs.c.num] if order.by == NUM else [jobs.c.num, key.label("sorted_by")]
    query = _filtered(select(*columns), wanted)
    if cursor is not None:
        query = query.where(_behind(order, key, _read_cursor(cursor, order)))
    ends = [jobs.c.num] if order.by == NUM else [key, jobs.c.num]
    query = query.order_by(*(one.desc() if order.descending else one.asc() for one in ends))
    query = query.with_hint(jobs, f"INDEXED BY {_INDEX}", "sqlite")
    rows = tx.conn.execute(query.limit(limit + 1)).all()
    shown = rows[:limit]
    found = {one.job.num: one for one in load_many(tx, [row.num for row in shown])}
    more = None
    if len(rows) > limit:
        more = _write_cursor(order, [row for row in shown[-1]][::-1])
    return JobsPage([found[row.num] for row in shown if row.num in found], more)


def _behind(order: Order, key: ColumnElement[Any], place: Sequence[Any]) -> ColumnElement[bool]:
    here: Any = jobs.c.num if order.by == NUM else tuple_(key, jobs.c.num)
    there: Any = place[0] if order.by == NUM else tuple_(*place)
    return here < there if order.descending else here > there  # type: ignore[no-any-return]


def _filtered(query: Select[Any], wanted: JobFilter) -> Select[Any]:
    there = jobs.c
    terms: list[ColumnElement[bool]] = []
    if wanted.states:
        terms.append(there.state.in_([state.value for state in wanted.states]))
    if wanted.projects is not None:
        terms.append(there.project.in_(wanted.projects))
    if wanted.name is not None:
        terms.append(_matches(there.name, wanted.name))
    for name in ("project", "owner", "framework", "pool", "slot_type", "kind", "study", "array"):
        if getattr(wanted, name) is not None:
            terms.append(there[name] == getattr(wanted, name))
    for column, least, end in (
        (there.priority, wanted.min_priority, None),
        (there.num_slots, wanted.min_slots, None),
        (there.submitted_at, wanted.submitted_from, wanted.submitted_to),
        (there.ended_at, wanted.ended_from, wanted.ended_to),
    ):
        if least is not None:
            terms.append(column >= least)
        if end is not None:
            terms.append(column < end)
    for name, value in wanted.labels:
        same = and_(job_labels.c.name == name, job_labels.c.value == value)
        terms.append(there.num.in_(select(job_labels.c.job).where(same)))
    return query.where(*terms)


def _matches(column: Any, pattern: str) -> ColumnElement[bool]:
    if "*" not in pattern:
        return column == pattern  # type: ignore[no-any-return]
    plain = pattern.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return column.like(plain.replace("*", "%"), escape="\\")  # type: ignore[no-any-return]


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
    texts = order.by in ("name", "project", "owner", "state", "framework", "pool", "slot_type")
    kind: Any = str if texts else (int, float)
    right = len(place) == 1 if order.by == NUM else len(place) == 2 and isinstance(place[0], kind)
    if not number or not right or not abs(place[-1]) < 2**63:
        raise UserError("this is not a cursor", "send the `cursor` of a page as it is")
    return [*place]
