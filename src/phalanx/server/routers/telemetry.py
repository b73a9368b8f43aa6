"""Routes for a job's logs and metrics, and the Prometheus metrics of the platform."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response
from pydantic import AwareDatetime

from phalanx.core.curves import Reduce
from phalanx.core.logs.levels import parse_level
from phalanx.core.tenancy.roles import Permission
from phalanx.schemas.api.body import us_of
from phalanx.schemas.api.health.traces import TraceView
from phalanx.schemas.api.telemetry import (
    CurvesView,
    LevelName,
    LogPage,
    LogSearchPage,
    LogSenderView,
    MetricsView,
    PostMetricsRequest,
    StopAnswer,
    TrainerStatusRequest,
)
from phalanx.schemas.wire.curve_bytes import SERIES_TYPE
from phalanx.server.access import ATTEMPT, Of, bearer_token, needs
from phalanx.server.context import By, Here, Threads, in_thread
from phalanx.server.observe.exposition import Exposition
from phalanx.server.strict_requests import JobNum, Ranks, SearchText, StrictRoute, Texts, Wait
from phalanx.services.lifecycle.commit import job_topic
from phalanx.services.lifecycle.posted_metrics import post_metrics, posted_points, trainer_status
from phalanx.services.logs.search import MAX_PATTERN, LogSearch, SearchLimits
from phalanx.services.logs.sending import list_senders
from phalanx.services.queries.log_search import search_logs
from phalanx.services.queries.logs import LogQuery, read_logs
from phalanx.services.queries.metrics import (
    compare_metrics,
    curves_bytes,
    curves_json,
    read_metrics,
)
from phalanx.services.tracing.reading import read_trace
from phalanx.store.telemetry import logs_topic

router = APIRouter(prefix="/api/v1/jobs", tags=["telemetry"])
reports = APIRouter(prefix="/api/v1/jobs", tags=["telemetry"], route_class=StrictRoute)
comparing = APIRouter(prefix="/api/v1", tags=["telemetry"])
exposition = APIRouter(tags=["telemetry"])
Rank = Annotated[int | None, Query(ge=0, lt=2**31)]
AfterStep = Annotated[int, Query(ge=-1, lt=2**63 - 1)]
ToStep = Annotated[int | None, Query(ge=0, lt=2**63)]
MaxPoints = Annotated[int, Query(ge=4, le=100_000)]
CompareJobs = Annotated[
    list[Annotated[int, Query(ge=1, lt=2**63)]], Query(min_length=1, max_length=500)
]
CompareNames = Annotated[
    list[Annotated[str, Query(max_length=512)]], Query(min_length=1, max_length=20)
]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


@comparing.get("/logs/senders", openapi_extra=needs(Permission.PLATFORM_CHANGE, Of.WHOLE))
def get_log_senders(here: Here) -> list[LogSenderView]:
    """The senders of output to other log stores, and how far each is."""
    return list_senders(here.platform, here.log_senders, here.clock.now())


@router.get("/{num}/logs", openapi_extra=needs(Permission.JOBS_READ, Of.JOB, audited=True))
async def get_logs(  # noqa: PLR0913
    here: Here,
    num: JobNum,
    rank: Ranks = None,
    stream: Literal["out", "err"] | None = None,
    tail: Annotated[int | None, Query(ge=0, le=100_000)] = None,
    role: SearchText = None,
    cursor: Annotated[str | None, Query(max_length=16_384)] = None,
    wait_s: Wait = 0.0,
) -> LogPage:
    """Lines after `cursor` in the order of arrival; waits up to `wait_s` seconds for the first one.

    With `role`, `rank` counts in that role.
    """
    query = LogQuery(tuple(rank or ()), stream, tail, role)
    return await here.poll_until(
        (logs_topic(num), job_topic(num)),
        wait_s,
        lambda: read_logs(here.platform, num, query, cursor),
        lambda page: bool(page.lines) or page.done,
        Threads.LOGS,
    )


@router.get("/{num}/logs/search", openapi_extra=needs(Permission.JOBS_READ, Of.JOB, audited=True))
async def find_lines(  # noqa: PLR0913
    here: Here,
    num: JobNum,
    text: SearchText = None,
    regex: Annotated[str | None, Query(max_length=MAX_PATTERN)] = None,
    level: LevelName | None = None,
    since: AwareDatetime | None = None,
    until: AwareDatetime | None = None,
    rank: Ranks = None,
    stream: Literal["out", "err"] | None = None,
    role: SearchText = None,
    limit: Annotated[int, Query(ge=0, le=1000)] = 200,
    cursor: Annotated[str | None, Query(max_length=64)] = None,
) -> LogSearchPage:
    """Lines with a text in any case, a match of an RE2 expression, or this level or a higher one.

    Lines meet all conditions that are given; `since` and `until` are times of arrival. The call ends after
    about two seconds: where `exact` is false, `cursor` continues. With `limit` 0 lines are only counted.

    With `role`, `rank` counts in that role.
    """
    wanted = LogSearch(
        text=text or "",
        expression=regex or "",
        ranks=tuple(rank or ()),
        stream=stream,
        level=None if level is None else parse_level(level),
        since=None if since is None else us_of(since),
        until=None if until is None else us_of(until),
    )
    limits, clock = SearchLimits(lines=limit), here.clock.monotonic
    return await in_thread(
        search_logs, here.platform, num, wanted, role, cursor, limits, clock, pool=Threads.LOGS
    )


@router.get("/{num}/trace", openapi_extra=needs(Permission.JOBS_READ, Of.JOB))
def get_trace(
    here: Here, num: JobNum, limit: Annotated[int, Query(ge=10, le=10_000)] = 2000
) -> TraceView:
    """The spans of a job: its states and attempts, and starts, saves and failures of its generations.

    Spans are made of the stored events, with identifiers that never change. Of more than about `limit`, the
    oldest are left out.
    """
    return read_trace(here.platform, num, limit)


@router.get("/{num}/metrics", openapi_extra=needs(Permission.JOBS_READ, Of.JOB))
def get_metrics(  # noqa: PLR0913
    here: Here,
    num: JobNum,
    name: Texts = None,
    rank: Ranks = None,
    after_step: AfterStep = -1,
    to_step: ToStep = None,
    max_points: MaxPoints = 1000,
    role: SearchText = None,
) -> MetricsView:
    """Series by name and rank, downsampled to `max_points` each; peaks are kept.

    A series with `downsampled` stands for `count` samples: ask again with `after_step` and `to_step` to see
    a part of it more closely.

    With `role`, `rank` counts in that role; the answer counts ranks in the gang.
    """
    return read_metrics(
        here.platform,
        num,
        names=name or (),
        ranks=rank or (),
        after_step=after_step,
        to_step=to_step,
        max_points=max_points,
        role=role,
    )


@comparing.get(
    "/metrics",
    response_model=CurvesView,
    responses={200: {"content": {SERIES_TYPE: {"schema": {"type": "string", "format": "binary"}}}}},
    openapi_extra=needs(Permission.JOBS_READ, Of.ANY),
)
def get_curves(  # noqa: PLR0913
    here: Here,
    by: By,
    request: Request,
    job: CompareJobs,
    name: CompareNames,
    rank: Ranks = None,
    after_step: AfterStep = -1,
    to_step: ToStep = None,
    max_points: Annotated[int, Query(ge=4, le=2000)] = 1000,
    reduce: Reduce = "extremes",
) -> Response:
    """Curves of up to 500 jobs at once, of rank 0 unless `rank` is given.

    `reduce` says what an interval of a long curve is shown as: its lowest and highest value, its mean, or
    its last value. Jobs that do not exist, or that the caller may not read, are left out. A request that
    accepts `application/vnd.phalanx.series` is answered with arrays of numbers of eight bytes.
    """
    found = compare_metrics(
        here.platform,
        job,
        names=name,
        ranks=rank or (0,),
        after_step=after_step,
        to_step=to_step,
        max_points=max_points,
        reduce=reduce,
        projects=by.projects(Permission.JOBS_READ),
    )
    # Written in this thread, and in one step.
    if SERIES_TYPE in request.headers.get("accept", ""):
        return Response(curves_bytes(found), media_type=SERIES_TYPE, headers={"Vary": "Accept"})
    return Response(curves_json(found), media_type="application/json", headers={"Vary": "Accept"})


@reports.post("/{num}/metrics", openapi_extra=ATTEMPT)
def post_points(
    here: Here, num: JobNum, body: PostMetricsRequest, request: Request, rank: Rank = None
) -> StopAnswer:
    """Add metrics from inside a job, with the token in `PHALANX_METRICS_TOKEN`.

    The answer says whether to save and exit now. `rank` counts in the gang; absent: the first one of the
    node. With no points it only answers.
    """
    posted = posted_points(body.points)
    token = bearer_token(request.headers)
    return post_metrics(here.platform, num, token, rank, posted, here.clock.now())


@reports.post("/{num}/trainer-status", openapi_extra=ATTEMPT)
def post_trainer_status(
    here: Here, num: JobNum, body: TrainerStatusRequest, request: Request, rank: Rank = None
) -> StopAnswer:
    """Take what clients of Kubeflow Trainer report, among them the `Trainer` of transformers."""
    posted = trainer_status(body.trainerStatus)
    token = bearer_token(request.headers)
    return post_metrics(here.platform, num, token, rank, posted, here.clock.now())


@exposition.get("/metrics", openapi_extra=needs(Permission.METRICS_READ, Of.WHOLE))
def get_metrics_text(here: Here, request: Request) -> Response:
    """Gauges, counters and histograms in the text format of Prometheus; needs the bearer token.

    To a scrape that asks for OpenMetrics the answer is in that format, and histograms of durations have
    exemplars: the identifiers of the traces of jobs.
    """
    found = request.app.state.exposition
    assert isinstance(found, Exposition)
    openmetrics = OPENMETRICS.partition(";")[0] in request.headers.get("accept", "")
    text = found.scrape(here.clock.now(), openmetrics=openmetrics)
    return Response(text, media_type=OPENMETRICS if openmetrics else CONTENT_TYPE)
