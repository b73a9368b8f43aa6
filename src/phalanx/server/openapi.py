"""The routes of the HTTP API and the document that describes them (`/openapi.json`).

Every route answers errors with `ErrorView`. Access is checked by `gate`, not by dependencies of the routes,
so the document's security schemes are added here.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from fastapi import APIRouter, FastAPI
from starlette.routing import BaseRoute

from phalanx.core.tenancy.roles import SCOPES
from phalanx.schemas.api.body import ErrorView
from phalanx.server import preconditions
from phalanx.server.access import AccessTable, Of
from phalanx.server.live import routes as live
from phalanx.server.routers import (
    accounts,
    audit,
    cost,
    jobs,
    logins,
    platform,
    resources,
    retention,
    schedules,
    secrets,
    studies,
    supervisors,
    telemetry,
    templates,
    tokens,
)
from phalanx.server.routers.monitoring import alerts
from phalanx.server.routers.tracking import runs
from phalanx.server.tunnels import routes as tunnels
from phalanx.server.web import assets, login, pages

_ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": ErrorView, "description": "The request cannot be served as it is"},
    "5XX": {"model": ErrorView, "description": "The server cannot serve requests at present"},
}
_SCHEMES = {
    "token": {
        "type": "http",
        "scheme": "bearer",
        "description": "The token of the home, or one of `phalanx token create` with the scope",
    },
    "supervisor": {
        "type": "http",
        "scheme": "bearer",
        "description": "The token of one attempt of a job",
    },
}


def add_routes(app: FastAPI) -> AccessTable:
    """Add every route to an application, and the security schemes to its document.

    Returns what each route needs. Raises ServerError for a route that does not say it.
    """
    app.router.routes.extend(_routes())
    table, plain = AccessTable(app.routes), app.openapi

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _with_security(plain(), table)
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]
    return table


@cache
def _routes() -> list[BaseRoute]:
    """Every route; made once, because FastAPI builds the validators of each inclusion anew (0.2 s)."""
    made = APIRouter()
    routers = (
        # Routes are tried in this order, and supervisors call more often than anything else does.
        supervisors,
        live,
        jobs,
        studies,
        cost,
        accounts,
        logins,
        audit,
        telemetry,
        resources,
        retention,
        platform,
        tokens,
        secrets,
        schedules,
        templates,
        tunnels,
        login,
        assets,
        pages,
        alerts,
        runs,
    )
    for one in routers:
        made.include_router(one.router, responses=_ERRORS)
    made.include_router(retention.periods_router, responses=_ERRORS)
    made.include_router(telemetry.reports, responses=_ERRORS)
    made.include_router(telemetry.comparing, responses=_ERRORS)
    made.include_router(telemetry.exposition, responses=_ERRORS)
    return made.routes


def _with_security(document: dict[str, Any], table: AccessTable) -> dict[str, Any]:
    document["components"]["securitySchemes"] = _SCHEMES
    document["security"] = [{"token": []}]
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            access = table.of_route[method.upper(), path]
            if access.needs_caller:
                preconditions.describe(path, method, operation)
            operation["security"] = [{"token": [SCOPES[access.permission].value]}]
            if access.of is Of.ATTEMPT:
                operation["security"] = [{"supervisor": []}]
            elif access.of is Of.OPEN:
                operation["security"] = []
    return document
