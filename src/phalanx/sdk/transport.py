"""One HTTP connection to a server: requests, decoded responses, and errors of the error tree."""

from __future__ import annotations

import copy
import os
import ssl
import stat
import time
import typing
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx
from pydantic import BaseModel, TypeAdapter, ValidationError

from phalanx.errors import (
    PlatformError,
    Problem,
    ServerError,
    ServerUnavailable,
    SpecInvalid,
    TooManyRequests,
    UserError,
)
from phalanx.kit.text import replace_unencodable
from phalanx.launch.tls import trust
from phalanx.schemas.api.body import ResponseBody
from phalanx.schemas.api.telemetry import CurvesView
from phalanx.schemas.wire.curve_bytes import SERIES_TYPE, decode_curves

M = TypeVar("M")
V1 = "/api/v1"
_JSON = "application/json"
_RESPONSE_S = 30.0
# Pauses before a request with an idempotency key is sent again.
_PAUSES_S = (0.2, 2.0)
# How long a GET is repeated that the server is too busy for.
_BUSY_S = 60.0


def _subclasses(kind: type[PlatformError]) -> Iterator[type[PlatformError]]:
    yield kind
    for below in kind.__subclasses__():
        yield from _subclasses(below)


_BY_CODE: dict[str, type[PlatformError]] = {kind.code: kind for kind in _subclasses(PlatformError)}


def raise_for(response: httpx.Response) -> None:
    """Raise the error that a response carries, as an instance of its own class; nothing for a success."""
    if response.is_success:
        return
    try:
        body = response.json()
        code, message = str(body["code"]), str(body["message"])
    except (ValueError, KeyError, TypeError):
        raise ServerError(
            f"the server answered {response.status_code} to {response.request.url.path}",
            "check that this is the address of a Phalanx server",
        ) from None
    hint = body.get("hint")
    kind = _BY_CODE.get(code, ServerError)
    if kind is SpecInvalid:
        problems = [
            Problem(one.get("path", ""), one.get("message", ""), one.get("value"))
            for one in body.get("problems") or [{"message": message}]
        ]
        raise SpecInvalid(problems, hint)
    error = kind(message)  # not every class takes a hint
    error.hint = None if hint is None else str(hint)
    raise error


def read(model: type[M], response: httpx.Response) -> M:
    """Decode a response. Raises ServerError for a response that is not one of a Phalanx server."""
    try:
        return TypeAdapter(model).validate_json(response.content)
    except ValidationError:
        raise _not_ours(response) from None


def _not_ours(response: httpx.Response) -> ServerError:
    return ServerError(
        f"the response to {response.request.url.path} is not one of a Phalanx server",
        "check that this is the address of a Phalanx server of this version",
    )


def encode(body: BaseModel) -> bytes:
    """Encode a request body. Raises UserError naming a text that is not UTF-8."""
    try:
        return body.model_dump_json().encode()
    except ValueError:
        invalid = next(
            (one for one in _texts(body.model_dump()) if replace_unencodable(one) != one), None
        )
        if invalid is None:
            raise
        raise UserError(f"{invalid!r} is not UTF-8 and cannot be sent", "rename it") from None


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from (text for item in value.items() for text in _texts(item))
    elif isinstance(value, list | tuple):
        yield from (text for item in value for text in _texts(item))


def unreachable(url: str, error: httpx.HTTPError) -> ServerUnavailable:
    """The error for a request without a complete response."""
    refused = trust.refusal(error, url)
    if refused is not None:
        return ServerUnavailable(*refused)
    if isinstance(error, httpx.TimeoutException):
        return ServerUnavailable(f"the server at {url} does not answer in time", "try again")
    return ServerUnavailable(f"no server answers at {url}: {error}", "start one with `phalanx up`")


class Transport:
    """The connection and the request methods that the parts of `PhalanxClient` share.

    Every request raises ServerUnavailable when no server answers, and the error that a response carries.
    """

    def __init__(
        self,
        url: str,
        token: str,
        *,
        socket: str = "",
        ca: str = "",
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        base = self.url = url.rstrip("/")
        if transport is None and _is_own_socket(socket):
            transport = httpx.HTTPTransport(uds=socket)
            base = base.replace("https:", "http:", 1)  # TLS is on the port alone
        self._http = httpx.Client(
            base_url=base,
            headers={"Authorization": f"Bearer {token}"},
            timeout=_RESPONSE_S,
            transport=transport,
            trust_env=False,  # a proxy of the environment must not be used for loopback
            verify=_certificates(base, ca),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def matching(self, etag: str) -> Self:
        """This client for changes of a resource only as it was read; it shares the connection.

        `etag` is that of `etag_of`. A change of the resource raises PreconditionFailed when another client
        has changed it since then.
        """
        other = copy.copy(self)
        other._http = typing.cast("httpx.Client", _Conditional(self._http, etag))
        # Parts such as `studies` are made anew, on this connection.
        for name in [one for one, part in vars(self).items() if isinstance(part, Transport)]:
            del vars(other)[name]
        return other

    def _get(
        self,
        path: str,
        model: type[M],
        params: Mapping[str, Any] | None = None,
        wait_s: float = 0.0,
    ) -> M:
        response = self._get_response(path, params, wait_s)
        found = read(model, response)
        if isinstance(found, ResponseBody):
            found.note_etag(response.headers.get("ETag", "").strip('"'))
        return found

    def _get_curves(self, path: str, params: Mapping[str, Any]) -> CurvesView:
        """Curves, which are asked for as bytes: they are read several times as fast as JSON."""
        response = self._get_response(path, params, headers={"Accept": f"{SERIES_TYPE}, {_JSON}"})
        if response.headers.get("Content-Type", "") != SERIES_TYPE:
            return read(CurvesView, response)
        try:
            return decode_curves(response.content)
        except (ValueError, TypeError, KeyError, AttributeError):
            raise _not_ours(response) from None

    def _get_response(
        self,
        path: str,
        params: Mapping[str, Any] | None,
        wait_s: float = 0.0,
        headers: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        given = {key: one for key, one in (params or {}).items() if one is not None}
        rest: dict[str, Any] = {
            "params": given,
            "timeout": _RESPONSE_S + wait_s,
            "headers": headers,
        }
        response = self._send("GET", path, **rest)
        until = time.monotonic() + _BUSY_S
        while response.status_code == TooManyRequests.http_status and time.monotonic() < until:
            time.sleep(_pause_of(response))
            response = self._send("GET", path, **rest)
        raise_for(response)
        return response

    def _post(
        self,
        path: str,
        body: BaseModel | None,
        model: type[M],
        params: Mapping[str, str] | None = None,
        key: str | None = None,
    ) -> M:
        content = b"{}" if body is None else encode(body)
        headers = {"Content-Type": _JSON}
        rest: dict[str, Any] = {"content": content, "headers": headers, "params": params}
        if key is None:
            response = self._send("POST", path, **rest)
        else:
            headers["Idempotency-Key"] = key
            response = self._send_once(path, **rest)
        raise_for(response)
        return read(model, response)

    def _send_once(self, path: str, **rest: Any) -> httpx.Response:
        """A POST with an idempotency key: sent again when its answer was lost or says to try again."""
        for pause_s in _PAUSES_S:
            try:
                response = self._http.request("POST", path, **rest)
            except (httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError):
                time.sleep(pause_s)
                continue
            except httpx.HTTPError as error:
                raise unreachable(self.url, error) from error
            if "Retry-After" not in response.headers:
                return response
            time.sleep(pause_s)
        return self._send("POST", path, **rest)

    def _put(self, path: str, body: BaseModel, model: type[M]) -> M:
        headers = {"Content-Type": _JSON}
        response = self._send("PUT", path, content=encode(body), headers=headers)
        raise_for(response)
        return read(model, response)

    def _patch(self, path: str, body: BaseModel, model: type[M], if_match: str | None = None) -> M:
        headers = {"Content-Type": _JSON}
        if if_match is not None:
            headers["If-Match"] = f'"{if_match}"'
        content = body.model_dump_json(exclude_unset=True).encode()
        response = self._send("PATCH", path, content=content, headers=headers)
        raise_for(response)
        return read(model, response)

    def _delete(self, path: str) -> None:
        raise_for(self._send("DELETE", path))

    def _delete_with_answer(self, path: str, model: type[M], params: Mapping[str, str]) -> M:
        response = self._send("DELETE", path, params=params)
        raise_for(response)
        return read(model, response)

    def _send(self, method: str, path: str, **rest: Any) -> httpx.Response:
        try:
            return self._http.request(method, path, **rest)
        except httpx.HTTPError as error:
            raise unreachable(self.url, error) from error


class _Conditional:
    """A connection that adds `If-Match` to every change."""

    def __init__(self, http: httpx.Client, etag: str) -> None:
        self._plain, self._etag = http, etag

    def request(self, method: str, path: str, **rest: Any) -> httpx.Response:
        """See `httpx.Client.request`."""
        if method not in ("GET", "HEAD"):
            rest["headers"] = {"If-Match": f'"{self._etag}"'} | (rest.get("headers") or {})
        return self._plain.request(method, path, **rest)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plain, name)


def etag_of(view: ResponseBody) -> str:
    """The tag of what the client has read, for `matching`; empty for what has none, such as a list."""
    return view.etag_as_read


def _pause_of(response: httpx.Response) -> float:
    """Seconds that a response says to wait, as a number within reason."""
    said = response.headers.get("Retry-After", "")
    return min(float(said), 10.0) if said.isdecimal() else 1.0


def _is_own_socket(path: str) -> bool:
    """Whether a Unix socket of this user is at `path`."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return False
    return stat.S_ISSOCK(found.st_mode) and found.st_uid == os.geteuid()


def _certificates(url: str, ca: str) -> ssl.SSLContext:
    """The certificate check; an empty context for http, since loading the authorities is slow.

    Raises UserError for authorities that cannot be read.
    """
    if not url.startswith("https:"):
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        return trust.client_context(ca)
    except ssl.SSLError:
        raise UserError("`ca` is not a certificate in PEM", "give the text of the file") from None
