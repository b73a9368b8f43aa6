"""Append and read the events of studies, numbered in each study; a study is rebuilt from them alone.

A kind is the event class's name in snake case. `STUDY_UPCASTERS` convert events of earlier releases.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select

from phalanx.core.codec import decode, encode
from phalanx.core.search.events import STUDY_EVENT_TYPES, StudyEvent
from phalanx.errors import StoreCorrupt
from phalanx.kit.text import study_label
from phalanx.store.database import Tx, columns_of, read
from phalanx.store.events import kind_of
from phalanx.store.tables import study_events

STUDY_EVENT_VERSION = 1
_INSERT = study_events.insert()
STUDY_EVENT_KINDS: Mapping[str, type[StudyEvent]] = {
    kind_of(kind): kind for kind in STUDY_EVENT_TYPES
}
# (kind, version) → the data of the next version.
STUDY_UPCASTERS: dict[tuple[str, int], Callable[[dict[str, Any]], dict[str, Any]]] = {}


@dataclass(frozen=True, slots=True)
class NewStudyEvent:
    """An event to append; the store adds its version."""

    study: int  # number of the study
    seq: int  # number in the study, from 1
    at: int  # µs UTC
    kind: str  # event class in snake case
    trial: int | None  # None: not about one trial
    actor: str  # user or service that caused it
    reason: dict[str, Any]  # the study's state and reason after it
    data: dict[str, Any]  # of `data_of`


@dataclass(frozen=True, slots=True)
class StoredStudyEvent(NewStudyEvent):
    """One event of a study as it is stored."""

    v: int  # version of `data`


def data_of(event: StudyEvent) -> dict[str, Any]:
    """The event as plain data."""
    plain: dict[str, Any] = encode(event)
    return plain


def append(tx: Tx, fresh: Sequence[NewStudyEvent]) -> None:
    """Add events, of one study or many."""
    if fresh:
        rows = [{"v": STUDY_EVENT_VERSION, **columns_of(one)} for one in fresh]
        tx.conn.execute(_INSERT, rows)


def of_study(
    tx: Tx, num: int, *, after: int = 0, limit: int = 1000, trial: int | None = None
) -> list[StoredStudyEvent]:
    """A study's events behind `after`, in order; of one trial only, if it is named."""
    here = study_events.c
    query = select(study_events).where(here.study == num, here.seq > after)
    if trial is not None:
        query = query.where(here.trial == trial)
    return read(tx, StoredStudyEvent, query.order_by(here.seq).limit(limit))


def study_log(tx: Tx, num: int, *, up_to: int) -> Iterator[tuple[StudyEvent, int]]:
    """What `core.search.machine.rebuild` folds: a study's first `up_to` events with their times."""
    here = study_events.c
    query = (
        select(here.study, here.seq, here.kind, here.v, here.data, here.at)
        .where(here.study == num, here.seq <= up_to)
        .order_by(here.seq)
    )
    yield from readable(tx.conn.execute(query))


def readable(rows: Iterable[Any]) -> Iterator[tuple[StudyEvent, int]]:
    """The events of these rows, upcast to this release. Raises StoreCorrupt for an unknown kind."""
    for row in rows:
        kind = STUDY_EVENT_KINDS.get(row.kind)
        if kind is None:
            said = f"{study_label(row.study)}, event {row.seq}: unknown kind {row.kind!r}"
            raise StoreCorrupt(said)
        data, version = row.data, row.v
        while version < STUDY_EVENT_VERSION:
            data, version = STUDY_UPCASTERS[row.kind, version](data), version + 1
        yield decode(kind, data), row.at
