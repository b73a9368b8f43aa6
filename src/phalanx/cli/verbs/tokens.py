"""The group `token`: create, list, revoke and rotate tokens, and print a link to the pages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from phalanx.cli.client.session import connected
from phalanx.cli.terminal import output
from phalanx.cli.terminal.options import AsJson, duration
from phalanx.core.contract.access import MEANING, Scope
from phalanx.errors import UserError

_NEVER = "never"
_COLUMNS: dict[str, Callable[[Any], Any]] = {
    "ID": lambda one: one.id,
    "NAME": lambda one: one.name,
    "ACCOUNT": lambda one: one.principal,
    "SCOPES": lambda one: ",".join(one.scopes),
    "CREATED": lambda one: output.moment(one.created_at),
    "EXPIRES": lambda one: output.moment(one.expires_at) if one.expires_at else _NEVER,
}
TokenId = Annotated[str, typer.Argument(metavar="ID", help="Id of the token, from `token list`.")]

token_app = typer.Typer(
    name="token",
    no_args_is_help=True,
    help="Tokens with scopes: create, list, revoke, rotate; a link to the pages: login; the end of all"
    " sessions of browsers: logout.",
)


@token_app.command()
def create(
    ctx: typer.Context,
    scope: Annotated[
        list[str],
        typer.Option(
            "--scope",
            help="; ".join(f"{one}: {MEANING[one]}" for one in Scope) + ". May be repeated.",
        ),
    ],
    name: Annotated[str, typer.Option("--name", help="What the token is for.")] = "token",
    expires: Annotated[
        str, typer.Option("--expires", metavar="DURATION", help="Such as 30d, or never.")
    ] = "90d",
    account: Annotated[
        str | None,
        typer.Option(
            "--for", metavar="ACCOUNT", help="Such as user:ada or service:ci; default: your own."
        ),
    ] = None,
    json: AsJson = False,
) -> None:
    """Create a token and print it. It is shown once: only its hash is stored."""
    scopes = [_scope(one) for one in scope]
    expires_s = None if expires == _NEVER else duration("--expires", expires)
    with connected(ctx) as client:
        made = client.create_token(name, scopes, expires_s, principal=account)
    _print_created(made, json)


@token_app.command("list")
def list_tokens(ctx: typer.Context, json: AsJson = False) -> None:
    """List tokens that have not expired; values are not stored."""
    with connected(ctx) as client:
        found = client.tokens()
    output.listing(found, json, _COLUMNS, "no tokens but that of the home")


@token_app.command()
def revoke(ctx: typer.Context, token: TokenId) -> None:
    """Revoke a token, and the browser sessions that it opened."""
    with connected(ctx) as client:
        client.revoke_token(token)
    output.note(f"revoked {token}")


@token_app.command()
def rotate(ctx: typer.Context, token: TokenId = "admin", json: AsJson = False) -> None:
    """Give a token a new value and print it; the old one ends at once.

    Without ID it is the token of the home: commands on its machine read the new one by themselves.
    """
    with connected(ctx) as client:
        made = client.rotate_token(token)
    _print_created(made, json)


@token_app.command()
def login(ctx: typer.Context) -> None:
    """Print a link that opens the pages in one browser, within 15 minutes. It holds no token."""
    with connected(ctx) as client:
        print(client.login_link())


@token_app.command()
def logout(ctx: typer.Context) -> None:
    """End the sessions of all browsers, for example when a cookie may have been read by others."""
    with connected(ctx) as client:
        count = client.end_sessions()
    output.note(f"ended {count} session{'s' if count != 1 else ''}")


def _scope(text: str) -> Scope:
    try:
        return Scope(text)
    except ValueError:
        known = ", ".join(Scope)
        raise UserError(f"--scope {text}: there is no such scope", f"known: {known}") from None


def _print_created(made: Any, json: bool) -> None:
    if json:
        output.as_json(made)
        return
    print(made.token)
    scopes, ends = ", ".join(made.view.scopes), made.view.expires_at
    output.note(
        f"token {made.view.id} ({scopes}); expires: {output.moment(ends) if ends else _NEVER}. "
        "It is not shown again."
    )
