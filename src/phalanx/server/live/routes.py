"""Routes that follow events of all jobs, and the events, metrics and output of one."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Response

from phalanx.core.tenancy.principals import Caller
from phalanx.core.tenancy.roles import Permission
from phalanx.schemas.api.jobs import FeedPage
from phalanx.server.access import Of, needs
from phalanx.server.context import By, Context, Here, Threads
from phalanx.server.live.event_stream import EventStream
from phalanx.server.notifier import ANY_JOB
from phalanx.server.strict_requests import JobNum, Number, SearchText, Texts, Wait
from phalanx.services.lifecycle.commit import job_topic
from phalanx.services.queries import live
from phalanx.services.queries.live import LivePage, Part
from phalanx.store.events import FeedFilter
from phalanx.store.metrics.arrivals import metrics_topic
from phalanx.store.telemetry import logs_topic

router = APIRouter(prefix="/api/v1", tags=["live views"])
Place = Annotated[
    str | None,
    Header(
        alias="Last-Event-ID",
        max_length=8192,
        description="`id` of the last message that arrived: those behind it follow.",
    ),
]
From = Annotated[
    str,
    Query(
        max_length=8192,
        alias="from",
        description="`id` after which the stream begins, where no `Last-Event-ID` is sent; `now`: behind "
        "what is stored; empty: at the first.",
    ),
]
Jobs = Annotated[list[Annotated[int, Query(ge=1, lt=2**63)]] | None, Query(max_length=50)]
Parts = Annotated[list[Part] | None, Query(max_length=3, description="Absent: events.")]
STREAM: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Server-sent events. The last one is `end`, with its reason",
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    }
}


@router.get("/events", openapi_extra=needs(Permission.JOBS_READ, Of.ANY))
async def get_feed(  # noqa: PLR0913
    here: Here,
    by: By,
    project: SearchText = None,
    job: Jobs = None,
    kind: Texts = None,
    after: Number = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 200,
    wait_s: Wait = 0.0,
) -> FeedPage:
    """Events of all jobs after feed number `after`; waits up to `wait_s` seconds for the first one."""
    wanted = _wanted(project, job, kind, by)
    return await here.poll_until(
        (ANY_JOB,),
        wait_s,
        lambda: live.feed_page(here.platform, wanted, str(after), limit),
        lambda page: bool(page.events),
    )


@router.get(
    "/events/stream",
    response_class=Response,
    responses=STREAM,
    openapi_extra=needs(Permission.JOBS_READ, Of.ANY),
)
async def stream_feed(
    here: Here,
    by: By,
    project: SearchText = None,
    job: Jobs = None,
    kind: Texts = None,
    begin: From = live.NEW,
    last: Place = None,
) -> EventStream:
    """Follow events of all jobs, from now on unless a place is given.

    Each message `event` has one event, and its feed number as `id`.
    """

    def read(caller: Caller, place: str) -> LivePage:
        wanted = _wanted(project, job, kind, caller)
        return live.live_feed(here.platform, wanted, place)

    def share(caller: Caller) -> FeedFilter:
        return _wanted(project, job, kind, caller)

    return EventStream(here, by, (ANY_JOB,), last or begin or "0", read, share=share)


@router.get(
    "/jobs/{num}/stream",
    response_class=Response,
    responses=STREAM,
    openapi_extra=needs(Permission.JOBS_READ, Of.JOB, audited=True),
)
async def stream_job(
    here: Here,
    by: By,
    num: JobNum,
    include: Parts = None,
    begin: From = "",
    last: Place = None,
) -> EventStream:
    """Follow one job from its first event on, until it has ended and everything was sent.

    Messages are `event` with one event, `metrics` with a list of points, and `logs` with a list of lines.
    """
    parts = tuple(include or ("events",))
    topics = [job_topic(num)]
    topics += [logs_topic(num)] if "logs" in parts else []
    topics += [metrics_topic(num)] if "metrics" in parts else []
    read = partial(_read_job, here, num, parts)
    pool = Threads.LOGS if "logs" in parts else Threads.READS
    return EventStream(here, by, tuple(topics), last or begin, read, pool)


def _read_job(
    here: Context, num: int, parts: tuple[Part, ...], _caller: Caller, place: str
) -> LivePage:
    return live.live_job(here.platform, num, parts, place)


def _wanted(
    project: str | None,
    jobs: list[int] | None,
    kinds: list[str] | None,
    caller: Caller,
) -> FeedFilter:
    seen = caller.projects(Permission.JOBS_READ)
    projects = live.projects_of(project, seen)
    return FeedFilter(projects, tuple(jobs or ()), tuple(kinds or ()))
