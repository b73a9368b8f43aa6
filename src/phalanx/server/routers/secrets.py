"""Routes for secrets of projects and of the whole platform. Values are taken and never returned."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Response

from phalanx.core.tenancy.principals import WHOLE, Caller
from phalanx.core.tenancy.roles import Permission
from phalanx.schemas.api.credentials import RotatedKey, SecretView, SetSecretRequest
from phalanx.server.access import Of, needs
from phalanx.server.context import By, Context, Here
from phalanx.server.strict_requests import ObjectName, StrictRoute
from phalanx.services.secrets import values

router = APIRouter(prefix="/api/v1", tags=["secrets"], route_class=StrictRoute)
_Name = Annotated[str, Path(max_length=128, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
_READ, _CHANGE = Permission.SECRETS_READ, Permission.SECRETS_CHANGE


@router.get("/projects/{name}/secrets", openapi_extra=needs(_READ, Of.PROJECT, audited=True))
def get_project_secrets(here: Here, name: ObjectName) -> list[SecretView]:
    """The secrets that jobs of a project can name, without values."""
    return values.list_secrets(here.platform, name)


@router.get(
    "/projects/{name}/secrets/{secret}", openapi_extra=needs(_READ, Of.PROJECT, audited=True)
)
def get_project_secret(here: Here, name: ObjectName, secret: _Name) -> SecretView:
    """One secret of a project, without its value."""
    return values.show_secret(here.platform, name, secret)


@router.put("/projects/{name}/secrets/{secret}", openapi_extra=needs(_CHANGE, Of.PROJECT))
def put_project_secret(
    here: Here, caller: By, name: ObjectName, secret: _Name, request: SetSecretRequest
) -> SecretView:
    """Set a secret of a project. The next attempt of each job that names it gets this value."""
    return _set(here, caller, name, secret, request)


@router.delete(
    "/projects/{name}/secrets/{secret}", status_code=204, openapi_extra=needs(_CHANGE, Of.PROJECT)
)
def delete_project_secret(here: Here, name: ObjectName, secret: _Name) -> Response:
    """Remove a secret of a project."""
    values.remove_secret(here.platform, name, secret)
    return Response(status_code=204)


@router.get("/secrets", openapi_extra=needs(_READ, Of.WHOLE, audited=True))
def get_secrets(here: Here) -> list[SecretView]:
    """The secrets of the whole platform, without values."""
    return values.list_secrets(here.platform, WHOLE)


@router.get("/secrets/{secret}", openapi_extra=needs(_READ, Of.WHOLE, audited=True))
def get_secret(here: Here, secret: _Name) -> SecretView:
    """One secret of the whole platform, without its value."""
    return values.show_secret(here.platform, WHOLE, secret)


@router.put("/secrets/{secret}", openapi_extra=needs(_CHANGE, Of.WHOLE))
def put_secret(here: Here, caller: By, secret: _Name, request: SetSecretRequest) -> SecretView:
    """Set a secret of the whole platform: jobs of every project can name it."""
    return _set(here, caller, WHOLE, secret, request)


@router.delete("/secrets/{secret}", status_code=204, openapi_extra=needs(_CHANGE, Of.WHOLE))
def delete_secret(here: Here, secret: _Name) -> Response:
    """Remove a secret of the whole platform."""
    values.remove_secret(here.platform, WHOLE, secret)
    return Response(status_code=204)


def _set(
    here: Context, caller: Caller, project: str, secret: str, request: SetSecretRequest
) -> SecretView:
    now, actor = here.clock.now(), caller.actor
    if request.source is not None:
        return values.set_reference(
            here.platform, project, secret, request.source, now, actor=actor
        )
    return values.set_secret(here.platform, project, secret, request.value or "", now, actor=actor)


@router.post("/secrets/rotate-key", openapi_extra=needs(Permission.PLATFORM_CHANGE, Of.WHOLE))
def post_rotate_key(here: Here) -> RotatedKey:
    """Replace the master key in the home, and encrypt the keys of all secrets with the new one."""
    return RotatedKey(count=values.rotate_key(here.platform))
