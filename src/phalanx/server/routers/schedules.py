"""Routes for schedules: jobs that are submitted at the times of a cron expression."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Response

from phalanx.core.tenancy.roles import Permission
from phalanx.schemas.api.schedules import PutScheduleRequest, ScheduleRunView, ScheduleView
from phalanx.server.access import Of, needs
from phalanx.server.context import By, Here
from phalanx.server.strict_requests import IdempotencyKey, ObjectName, SearchText, StrictRoute
from phalanx.services.schedules import commands
from phalanx.store.idempotency import RequestKey

router = APIRouter(prefix="/api/v1", tags=["schedules"], route_class=StrictRoute)
_Name = Annotated[str, Path(max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
_ONE = "/projects/{name}/schedules/{schedule}"
_READ = needs(Permission.JOBS_READ, Of.PROJECT)
_CHANGE = needs(Permission.JOBS_SUBMIT, Of.PROJECT)


@router.get("/schedules", openapi_extra=needs(Permission.JOBS_READ, Of.ANY))
def get_schedules(here: Here, by: By, project: SearchText = None) -> list[ScheduleView]:
    """All schedules, or those of one project, with their next due times and last runs."""
    return commands.list_schedules(here.platform, by.projects(Permission.JOBS_READ), project)


@router.get(_ONE, openapi_extra=_READ)
def get_schedule(here: Here, name: ObjectName, schedule: _Name) -> ScheduleView:
    """One schedule with its next due times and its newest runs."""
    return commands.show_schedule(here.platform, name, schedule, here.clock.now())


@router.put(_ONE, openapi_extra=_CHANGE)
def put_schedule(
    here: Here, by: By, name: ObjectName, schedule: _Name, request: PutScheduleRequest
) -> ScheduleView:
    """Create a schedule, or with `replace` change one. Its jobs have the present rights of the caller.

    Only the owner of a schedule and operators of its project may replace it.
    """
    now = here.clock.now()
    return commands.put_schedule(here.platform, name, schedule, request, now, by)


@router.delete(_ONE, status_code=204, openapi_extra=_CHANGE)
def delete_schedule(here: Here, by: By, name: ObjectName, schedule: _Name) -> Response:
    """Remove a schedule with the record of its runs; its jobs go on."""
    commands.remove_schedule(here.platform, name, schedule, by)
    return Response(status_code=204)


@router.post(f"{_ONE}/pause", openapi_extra=_CHANGE)
def post_pause(here: Here, by: By, name: ObjectName, schedule: _Name) -> ScheduleView:
    """Let no due time count until it is resumed; may be repeated."""
    return commands.pause_schedule(here.platform, name, schedule, here.clock.now(), by)


@router.post(f"{_ONE}/resume", openapi_extra=_CHANGE)
def post_resume(here: Here, by: By, name: ObjectName, schedule: _Name) -> ScheduleView:
    """Let due times from now on count; may be repeated."""
    return commands.resume_schedule(here.platform, name, schedule, here.clock.now(), by)


@router.post(f"{_ONE}/run", status_code=201, openapi_extra=_CHANGE)
def post_run(
    here: Here, by: By, name: ObjectName, schedule: _Name, key: IdempotencyKey = None
) -> ScheduleRunView:
    """Submit the job of a schedule now, also of a paused one and beside its other jobs."""
    now = here.clock.now()
    asked = RequestKey.of(key, now, by.actor, "schedule run", name, schedule)
    return commands.run_now(here.platform, name, schedule, now, by, asked)
