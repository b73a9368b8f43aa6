"""Routes about cost: reports of slot time and money."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query, Response
from pydantic import AwareDatetime

from phalanx.core.cost.anomaly_life import LIVE, AnomalyState
from phalanx.core.cost.budgets import BudgetScope
from phalanx.core.tenancy.roles import Permission
from phalanx.errors import NotFound
from phalanx.schemas.api.body import us_of
from phalanx.schemas.api.cost import AdviceView, BudgetView, CostReport, SetBudgetRequest
from phalanx.schemas.api.cost_prices import PriceView, SetPricesRequest
from phalanx.schemas.api.money.anomalies import AnomalyView
from phalanx.schemas.api.money.bills import (
    BillView,
    ImportBillRequest,
    ImportedBillView,
    ReconciliationView,
)
from phalanx.server.access import Of, needs
from phalanx.server.context import By, Here
from phalanx.server.strict_requests import SearchText, StrictRoute
from phalanx.services.cost import anomalies, bills, budgets, prices
from phalanx.services.cost.advice import cost_advice
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
    """Slot time and money by project, user, job, study, pool, store, time or `label:NAME`.

    `since` and `until` are taken as whole days (UTC); the day of `until` is included.
    """
    last = None if until is None else day_of(us_of(until)) + 86_400_000_000
    first = None if since is None else day_of(us_of(since))
    wanted = CostFilter(
        first, last, project, user, pool, study, job, caller.projects(Permission.JOBS_READ)
    )
    return cost_report(here.platform, by, wanted, here.clock.now(), limit=limit)


Scope = Annotated[BudgetScope, Path(description="project, user or job.")]
Name = Annotated[
    str, Path(max_length=128, description="Name of the project or user; number of the job.")
]


@router.get("/budgets", openapi_extra=needs(Permission.JOBS_READ, Of.ANY))
def get_budgets(here: Here, caller: By) -> list[BudgetView]:
    """Budgets with what was used of them; a caller of some projects sees those of its projects."""
    seen = caller.projects(Permission.JOBS_READ)
    return budgets.list_budgets(here.platform, seen, here.clock.now())


@router.get("/budgets/{scope}/{name}", openapi_extra=needs(Permission.JOBS_READ, Of.ANY))
def get_budget(here: Here, caller: By, scope: Scope, name: Name) -> BudgetView:
    """One budget with what was used of it."""
    seen, now = caller.projects(Permission.JOBS_READ), here.clock.now()
    return budgets.show_budget(here.platform, scope, _key(scope, name), seen, now)


@router.put("/budgets/{scope}/{name}", openapi_extra=needs(Permission.PLATFORM_CHANGE, Of.WHOLE))
def put_budget(here: Here, scope: Scope, name: Name, request: SetBudgetRequest) -> BudgetView:
    """Set or change a budget; may be repeated. Jobs that it paused go on once it has room for them."""
    key = _key(scope, name)
    return budgets.set_budget(here.platform, scope, key, request, here.clock.now())


@router.delete(
    "/budgets/{scope}/{name}",
    status_code=204,
    openapi_extra=needs(Permission.PLATFORM_CHANGE, Of.WHOLE),
)
def delete_budget(here: Here, scope: Scope, name: Name) -> Response:
    """Remove a budget; what it held or paused goes on."""
    budgets.remove_budget(here.platform, scope, _key(scope, name))
    return Response(status_code=204)


@router.get("/advice", openapi_extra=needs(Permission.JOBS_READ, Of.ANY))
def get_advice(
    here: Here,
    caller: By,
    project: SearchText = None,
    user: SearchText = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 20,
) -> list[AdviceView]:
    """What the most expensive jobs could have saved, from measurements; the largest savings first."""
    seen = caller.projects(Permission.JOBS_READ)
    wanted = CostFilter(project=project, owner=user, projects=seen)
    return cost_advice(here.platform, wanted, here.clock.now(), limit=limit)


@router.get("/anomalies", openapi_extra=needs(Permission.JOBS_READ, Of.ANY))
def get_anomalies(
    here: Here,
    caller: By,
    state: Literal["live", "open", "acknowledged", "closed", "all"] = "live",
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> list[AnomalyView]:
    """Days that cost much more than expected, the newest first; `live`: those that are not closed.

    A caller of some projects sees those of its projects.
    """
    states = {"live": LIVE, "all": tuple(AnomalyState)}
    seen = caller.projects(Permission.JOBS_READ)
    wanted = states[state] if state in states else (AnomalyState(state),)
    return anomalies.list_anomalies(here.platform, seen, states=wanted, limit=limit)


@router.post("/anomalies/{num}/ack", openapi_extra=needs(Permission.COSTS_MANAGE, Of.WHOLE))
def acknowledge_anomaly(
    here: Here, caller: By, num: Annotated[int, Path(ge=1, lt=2**63)]
) -> AnomalyView:
    """Say that an anomaly was seen; may be repeated. It is closed once a whole day is as expected."""
    return anomalies.acknowledge(here.platform, num, here.clock.now(), actor=caller.actor)


_Bill = Annotated[
    str, Path(min_length=1, max_length=128, pattern=r"^[^/\x00-\x1f]+$", description="Its name.")
]


@router.get("/bills", openapi_extra=needs(Permission.COSTS_MANAGE, Of.WHOLE))
def get_bills(here: Here) -> list[BillView]:
    """Imported bills of cloud providers."""
    return bills.list_bills(here.platform)


@router.post("/bills/{bill}", openapi_extra=needs(Permission.COSTS_MANAGE, Of.WHOLE))
def post_bill(here: Here, caller: By, bill: _Bill, request: ImportBillRequest) -> ImportedBillView:
    """Add lines to a bill, all or none; may be repeated: a line that is known counts once."""
    now = here.clock.now()
    return bills.import_lines(here.platform, bill, request.lines, now, actor=caller.actor)


@router.delete(
    "/bills/{bill}", status_code=204, openapi_extra=needs(Permission.COSTS_MANAGE, Of.WHOLE)
)
def delete_bill(here: Here, bill: _Bill) -> Response:
    """Remove a bill with its lines."""
    bills.remove_bill(here.platform, bill)
    return Response(status_code=204)


@router.get("/reconciliation", openapi_extra=needs(Permission.COSTS_MANAGE, Of.WHOLE))
def get_reconciliation(
    here: Here,
    month: Annotated[str, Query(max_length=20, description="Such as 2026-11 (UTC).")],
    by: Literal["month", "day"] = "month",
    tolerance: Annotated[float, Query(ge=0, le=100, description="Percent that may differ.")] = 1.0,
) -> ReconciliationView:
    """The bills of a month beside the ledger, with the prices that would have given what was billed."""
    now = here.clock.now()
    return bills.reconcile(here.platform, month, now, by=by, tolerance_percent=tolerance)


@router.get("/prices", openapi_extra=needs(Permission.JOBS_READ, Of.ANY))
def get_prices(here: Here, history: bool = False) -> list[PriceView]:
    """Prices that count now or later; with `history` also those that counted before."""
    return prices.list_prices(here.platform, here.clock.now(), history=history)


@router.post("/prices", openapi_extra=needs(Permission.PLATFORM_CHANGE, Of.WHOLE))
def post_prices(here: Here, caller: By, request: SetPricesRequest) -> list[PriceView]:
    """Set prices, all or none; may be repeated. Answers with those that are new.

    What is settled has its price: a price that would begin before its end is refused.
    """
    now = here.clock.now()
    return prices.set_prices(here.platform, request.prices, now, actor=caller.actor)


def _key(scope: BudgetScope, name: str) -> str:
    """The stored name of a budget. Raises NotFound for a job that is no number."""
    if scope is not BudgetScope.JOB:
        return name
    if not name.isascii() or not name.isdigit() or not 0 < int(name) < 2**63:
        raise NotFound(f"{name!r} is no number of a job", "write it as in /cost/budgets/job/12")
    return str(int(name))
