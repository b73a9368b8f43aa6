"""The methods of the gRPC API: each is a route of the REST API, with the same bodies.

A method says which route serves it and which of its fields are not in the body. A method that is not
listed here does not exist: `scripts/generate_grpc.py` writes `jobs.proto` from this table.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field

from phalanx.schemas.api.body import RequestBody, ResponseBody, ShortText
from phalanx.schemas.api.jobs import (
    EventView,
    JobPage,
    JobsQuery,
    JobView,
    SubmitRequest,
    SubmitResponse,
)
from phalanx.schemas.api.telemetry import PostedPoint, StopAnswer

SERVICE = "phalanx.v1.Jobs"
"""The name of the service, as clients call it."""
_VARIABLE = re.compile(r"\{(\w+)\}")
JobNumber = Annotated[int, Field(description="Number of the job.")]
Place = Annotated[
    str,
    Field(
        description="`place` of the last message that arrived: those behind it follow. `now`: behind what "
        "is stored."
    ),
]


class SubmitCall(SubmitRequest):
    """A new job. `spec` is a job spec (schema 1), as in YAML files."""

    idempotency_key: Annotated[
        str,
        Field(description="A text that names this request: repeated, it takes effect once."),
    ] = ""
    dry_run: Annotated[bool, Field(description="Only return the resolved spec.")] = False


class GetCall(RequestBody):
    """Which job to return."""

    num: JobNumber


class CancelCall(RequestBody):
    """Which job to cancel."""

    num: JobNumber
    grace_s: Annotated[
        float | None, Field(description="Seconds; absent: `grace` of the spec; 0: kill at once.")
    ] = None


class EventsCall(RequestBody):
    """Which job to follow; without a place, from its first event on."""

    num: JobNumber
    place: Place = ""


class FeedCall(RequestBody):
    """Which events of all jobs to follow; without a place, from now on."""

    project: ShortText | None = None
    job: list[int] = Field(default_factory=list)
    kind: list[str] = Field(default_factory=list)
    place: Place = ""


class LiveEvent(ResponseBody):
    """One event of a job, and the place behind it, from which another call continues."""

    event: EventView
    place: str


class MetricsCall(RequestBody):
    """Metrics of one rank. Without points, it only asks whether to stop."""

    rank: Annotated[
        int | None, Field(description="Rank in the gang; absent: the first one of the node.")
    ] = None
    points: list[PostedPoint] = Field(default_factory=list)


class MetricsAnswer(StopAnswer):
    """Whether to save and exit now; sent for each message, and as soon as the job is to stop."""

    received: Annotated[int, Field(description="Messages of this stream that are stored.")]


@dataclass(frozen=True, slots=True)
class RpcMethod:
    """One method and the route that serves it.

    Fields of the request that the path names are in the path, those in `query` and `headers` there, and
    the others in the body, or in the query of a GET.
    """

    name: str  # as clients call it
    about: str  # one sentence
    request: type[RequestBody]  # the message of a client
    response: type[ResponseBody]  # the message of the server
    verb: str  # of the route
    route: str  # path of the route
    query: tuple[str, ...] = ()  # fields in the query of the route
    headers: Mapping[str, str] = field(default_factory=dict)  # headers by field
    streams_requests: bool = False  # the client sends any number of messages
    streams_responses: bool = False  # the server does

    @property
    def path_fields(self) -> tuple[str, ...]:
        """The fields that are variables of the path."""
        return tuple(_VARIABLE.findall(self.route))


STATUSES: dict[int, str] = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "FAILED_PRECONDITION",
    412: "FAILED_PRECONDITION",
    413: "RESOURCE_EXHAUSTED",
    422: "INVALID_ARGUMENT",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
    507: "RESOURCE_EXHAUSTED",
}
"""The status of gRPC for each status of HTTP that an error has."""


def status_of(http_status: int) -> str:
    """The name of the status of gRPC for an answer of HTTP that is no success."""
    return STATUSES.get(http_status) or ("INTERNAL" if http_status >= 500 else "INVALID_ARGUMENT")


_PLACE = {"place": "Last-Event-ID"}
METHODS = (
    RpcMethod(
        "Submit",
        "Submit a job.",
        SubmitCall,
        SubmitResponse,
        "POST",
        "/api/v1/jobs",
        query=("dry_run",),
        headers={"idempotency_key": "Idempotency-Key"},
    ),
    RpcMethod("Get", "Return one job.", GetCall, JobView, "GET", "/api/v1/jobs/{num}"),
    RpcMethod("List", "Return a page of jobs.", JobsQuery, JobPage, "GET", "/api/v1/jobs"),
    RpcMethod(
        "Cancel",
        "Cancel a job; may be repeated.",
        CancelCall,
        JobView,
        "POST",
        "/api/v1/jobs/{num}/stop",
    ),
    RpcMethod(
        "Events",
        "Follow the events of one job until it has ended.",
        EventsCall,
        LiveEvent,
        "GET",
        "/api/v1/jobs/{num}/stream",
        headers=_PLACE,
        streams_responses=True,
    ),
    RpcMethod(
        "Feed",
        "Follow the events of all jobs that the caller may see.",
        FeedCall,
        LiveEvent,
        "GET",
        "/api/v1/events/stream",
        headers=_PLACE,
        streams_responses=True,
    ),
    RpcMethod(
        "ReportMetrics",
        "Store metrics of a rank, with the token in PHALANX_METRICS_TOKEN, and learn when to stop.",
        MetricsCall,
        MetricsAnswer,
        "POST",
        "/api/v1/jobs/{num}/metrics",
        query=("rank",),
        streams_requests=True,
        streams_responses=True,
    ),
)
"""Every method. The token of `ReportMetrics` names the job."""


def message_name(model: type[RequestBody] | type[ResponseBody]) -> str:
    """The name of a model in `jobs.proto`: that of the model, with `Request` for `Call`."""
    name = model.__name__
    return f"{name.removesuffix('Call')}Request" if name.endswith("Call") else name
