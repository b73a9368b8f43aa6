"""Bodies about runs: a query, and what a run was made of and reached."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from phalanx.core.contract.trial import Param
from phalanx.core.experiments.query import MAX_LENGTH
from phalanx.schemas.api.body import At, RequestBody, ResponseBody

MAX_METRICS = 100
"""Metrics that a run of a page has."""
MAX_PARAMS = 200
"""Parameters that a run of a page has; its record has all of them."""


class RunsQuery(RequestBody):
    """Which runs a page has, and their order."""

    q: Annotated[
        str,
        Field(
            max_length=MAX_LENGTH,
            description="Terms such as `metric:val_acc>0.9 param:lr<1e-3 tag:baseline state:succeeded`",
        ),
    ] = ""
    sort: Annotated[
        str,
        Field(
            max_length=600,
            description="A column of the listing of jobs, metric:NAME, metric:max(NAME) or param:NAME; "
            "`-` in front for the largest first",
        ),
    ] = "-num"
    metric: Annotated[
        list[Annotated[str, Field(max_length=512)]],
        Field(
            default_factory=list,
            max_length=MAX_METRICS,
            description="Metrics that the answer has; absent: those that scripts logged",
        ),
    ]
    archived: Literal["exclude", "include", "only"] = "exclude"
    cursor: Annotated[str | None, Field(max_length=4000)] = None
    limit: Annotated[int, Field(ge=1, le=500)] = 50


class RunMetricView(ResponseBody):
    """One metric: the newest value of the lowest rank that reports it, and the range of those of rank 0.

    A value that is not finite is null, and does not count for the range.
    """

    last: float | None
    min: float | None
    max: float | None
    step: int  # of the newest value


class RunView(ResponseBody):
    """A run: a job with its parameters and metrics."""

    job: int
    label: str
    url: str = ""  # of its page
    name: str
    project: str
    owner: str
    state: str
    description: str = ""
    tags: list[str] = Field(default_factory=list)
    group: str = ""
    labels: dict[str, str] = Field(default_factory=dict)
    study: int | None = None
    commit: str = ""  # of Git; empty: not known
    submitted_at: At
    ended_at: At | None = None
    duration_s: float | None = None  # from the first start to the end
    params: dict[str, Param] = Field(default_factory=dict)  # at most 200
    metrics: dict[str, RunMetricView] = Field(default_factory=dict)  # at most 100


class RunPage(ResponseBody):
    """Some runs, and the cursor of the next page; None: there is none."""

    runs: list[RunView]
    cursor: str | None = None


class RunNamesView(ResponseBody):
    """Names in the newest 1000 runs that the caller may see, at most 1000 of each kind, in order."""

    params: list[str]
    metrics: list[str]  # of rank 0
    tags: list[str]
    groups: list[str]


class RunParamView(ResponseBody):
    """One parameter of a run, and where it comes from."""

    name: str
    value: Param
    source: str  # config, study, argument or script
    counts: bool  # false: a later source has another parameter of this name
