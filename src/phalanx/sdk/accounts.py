"""The routes about users, service accounts, groups and their roles."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Literal

import httpx

from phalanx.core.tenancy.roles import UserRole
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
from phalanx.schemas.api.audit import AuditEntryView, AuditPage
from phalanx.schemas.api.login import (
    BrowserLogin,
    DeviceLogin,
    FinishLoginRequest,
    LoginResult,
    LoginView,
    StartBrowserRequest,
)
from phalanx.sdk.transport import V1, Transport, encode, raise_for, read


class AccountCalls(Transport):
    """One method for each route about identity; `client.accounts`, on the connection of the client."""

    def __init__(self, url: str, http: httpx.Client) -> None:
        self.url, self._http = url, http

    def who_am_i(self) -> WhoAmIView:
        """The account of this client's token, its roles, and what it may do."""
        return self._get(f"{V1}/whoami", WhoAmIView)

    def login_provider(self) -> LoginView:
        """The identity provider of the control plane. Raises NotFound where there is none."""
        return self._get(f"{V1}/login", LoginView)

    def start_device_login(self) -> DeviceLogin:
        """Begin a login that the user confirms on any device. Needs no token."""
        headers = {"Content-Type": "application/json"}
        response = self._send("POST", f"{V1}/login/device", headers=headers)
        raise_for(response)
        return read(DeviceLogin, response)

    def start_browser_login(self, redirect_uri: str) -> BrowserLogin:
        """Begin a login in a browser, which brings a code back to an address of this machine."""
        body = StartBrowserRequest(redirect_uri=redirect_uri)
        return self._post(f"{V1}/login/browser", body, BrowserLogin)

    def finish_login(
        self, login: str, *, code: str | None = None, state: str | None = None
    ) -> LoginResult:
        """End a login; without a token in the result its user has not confirmed it yet.

        Raises Unauthenticated and PermissionDenied where it is refused.
        """
        body = FinishLoginRequest(login=login, code=code, state=state)
        return self._post(f"{V1}/login/finish", body, LoginResult)

    def accounts(self) -> list[AccountView]:
        """Users and service accounts with their groups and roles."""
        return self._get(f"{V1}/accounts", list[AccountView])

    def account(self, id: str) -> AccountView:
        """One account, such as `user:ada`, with its groups and roles. Raises NotFound."""
        return self._get(f"{V1}/accounts/{id}", AccountView)

    def add(self, name: str, kind: Literal["user", "service"] = "user") -> AccountView:
        """Add a user or a service account. Raises Conflict for one that is there."""
        return self._post(f"{V1}/accounts", AddAccountRequest(kind=kind, name=name), AccountView)

    def change(
        self, id: str, *, disabled: bool | None = None, subject: str | None = None
    ) -> AccountView:
        """Disable or enable an account, or say which subject of the provider logs in as it.

        Raises NotFound, Conflict.
        """
        given = {"disabled": disabled, "subject": subject}
        body = ChangeAccountRequest.model_validate(
            {name: one for name, one in given.items() if one is not None}
        )
        return self._patch(f"{V1}/accounts/{id}", body, AccountView)

    def remove(self, id: str) -> None:
        """Remove an account, such as `user:ada`, with its tokens and roles. Raises NotFound."""
        self._delete(f"{V1}/accounts/{id}")

    def groups(self) -> list[GroupView]:
        """Groups with their members."""
        return self._get(f"{V1}/groups", list[GroupView])

    def set_group(self, id: str, members: Iterable[str]) -> GroupView:
        """Replace the members of a group, such as `group:ml`. Raises NotFound for an account."""
        body = SetGroupRequest(members=[*members])
        return self._put(f"{V1}/groups/{id}", body, GroupView)

    def grants(self) -> list[GrantView]:
        """Roles in the projects of which the caller is an admin."""
        return self._get(f"{V1}/grants", list[GrantView])

    def audit(
        self,
        *,
        actor: str | None = None,
        action: str | None = None,
        target: str | None = None,
        outcome: str | None = None,
        since: datetime | None = None,
    ) -> Iterator[AuditEntryView]:
        """Entries of the audit log, newest first; read page by page. Needs the role admin for the whole."""
        wanted = {"actor": actor, "action": action, "target": target, "outcome": outcome}
        wanted["since"] = None if since is None else since.isoformat()
        before: int | None = None
        while True:
            page = self._get(f"{V1}/audit", AuditPage, {**wanted, "before": before, "limit": 1000})
            yield from page.entries
            before = page.next
            if before is None:
                return

    def grant(self, subject: str, role: UserRole | str, project: str | None = None) -> GrantView:
        """Give a role in a project, or for the whole platform. Raises NotFound, PermissionDenied."""
        body = GrantRequest(subject=subject, role=UserRole(role), project=project)
        return self._post(f"{V1}/grants", body, GrantView)

    def take(self, subject: str, project: str | None = None) -> None:
        """Take a role in a project, or for the whole platform. Raises NotFound, PermissionDenied."""
        body = encode(TakeRoleRequest(subject=subject, project=project))
        headers = {"Content-Type": "application/json"}
        raise_for(self._send("POST", f"{V1}/grants/take", content=body, headers=headers))
