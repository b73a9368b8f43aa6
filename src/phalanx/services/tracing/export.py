"""The step that sends spans of jobs to an OpenTelemetry endpoint.

It reads the feed of events from a stored place, and stores the place after the endpoint has answered. Spans
are sent at least once, with the same identifiers each time. What cannot be sent for long is dropped and
counted; nothing else waits for it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from phalanx.core.tracing import otlp
from phalanx.core.tracing.spans import JobSpans, Span, TraceTimes
from phalanx.errors import NotFound
from phalanx.services.platform import Platform
from phalanx.services.tracing import reading
from phalanx.store import events
from phalanx.store.database import Tx
from phalanx.store.events import StoredEvent

_LOG = logging.getLogger(__name__)
BATCH = 256
"""Events that are read at a time."""
PLACE = "traces_feed"
"""The counter with the number of the last event in the feed that spans were sent for."""
MOST_JOBS = 1000
"""Jobs of which the open spans stay in memory; those of others are made of their events again."""
SpanSender = Callable[[Mapping[str, Any]], int]
"""Sends a request of OTLP; returns the spans that were refused. Raises PlatformError: try again."""


@dataclass(frozen=True, slots=True)
class _Batch:
    """Spans that ended with some events, and the place in the feed behind those."""

    spans: list[Span]
    place: int
    newest: int  # time of the newest event, µs UTC
    is_full: bool  # more events may follow


@dataclass(slots=True)
class ExportProgress:
    """What the leader remembers between steps; all of it can be made again."""

    jobs: dict[int, JobSpans] = field(default_factory=dict)  # the job used last comes last
    waiting: _Batch | None = None  # not sent yet


def export_step(
    platform: Platform, send: SpanSender, give_up_s: float, progress: ExportProgress, now: int
) -> int | None:
    """Send the spans of the next events; returns when to go on. Raises PlatformError for the endpoint.

    Spans of events that are older than `give_up_s` are dropped.
    """
    try:
        batch = progress.waiting or platform.store.view(lambda tx: _next(tx, progress))
    except Exception:
        progress.jobs.clear()  # some may have taken events that are read again
        raise
    if batch is None:
        platform.store.transact(_begin)
        return now
    progress.waiting = batch
    dropped = len(batch.spans)
    if batch.spans and now - batch.newest <= give_up_s * 1e6:
        platform.may_act()
        dropped = min(dropped, send(otlp.request(batch.spans)))
    if dropped:
        _LOG.warning("%d spans of jobs are dropped", dropped)
    if batch.newest:
        platform.store.transact(lambda tx: _sent(tx, batch, dropped))
    progress.waiting = None
    return now if batch.is_full else None


def _begin(tx: Tx) -> None:
    """Begin with the events that follow: what ended before is not sent."""
    events.save_place(tx, PLACE, events.last_feed(tx))


def _sent(tx: Tx, batch: _Batch, dropped: int) -> None:
    events.save_place(tx, PLACE, batch.place)
    if sent := len(batch.spans) - dropped:
        tx.touched.totals.add("phalanx_trace_spans", "sent", by=sent)
    if dropped:
        tx.touched.totals.add("phalanx_trace_spans", "dropped", by=dropped)


def _next(tx: Tx, progress: ExportProgress) -> _Batch | None:
    """The spans of the next events; None: no place is stored yet."""
    place = events.place_of(tx, PLACE)
    if place is None:
        return None
    found = events.feed(tx, after=place, limit=BATCH)
    by_job: dict[int, list[StoredEvent]] = {}
    for one in found:
        by_job.setdefault(one.job, []).append(one)
    spans: list[Span] = []
    for num, fresh in by_job.items():
        spans += _spans_of(tx, progress, num, fresh)
    newest = max((one.at for one in found), default=0)
    return _Batch(spans, found[-1].feed if found else place, newest, len(found) == BATCH)


def _spans_of(tx: Tx, progress: ExportProgress, num: int, fresh: list[StoredEvent]) -> list[Span]:
    """The spans that ended with new events of a job; of a deleted job none."""
    building = progress.jobs.pop(num, None)
    if building is None:
        try:
            building = reading.begin(tx, num)
        except NotFound:
            return []
        for one in reading.stored_events(tx, num, fresh[0].seq):
            # Without times: a first step is rather sent twice than left out.
            building.add(one, TraceTimes())
    paths = [str(one.data["path"]) for one in fresh if one.kind == "checkpoint_committed"]
    times = reading.times_of(tx, num, paths)
    spans = [span for one in fresh for span in building.add(one, times)]
    if not building.is_over:
        progress.jobs[num] = building
        while len(progress.jobs) > MOST_JOBS:
            del progress.jobs[next(iter(progress.jobs))]
    return spans
