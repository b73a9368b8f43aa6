"""Routes for tokens: list, create, rotate, revoke, and links that open the pages."""

from __future__ import annotations

from fastapi import APIRouter, Response

from phalanx.core.tenancy.roles import Permission
from phalanx.schemas.api.body import at_of
from phalanx.schemas.api.credentials import (
    CreateTokenRequest,
    EndedSessions,
    LoginLink,
    TokenCreated,
    TokenView,
)
from phalanx.server.access import Of, needs
from phalanx.server.context import By, Here
from phalanx.server.strict_requests import ObjectName, StrictRoute
from phalanx.services.resources import credentials

router = APIRouter(prefix="/api/v1/tokens", tags=["tokens"], route_class=StrictRoute)
_US = 1_000_000


@router.get("", openapi_extra=needs(Permission.TOKENS_OWN, Of.ANY))
def get_tokens(here: Here, by: By) -> list[TokenView]:
    """The caller's tokens that have not expired, without values; those of all for an admin."""
    return credentials.list_tokens(here.platform, here.clock.now(), by)


@router.post("", status_code=201, openapi_extra=needs(Permission.TOKENS_OWN, Of.ANY))
def post_token(here: Here, by: By, request: CreateTokenRequest, response: Response) -> TokenCreated:
    """Create a token with scopes. The value is in this answer and nowhere else."""
    response.headers["Cache-Control"] = "no-store"
    return credentials.create_token(here.platform, request, here.clock.now(), by)


@router.post(
    "/login-links", status_code=201, openapi_extra=needs(Permission.PLATFORM_CHANGE, Of.WHOLE)
)
def post_login_link(here: Here, response: Response) -> LoginLink:
    """A link that opens one read-only session of the pages in a browser, before it expires."""
    response.headers["Cache-Control"] = "no-store"
    now = here.clock.now()
    ticket = credentials.new_link(here.platform, here.admin.token, now)
    return LoginLink(
        path=f"/login?ticket={ticket}", expires_at=at_of(now + credentials.LINK_S * _US)
    )


@router.post("/end-sessions", openapi_extra=needs(Permission.PLATFORM_CHANGE, Of.WHOLE))
def post_end_sessions(here: Here) -> EndedSessions:
    """End the sessions of all browsers."""
    return EndedSessions(count=credentials.end_sessions(here.platform))


@router.post("/{name}/rotate", openapi_extra=needs(Permission.TOKENS_OWN, Of.ANY))
def post_rotate(here: Here, by: By, name: ObjectName, response: Response) -> TokenCreated:
    """Give a token a new value; the old one ends at once. `admin` is the token of the home."""
    response.headers["Cache-Control"] = "no-store"
    now = here.clock.now()
    if name != credentials.ADMIN:
        return credentials.rotate_token(here.platform, name, now, by)
    by.require(Permission.PLATFORM_CHANGE, None)
    made = credentials.rotate_admin(here.platform, now)
    here.admin.token = made.token
    return made


@router.delete("/{name}", status_code=204, openapi_extra=needs(Permission.TOKENS_OWN, Of.ANY))
def delete_token(here: Here, by: By, name: ObjectName) -> Response:
    """Revoke a token, and the sessions that it opened."""
    credentials.revoke_token(here.platform, name, here.clock.now(), by)
    return Response(status_code=204)
