"""Bodies about users, service accounts, groups and their roles."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from phalanx.core.contract.access import Scope
from phalanx.core.tenancy.roles import Permission, UserRole
from phalanx.schemas.api.body import At, RequestBody, ResponseBody
from phalanx.schemas.api.credentials import TokenView

_PART = r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,99}"
AccountName = Annotated[str, Field(pattern=f"^{_PART}$")]
"""Letters, digits and `._@+-`, a letter or digit first; an address of mail is one."""
AccountId = Annotated[str, Field(pattern=f"^(user|service):{_PART}$")]
Subject = Annotated[str, Field(pattern=f"^(user|service|group):{_PART}$")]
"""Such as `user:ada`, `service:ci` or `group:ml`."""
ProjectName = Annotated[str, Field(min_length=1, max_length=100)]


class AddAccountRequest(RequestBody):
    """A new user or service account. It may do nothing until it has a role."""

    kind: Literal["user", "service"] = "user"
    name: AccountName


class ChangeAccountRequest(RequestBody):
    """Changes of an account; what is absent stays."""

    disabled: bool | None = None  # true: it may not log in, and its tokens end
    subject: Annotated[str, Field(min_length=1, max_length=255)] | None = None  # what logs in as it


class AccountView(ResponseBody):
    """A user or a service account."""

    id: str
    created_at: At
    created_by: str
    disabled_at: At | None = None
    subject: str | None = None  # of the identity provider: what logs in as this account
    groups: list[str] = Field(default_factory=list)
    roles: dict[str, UserRole] = Field(default_factory=dict)  # by project; "": the whole platform


class SetGroupRequest(RequestBody):
    """The members of a group, in place of those that it has."""

    members: Annotated[list[AccountId], Field(max_length=10_000)]


class GroupView(ResponseBody):
    """A group and its members."""

    id: str
    members: list[str]


class GrantRequest(RequestBody):
    """A role for a user, a service account or a group. `project` None: for the whole platform."""

    subject: Subject
    role: UserRole
    project: ProjectName | None = None


class TakeRoleRequest(RequestBody):
    """Takes the role of a subject in a project, or for the whole platform."""

    subject: Subject
    project: ProjectName | None = None


class GrantView(ResponseBody):
    """A role that was granted. `project` None: for the whole platform."""

    subject: str
    role: str
    project: str | None = None
    granted_at: At
    granted_by: str


class WhoAmIView(ResponseBody):
    """The caller as the server sees it: its account, its token, and what it may do where."""

    id: str
    token: str
    credential: TokenView | None = None  # None: the token of the home
    scopes: list[Scope]
    roles: dict[str, UserRole]  # by project; "": the whole platform
    permissions: list[Permission]  # those that it has somewhere
