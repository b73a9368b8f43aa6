"""Sessions of browsers: sign in with a link or a token, and sign out.

A session is no token. It reads while it is used, for some hours; changes need the write key of `gate`, to
which each sign-in leads once. All addresses are relative: a proxy may serve them below a prefix.
"""

from __future__ import annotations

import hmac
from urllib.parse import parse_qs

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from phalanx.core.contract.access import Scope, covers
from phalanx.core.tenancy.principals import HOME_CALLER, Caller
from phalanx.core.tenancy.roles import Permission
from phalanx.errors import PermissionDenied, Unauthenticated
from phalanx.server.access import OPEN, Of, needs
from phalanx.server.context import Context, Here, asking_provider, in_thread
from phalanx.server.gate import KEY_HEADER, cookie_name, cookie_of, write_key
from phalanx.server.web.markup import HEADERS, Markup, page, tag
from phalanx.services.login import flows
from phalanx.services.resources import credentials
from phalanx.store.credentials import SESSION, TOKEN

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)
_FORM_BYTES = 4096
_SIGN_IN = (
    tag("h1", "Phalanx"),
    tag(
        "p",
        "A token that may read opens a session, which ends when it is not used.",
        class_="quiet",
    ),
    tag(
        "form",
        tag("input", type="password", name_="token", autocomplete="off", aria_label="token"),
        tag("button", "Sign in"),
        method="post",
        action="login",
    ),
)


@router.get("/login", openapi_extra=OPEN)
def get_login(here: Here, request: Request, ticket: str = "") -> Response:
    """Open a session with the ticket of a link, or show the form that asks for a token.

    A link opens one session. Opened again in the same browser, it leads to the pages.
    """
    if not ticket:
        return HTMLResponse(page("Phalanx", *_SIGN_IN, _provider_link(here)), headers=HEADERS)
    platform, now, session = here.platform, here.clock.now(), _session(here, request)
    if session and credentials.caller_of(platform, session, SESSION, now) is not None:
        return RedirectResponse("ui/", status_code=303, headers=HEADERS)
    made = credentials.open_with_ticket(platform, here.admin.token, ticket, now)
    return _to_front_page(here, made)


@router.get("/login/provider", openapi_extra=OPEN)
async def get_provider(here: Here) -> Response:
    """Send the browser to the identity provider; a cookie holds what it has to bring back."""
    provider, now = here.provider(), here.clock.now()
    begun = await asking_provider(lambda: flows.start_pages(here.platform, provider, now))
    answer = RedirectResponse(begun.authorization_url, status_code=303, headers=HEADERS)
    answer.set_cookie(
        _pending_cookie(here),
        begun.login,
        max_age=flows.LOGIN_S,
        path=flows.PAGES_CALLBACK,
        secure=_is_https(here),
        httponly=True,
        samesite="lax",  # the provider's page leads back here
    )
    return answer


@router.get(flows.PAGES_CALLBACK, openapi_extra=OPEN)
async def get_callback(
    here: Here, request: Request, code: str = "", state: str = "", error: str = ""
) -> Response:
    """End a login of this browser in a session.

    Answers a page: a browser that comes from the provider sends no strict cookie when it is redirected.
    """
    sealed = cookie_of(request.headers.get("cookie", ""), _pending_cookie(here))
    if error or not code or not sealed:
        raise Unauthenticated("this browser has begun no login here, or it was refused", "/login")
    provider, now = here.provider(), here.clock.now()
    session = await asking_provider(
        lambda: flows.finish_pages(here.platform, provider, sealed, code, state, now)
    )
    led_to = f"../ui/#key={write_key(here, session)}"
    on = tag("p", tag("a", "Go to the jobs", href=led_to))
    answer = HTMLResponse(
        page("Phalanx", tag("h1", "You are logged in"), on),
        headers={**HEADERS, "Refresh": f"0; url={led_to}"},
    )
    answer.delete_cookie(_pending_cookie(here), path=flows.PAGES_CALLBACK)
    _set_session(here, answer, session)
    return answer


def _provider_link(here: Context) -> Markup:
    """The way to the identity provider; nothing where none is configured."""
    if here.login is None:
        return Markup("")
    said = f"Log in with {here.login.config.provider_name}"
    return tag("p", tag("a", said, href="login/provider"))


def _pending_cookie(here: Context) -> str:
    return f"{cookie_name(here)}_login"


def _is_https(here: Context) -> bool:
    return here.platform.server_url.startswith("https:")


@router.post("/login", openapi_extra=OPEN)
async def post_login(here: Here, request: Request) -> Response:
    """Open a session with a token that may read. Only a form of this server may ask for it."""
    _check_form(request)
    token = (await _field(request, "token")).strip()
    caller = await in_thread(lambda: _caller(here, token))
    return await in_thread(lambda: _opened(here, caller))


@router.post("/logout", openapi_extra=needs(Permission.SELF, Of.ANY, session=True))
async def post_logout(here: Here, request: Request) -> Response:
    """End the session. The form has to send back a value that other sites cannot read.

    The web UI sends the session's write key instead.
    """
    _check_form(request)
    session = _session(here, request)
    sent = await _field(request, "form")
    key = request.headers.get(KEY_HEADER, "")
    is_form = hmac.compare_digest(sent.encode(), credentials.form_value(session).encode())
    if not is_form and not hmac.compare_digest(key.encode(), write_key(here, session).encode()):
        raise PermissionDenied("this form was not sent by a page of this session")
    now = here.clock.now()
    await in_thread(lambda: credentials.close_session(here.platform, session, now))
    answer = RedirectResponse("login", status_code=303, headers=HEADERS)
    answer.delete_cookie(cookie_name(here))
    return answer


def sign_out_form(here: Context, request: Request) -> Markup:
    """The button that ends a session; nothing for a caller without one."""
    session = _session(here, request)
    if not session:
        return Markup("")
    value = credentials.form_value(session)
    hidden = tag("input", type="hidden", name_="form", value=value)
    return tag("form", hidden, tag("button", "Sign out"), method="post", action="logout")


def _session(here: Context, request: Request) -> str:
    return cookie_of(request.headers.get("cookie", ""), cookie_name(here))


def _caller(here: Context, token: str) -> Caller:
    if hmac.compare_digest(token.encode(), here.admin.token.encode()):
        return HOME_CALLER
    found = (
        credentials.caller_of(here.platform, token, TOKEN, here.clock.now())
        if credentials.is_token(token)
        else None
    )
    if found is None:
        raise Unauthenticated("the token is wrong", "`phalanx token login` prints a link")
    if not covers(found.scopes, Scope.READ):
        raise PermissionDenied("this token may not read the pages", "use one with the scope read")
    return found


def _opened(here: Context, caller: Caller) -> Response:
    now = here.clock.now()
    return _to_front_page(here, credentials.open_session(here.platform, caller, now))


def _to_front_page(here: Context, session: str) -> Response:
    """Go to the web UI with the cookie of a new session, which is no token, and with its write key."""
    led_to = f"ui/#key={write_key(here, session)}"
    answer = RedirectResponse(led_to, status_code=303, headers=HEADERS)
    _set_session(here, answer, session)
    return answer


def _set_session(here: Context, answer: Response, session: str) -> None:
    answer.set_cookie(
        cookie_name(here),
        session,
        max_age=credentials.SESSION_S,
        path="/",
        secure=_is_https(here),
        httponly=True,
        samesite="strict",
    )


def _check_form(request: Request) -> None:
    """Refuse a form without an origin; the gate has compared the origin with the host."""
    if request.headers.get("origin") is None:
        raise PermissionDenied("a form has to come from a page of this server")


async def _field(request: Request, name: str) -> str:
    text = (await request.body())[:_FORM_BYTES].decode("ascii", "replace")
    return parse_qs(text).get(name, [""])[0]
