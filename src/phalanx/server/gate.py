"""Access checks of every request: Host header, bearer token or a browser's cookie, and body size.

Cookies ignore ports: every server of this machine that a browser visits receives them. So the cookie alone
only reads. To change something, a request needs the write key as well: it is handed out once, in the
fragment of the address to which a sign-in leads, and kept by the web UI in the storage of its own origin.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from http.cookies import CookieError, SimpleCookie
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from phalanx.core.contract.access import Scope as TokenScope
from phalanx.core.contract.access import covers
from phalanx.core.tenancy.principals import HOME_CALLER, Caller
from phalanx.core.tenancy.roles import SCOPES, Permission
from phalanx.errors import (
    NotFound,
    PermissionDenied,
    PlatformError,
    TooLarge,
    TooManyRequests,
    Unauthenticated,
    UserError,
)
from phalanx.kit.log_lines import log_fields
from phalanx.kit.text import random_hex, replace_unencodable
from phalanx.kit.units import format_size
from phalanx.schemas.api.body import ErrorView, ProblemView
from phalanx.server.access import Access, AccessTable, Matched, Of, bearer_token
from phalanx.server.audit_trail import AuditTrail
from phalanx.server.connections import SCOPE_KEY
from phalanx.server.context import CALLER_KEY, RECEIVE, STILL_PERMITTED_KEY, Context, in_thread
from phalanx.services.platform import REQUEST_BASE, token_hash
from phalanx.services.resources.credentials import caller_of, is_token
from phalanx.store import jobs, supervisors
from phalanx.store.credentials import SESSION, TOKEN
from phalanx.store.studies import rows as studies

KEY_HEADER = "X-Phalanx-Csrf"
"""The header of a session's write key."""
_API = "/api/v1/"
# `none`: a person has typed the address. Browsers without the header are covered by the cookie's SameSite.
_OWN_FETCHES = frozenset({"same-origin", "none"})
RETRY_AFTER_S = 2
"""When a client is told to try again after an error that passes."""
_SUPERVISORS = "/api/v1/supervisors/"
_SYNC = f"{_SUPERVISORS}sync"
_SAFE = frozenset({"GET", "HEAD"})
_CODE = "/api/v1/code/"
# Supervisors send what ranks print in parts of about a megabyte, and the stacks of all ranks at once.
_SYNC_BYTES = 64 << 20
# Tokens of supervisors that are remembered.
_MOST_SUPERVISORS = 10_000
_SIZE = re.compile("[0-9]{1,18}")
_REQUEST_ID = re.compile("[A-Za-z0-9._-]{1,64}")
_TRACEPARENT = re.compile("00-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}")
_NUM = re.compile("[1-9][0-9]{0,17}")
# What a caller needs to know that something exists.
_SEEING = {
    Of.JOB: Permission.JOBS_READ,
    Of.STUDY: Permission.JOBS_READ,
    Of.PROJECT: Permission.PROJECT_READ,
}


def error_response(error: PlatformError) -> Response:
    """The HTTP response of an error; all errors have this shape."""
    problems = [ProblemView.of(one) for one in getattr(error, "problems", ())]
    body = ErrorView.of(error, problems=problems).model_dump()
    # A message may quote text that cannot be encoded, such as the name of a file.
    text = replace_unencodable(json.dumps(body, ensure_ascii=False))
    headers = {}
    if error.http_status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="phalanx"'
    if error.retryable and error.http_status in (429, 503):
        headers["Retry-After"] = str(RETRY_AFTER_S)
    return Response(text, error.http_status, headers, media_type="application/json")


class Gate:
    """ASGI middleware that rejects requests without a served host name or without a valid token."""

    def __init__(self, app: ASGIApp, context: Context, table: AccessTable) -> None:
        self._app = app
        self._context = context
        self._table = table
        self._trail = AuditTrail(context, table)
        #: hashes of tokens of supervisors that are known, oldest first: what was issued once stays so
        self._supervisors: dict[str, None] = {}
        own = urlsplit(context.platform.server_url).hostname or ""
        public = urlsplit(context.platform.public_url).hostname or own
        self._hosts = {own, public, *(one.lower() for one in context.settings.api.allowed_hosts)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it with the reason for the rejection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        about = log_context(headers)
        with log_fields(**about):
            await self._serve(scope, headers, receive, _with_id(send, about["request_id"]))

    async def _serve(self, scope: Scope, headers: Headers, receive: Receive, send: Send) -> None:
        try:
            caller = await self._check(scope, headers)
            if scope["path"] == _SYNC:
                await self._check_supervisor(headers)
            key = self._load_key(scope, headers, caller)
            self._check_load(key)
        except PlatformError as error:
            if isinstance(error, Unauthenticated | PermissionDenied | NotFound):
                await self._trail.denied(scope)
            await error_response(error)(scope, receive, send)
            return
        await self._trail.read(scope)
        connection = scope.get(SCOPE_KEY)
        if connection is not None and (caller is not None or scope["path"] == _SYNC):
            # Supervisors of an attempt have one token, and each of them has a connection.
            connection.recognize("" if caller is None else caller.token)
        RECEIVE.set(receive)
        REQUEST_BASE.set(_base_of(scope, headers, context=self._context))
        actor = None if caller is None else caller.actor
        with self._counted(caller, key), self._trail.changes(scope), log_fields(actor=actor):
            await self._app(scope, self._bounded(scope["path"], receive), send)

    def _load_key(
        self, scope: Scope, headers: Headers, caller: Caller | None
    ) -> tuple[str, bool] | None:
        """The token of a request, and whether it may change something; None: it is not counted.

        Supervisors of an attempt share a token, and each of them has a long poll.
        """
        changes = scope["method"] not in _SAFE
        if caller is not None:
            return caller.token, changes
        path = scope["path"]
        ranks = self._table.find(scope["method"], path).access.of is Of.ATTEMPT
        if not ranks or path.startswith(_SUPERVISORS):
            return None
        return f"attempt:{token_hash(bearer_token(headers))}", changes

    def _check_load(self, key: tuple[str, bool] | None) -> None:
        """Raise TooManyRequests where the token of a request has as many open ones as it may."""
        if key is None:
            return
        limit = self._context.settings.api.max_requests_per_token // (4 if key[1] else 1)
        if self._context.presence.of_token[key] >= limit:
            raise TooManyRequests(
                f"{limit} requests of this token are being served, and no more are at a time",
                "wait for their answers, or use a token of its own for each program",
            )

    @contextmanager
    def _counted(self, caller: Caller | None, key: tuple[str, bool] | None) -> Iterator[None]:
        """Count an open request, which `_check_load` has permitted before any other ran."""
        if key is None:
            yield
            return
        presence, clients = self._context.presence, int(caller is not None)
        presence.of_token[key] += 1
        presence.num_open += clients
        try:
            yield
        finally:
            presence.num_open -= clients
            presence.of_token[key] -= 1
            if not presence.of_token[key]:
                del presence.of_token[key]
            if clients:
                presence.last_seen = self._context.clock.monotonic()

    def _bounded(self, path: str, receive: Receive) -> Receive:
        """`receive` with a size limit: a chunked body has no Content-Length."""
        limit, size = self._limit(path), 0
        if limit is None:
            return receive

        async def bounded() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > limit:
                # The framework handles no other exception while it reads a body.
                raise HTTPException(TooLarge.http_status, _too_large(limit).message)
            return message

        return bounded

    async def _check(self, scope: Scope, headers: Headers) -> Caller | None:
        """The caller of a client; None on a path that needs none. Raises PlatformError."""
        if host_name(headers.get("host", "")) not in self._hosts:
            raise PermissionDenied(
                "this host name is not served here", "use the URL that the server printed"
            )
        path = scope["path"]
        caller = None
        if scope["method"] not in _SAFE:
            _check_origin(headers)
        needed = self._table.find(scope["method"], path)
        if needed.access.needs_caller:
            caller = await self._caller(scope, headers, needed)
            scope[CALLER_KEY] = caller
            said = f"{scope['method']} {path[:200]}"
            await self._check_permission(caller, needed, said)
            scope[STILL_PERMITTED_KEY] = partial(
                self._still_permitted, scope, headers, needed, said
            )
        size = headers.get("content-length", "0")
        if not _SIZE.fullmatch(size):
            raise UserError("Content-Length is not a number")
        limit = self._limit(path)
        if limit is not None and int(size) > limit:
            raise _too_large(limit)
        return caller

    def _limit(self, path: str) -> int | None:
        """The most bytes of a body; None where the route counts them itself."""
        if path.startswith(_CODE):
            return None
        return _SYNC_BYTES if path == _SYNC else self._context.settings.api.max_body_bytes

    async def _caller(self, scope: Scope, headers: Headers, needed: Matched) -> Caller:
        """The principal of a request. Raises Unauthenticated, PermissionDenied.

        A browser sends cookies to every server of this machine, so they hold no token: a session alone only
        reads.
        """
        scheme, _, shown = headers.get("authorization", "").partition(" ")
        value, kind, path = shown.strip(), TOKEN, scope["path"]
        if scheme.lower() == "bearer" and self._is_admin(value):
            return HOME_CALLER
        if scheme.lower() != "bearer" and takes_session(path, needed.access):
            value, kind = cookie_of(headers.get("cookie", ""), cookie_name(self._context)), SESSION
        elif not is_token(value):
            value = ""
        now, platform = self._context.clock.now(), self._context.platform
        found = await in_thread(lambda: caller_of(platform, value, kind, now)) if value else None
        if found is None:
            raise Unauthenticated(
                "the token is missing or wrong", "send `Authorization: Bearer TOKEN`"
            )
        if kind == SESSION:
            return limited(self._context, found, value, scope["method"], path, headers)
        return found

    async def _check_permission(self, caller: Caller, needed: Matched, said: str) -> None:
        """Raise PermissionDenied, or NotFound where the caller may not know that something exists."""
        permission, of = needed.access.permission, needed.access.of
        _check_scope(caller, SCOPES[permission], said)
        found = caller.projects(permission)
        if found is None or (found and of in (Of.ANY, Of.BODY)):
            return
        if of in (Of.JOB, Of.STUDY, Of.PROJECT):
            value = needed.values["name" if of is Of.PROJECT else "num"]
            project, owner = await in_thread(self._place, of, value)
            if not caller.may(_SEEING[of], project):
                raise not_there(of, value)
            if caller.may(permission, project, owner):
                return
        raise PermissionDenied(
            f"{caller.actor} may not do this: {said} needs {permission}",
            "docs/how-to/users-and-roles.md says which role has it",
        )

    async def _still_permitted(
        self, scope: Scope, headers: Headers, needed: Matched, said: str
    ) -> Caller | None:
        """The caller of a request that is being served, with its present roles; None: no longer."""
        try:
            caller = await self._caller(scope, headers, needed)
            await self._check_permission(caller, needed, said)
        except (Unauthenticated, PermissionDenied, NotFound):
            return None
        return caller

    def _place(self, of: Of, value: str) -> tuple[str, str]:
        """The project and the owner of what a path names. Raises NotFound."""
        if of is Of.PROJECT:
            return value, ""
        if not _NUM.fullmatch(value):
            raise not_there(of, value)
        table = jobs if of is Of.JOB else studies
        found: tuple[str, str] | None = self._context.platform.store.view(
            lambda tx: table.place_of(tx, int(value))
        )
        if found is None:
            raise not_there(of, value)
        return found

    async def _check_supervisor(self, headers: Headers) -> None:
        """Reject unknown tokens before the large body is read; the service checks the rest."""
        hashed = token_hash(headers.get("authorization", "").removeprefix("Bearer ").strip())
        if hashed in self._supervisors:
            return
        known: bool = await in_thread(
            self._context.platform.store.view, lambda tx: supervisors.knows_token(tx, hashed)
        )
        if not known:
            raise Unauthenticated("this is not the token of that supervisor")
        while len(self._supervisors) >= _MOST_SUPERVISORS:
            del self._supervisors[next(iter(self._supervisors))]
        self._supervisors[hashed] = None

    def _is_admin(self, shown: str) -> bool:
        return hmac.compare_digest(shown.encode(), self._context.admin.token.encode())


def log_context(headers: Headers) -> dict[str, str]:
    """Fields of the log lines of a request: its id, which the client may give, and its trace."""
    given = headers.get("x-request-id", "")
    about = {"request_id": given if _REQUEST_ID.fullmatch(given) else random_hex(16)}
    span = _TRACEPARENT.fullmatch(headers.get("traceparent", ""))
    return about if span is None else about | {"trace_id": span[1], "span_id": span[2]}


def _with_id(send: Send, request_id: str) -> Send:
    """`send` that tells the client the id of its request, by which its log lines are found."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], (b"x-request-id", request_id.encode())]
        await send(message)

    return sending


def not_there(of: Of, value: str) -> NotFound:
    """The answer for what does not exist, and for what the caller may not see."""
    if of is Of.PROJECT:
        return NotFound(f"there is no project {value[:200]}")
    label = f"study s-{value[:20]}" if of is Of.STUDY else f"job j-{value[:20]}"
    return NotFound(f"there is no {label}")


def _base_of(scope: Scope, headers: Headers, *, context: Context) -> str:
    """The URL that the client has called; that of the port for a client of the Unix socket."""
    own, host = context.platform.server_url.rstrip("/"), headers.get("host", "")
    server = scope.get("server")
    local = server is not None and server[1] is None
    return (
        own if local or host == urlsplit(own).netloc else f"{scope.get('scheme', 'http')}://{host}"
    )


def _too_large(limit: int) -> TooLarge:
    return TooLarge(f"the request is larger than {format_size(limit)}")


def host_name(header: str) -> str:
    """`localhost:8080` as `localhost`, `[::1]:8080` as `::1`."""
    if header.startswith("["):
        return header[1:].partition("]")[0].lower()
    return header.partition(":")[0].lower()


def _check_origin(headers: Headers) -> None:
    """Refuse a change that a page of another site asks a browser for. Programs send no origin."""
    origin = headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != headers.get("host", ""):
        raise PermissionDenied(f"pages of {origin[:100]!r} may not change anything here")


def _check_scope(caller: Caller, needed: TokenScope, said: str) -> None:
    if not covers(caller.scopes, needed):
        has = ", ".join(caller.scopes) or "no scope"
        raise PermissionDenied(
            f"this token has {has}, and {said} needs {needed}",
            f"`phalanx token create --scope {needed}` makes one that has it",
        )


def takes_session(path: str, access: Access) -> bool:
    """Whether the session of a browser is enough for a route: for pages, and for clients' API."""
    return access.session or path.startswith(_API)


def cookie_name(context: Context) -> str:
    """The name of the session cookie: cookies ignore ports, so each server has its own."""
    port = urlsplit(context.platform.server_url).port or 0
    tag = hashlib.sha256(b"cookie:" + context.platform.signing_key).hexdigest()[:12]
    return f"phalanx_{port}_{tag}"


def cookie_of(header: str, name: str) -> str:
    """The value of a cookie in a Cookie header, or an empty string."""
    try:
        found = SimpleCookie(header).get(name)
    except CookieError:
        return ""
    return "" if found is None else found.value


def write_key(context: Context, session: str) -> str:
    """The key of a session's changes, which cannot be computed from the session."""
    said = f"phalanx write key {session}".encode()
    return hmac.new(context.platform.signing_key, said, hashlib.sha256).hexdigest()


def limited(
    context: Context, caller: Caller, session: str, method: str, path: str, headers: Headers
) -> Caller:
    """The caller of a session with the scopes that this request has.

    Without the write key a session reads. A change of the API also has to come from a page of this origin.
    Raises PermissionDenied, and Unauthenticated for a change without the key.
    """
    if path.startswith(_API):
        _check_site(method, headers)
    shown = headers.get(KEY_HEADER, "")
    if hmac.compare_digest(shown.encode(), write_key(context, session).encode()):
        return caller
    if path.startswith(_API) and method not in _SAFE:
        raise Unauthenticated(
            f"a session changes nothing without its key in {KEY_HEADER}",
            "sign in again in this browser, or send `Authorization: Bearer TOKEN`",
        )
    return replace(caller, scopes=(TokenScope.READ,))


def _check_site(method: str, headers: Headers) -> None:
    """Refuse a request of another site's page, and a change that does not say where it comes from."""
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is not None and site not in _OWN_FETCHES:
        raise PermissionDenied("a page of another site may use no session here")
    if method in _SAFE:
        return
    is_own = origin is not None and urlsplit(origin).netloc == headers.get("host", "")
    if site != "same-origin" and not is_own:
        raise PermissionDenied(
            "a session changes things only for a page of this server",
            "programs send `Authorization: Bearer TOKEN`",
        )
