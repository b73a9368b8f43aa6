"""Read what is new for live views, from a place on: events of jobs, and output and metrics of one job.

A place is text that a client keeps and sends back: the number of the last event in the feed of all jobs,
or, for one job, its last event, metric chunk and line of output.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from phalanx.errors import NotFound, UserError
from phalanx.schemas.api.jobs import EventView, FeedPage
from phalanx.schemas.api.telemetry import LivePoint
from phalanx.services.platform import Platform
from phalanx.services.queries.logs import LogQuery, read_logs
from phalanx.services.queries.views import event_page, event_view
from phalanx.store import events, jobs, telemetry
from phalanx.store.database import Tx
from phalanx.store.events import FeedFilter
from phalanx.store.metrics import arrivals

PAGE = 200
NEW = "now"
"""The place behind everything that is stored at present."""
Part = Literal["events", "metrics", "logs"]
_MAX_NUMBER = 2**63
# A browser sends the place in a header, which has 16 KiB with all others.
_MAX_PLACE = 8192


class FramedMessage(NamedTuple):
    """One message: `data` is JSON; `cursor` is the place behind it, empty where none can be kept."""

    kind: str
    data: str
    cursor: str


@dataclass(frozen=True, slots=True)
class LivePage:
    """Messages in order and the place behind them; `done`: nothing will follow."""

    messages: list[FramedMessage]
    place: str
    more: bool = False
    done: bool = False


def feed_page(platform: Platform, wanted: FeedFilter, place: str, limit: int = PAGE) -> FeedPage:
    """The next events of all jobs that `wanted` names. Raises UserError for what is no place."""

    def work(tx: Tx) -> FeedPage:
        last = events.last_feed(tx)
        after = last if place == NEW else _number(place)
        found = events.filtered_feed(tx, wanted, after=after, limit=limit)
        full = len(found) == limit
        cursor = found[-1].feed if full else max(after, last)
        return FeedPage(events=[event_view(one) for one in found], cursor=cursor, more=full)

    return platform.store.view(work)


def live_feed(platform: Platform, wanted: FeedFilter, place: str) -> LivePage:
    """The same as messages, each with the number of its event."""
    page = feed_page(platform, wanted, place)
    messages = [_event_message(one, str(one.feed)) for one in page.events]
    return LivePage(messages, str(page.cursor), more=page.more)


@dataclass(frozen=True, slots=True)
class JobPlace:
    """The place in the events, metrics and output of one job."""

    seq: int = 0
    chunk: int = 0
    logs: str = ""

    def __str__(self) -> str:
        return f"{self.seq}:{self.chunk}:{self.logs}"

    @staticmethod
    def parse(text: str) -> JobPlace:
        """The reverse of `str`. Raises UserError."""
        seq, _, rest = text.partition(":")
        chunk, _, logs = rest.partition(":")
        return JobPlace(_number(seq), _number(chunk), logs)


def live_job(platform: Platform, num: int, parts: Sequence[Part], place: str) -> LivePage:
    """What is new of one job: its events, the points of its metrics, and lines of output.

    Raises NotFound, and UserError for what is no place.
    """
    at = _job_now(platform, num) if place == NEW else JobPlace.parse(place or "0:0:")
    messages: list[FramedMessage] = []
    more, done = False, True
    if "metrics" in parts:
        chunks, more = platform.store.view(
            lambda tx: arrivals.chunks_of(tx, num, after=at.chunk, limit=PAGE)
        )
        for chunk in chunks:
            at = replace(at, chunk=chunk.id)
            messages.append(_message("metrics", _points(chunk), at))
    if "logs" in parts:
        page = read_logs(platform, num, LogQuery(), at.logs or None)
        at = replace(at, logs=page.cursor)
        if page.lines:
            lines = ",".join(line.model_dump_json() for line in page.lines)
            messages.append(_message("logs", f"[{lines}]", at))
        more, done = more or bool(page.lines), page.done
    # Events last: the one that ends a job comes behind its output and metrics.
    news = event_page(platform, num, after=at.seq)
    for one in news.events:
        at = replace(at, seq=one.seq)
        if "events" in parts:
            messages.append(_event_message(one, str(at)))
    more = more or bool(news.events)
    return LivePage(messages, str(at), more=more, done=done and news.done and not more)


def _job_now(platform: Platform, num: int) -> JobPlace:
    def work(tx: Tx) -> JobPlace:
        last = jobs.load(tx, num).last_seq
        return JobPlace(last, arrivals.last_chunk_id(tx), str(telemetry.last_log_id(tx, num)))

    return platform.store.view(work)


def _event_message(one: EventView, cursor: str) -> FramedMessage:
    return FramedMessage("event", one.model_dump_json(), cursor)


def _message(kind: str, data: str, at: JobPlace) -> FramedMessage:
    cursor = str(at)
    return FramedMessage(kind, data, cursor if len(cursor) <= _MAX_PLACE else "")


def _points(chunk: arrivals.MetricChunk) -> str:
    points = [
        LivePoint.of_point(one, chunk.attempt, chunk.generation).model_dump(mode="json")
        for one in chunk.points
    ]
    return json.dumps(points)


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) < _MAX_NUMBER):
        raise UserError(
            f"{text[:100]!r} is no place in a live view",
            "send the `id` of the last event that arrived, or `now`",
        )
    return int(text)


def projects_of(project: str | None, seen: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """The projects of which a caller gets events: one of those that it sees, or all of them."""
    if project is None:
        return seen
    if seen is not None and project not in seen:
        raise NotFound(f"there is no project {project[:200]}")
    return (project,)
