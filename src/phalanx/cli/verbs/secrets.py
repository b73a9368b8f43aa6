"""The group `secrets`: values that jobs receive by name, encrypted in the control plane's database."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from phalanx.cli.client.invocation import protects_secrets
from phalanx.cli.client.session import Session, connected
from phalanx.cli.terminal import output
from phalanx.cli.terminal.options import AsJson
from phalanx.errors import UserError

_WHOLE = "(whole)"
_COLUMNS: dict[str, Callable[[Any], Any]] = {
    "NAME": lambda one: one.name,
    "PROJECT": lambda one: one.project or _WHOLE,
    "VERSION": lambda one: one.version,
    "FROM": lambda one: one.source or "",
    "SET": lambda one: output.moment(one.set_at),
    "BY": lambda one: one.set_by,
}
_Names = Annotated[list[str], typer.Argument(metavar="NAME...", help="Names of variables.")]
_Project = Annotated[
    str, typer.Option("--project", help="The project with jobs that may name the secrets.")
]
_Whole = Annotated[
    bool,
    typer.Option("--whole", help="Of the whole platform: jobs of every project may name them."),
]

secrets_app = typer.Typer(
    name="secrets",
    no_args_is_help=True,
    help="Values that jobs name under `secrets`, encrypted in the database. No command prints a value.",
)


@secrets_app.command("set")
def set_secrets(
    ctx: typer.Context,
    names: _Names,
    project: _Project = "default",
    whole: _Whole = False,
    file: Annotated[
        Path | None, typer.Option("--file", help="Read the value of one secret from this file.")
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="MANAGER:PATH#KEY",
            help="Read the value of one secret from a secret manager at the start of each attempt.",
        ),
    ] = None,
) -> None:
    """Store secrets; a new value is used by the next attempt of each job.

    With --from the control plane stores where a secret manager has the value, and never the value.
    Without it, a value is read from --file, else from the environment variable of that name, else from
    standard input or a prompt. It is never an argument, because the list of processes shows those to every
    user.
    """
    session: Session = ctx.obj
    given = None if whole else project
    if source is not None:
        if file is not None or len(names) > 1:
            raise UserError(
                "--from names the value of one secret", "set the others one by one, without --file"
            )
        with connected(ctx) as client:
            stored = client.secrets.refer(names[0], source, given)
        said = f"{names[0]} of {_place(project, whole)}, version {stored.version}"
        output.note(f"stored {said}, is read from {stored.source}")
        return
    if not protects_secrets(session.url):
        raise UserError(
            "a secret is not sent over an unencrypted connection",
            "use an https URL, or run this on the control plane's machine",
        )
    if file is not None and len(names) > 1:
        raise UserError("--file is the value of one secret", "set the others one by one")
    values = {name: _value(session, name, file) for name in names}
    with connected(ctx) as client:
        for name, value in values.items():
            stored = client.secrets.set(name, value, given)
            output.note(f"stored {name} of {_place(project, whole)}, version {stored.version}")


@secrets_app.command("ls")
def list_secrets(
    ctx: typer.Context, project: _Project = "default", whole: _Whole = False, json: AsJson = False
) -> None:
    """List the secrets that jobs of a project can name, without values."""
    with connected(ctx) as client:
        found = client.secrets.list(None if whole else project)
    output.listing(found, json, _COLUMNS, "no secrets")


# The name of earlier releases.
secrets_app.command("list", hidden=True)(list_secrets)


@secrets_app.command("rm")
def remove_secrets(
    ctx: typer.Context, names: _Names, project: _Project = "default", whole: _Whole = False
) -> None:
    """Remove secrets. The next attempt of a job that names one fails with that reason."""
    with connected(ctx) as client:
        for name in names:
            client.secrets.remove(name, None if whole else project)
            output.note(f"removed {name} of {_place(project, whole)}")


@secrets_app.command("rotate-key")
def rotate_key(ctx: typer.Context) -> None:
    """Replace the master key of the home, and encrypt the data keys of all secrets with the new one.

    With keys from PHALANX__SECRETS__KEY the first of them is used: put a new one before the old one, start
    the control plane again, rotate, and then remove the old one.
    """
    with connected(ctx) as client:
        count = client.secrets.rotate_key()
    output.note(f"the keys of {count} secret{'s' if count != 1 else ''} have the new master key")


def _place(project: str, whole: bool) -> str:
    return "the whole platform" if whole else f"project {project}"


def _value(session: Session, name: str, file: Path | None) -> str:
    """The value from the file, the user's environment, standard input or a prompt."""
    if file is not None:
        try:
            text = (session.invocation.cwd / file).read_bytes().decode()
        except (OSError, UnicodeDecodeError) as error:
            said = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise UserError(f"--file {file}: cannot be read: {said}") from None
        return text.removesuffix("\n")
    if name in session.invocation.env:
        return session.invocation.env[name]
    if sys.stdin.isatty():
        value: str = typer.prompt(name, hide_input=True, err=True)
        return value
    return sys.stdin.read().removesuffix("\n")
