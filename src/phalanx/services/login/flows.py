"""The steps of a login: begin it, wait for the user, and end it in a token or in a session of the pages."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable
from typing import TypeVar
from urllib.parse import urlsplit

from phalanx.core.contract.access import Scope
from phalanx.core.tenancy.identities import identity_of
from phalanx.core.tenancy.principals import Caller, Principal
from phalanx.errors import PermissionDenied, Unauthenticated, UserError
from phalanx.kit.text import random_hex
from phalanx.schemas.api.body import at_of
from phalanx.schemas.api.login import BrowserLogin, DeviceLogin, FinishLoginRequest, LoginResult
from phalanx.services.login.provider import DEVICE_GRANT, LOOPBACK, IdentityProvider
from phalanx.services.login.sealed import PendingLogin, seal, unseal
from phalanx.services.platform import Platform, token_hash
from phalanx.services.resources.credentials import new_session, new_token
from phalanx.services.tenancy.sign_in import signed_in
from phalanx.store import credentials
from phalanx.store.credentials import TICKET, Credential
from phalanx.store.database import Tx

T = TypeVar("T")
DEVICE, BROWSER, PAGES = "device", "browser", "pages"
CALLBACK = "/callback"
"""The path at which a command waits for the browser."""
PAGES_CALLBACK = "/login/callback"
"""The path at which the pages wait for it."""
LOGIN_S = 15 * 60
"""A login that has begun has to end within this time."""
_US = 1_000_000
_MIN_INTERVAL_S, _MAX_INTERVAL_S = 1.0, 60.0
_WAITING = frozenset({"authorization_pending", "slow_down"})
_VERIFIER_BYTES = 48


def start_device(platform: Platform, provider: IdentityProvider, now: int) -> DeviceLogin:
    """Begin a login that the user confirms on any device. Raises PermissionDenied, ServerUnavailable."""
    said = provider.start_device()
    expires_at = now + round(_number(said.get("expires_in"), 60, LOGIN_S, LOGIN_S) * _US)
    shown = {name: str(said.get(name) or "") for name in ("user_code", "verification_uri")}
    complete = str(said.get("verification_uri_complete") or "")
    code = str(said.get("device_code") or "")
    is_shown = _is_plain(shown["user_code"]) and _is_page(shown["verification_uri"])
    if not code or not is_shown:
        raise Unauthenticated("the identity provider gives no code to enter")
    login = PendingLogin(random_hex(32), DEVICE, expires_at, device_code=code)
    return DeviceLogin(
        **shown,
        verification_uri_complete=complete if _is_page(complete) else None,
        expires_at=at_of(expires_at),
        interval_s=_number(said.get("interval"), _MIN_INTERVAL_S, _MAX_INTERVAL_S, 5.0),
        login=seal(platform.signing_key, login),
    )


def start_browser(
    platform: Platform, provider: IdentityProvider, redirect_uri: str, now: int
) -> BrowserLogin:
    """Begin a login in the browser of a command's machine. Raises UserError for another machine's.

    The browser brings a code back to `redirect_uri`. Elsewhere an attacker could wait for that of others.
    """
    _check_loopback(redirect_uri)
    return _start(platform, provider, BROWSER, redirect_uri, now)


def start_pages(platform: Platform, provider: IdentityProvider, now: int) -> BrowserLogin:
    """Begin a login that opens the pages."""
    redirect_uri = f"{(platform.public_url or platform.server_url).rstrip('/')}{PAGES_CALLBACK}"
    return _start(platform, provider, PAGES, redirect_uri, now)


def _start(
    platform: Platform, provider: IdentityProvider, kind: str, redirect_uri: str, now: int
) -> BrowserLogin:
    login = PendingLogin(
        random_hex(32),
        kind,
        now + LOGIN_S * _US,
        state=random_hex(32),
        nonce=random_hex(32),
        verifier=secrets.token_urlsafe(_VERIFIER_BYTES),
        redirect_uri=redirect_uri,
    )
    url = provider.authorization_url(redirect_uri, login.state, login.nonce, login.verifier)
    return BrowserLogin(
        authorization_url=url,
        state=login.state,
        expires_at=at_of(login.expires_at),
        login=seal(platform.signing_key, login),
    )


def finish(
    platform: Platform, provider: IdentityProvider, request: FinishLoginRequest, now: int
) -> LoginResult:
    """End a login of a command in a token, or say that its user has not confirmed it yet.

    Raises Unauthenticated and PermissionDenied, which says why.
    """
    if request.code is None:
        login = unseal(platform.signing_key, request.login, DEVICE, now)
        form = {"grant_type": DEVICE_GRANT, "device_code": login.device_code}
        said = provider.redeem(form)
        if said.get("error") in _WAITING and "id_token" not in said:
            return LoginResult(slow_down=said["error"] == "slow_down")
    else:
        login = unseal(platform.signing_key, request.login, BROWSER, now)
        said = _redeem_code(provider, login, request.code, request.state or "")
    token_s = provider.config.token_s

    def end(tx: Tx, account: str) -> LoginResult:
        made = new_token(tx, account, _NAME, now, now + round(token_s * _US))
        return LoginResult(token=made)

    return _ended(platform, provider, login, said, now, end)


_NAME = "phalanx login"


def finish_pages(
    platform: Platform, provider: IdentityProvider, sealed: str, code: str, state: str, now: int
) -> str:
    """End a login of a browser in a session of the pages; returns its value."""
    login = unseal(platform.signing_key, sealed, PAGES, now)
    said = _redeem_code(provider, login, code, state)

    def end(tx: Tx, account: str) -> str:
        return new_session(tx, Caller("", (Scope.SUBMIT,), Principal(account)), now)

    return _ended(platform, provider, login, said, now, end)


def _redeem_code(
    provider: IdentityProvider, login: PendingLogin, code: str, state: str
) -> dict[str, object]:
    if not hmac.compare_digest(state.encode(), login.state.encode()):
        raise Unauthenticated("the browser came back from another login", "begin the login again")
    return provider.redeem(
        {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": login.redirect_uri,
            "code_verifier": login.verifier,
        }
    )


def _ended(
    platform: Platform,
    provider: IdentityProvider,
    login: PendingLogin,
    said: dict[str, object],
    now: int,
    end: Callable[[Tx, str], T],
) -> T:
    """Check what the provider signed, and give the user what its login ends in, once."""
    if "error" in said:
        raise PermissionDenied(f"the identity provider refuses the login: {_reason(said['error'])}")
    nonce = login.nonce or None
    claims = provider.claims(str(said["id_token"]), nonce, now // _US)
    identity = identity_of(claims, provider.config.issuer, provider.config.claims)
    used = Credential(
        random_hex(16), TICKET, "", (), token_hash(f"login {login.id}"), now, login.expires_at
    )

    def work(tx: Tx) -> T:
        if not credentials.insert_once(tx, used):
            raise Unauthenticated("this login has ended already", "run `phalanx login` again")
        return end(tx, signed_in(tx, identity, now))

    return platform.store.transact(work)


def _check_loopback(address: str) -> None:
    """Refuse an address that is not `http://127.0.0.1:PORT/callback` (RFC 8252, 7.3)."""
    try:
        parts = urlsplit(address)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    plain = not parts.query and not parts.fragment and "@" not in parts.netloc
    if parts.scheme == "http" and parts.hostname in LOOPBACK and port and plain:
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        if address == f"http://{host}:{port}{CALLBACK}":
            return
    raise UserError(
        "a browser may bring its code back to a command on the same machine alone",
        f"the address has the form http://127.0.0.1:PORT{CALLBACK}",
    )


def _is_page(address: str) -> bool:
    return address.startswith(("https://", "http://")) and _is_plain(address, 2000)


def _is_plain(text: str, most: int = 100) -> bool:
    """Whether a text may be shown: a terminal would act on control characters."""
    return 0 < len(text) <= most and text.isascii() and text.isprintable()


def _number(given: object, least: float, most: float, default: float) -> float:
    if isinstance(given, bool) or not isinstance(given, int | float):
        return default
    return min(max(float(given), least), most)


def _reason(error: object) -> str:
    text = str(error)
    return text if _is_plain(text) else "unknown reason"
