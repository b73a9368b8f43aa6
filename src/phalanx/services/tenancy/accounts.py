"""Add and remove accounts, set groups, and give and take roles."""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.core.tenancy.identities import identity_key
from phalanx.core.tenancy.principals import GROUP, HOME_USER, WHOLE, Caller
from phalanx.core.tenancy.roles import Permission
from phalanx.errors import Conflict, NotFound, UserError
from phalanx.schemas.api.accounts import (
    AccountView,
    AddAccountRequest,
    ChangeAccountRequest,
    GrantRequest,
    GrantView,
    GroupView,
    TakeRoleRequest,
    WhoAmIView,
)
from phalanx.schemas.api.body import at_of, at_or_none
from phalanx.schemas.api.credentials import TokenView
from phalanx.services.platform import Platform
from phalanx.store import credentials
from phalanx.store.database import Tx
from phalanx.store.tenancy import accounts, audit
from phalanx.store.tenancy.accounts import RoleGrant, StoredAccount


def list_accounts(platform: Platform) -> list[AccountView]:
    """All users and service accounts with their groups and roles."""

    def work(tx: Tx) -> list[AccountView]:
        groups = accounts.groups(tx)
        return [_account(tx, one, groups) for one in accounts.every(tx)]

    return platform.store.view(work)


def show_account(platform: Platform, id: str) -> AccountView:
    """One user or service account, such as `user:ada`. Raises NotFound."""
    return platform.store.view(lambda tx: _account(tx, _known_account(tx, id), accounts.groups(tx)))


def _account(tx: Tx, one: StoredAccount, groups: dict[str, list[str]]) -> AccountView:
    return AccountView(
        id=one.id,
        created_at=at_of(one.created_at),
        created_by=one.created_by,
        disabled_at=at_or_none(one.disabled_at),
        subject=None if one.identity is None else one.identity.partition(" ")[2],
        groups=[group for group, members in groups.items() if one.id in members],
        roles=accounts.roles_of(tx, one.id),
    )


def add_account(
    platform: Platform, request: AddAccountRequest, now: int, by: Caller
) -> AccountView:
    """Add a user or a service account. Raises Conflict for one that is there."""
    one = StoredAccount(f"{request.kind}:{request.name}", now, by.actor)

    def work(tx: Tx) -> AccountView:
        if one.id == HOME_USER.id or accounts.find(tx, one.id) is not None:
            raise Conflict(f"the account {one.id} is there already", "choose another name")
        audit.describe(tx, one.id, None, {"created_by": one.created_by})
        accounts.insert(tx, one)
        return _account(tx, one, {})

    return platform.store.transact(work)


def remove_account(platform: Platform, id: str) -> None:
    """Remove an account with its tokens, sessions, roles and places in groups. Raises NotFound.

    Its jobs go on, and events keep its name.
    """

    def work(tx: Tx) -> None:
        _known_account(tx, id)
        audit.describe(tx, id, {"roles": accounts.roles_of(tx, id)}, None)
        credentials.remove_of(tx, id)
        accounts.remove(tx, id)

    platform.store.transact(work)


def change_account(
    platform: Platform, id: str, request: ChangeAccountRequest, issuer: str | None, now: int
) -> AccountView:
    """Disable an account, which ends its tokens, or enable it, or say which subject logs in as it.

    Raises NotFound; UserError where there is no provider, and Conflict where the subject has an account.
    """
    if request.subject is not None and issuer is None:
        raise UserError("no identity provider is configured", "set PHALANX__LOGIN__ISSUER")

    def work(tx: Tx) -> AccountView:
        before = _known_account(tx, id)
        if request.subject is not None:
            identity = identity_key(str(issuer), request.subject)
            taken = accounts.of_identity(tx, identity)
            if taken is not None and taken.id != id:
                raise Conflict(f"this subject logs in as {taken.id}", "remove that account first")
            accounts.set_identity(tx, id, identity)
        if request.disabled is not None:
            accounts.set_disabled(tx, id, now if request.disabled else None)
        if request.disabled:
            credentials.remove_of(tx, id)
        after = _known_account(tx, id)
        audit.describe(tx, id, _audited(before), _audited(after))
        return _account(tx, after, accounts.groups(tx))

    return platform.store.transact(work)


def _audited(one: StoredAccount) -> dict[str, object]:
    return {"identity": one.identity, "disabled": one.disabled_at is not None}


def _known_account(tx: Tx, id: str) -> StoredAccount:
    found = accounts.find(tx, id)
    if found is None:
        raise NotFound(f"there is no account {id}", "`phalanx users list` lists them")
    return found


def list_groups(platform: Platform) -> list[GroupView]:
    """All groups that have members."""
    found = platform.store.view(accounts.groups)
    return [GroupView(id=id, members=members) for id, members in found.items()]


def set_group(platform: Platform, id: str, members: Sequence[str]) -> GroupView:
    """Replace the members of a group; without members its roles end, too. Raises NotFound, UserError."""
    if not id.startswith(f"{GROUP}:"):
        raise UserError(f"{id!r} is not the id of a group", "write group:NAME")
    wanted = sorted(set(members))

    def work(tx: Tx) -> None:
        for one in wanted:
            _known_account(tx, one)
        audit.describe(tx, id, accounts.groups(tx).get(id), wanted)
        accounts.set_members(tx, id, wanted)
        if not wanted:
            accounts.remove(tx, id)

    platform.store.transact(work)
    return GroupView(id=id, members=wanted)


def list_grants(platform: Platform, by: Caller) -> list[GrantView]:
    """The roles in the projects of which the caller is an admin."""
    projects = by.projects(Permission.GRANTS_CHANGE)
    return [_grant(one) for one in platform.store.view(lambda tx: accounts.grants(tx, projects))]


def _grant(one: RoleGrant) -> GrantView:
    return GrantView(
        subject=one.subject,
        role=one.role,
        project=one.project or None,
        granted_at=at_of(one.granted_at),
        granted_by=one.granted_by,
    )


def give_role(
    platform: Platform, request: GrantRequest, now: int, by: Caller, *, any_group: bool = False
) -> GrantView:
    """Give a role, in place of the one that the subject has there.

    With `any_group` also to a group without members: a login may name it later. Raises PermissionDenied
    for a project of which the caller is no admin, and NotFound.
    """
    by.require(Permission.GRANTS_CHANGE, request.project)
    one = RoleGrant(request.subject, request.project or WHOLE, request.role, now, by.actor)

    def work(tx: Tx) -> None:
        may_come = any_group and one.subject.startswith(f"{GROUP}:")
        if not may_come and not accounts.is_known(tx, one.subject):
            raise NotFound(
                f"there is no account or group {one.subject}",
                "`phalanx users add` and `phalanx groups set` make them",
            )
        before = accounts.role_in(tx, one.subject, one.project)
        audit.describe(tx, _place(one.subject, one.project), before, one.role)
        accounts.put_grant(tx, one)

    platform.store.transact(work)
    return _grant(one)


def take_role(platform: Platform, request: TakeRoleRequest, by: Caller) -> None:
    """Take a role; it ends with the next request. Raises PermissionDenied, NotFound."""
    by.require(Permission.GRANTS_CHANGE, request.project)
    place = request.project or WHOLE

    def work(tx: Tx) -> bool:
        before = accounts.role_in(tx, request.subject, place)
        audit.describe(tx, _place(request.subject, place), before, None)
        return accounts.remove_grant(tx, request.subject, place)

    if not platform.store.transact(work):
        raise NotFound(f"{request.subject} has no role there", "`phalanx grants list` lists them")


def _place(subject: str, project: str) -> str:
    return f"role of {subject} in {project or 'the whole platform'}"


def who_am_i(by: Caller, credential: TokenView | None) -> WhoAmIView:
    """The caller, its token, its roles, and what it may do somewhere."""
    return WhoAmIView(
        id=by.principal.id,
        token=by.token,
        credential=credential,
        scopes=list(by.scopes),
        roles=dict(by.principal.roles),
        permissions=[one for one in Permission if by.projects(one) != ()],
    )
