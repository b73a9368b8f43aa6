"""Routes about cost: reports of slot time and money."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import AwareDatetime

from phalanx.core.tenancy.roles import Permission
from phalanx.schemas.api.cost import CostReport
from phalanx.server.access import Of, needs
from phalanx.server.context import By, Here
from phalanx.server.strict_requests import SearchText, StrictRoute
from phalanx.services.cost.report import cost_report, day_of
from phalanx.store.cost.rows import CostFilter

router = APIRouter(prefix="/api/v1/cost", tags=["cost"], route_class=StrictRoute)
_Num = Annotated[int | None, Query(ge=1, lt=2**63)]


@router.get("", openapi_extra=needs(Permission.JOBS_READ, Of.ANY))
def get_cost(  # noqa: PLR0913
    here: Here,
    caller: By,
    by: Annotated[str, Query(max_length=200)] = "project",
    since: AwareDatetime | None = None,
    until: AwareDatetime | None = None,
    project: SearchText = None,
    user: SearchText = None,
    pool: SearchText = None,
    study: _Num = None,
    job: _Num = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> CostReport:
    """Slot time and money by project, user, job, study, pool, day, week, month or `label:NAME`.

    `since` and `until` are taken as whole days (UTC); the day of `until` is included.
    """
    last = None if until is None else day_of(_us(until)) + 86_400_000_000
    first = None if since is None else day_of(_us(since))
    wanted = CostFilter(
        first, last, project, user, pool, study, job, caller.projects(Permission.JOBS_READ)
    )
    return cost_report(here.platform, by, wanted, here.clock.now(), limit=limit)


def _us(at: datetime) -> int:
    return round(at.timestamp() * 1_000_000)
