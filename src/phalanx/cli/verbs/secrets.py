"""The verb secrets: values that jobs receive by name, stored on the control plane's machine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from phalanx.cli.client import embedded
from phalanx.cli.client.session import Session
from phalanx.cli.terminal import output
from phalanx.cli.terminal.options import AsJson
from phalanx.errors import UserError
from phalanx.launch import secret_files
from phalanx.schemas.home import HomeLayout

_ACTIONS = "list | set NAME... | rm NAME..."


def secrets(
    ctx: typer.Context,
    words: Annotated[
        list[str], typer.Argument(metavar=_ACTIONS, help="Action and names of secrets.")
    ],
    project: Annotated[
        str, typer.Option("--project", help="The project that owns the secrets.")
    ] = "default",
    json: AsJson = False,
) -> None:
    """Store the secrets that specs name under `secrets`, each in a file of mode 0600 in the home.

    `set` reads the value from the environment variable of that name, or from standard input. No verb prints
    a value.
    """
    folder = _folder(ctx.obj, project)
    action, chosen = words[0], words[1:]
    if action == "list" and not chosen:
        found = secret_files.names(folder)
        output.listing(found, json, {"NAME": str}, "no secrets")
    elif action in ("set", "rm") and chosen:
        for name in chosen:
            if action == "set":
                secret_files.store(folder, name, _value(ctx.obj, name))
            else:
                secret_files.remove(folder, name)
            output.note(f"{'stored' if action == 'set' else 'removed'} {name} of project {project}")
    else:
        raise UserError(f"secrets: {' '.join(words)!r} is not valid", f"write {_ACTIONS}")


def _folder(session: Session, project: str) -> Path:
    if session.url is not None:
        raise UserError(
            "secrets are stored on the control plane's own machine",
            "run this verb on that machine, without --url",
        )
    embedded.check_home(session.home)
    if not project or "/" in project or project.startswith("."):
        hint = "a name has no slash and does not begin with a dot"
        raise UserError(f"--project: {project!r} is not a project's name", hint)
    return HomeLayout(session.home).secrets_dir(project)


def _value(session: Session, name: str) -> str:
    """The value from the user's environment, else from standard input without the final newline."""
    if name in session.invocation.env:
        return session.invocation.env[name]
    if sys.stdin.isatty():
        value: str = typer.prompt(name, hide_input=True, err=True)
        return value
    return sys.stdin.read().removesuffix("\n")
