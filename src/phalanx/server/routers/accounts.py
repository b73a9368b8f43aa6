"""Routes for users, service accounts, groups and their roles, and the one that says what the caller is."""

from __future__ import annotations

from fastapi import APIRouter, Response

from phalanx.core.tenancy.roles import Permission
from phalanx.schemas.api.accounts import (
    AccountView,
    AddAccountRequest,
    ChangeAccountRequest,
    GrantRequest,
    GrantView,
    GroupView,
    SetGroupRequest,
    TakeRoleRequest,
    WhoAmIView,
)
from phalanx.server.access import Of, needs
from phalanx.server.context import By, Here
from phalanx.server.strict_requests import ObjectName, StrictRoute
from phalanx.services.resources.credentials import token_view
from phalanx.services.tenancy import accounts

router = APIRouter(prefix="/api/v1", tags=["accounts"], route_class=StrictRoute)
_CHANGE = needs(Permission.PLATFORM_CHANGE, Of.WHOLE)


@router.get("/whoami", openapi_extra=needs(Permission.SELF, Of.ANY))
def get_who_am_i(here: Here, by: By) -> WhoAmIView:
    """The account of the caller, its token, its roles, and what it may do."""
    return accounts.who_am_i(by, token_view(here.platform, by.token, here.clock.now()))


@router.get("/accounts", openapi_extra=_CHANGE)
def get_accounts(here: Here) -> list[AccountView]:
    """Users and service accounts with their groups and roles."""
    return accounts.list_accounts(here.platform)


@router.post("/accounts", status_code=201, openapi_extra=_CHANGE)
def post_account(here: Here, by: By, request: AddAccountRequest) -> AccountView:
    """Add a user or a service account."""
    return accounts.add_account(here.platform, request, here.clock.now(), by)


@router.get("/accounts/{name}", openapi_extra=_CHANGE)
def get_account(here: Here, name: ObjectName) -> AccountView:
    """One account, such as `user:ada`, with its groups and roles."""
    return accounts.show_account(here.platform, name)


@router.patch("/accounts/{name}", openapi_extra=_CHANGE)
def patch_account(here: Here, name: ObjectName, request: ChangeAccountRequest) -> AccountView:
    """Disable or enable an account, or say which subject of the identity provider logs in as it."""
    issuer = here.settings.login.issuer
    return accounts.change_account(here.platform, name, request, issuer, here.clock.now())


@router.delete("/accounts/{name}", status_code=204, openapi_extra=_CHANGE)
def delete_account(here: Here, name: ObjectName) -> Response:
    """Remove an account, such as `user:ada`, with its tokens and roles; its jobs go on."""
    accounts.remove_account(here.platform, name)
    return Response(status_code=204)


@router.get("/groups", openapi_extra=_CHANGE)
def get_groups(here: Here) -> list[GroupView]:
    """Groups with their members."""
    return accounts.list_groups(here.platform)


@router.put("/groups/{name}", openapi_extra=_CHANGE)
def put_group(here: Here, name: ObjectName, request: SetGroupRequest) -> GroupView:
    """Replace the members of a group, such as `group:ml`; without members it is removed."""
    return accounts.set_group(here.platform, name, request.members)


@router.get("/grants", openapi_extra=needs(Permission.GRANTS_CHANGE, Of.ANY))
def get_grants(here: Here, by: By) -> list[GrantView]:
    """Roles in the projects of which the caller is an admin."""
    return accounts.list_grants(here.platform, by)


@router.post("/grants", openapi_extra=needs(Permission.GRANTS_CHANGE, Of.BODY))
def post_grant(here: Here, by: By, request: GrantRequest) -> GrantView:
    """Give a role in a project or for the whole platform; it replaces the one there."""
    any_group = here.settings.login.groups_claim is not None
    return accounts.give_role(here.platform, request, here.clock.now(), by, any_group=any_group)


@router.post(
    "/grants/take", status_code=204, openapi_extra=needs(Permission.GRANTS_CHANGE, Of.BODY)
)
def post_take(here: Here, by: By, request: TakeRoleRequest) -> Response:
    """Take a role in a project or for the whole platform."""
    accounts.take_role(here.platform, request, by)
    return Response(status_code=204)
