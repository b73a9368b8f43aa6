"""How far each sender is in the output of each job, and what became of its last tries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from sqlalchemy import and_, func, select
from sqlalchemy.sql.elements import ColumnElement

from phalanx.core.logs.segments import StreamKey
from phalanx.store.database import Tx, columns_of, read
from phalanx.store.schema.logs import log_positions, log_senders
from phalanx.store.tables import counters, jobs, log_volumes

_HERE, _PLACE, _VOLUME = log_senders.c, log_positions.c, log_volumes.c


@dataclass(frozen=True, slots=True)
class StoredSender:
    """One sender."""

    name: str  # in the settings
    begin_id: int  # jobs with output behind this segment are sent
    sent_lines: int = 0  # that the endpoint has taken, each time they were sent
    sent_bytes: int = 0  # of output in these lines
    refused_lines: int = 0  # that the endpoint does not take
    tries: int = 0  # that failed since the last success
    not_before: int = 0  # of the next try, µs UTC
    oldest_at: int | None = None  # arrival of the oldest line that waits, µs UTC; None: none does
    sent_at: int | None = None  # of the last success, µs UTC
    error: str = ""  # of the last try; empty: none


@dataclass(frozen=True, slots=True)
class LogPosition:
    """How far a sender is in the output of a job: behind `sent_id`, except for lines that have not ended.

    `opened` are the offsets at which these begin.
    """

    job: int  # job number
    sent_id: int  # number of a segment
    opened: Mapping[StreamKey, int]


def known(tx: Tx, name: str) -> StoredSender | None:
    """A sender; None: it has not been set up."""
    found = read(tx, StoredSender, select(log_senders).where(_HERE.name == name))
    return found[0] if found else None


def set_up(tx: Tx, name: str) -> StoredSender:
    """Add a sender, which begins with jobs that print from now on."""
    query = select(counters.c.value).where(counters.c.name == "log")
    fresh = StoredSender(name, int(tx.conn.execute(query).scalar() or 0))
    tx.conn.execute(log_senders.insert(), columns_of(fresh))
    return fresh


def put(tx: Tx, one: StoredSender) -> None:
    """Store what became of a try."""
    values = {each.name: getattr(one, each.name) for each in fields(one)}
    tx.conn.execute(log_senders.update().where(_HERE.name == one.name).values(**values))


def every(tx: Tx) -> dict[str, StoredSender]:
    """All senders that were ever set up, by name."""
    return {one.name: one for one in read(tx, StoredSender, select(log_senders))}


def waiting(
    tx: Tx, sender: StoredSender, projects: Sequence[str], *, low: int, limit: int
) -> list[LogPosition]:
    """Positions in jobs with output that was not sent, those that are farthest behind first.

    Jobs with no output behind segment `low` are known to have none. Of ended jobs, lines that have not
    ended count too: they never will.
    """
    sent = func.coalesce(_PLACE.sent_id, 0)
    query = select(_VOLUME.job, sent.label("sent_id"), _PLACE.opened)
    query = query.select_from(_JOINED.outerjoin(log_positions, _is_of(sender.name)))
    mine = _of_sender(sender, projects)
    behind = query.where(*mine, _VOLUME.newest_id > low, _VOLUME.newest_id > sent)
    open_lines = (_PLACE.sender == sender.name, _PLACE.num_opened > 0)
    ended = query.where(*mine, *open_lines, jobs.c.ended_at.is_not(None))
    rows = {
        int(job): LogPosition(
            int(job), int(sent_id), {(a, g, r, s): at for a, g, r, s, at in opened or ()}
        )
        for each in (behind, ended)
        for job, sent_id, opened in tx.conn.execute(each.order_by(sent, _VOLUME.job).limit(limit))
    }
    return sorted(rows.values(), key=lambda one: (one.sent_id, one.job))[:limit]


def lowest(tx: Tx, sender: StoredSender, projects: Sequence[str], *, low: int) -> int:
    """The segment up to which no job is behind: jobs with nothing newer are sent wholly."""
    behind = and_(_VOLUME.newest_id > low, _VOLUME.newest_id > func.coalesce(_PLACE.sent_id, 0))
    query = select(func.min(_VOLUME.newest_id)).select_from(
        _JOINED.outerjoin(log_positions, _is_of(sender.name))
    )
    first = tx.conn.execute(query.where(*_of_sender(sender, projects), behind)).scalar()
    if first is not None:
        return int(first) - 1
    return int(tx.conn.execute(select(func.max(_VOLUME.newest_id))).scalar() or 0)


_JOINED = log_volumes.join(jobs, jobs.c.num == _VOLUME.job)


def _is_of(name: str) -> ColumnElement[bool]:
    return and_(_PLACE.sender == name, _PLACE.job == _VOLUME.job)


def _of_sender(sender: StoredSender, projects: Sequence[str]) -> list[ColumnElement[bool]]:
    of_projects = [jobs.c.project.in_(list(projects))] if projects else []
    return [_VOLUME.newest_id > sender.begin_id, *of_projects]


def move(tx: Tx, name: str, places: Sequence[LogPosition]) -> None:
    """Store how far a sender is."""
    for one in places:
        opened = [[*key, at] for key, at in sorted(one.opened.items())]
        values = {"sent_id": one.sent_id, "opened": opened, "num_opened": len(opened)}
        mine = and_(_PLACE.sender == name, _PLACE.job == one.job)
        if not tx.conn.execute(log_positions.update().where(mine).values(**values)).rowcount:
            row = {"sender": name, "job": one.job, **values}
            tx.conn.execute(log_positions.insert(), row)
