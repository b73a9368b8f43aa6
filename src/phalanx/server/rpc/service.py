"""The methods of the gRPC API as handlers of a server."""

from __future__ import annotations

import asyncio
import hmac
import json
from collections.abc import AsyncIterable, AsyncIterator, Callable
from typing import Any
from urllib.parse import unquote, urlsplit

import grpc
from starlette.types import ASGIApp, Scope

from phalanx.core.contract.reporting import ReportingPlace
from phalanx.errors import (
    PermissionDenied,
    PlatformError,
    ServerUnavailable,
    Unauthenticated,
    UserError,
)
from phalanx.schemas.rpc.methods import METHODS, SERVICE, RpcMethod
from phalanx.sdk.live import decode
from phalanx.server.context import Context, in_thread
from phalanx.server.notifier import wait_for
from phalanx.server.rpc.calls import InnerRequest, answer_of, message_class, parse, request_of
from phalanx.server.rpc.exchange import LARGE_BYTES, InnerExchange
from phalanx.server.rpc.statuses import Refusal, refusal, refusal_of
from phalanx.services.lifecycle.commit import job_topic
from phalanx.services.resources.credentials import caller_of, is_token
from phalanx.store.credentials import TOKEN

MESSAGE_S = 30.0
"""How long a client may take to send the message of a call."""
WRITE_S = 20.0
"""How long a client may take to read a message, as of an answer over HTTP."""
_DEAF_S = 1.0
_TICK_S = 0.25


class JobsService:
    """Serves every method by the HTTP application `app`."""

    def __init__(self, app: ASGIApp, context: Context) -> None:
        self._app = app
        self._here = context
        base = urlsplit(context.platform.server_url)
        self._host, self._scheme = base.netloc.encode(), base.scheme

    def handlers(self) -> Any:
        """What a server of gRPC adds. A method that `METHODS` does not have is not there."""
        made = {one.name: self._handler(one) for one in METHODS}
        return grpc.method_handlers_generic_handler(SERVICE, made)

    def _handler(self, method: RpcMethod) -> Any:
        """A handler that reads messages itself: a stranger is refused before it has sent one."""
        serve: Callable[[RpcMethod, AsyncIterable[bytes], Any], Any] = self._answer
        if method.streams_requests:
            serve = self._converse
        elif method.streams_responses:
            serve = self._follow

        async def handle(messages: AsyncIterable[bytes], rpc: Any) -> None:
            try:
                await serve(method, messages, rpc)
            except _Refused as refused:
                await rpc.abort(*refused.refusal)
            except PlatformError as error:
                await rpc.abort(*refusal(error))

        write = message_class(method, response=True).SerializeToString
        return grpc.stream_stream_rpc_method_handler(handle, None, write)

    async def _answer(self, method: RpcMethod, messages: AsyncIterable[bytes], rpc: Any) -> None:
        data = await self._message(method, messages, rpc)
        await _write(rpc, await self._call(method, data, rpc))

    async def _follow(self, method: RpcMethod, messages: AsyncIterable[bytes], rpc: Any) -> None:
        """Send what a live view has, until it ends. Raises PlatformError if more would follow."""
        data = await self._message(method, messages, rpc)
        request = request_of(method, parse(method, data))
        async with self._exchange(request, rpc, len(data)) as found:
            if found.status != 200:
                raise _Refused(refusal_of(found.status, await found.body()))
            async for kind, body, place in _events(found.parts()):
                if kind == "event":
                    said = f'{{"event":{body}}}'
                    await _write(rpc, answer_of(method, said, place=place))
                elif kind == "end":
                    _raise_for_end(body)

    async def _converse(self, method: RpcMethod, messages: AsyncIterable[bytes], rpc: Any) -> None:
        """Store each message of a rank and answer it; say at once when the job is to stop."""
        place = ReportingPlace.named_by(_token(rpc))
        if place is None:
            raise Unauthenticated(
                "the token is missing or names no job",
                "ranks find their token in PHALANX_METRICS_TOKEN",
            )
        received, num = 0, place.job
        first = await self._call(method, b"", rpc, num)  # refuses a wrong token
        stopped = first.stop
        if stopped:
            await _write(rpc, first)
        with self._here.notifier.subscribe(job_topic(num)) as woken:
            coming = aiter(messages)
            reading = asyncio.create_task(_next(coming))
            try:
                while True:
                    if await self._is_read(reading, woken):
                        data = reading.result()
                        if data is None:
                            return
                        answer = await self._call(method, data, rpc, num)
                        received += 1
                        reading = asyncio.create_task(_next(coming))
                    elif stopped:
                        continue
                    else:
                        answer = await self._call(method, b"", rpc, num)
                        if not answer.stop:
                            continue
                    stopped = answer.stop
                    answer.received = received
                    await _write(rpc, answer)
            finally:
                reading.cancel()

    async def _is_read(self, reading: asyncio.Task[bytes | None], woken: asyncio.Event) -> bool:
        """Wait for a message; False: the job has changed, or may have."""
        if self._here.notifier.closed:
            _raise_for_end('{"reason": "stopping"}')
        hears = self._here.platform.store.hears_others
        waking = asyncio.create_task(wait_for(woken, MESSAGE_S if hears else _DEAF_S))
        try:
            await asyncio.wait({reading, waking}, return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                # Changes that follow one another closely are looked at together.
                await asyncio.wait({reading}, timeout=_TICK_S)
            return reading.done()
        finally:
            waking.cancel()

    async def _message(self, method: RpcMethod, messages: AsyncIterable[bytes], rpc: Any) -> bytes:
        """The message of a call. A caller without a known token is refused before it is read."""
        if not await self._knows(_token(rpc)):
            await self._call(method, b"", rpc)  # the gate refuses it, and writes that down
            raise Unauthenticated("the token is missing or wrong", "send it as metadata")
        try:
            async with asyncio.timeout(MESSAGE_S):
                data = await _next(aiter(messages))
        except TimeoutError:
            raise UserError(f"no message has arrived within {MESSAGE_S:g} seconds") from None
        if data is None:
            raise UserError(f"{method.name} takes a message, and none was sent")
        return data

    async def _knows(self, token: str) -> bool:
        here = self._here
        if hmac.compare_digest(token.encode(), here.admin.token.encode()):
            return True
        if not is_token(token):
            return False
        now = here.clock.now()
        return await in_thread(caller_of, here.platform, token, TOKEN, now) is not None

    async def _call(self, method: RpcMethod, data: bytes, rpc: Any, num: int | None = None) -> Any:
        """The answer of the route to one message. Raises _Refused."""
        large = len(data) > LARGE_BYTES
        message = await in_thread(parse, method, data) if large else parse(method, data)
        request = request_of(method, message, num)
        async with self._exchange(request, rpc, len(data)) as found:
            body = await found.body()
        if not 200 <= found.status < 300:
            raise _Refused(refusal_of(found.status, body))
        if len(body) > LARGE_BYTES:
            return await in_thread(answer_of, method, body)
        return answer_of(method, body)

    def _exchange(self, request: InnerRequest, rpc: Any, message_bytes: int) -> InnerExchange:
        return InnerExchange(self._app, request, self._scope(request, rpc), message_bytes)

    def _scope(self, request: InnerRequest, rpc: Any) -> Scope:
        """The request as the application sees it, with the address and the token of the client."""
        token = _token(rpc).encode("latin-1", "replace")
        shown = [(b"authorization", b"Bearer " + token)] if token else []
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "2",
            "method": request.verb,
            "scheme": self._scheme,
            "path": request.path,
            "raw_path": request.path.encode(),
            "root_path": "",
            "query_string": request.query.encode(),
            "headers": [(b"host", self._host), *shown, *request.headers],
            "client": _address(rpc.peer()),
            "server": (self._host.decode(), 0),
        }


class _Refused(Exception):
    """The route has refused a request."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


def _token(rpc: Any) -> str:
    """The bearer token in the metadata of a call; empty: there is none."""
    for key, value in rpc.invocation_metadata() or ():
        if key == "authorization" and isinstance(value, str):
            scheme, _, token = value.partition(" ")
            return token.strip() if scheme.lower() == "bearer" else ""
    return ""


def _address(peer: str) -> tuple[str, int]:
    """`ipv4:127.0.0.1:5000` and `ipv6:%5B::1%5D:5000` as an address and a port."""
    host, _, port = unquote(peer).partition(":")[2].rpartition(":")
    return host.strip("[]"), int(port) if port.isdigit() else 0


async def _next(messages: AsyncIterator[bytes]) -> bytes | None:
    """The next message; None: the client sends no more."""
    return await anext(messages, None)


async def _write(rpc: Any, message: Any) -> None:
    """Send a message. Raises UserError for a client that does not read."""
    try:
        async with asyncio.timeout(WRITE_S):
            await rpc.write(message)
    except TimeoutError:
        raise UserError(f"the client has read nothing for {WRITE_S:g} seconds") from None


async def _events(parts: AsyncIterator[bytes]) -> AsyncIterator[tuple[str, str, str]]:
    """Kind, data and place of each server-sent event. A part may end within an event."""
    rest, place = b"", ""
    async for part in parts:
        *whole, rest = (rest + part).split(b"\n\n")
        for one in whole:
            lines = [*one.decode().split("\n"), ""]
            for kind, data, behind in decode(iter(lines), place):
                yield kind, data, behind
            place = next((line[4:] for line in lines if line.startswith("id: ")), place)


def _raise_for_end(body: str) -> None:
    """Raise PlatformError for the end of a live view, unless everything was sent."""
    reason = json.loads(body)["reason"]
    if reason == "denied":
        raise PermissionDenied("the token was revoked, or may no longer do this")
    if reason != "done":
        raise ServerUnavailable(
            f"the stream ends here ({reason})", "call again, with the place of the last message"
        )
