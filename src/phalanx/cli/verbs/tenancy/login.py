"""The verbs `login` and `logout`: a token over the identity provider of a control plane."""

from __future__ import annotations

import time
import webbrowser
from typing import TYPE_CHECKING, Annotated

import typer

from phalanx.cli.client import logins
from phalanx.cli.client.invocation import protects_secrets
from phalanx.cli.client.logins import StoredLogin
from phalanx.cli.client.session import Session
from phalanx.cli.terminal import output
from phalanx.errors import ServerUnavailable, Unauthenticated, UserError
from phalanx.kit.clock import SystemClock
from phalanx.schemas.api.credentials import TokenCreated

if TYPE_CHECKING:
    from phalanx.sdk import PhalanxClient

_BROWSER_S = 300.0
_SLOWER_S = 5.0


def login(
    ctx: typer.Context,
    browser: Annotated[
        bool,
        typer.Option("--browser", help="Log in in a browser of this machine, without a code."),
    ] = False,
) -> None:
    """Log in to the control plane of --url over its identity provider; prints a code to enter there.

    The token is stored for later commands with the same --url, until it expires.
    """
    session, url = _session(ctx)
    if not protects_secrets(url):
        raise UserError(
            f"{url} is not protected by TLS", "use an address that begins with https://"
        )
    from phalanx.sdk import PhalanxClient

    with PhalanxClient(url, "none") as client:  # these routes need no token
        provider = client.accounts.login_provider().provider
        made = _in_browser(client, provider) if browser else _with_code(client, provider)
    ends = made.view.expires_at
    assert ends is not None
    kept = StoredLogin(account=made.view.principal, expires_at=ends, token=made.token)
    logins.store(session.invocation, url, kept)
    output.note(f"logged in as {kept.account} until {output.moment(ends)}")


def logout(ctx: typer.Context) -> None:
    """End the login at the control plane of --url: its token is revoked and forgotten."""
    session, url = _session(ctx)
    found = logins.find(session.invocation, url)
    if found is None:
        raise UserError(f"there is no login at {url}", "`phalanx login` makes one")
    from phalanx.sdk import PhalanxClient

    said = "logged out"
    try:
        with PhalanxClient(url, found.token) as client:
            client.revoke_token(client.accounts.who_am_i().token)
    except Unauthenticated:
        said = "the login had ended already"
    except ServerUnavailable:
        ends = output.moment(found.expires_at)
        said = f"the token is forgotten here; {url} does not answer, and accepts it until {ends}"
    logins.store(session.invocation, url, None)
    output.note(said)


def _session(ctx: typer.Context) -> tuple[Session, str]:
    session: Session = ctx.obj
    if session.url is None:
        raise UserError(
            "the control plane of this machine's home needs no login",
            "name another one with --url or PHALANX_URL",
        )
    return session, session.url


def _in_browser(client: PhalanxClient, provider: str) -> TokenCreated:
    with logins.callback() as callback:
        begun = client.accounts.start_browser_login(callback.address)
        print(f"Log in with {provider} in the browser:\n  {begun.authorization_url}", flush=True)
        webbrowser.open(begun.authorization_url)
        code = callback.wait(begun, _BROWSER_S)
    made = client.accounts.finish_login(begun.login, code=code, state=begun.state).token
    if made is None:
        raise Unauthenticated("the control plane gave no token", "run `phalanx login` again")
    return made


def _with_code(client: PhalanxClient, provider: str) -> TokenCreated:
    begun = client.accounts.start_device_login()
    print(f"Log in with {provider}: open\n  {begun.verification_uri}\nand enter {begun.user_code}")
    if begun.verification_uri_complete is not None:
        print(f"or open\n  {begun.verification_uri_complete}")
    print(end="", flush=True)
    pause_s, clock = begun.interval_s, SystemClock()
    while clock.now() < begun.expires_at.timestamp() * 1e6:
        time.sleep(pause_s)
        result = client.accounts.finish_login(begun.login)
        if result.token is not None:
            return result.token
        if result.slow_down:
            pause_s += _SLOWER_S
    raise UserError("the code was not entered in time", "run `phalanx login` again")
