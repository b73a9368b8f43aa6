"""Append and read job events, numbered per job and in one global feed.

A kind is the event class's name in snake case. Notes (`warned`, `restored`, …) are events that do
not change the job's state: `rebuild` skips them. `UPCASTERS` convert old versions of an event.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import bindparam, func, select, tuple_

from phalanx.core.codec import decode, encode
from phalanx.core.jobs.events import EVENT_TYPES, JobEvent
from phalanx.errors import StoreCorrupt
from phalanx.store.database import Tx, columns_of, read, take_numbers
from phalanx.store.engines.many_rows import run_many
from phalanx.store.tables import counters, events, jobs

EVENT_VERSION = 1
NOTES = frozenset(
    {
        *("warned", "restored", "stacks", "guarded", "profiled", "save_begun", "cloned"),
        *("templated", "archived", "unarchived", "pinned", "unpinned", "expired"),
        *("software_changed", "inputs_changed", "resume_chosen"),
        *("residency_left", "residency_restored", "seeded"),
    }
)
_BATCH = 500
_INSERT = events.insert()
_LAST_FEED = select(func.max(events.c.feed))
_JOBS_BEHIND = select(events.c.job).where(events.c.feed > bindparam("_after")).distinct()


def kind_of(event_type: type) -> str:
    """`RanksStarted` as `ranks_started`."""
    return _in_snake_case(event_type.__name__)


@functools.cache
def _in_snake_case(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


KINDS: Mapping[str, type[JobEvent]] = {kind_of(kind): kind for kind in EVENT_TYPES}
# (kind, version) → the data of the next version.
UPCASTERS: dict[tuple[str, int], Callable[[dict[str, Any]], dict[str, Any]]] = {}


@dataclass(frozen=True, slots=True)
class NewEvent:
    """An event to append; the store adds the feed number and the version."""

    job: int  # job number
    seq: int  # number in the job, from 1
    at: int  # µs UTC
    kind: str  # event class in snake case
    attempt: int | None  # None: not about an attempt
    generation: int | None  # None: not about a generation
    actor: str  # user or service that caused it
    reason: dict[str, Any]  # the job's state and reason after it
    data: dict[str, Any]  # the encoded event


@dataclass(frozen=True, slots=True)
class StoredEvent(NewEvent):
    """One event of a job as it is stored."""

    feed: int  # number in the global feed
    v: int  # version of `data`

    @property
    def state(self) -> str:
        """The state of the job after the event."""
        return str(self.reason.get("state", ""))

    @property
    def reason_code(self) -> str:
        """The code of the job's reason after the event."""
        return str(self.reason.get("code", ""))

    @property
    def restarts(self) -> int | None:
        """The restarts of the job after the event; None where an earlier release stored it."""
        known = self.reason.get("restarts")
        return known if isinstance(known, int) else None

    @property
    def reason_message(self) -> str:
        """The text of the job's reason after the event."""
        return str(self.reason.get("message", ""))


def append(tx: Tx, fresh: Sequence[NewEvent]) -> None:
    """Add events, of one job or many, in this order."""
    if not fresh:
        return
    first = take_numbers(tx, "feed", len(fresh))
    rows = [
        {"feed": first + index, "v": EVENT_VERSION, **columns_of(one)}
        for index, one in enumerate(fresh)
    ]
    run_many(tx.conn, _INSERT, rows)
    before, last = tx.touched.feed, first + len(fresh) - 1
    tx.touched.feed = (first if before is None else before[0], last)


def data_of(event: JobEvent) -> dict[str, Any]:
    """The event as plain data."""
    plain: dict[str, Any] = encode(event)
    return plain


def of_job(
    tx: Tx, num: int, *, after: int = 0, limit: int = 1000, kinds: Sequence[str] = ()
) -> list[StoredEvent]:
    """A job's events behind `after`, in order; of some kinds only, where `kinds` names any."""
    query = (
        select(events)
        .where(events.c.job == num, events.c.seq > after)
        .order_by(events.c.seq)
        .limit(limit)
    )
    if kinds:
        query = query.where(events.c.kind.in_(list(kinds)))
    return read(tx, StoredEvent, query)


def newest(tx: Tx, nums: Sequence[int], kinds: Sequence[str]) -> dict[int, StoredEvent]:
    """The newest event of these kinds of each job, by its number; jobs without one are left out."""
    found: dict[int, StoredEvent] = {}
    for start in range(0, len(nums), _BATCH):
        some = nums[start : start + _BATCH]
        last = select(events.c.job, func.max(events.c.seq))
        last = last.where(events.c.job.in_(some), events.c.kind.in_(kinds)).group_by(events.c.job)
        query = select(events).where(tuple_(events.c.job, events.c.seq).in_(last))
        found |= {one.job: one for one in read(tx, StoredEvent, query)}
    return found


def feed(tx: Tx, *, after: int = 0, limit: int = 1000) -> list[StoredEvent]:
    """All jobs' events behind a feed number, in the order of their commits."""
    query = select(events).where(events.c.feed > after).order_by(events.c.feed).limit(limit)
    return read(tx, StoredEvent, query)


@dataclass(frozen=True, slots=True)
class FeedFilter:
    """Which events of the feed are wanted; empty `jobs` or `kinds`, and `projects` None: all."""

    projects: tuple[str, ...] | None = None
    jobs: tuple[int, ...] = ()
    kinds: tuple[str, ...] = ()


def filtered_feed(
    tx: Tx, wanted: FeedFilter, *, after: int = 0, limit: int = 1000
) -> list[StoredEvent]:
    """Events behind a feed number that a filter names, in the order of their commits."""
    query = select(events).where(events.c.feed > after)
    if wanted.projects is not None:
        query = query.join(jobs, jobs.c.num == events.c.job)
        query = query.where(jobs.c.project.in_(wanted.projects))
    if wanted.jobs:
        query = query.where(events.c.job.in_(wanted.jobs))
    if wanted.kinds:
        query = query.where(events.c.kind.in_(wanted.kinds))
    return read(tx, StoredEvent, query.order_by(events.c.feed).limit(limit))


def jobs_behind(tx: Tx, after: int) -> list[int]:
    """The jobs that events behind a feed number are about."""
    return [int(num) for num in tx.conn.execute(_JOBS_BEHIND, {"_after": after}).scalars()]


def last_feed(tx: Tx) -> int:
    """The number of the newest event of any job."""
    return int(tx.conn.execute(_LAST_FEED).scalar() or 0)


def place_of(tx: Tx, reader: str) -> int | None:
    """The number in the feed that a reader has come to; None: it has not begun."""
    found = tx.conn.execute(select(counters.c.value).where(counters.c.name == reader)).scalar()
    return None if found is None else int(found)


def save_place(tx: Tx, reader: str, feed: int) -> None:
    """Set the same."""
    here = counters.update().where(counters.c.name == reader)
    if tx.conn.execute(here.values(value=feed)).rowcount == 0:
        tx.conn.execute(counters.insert(), {"name": reader, "value": feed})


def machine_log(tx: Tx, num: int) -> list[tuple[JobEvent, int]]:
    """What `core.jobs.rebuild` folds: every machine event of a job with its time."""
    query = select(events).where(events.c.job == num).order_by(events.c.seq)
    return list(replayable(read(tx, StoredEvent, query)))


def replayable(rows: Iterable[StoredEvent]) -> Iterable[tuple[JobEvent, int]]:
    """The machine events among `rows`, upcast to this release."""
    for row in rows:
        if row.kind in NOTES:
            continue
        kind = KINDS.get(row.kind)
        if kind is None:
            raise StoreCorrupt(f"job {row.job}, event {row.seq}: unknown kind {row.kind!r}")
        data, version = row.data, row.v
        while version < EVENT_VERSION:
            data, version = UPCASTERS[row.kind, version](data), version + 1
        yield decode(kind, data), row.at
