"""Routes for job templates of projects and of the whole platform."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Response

from phalanx.core.tenancy.principals import WHOLE
from phalanx.core.tenancy.roles import Permission
from phalanx.schemas.api.templates import (
    PutTemplateRequest,
    SubmitTemplateRequest,
    TemplateJobs,
    TemplateView,
)
from phalanx.server.access import Of, needs
from phalanx.server.context import By, Here
from phalanx.server.strict_requests import IdempotencyKey, ObjectName, StrictRoute
from phalanx.services.templates import commands
from phalanx.store.idempotency import RequestKey

router = APIRouter(prefix="/api/v1", tags=["templates"], route_class=StrictRoute)
_Name = Annotated[str, Path(max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
_Version = Annotated[int | None, Query(ge=1, lt=2**31)]
_ONE = "/projects/{name}/templates/{template}"
_CHANGE = needs(Permission.JOBS_CHANGE, Of.PROJECT)
_WHOLE = needs(Permission.PLATFORM_CHANGE, Of.WHOLE)


@router.get("/templates", openapi_extra=needs(Permission.JOBS_READ, Of.ANY))
def get_templates(here: Here, by: By) -> list[TemplateView]:
    """The newest version of each template of the platform and of the projects that the caller may see."""
    return commands.list_templates(here.platform, by.projects(Permission.JOBS_READ))


@router.put("/templates/{template}", openapi_extra=_WHOLE)
def put_whole_template(
    here: Here, by: By, template: _Name, request: PutTemplateRequest
) -> TemplateView:
    """Store a new version of a template of the whole platform; the same again changes nothing."""
    return commands.put_template(here.platform, WHOLE, template, request, here.clock.now(), by)


@router.delete("/templates/{template}", status_code=204, openapi_extra=_WHOLE)
def delete_whole_template(here: Here, template: _Name) -> Response:
    """Remove a template of the whole platform with all versions; its jobs stay."""
    commands.remove_template(here.platform, WHOLE, template)
    return Response(status_code=204)


@router.get(_ONE, openapi_extra=needs(Permission.JOBS_READ, Of.PROJECT))
def get_template(
    here: Here, name: ObjectName, template: _Name, version: _Version = None
) -> TemplateView:
    """A template as jobs of a project may use it: its own, else that of the whole platform."""
    return commands.show_template(here.platform, name, template, version)


@router.put(_ONE, openapi_extra=_CHANGE)
def put_template(
    here: Here, by: By, name: ObjectName, template: _Name, request: PutTemplateRequest
) -> TemplateView:
    """Store a new version of a template of a project; the same again changes nothing."""
    return commands.put_template(here.platform, name, template, request, here.clock.now(), by)


@router.delete(_ONE, status_code=204, openapi_extra=_CHANGE)
def delete_template(here: Here, name: ObjectName, template: _Name) -> Response:
    """Remove a template of a project with all versions; its jobs stay."""
    commands.remove_template(here.platform, name, template)
    return Response(status_code=204)


@router.post(
    f"{_ONE}/submit", status_code=201, openapi_extra=needs(Permission.JOBS_SUBMIT, Of.PROJECT)
)
def post_template_submit(
    here: Here,
    by: By,
    name: ObjectName,
    template: _Name,
    request: SubmitTemplateRequest,
    key: IdempotencyKey = None,
) -> TemplateJobs:
    """Submit the job of a template into a project, with values for its parameters."""
    now = here.clock.now()
    asked = RequestKey.of(key, now, by.actor, "template", name, template, request.model_dump_json())
    return commands.submit_template(here.platform, name, template, request, now, by, asked)
