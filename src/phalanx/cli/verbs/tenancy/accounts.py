"""The groups `users`, `groups` and `grants`, and the verb `whoami`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from phalanx.cli.client.session import Session, connected
from phalanx.cli.terminal import output
from phalanx.cli.terminal.options import AsJson
from phalanx.core.tenancy.roles import UserRole
from phalanx.errors import UserError
from phalanx.schemas.api.credentials import TokenView

_WHOLE = "the whole platform"
SubjectArgument = Annotated[
    str, typer.Argument(metavar="SUBJECT", help="Such as user:ada, service:ci or group:ml.")
]
ProjectOption = Annotated[
    str | None, typer.Option("--project", help="The project; without it, the whole platform.")
]

users_app = typer.Typer(
    name="users",
    no_args_is_help=True,
    help="Users and service accounts: list, add, disable, enable, link, remove.",
)
groups_app = typer.Typer(
    name="groups",
    no_args_is_help=True,
    help="Groups of accounts: list, set; a group without members is removed.",
)
grants_app = typer.Typer(
    name="grants",
    no_args_is_help=True,
    help="Roles of users, service accounts and groups: list, add, remove.",
)


def _roles(roles: Mapping[str, str]) -> str:
    return ", ".join(f"{role} of {place or _WHOLE}" for place, role in sorted(roles.items()))


_ACCOUNTS: dict[str, Callable[[Any], Any]] = {
    "ID": lambda one: one.id,
    "GROUPS": lambda one: ", ".join(one.groups),
    "ROLES": lambda one: _roles(one.roles),
    "DISABLED": lambda one: output.moment(one.disabled_at) if one.disabled_at else "",
    "CREATED": lambda one: output.moment(one.created_at),
}
_GROUPS: dict[str, Callable[[Any], Any]] = {
    "ID": lambda one: one.id,
    "MEMBERS": lambda one: ", ".join(one.members),
}
_GRANTS: dict[str, Callable[[Any], Any]] = {
    "SUBJECT": lambda one: one.subject,
    "ROLE": lambda one: one.role,
    "PROJECT": lambda one: one.project or _WHOLE,
    "BY": lambda one: one.granted_by,
}


@users_app.command("list")
def list_users(ctx: typer.Context, json: AsJson = False) -> None:
    """List users and service accounts with their roles, those of their groups among them."""
    with connected(ctx) as client:
        found = client.accounts.accounts()
    output.listing(found, json, _ACCOUNTS, "no accounts; the token of the home is user:admin")


@users_app.command("add")
def add_user(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(help="Letters, digits and ._@+-, such as ada.")],
    service: Annotated[
        bool, typer.Option("--service", help="Add a service account, for programs.")
    ] = False,
) -> None:
    """Add a user or a service account; it may do nothing until it has a role."""
    with connected(ctx) as client, _plain():
        made = client.accounts.add(name, "service" if service else "user")
    output.note(
        f"added {made.id}; give it a role: phalanx grants add {made.id} ROLE --project NAME"
    )


@users_app.command("remove")
def remove_user(ctx: typer.Context, account: SubjectArgument) -> None:
    """Remove an account with its tokens and roles; its jobs go on."""
    with connected(ctx) as client:
        client.accounts.remove(account)
    output.note(f"removed {account}")


@users_app.command("disable")
def disable_user(ctx: typer.Context, account: SubjectArgument) -> None:
    """End the tokens and sessions of an account and refuse its logins; its jobs go on."""
    with connected(ctx) as client:
        client.accounts.change(account, disabled=True)
    output.note(f"{account} is disabled")


@users_app.command("enable")
def enable_user(ctx: typer.Context, account: SubjectArgument) -> None:
    """Let a disabled account log in again."""
    with connected(ctx) as client:
        client.accounts.change(account, disabled=False)
    output.note(f"{account} may log in")


@users_app.command("link")
def link_user(
    ctx: typer.Context,
    account: SubjectArgument,
    subject: Annotated[str, typer.Argument(help="The claim `sub` of the identity provider.")],
) -> None:
    """Say which user of the identity provider logs in as an account that was added here."""
    with connected(ctx) as client:
        client.accounts.change(account, subject=subject)
    output.note(f"{subject} logs in as {account}")


@groups_app.command("list")
def list_groups(ctx: typer.Context, json: AsJson = False) -> None:
    """List groups with their members."""
    with connected(ctx) as client:
        found = client.accounts.groups()
    output.listing(found, json, _GROUPS, "no groups")


@groups_app.command("set")
def set_group(
    ctx: typer.Context,
    group: Annotated[str, typer.Argument(metavar="GROUP", help="Such as group:ml.")],
    members: Annotated[
        list[str] | None, typer.Argument(help="Its members, such as user:ada service:ci.")
    ] = None,
) -> None:
    """Set the members of a group; without members the group and its roles are removed."""
    with connected(ctx) as client, _plain():
        made = client.accounts.set_group(group, members or ())
    output.note(f"{made.id}: {', '.join(made.members) or 'removed'}")


@grants_app.command("list")
def list_grants(ctx: typer.Context, json: AsJson = False) -> None:
    """List roles in the projects of which you are an admin."""
    with connected(ctx) as client:
        found = client.accounts.grants()
    output.listing(found, json, _GRANTS, "no roles are granted")


@grants_app.command("add")
def add_grant(
    ctx: typer.Context,
    subject: SubjectArgument,
    role: Annotated[UserRole, typer.Argument(help="viewer, member, operator or admin.")],
    project: ProjectOption = None,
) -> None:
    """Give a role; it replaces the one that the subject has there."""
    with connected(ctx) as client, _plain():
        made = client.accounts.grant(subject, role, project)
    output.note(f"{made.subject} is {made.role} of {made.project or _WHOLE}")


@grants_app.command("remove")
def remove_grant(
    ctx: typer.Context, subject: SubjectArgument, project: ProjectOption = None
) -> None:
    """Take a role."""
    with connected(ctx) as client, _plain():
        client.accounts.take(subject, project)
    output.note(f"{subject} has no role of its own in {project or _WHOLE}")


def whoami(ctx: typer.Context, json: AsJson = False) -> None:
    """Show the account of your token, its roles and its scopes."""
    with connected(ctx) as client:
        found = client.accounts.who_am_i()
    if json:
        output.as_json(found)
        return
    print(found.id)
    output.note(
        f"token {found.token} ({', '.join(found.scopes)}); {_roles(found.roles) or 'no role'}"
    )
    output.note(_way_in(ctx.obj, found.credential))


def _way_in(session: Session, credential: TokenView | None) -> str:
    """How the caller is logged in, and until when."""
    if credential is None:
        return "by the token of the home"
    ends = output.moment(credential.expires_at) if credential.expires_at else "it is revoked"
    if session.is_logged_in():
        return f"logged in with `phalanx login`, until {ends}"
    return f"by the token {credential.name!r} of --token or PHALANX_TOKEN, until {ends}"


class _plain:
    """Shows a wrong name as one line, not as the validation error of a body."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, tb: object) -> None:
        if isinstance(error, ValidationError):
            first = error.errors()[0]
            said = f"{first['input']!r} is not a valid {'.'.join(str(one) for one in first['loc'])}"
            raise UserError(said, "ids are user:NAME, service:NAME or group:NAME") from None
