"""The route about runs: a query, with parameters and metrics in the answer."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response

from phalanx.core.tenancy.roles import Permission
from phalanx.schemas.api.tracking.runs import RunNamesView, RunPage, RunsQuery
from phalanx.server.access import Of, needs
from phalanx.server.context import By, Here
from phalanx.server.strict_requests import StrictRoute
from phalanx.services.experiments import runs

router = APIRouter(prefix="/api/v1/runs", tags=["runs"], route_class=StrictRoute)


@router.get("", response_model=RunPage, openapi_extra=needs(Permission.JOBS_READ, Of.ANY))
def get_runs(here: Here, by: By, query: Annotated[RunsQuery, Query()]) -> Response:
    """A page of runs that match a query, newest first unless `sort` says otherwise.

    Every run has its parameters, and the newest, least and most value of its metrics. Least and most of
    a job that runs may be a minute old. `cursor` is that of the page before.
    """
    page = runs.list_runs(here.platform, query, by, here.clock.now())
    # Written in this thread, and in one step: by way of plain values it takes five times as long.
    return Response(page.model_dump_json(), media_type="application/json")


@router.get("/names", openapi_extra=needs(Permission.JOBS_READ, Of.ANY))
def get_run_names(here: Here, by: By) -> RunNamesView:
    """The names that queries over runs can use: parameters, metrics, tags and groups of the newest runs."""
    return runs.list_names(here.platform, by)
