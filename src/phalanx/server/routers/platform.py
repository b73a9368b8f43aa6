"""Routes for the platform itself: health, information, code uploads, clients."""

from __future__ import annotations

import os
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response

import phalanx
from phalanx.core.tenancy.roles import Permission
from phalanx.kit.clock import SteadyClock
from phalanx.schemas.api.body import (
    HelloRequest,
    HelloResponse,
    InfoView,
    ReadinessView,
    ReplicaView,
    at_of,
)
from phalanx.schemas.api.health.objectives import ObjectivesView
from phalanx.server.access import OPEN, Of, needs
from phalanx.server.context import By, Context, Here, in_thread
from phalanx.server.observe.readiness import Readiness
from phalanx.server.strict_requests import SearchText, StrictRoute
from phalanx.services.lifecycle import code
from phalanx.services.queries.objectives import judged_objectives
from phalanx.store import jobs

router = APIRouter(tags=["platform"], route_class=StrictRoute)
Digest = Annotated[str, Path(pattern=r"^[0-9a-f]{64}$")]


@router.get("/healthz", openapi_extra=OPEN)
async def get_health(here: Here) -> dict[str, str]:
    """Answers as soon as requests are served, with the role among replicas; needs no token."""
    return {"status": "ok", "version": phalanx.__version__, "role": here.leadership.role}


@router.get("/readyz", responses={503: {"model": ReadinessView}}, openapi_extra=OPEN)
def get_readiness(request: Request, response: Response) -> ReadinessView:
    """200 when the database can be written, its schema is right and all loops run; needs no token."""
    readiness = request.app.state.readiness
    assert isinstance(readiness, Readiness)
    found = readiness.now()
    response.status_code = 200 if found.status == "ready" else 503
    return found


@router.get("/api/v1/objectives", openapi_extra=needs(Permission.JOBS_READ, Of.ANY))
def get_objectives(
    here: Here,
    caller: By,
    days: Annotated[int, Query(ge=3, le=90)] = 30,
    project: SearchText = None,
) -> ObjectivesView:
    """Objectives of job classes with their error budgets, by the jobs that ended within these days.

    A caller of some projects sees what the jobs of its projects reached.
    """
    seen = caller.projects(Permission.JOBS_READ)
    if project is not None:
        seen = (project,) if seen is None or project in seen else ()
    return judged_objectives(here.platform, here.clock.now(), days=days, projects=seen)


@router.get("/api/v1/info", openapi_extra=needs(Permission.PLATFORM_SEE, Of.ANY))
def get_info(here: Here) -> InfoView:
    """Version, home and state of this control plane."""
    return InfoView(
        version=phalanx.__version__,
        pid=os.getpid(),
        home=str(here.platform.home.root),
        started_at=at_of(here.started_at),
        now=at_of(here.clock.now()),
        clock_ahead_s=here.clock.ahead_s if isinstance(here.clock, SteadyClock) else 0.0,
        num_live_jobs=here.platform.store.view(jobs.count_live),
        idle_exit_s=here.settings.idle_exit_s,
        database=here.platform.store.database_id,
        trouble=here.platform.store.trouble,
        replicas=[
            ReplicaView(
                name=one.name,
                role=role,
                url=one.url,
                version=one.version,
                started_at=at_of(one.started_at),
            )
            for one, role in here.leadership.living()
        ],
    )


@router.post("/api/v1/clients/hello", openapi_extra=needs(Permission.SELF, Of.ANY))
async def post_hello(here: Here, request: HelloRequest) -> HelloResponse:
    """Announce a client: an embedded server then stays up."""
    return HelloResponse(keep_alive_s=here.settings.idle_exit_s)


@router.head("/api/v1/code/{digest}", openapi_extra=needs(Permission.JOBS_SUBMIT, Of.ANY))
def head_code(here: Here, digest: Digest) -> Response:
    """Whether an archive has been uploaded: 200 or 404."""
    return Response(status_code=200 if code.has(here.platform, digest) else 404)


@router.put(
    "/api/v1/code/{digest}", status_code=204, openapi_extra=needs(Permission.JOBS_SUBMIT, Of.ANY)
)
async def put_code(here: Here, digest: Digest, request: Request) -> Response:
    """Upload an uncompressed tar archive under its SHA-256; it is verified before it is kept."""
    if await in_thread(lambda: code.has(here.platform, digest)):
        return Response(status_code=204)
    await _receive(here, digest, request)
    return Response(status_code=204)


async def _receive(here: Context, digest: str, request: Request) -> None:
    upload = await in_thread(lambda: code.CodeUpload(here.platform.home, digest))
    try:
        async for chunk in request.stream():
            await in_thread(upload.write, chunk)
        await in_thread(code.keep, here.platform, upload)
    finally:
        upload.abandon()
