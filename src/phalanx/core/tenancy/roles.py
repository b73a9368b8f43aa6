"""Permissions, roles and the table between them."""

from __future__ import annotations

from enum import StrEnum

from phalanx.core.contract.access import Scope


class Permission(StrEnum):
    """One thing that a caller may do. Every route names exactly one."""

    SELF = "self"  # see which user the caller is, and end its session
    TOKENS_OWN = "tokens.own"  # the caller's own tokens
    PLATFORM_SEE = "platform.see"  # pools, nodes, the policy, versions
    METRICS_READ = "metrics.read"  # the metrics of all projects in one text
    PROJECT_READ = "project.read"  # the limits and the usage of a project
    JOBS_READ = "jobs.read"  # jobs and studies with their logs, metrics and checkpoints
    JOBS_SUBMIT = "jobs.submit"  # submit jobs and studies, upload code
    JOBS_CHANGE = "jobs.change"  # stop, pause, resume and change jobs and studies
    JOBS_ENTER = "jobs.enter"  # run commands in jobs, and reach ports of their nodes
    NODES_CHANGE = "nodes.change"  # drain nodes
    SECRETS_READ = "secrets.read"  # the names of a project's secrets; values are never shown
    SECRETS_CHANGE = "secrets.change"  # set and remove secrets
    GRANTS_CHANGE = "grants.change"  # see, give and take roles
    COSTS_MANAGE = "costs.manage"  # acknowledge anomalies of cost; import and compare bills
    AUDIT_READ = "audit.read"  # the record of requests
    PLATFORM_CHANGE = "platform.change"  # pools, projects, the policy, users, tokens of others


class UserRole(StrEnum):
    """A set of permissions that is granted in a project or for the whole platform."""

    VIEWER = "viewer"
    MEMBER = "member"
    OPERATOR = "operator"
    ADMIN = "admin"


_VIEWER = frozenset(
    {
        Permission.PLATFORM_SEE,
        Permission.METRICS_READ,
        Permission.PROJECT_READ,
        Permission.JOBS_READ,
    }
)
_MEMBER = _VIEWER | {Permission.JOBS_SUBMIT, Permission.SECRETS_READ}
_OPERATOR = _MEMBER | {
    Permission.JOBS_CHANGE,
    Permission.JOBS_ENTER,
    Permission.NODES_CHANGE,
    Permission.SECRETS_CHANGE,
    Permission.COSTS_MANAGE,
}
PERMISSIONS: dict[UserRole, frozenset[Permission]] = {
    UserRole.VIEWER: _VIEWER,
    UserRole.MEMBER: _MEMBER,
    UserRole.OPERATOR: _OPERATOR,
    UserRole.ADMIN: frozenset(Permission),
}
"""What each role may do where it is granted."""

OF_ALL = frozenset({Permission.SELF, Permission.TOKENS_OWN})
"""What every principal may do, also one without any role."""

PLATFORM_WIDE = frozenset(
    {
        Permission.METRICS_READ,
        Permission.NODES_CHANGE,
        Permission.COSTS_MANAGE,
        Permission.AUDIT_READ,
        Permission.PLATFORM_CHANGE,
    }
)
"""Permissions about the whole: a role in one project does not give them."""

OWNERS_MAY = {Permission.JOBS_CHANGE: Permission.JOBS_SUBMIT}
"""What the owner of a job may do to it with a lesser permission."""

SCOPES: dict[Permission, Scope] = {
    Permission.SELF: Scope.METRICS,
    Permission.TOKENS_OWN: Scope.ADMIN,
    Permission.PLATFORM_SEE: Scope.READ,
    Permission.METRICS_READ: Scope.METRICS,
    Permission.PROJECT_READ: Scope.READ,
    Permission.JOBS_READ: Scope.READ,
    Permission.JOBS_SUBMIT: Scope.SUBMIT,
    Permission.JOBS_CHANGE: Scope.SUBMIT,
    Permission.JOBS_ENTER: Scope.ADMIN,
    Permission.NODES_CHANGE: Scope.ADMIN,
    Permission.SECRETS_READ: Scope.READ,
    Permission.SECRETS_CHANGE: Scope.ADMIN,
    Permission.GRANTS_CHANGE: Scope.ADMIN,
    Permission.COSTS_MANAGE: Scope.ADMIN,
    Permission.AUDIT_READ: Scope.ADMIN,
    Permission.PLATFORM_CHANGE: Scope.ADMIN,
}
"""The scope that a token needs for each permission, beside the roles of its owner."""
