"""Read the traces of a job: its stored events, and the times that are stored beside them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from phalanx.core.tracing.identity import JobTrace
from phalanx.core.tracing.spans import JobSpans, SaveTime, Span, TraceTimes
from phalanx.errors import NotFound
from phalanx.kit.text import job_label
from phalanx.schemas.api.health.traces import SpanView, TraceView
from phalanx.services.platform import Platform
from phalanx.store import events, jobs, lineage
from phalanx.store.database import Tx
from phalanx.store.events import StoredEvent

_PAGE = 2000
MOST_EVENTS = 200_000
"""Events of one job that a trace is made of; the newest ones of a job with more are left out."""


@dataclass(frozen=True, slots=True)
class _Spans:
    """The spans of a job in the order in which they began. `is_whole`: no event was left out."""

    trace: JobTrace
    spans: list[Span]
    is_whole: bool = True


def read_trace(platform: Platform, num: int, limit: int) -> TraceView:
    """Read the spans of a job, at most `limit`. Raises NotFound."""
    found = platform.store.view(lambda tx: _read(tx, num))
    kept = newest(found.spans, limit)
    return TraceView(
        job=num,
        trace_id=found.trace.root.trace,
        spans=[SpanView.of_span(one) for one in kept],
        truncated=len(kept) < len(found.spans) or not found.is_whole,
    )


def newest(spans: list[Span], limit: int) -> list[Span]:
    """About `limit` spans at most: the oldest are left out, except those that others hang under."""
    above = {one.parent for one in spans} | {one.link.span for one in spans if one.link is not None}
    leaves = [one.context.span for one in spans if one.context.span not in above]
    surplus = set(leaves[: max(0, len(spans) - limit)])
    return [one for one in spans if one.context.span not in surplus]


def begin(tx: Tx, num: int) -> JobSpans:
    """The spans of a job, with no event added. Raises NotFound."""
    known = jobs.identity_of(tx, num)
    if known is None:
        raise NotFound(f"there is no job {job_label(num)}", "`phalanx ps` lists the jobs")
    project, uid = known
    return JobSpans(JobTrace(num, uid), job_label(num), project)


def stored_events(tx: Tx, num: int, before: int) -> Iterator[StoredEvent]:
    """The events of a job with smaller sequence numbers than `before`, in order."""
    after = 0
    while after < before - 1:
        page = events.of_job(tx, num, after=after, limit=_PAGE)
        for one in page:
            if one.seq >= before:
                return
            yield one
        if len(page) < _PAGE:
            return
        after = page[-1].seq


def times_of(tx: Tx, num: int, paths: Iterable[str] | None = None) -> TraceTimes:
    """First steps and saves of a job; with `paths`, only the saves of these checkpoints."""
    first_steps = {
        (one.attempt, one.generation): one.first_step_at
        for one in lineage.generations_of(tx, num)
        if one.first_step_at is not None
    }
    saves = {
        path: SaveTime(at, took_s or 0.0) for path, at, took_s in lineage.saves_of(tx, num, paths)
    }
    return TraceTimes(first_steps, saves)


def _read(tx: Tx, num: int) -> _Spans:
    building, times = begin(tx, num), times_of(tx, num)
    spans: list[Span] = []
    last = 0
    for one in stored_events(tx, num, MOST_EVENTS + 1):
        spans += building.add(one, times)
        last = one.seq
    spans += building.open_spans()
    spans.sort(key=lambda one: one.begin)  # stable: what contains others was begun before them
    return _Spans(building.trace, spans, last < MOST_EVENTS)
