"""Principals with their roles, and the decision whether one may do something in a project."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from phalanx.core.contract.access import Scope, covers
from phalanx.core.tenancy.roles import (
    OF_ALL,
    OWNERS_MAY,
    PERMISSIONS,
    PLATFORM_WIDE,
    SCOPES,
    Permission,
    UserRole,
)
from phalanx.errors import PermissionDenied

WHOLE = ""
"""The place of a role that is granted for the whole platform; others are names of projects."""
USER, SERVICE, GROUP = "user", "service", "group"


@dataclass(frozen=True, slots=True)
class Principal:
    """A user or a service account, such as `user:ada` or `service:ci`, with its role in each place."""

    id: str
    roles: Mapping[str, UserRole] = field(default_factory=dict)

    @property
    def owner(self) -> str:
        """The name that its jobs have as their owner: `ada` for `user:ada`, `service:ci` as it is."""
        return self.id.removeprefix(f"{USER}:")


def actor_of(owner: str) -> str:
    """The id of the principal that has a name as an owner of jobs."""
    return owner if owner.startswith(f"{SERVICE}:") else f"{USER}:{owner or 'admin'}"


HOME_USER = Principal("user:admin", {WHOLE: UserRole.ADMIN})
"""The one user of a control plane without accounts: the holder of the token of the home."""


def allowed(
    principal: Principal, permission: Permission, project: str | None, owner: str | None = None
) -> bool:
    """Whether a principal has a permission in a project; `project` None: for the whole platform.

    `owner` is that of the job or study concerned, which may do more to its own.
    """
    if permission in OF_ALL or _has(principal, permission, WHOLE):
        return True
    if project is None or permission in PLATFORM_WIDE:
        return False
    if _has(principal, permission, project):
        return True
    lesser = OWNERS_MAY.get(permission)
    if lesser is None or owner != principal.owner:
        return False
    return _has(principal, lesser, WHOLE) or _has(principal, lesser, project)


def _has(principal: Principal, permission: Permission, place: str) -> bool:
    role = principal.roles.get(place)
    return role is not None and permission in PERMISSIONS[role]


def projects_with(principal: Principal, permission: Permission) -> tuple[str, ...] | None:
    """The projects in which a principal has a permission; None: in every one."""
    if permission in OF_ALL or _has(principal, permission, WHOLE):
        return None
    if permission in PLATFORM_WIDE:
        return ()
    places = [one for one in principal.roles if one != WHOLE]
    return tuple(sorted(one for one in places if _has(principal, permission, one)))


@dataclass(frozen=True, slots=True)
class Caller:
    """An authenticated principal and its credential, with scopes that limit what it may do."""

    token: str  # id of the token
    scopes: tuple[Scope, ...]
    principal: Principal
    is_session: bool = False  # a browser's session, which opens pages alone

    @property
    def actor(self) -> str:
        """The name under which events and the audit have what it does."""
        return self.principal.id

    def may(self, permission: Permission, project: str | None, owner: str | None = None) -> bool:
        """Whether both its scopes and its roles include a permission."""
        covered = covers(self.scopes, SCOPES[permission])
        return covered and allowed(self.principal, permission, project, owner)

    def require(self, permission: Permission, project: str | None) -> None:
        """Raise PermissionDenied without a permission in a project; None: for the whole platform.

        The words are the same for a project that does not exist.
        """
        if not self.may(permission, project):
            place = "for the whole platform" if project is None else f"in project {project[:200]!r}"
            raise PermissionDenied(
                f"{self.actor} may not do this {place} (it needs {permission})",
                "ask an admin of the project for a role that has it: docs/how-to/users-and-roles.md",
            )

    def owner_of(self, named: str) -> str:
        """The owner of what it submits. Only the home's user may name one, such as its login name."""
        return named if self.principal == HOME_USER else self.principal.owner

    def projects(self, permission: Permission) -> tuple[str, ...] | None:
        """The projects in which it has a permission; None: in every one."""
        if not covers(self.scopes, SCOPES[permission]):
            return ()
        return projects_with(self.principal, permission)


HOME_CALLER = Caller("admin", (Scope.ADMIN,), HOME_USER)
"""The caller with the token of the home."""
