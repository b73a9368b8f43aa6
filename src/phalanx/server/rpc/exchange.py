"""Has the HTTP application serve a request of this process: ASGI without a socket.

A client that leaves is a disconnect for the application, as with a socket: long polls and streams end, and
a change that has begun is completed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any, ClassVar, Self

from starlette.types import ASGIApp, Message, Scope

from phalanx.server.context import in_thread
from phalanx.server.rpc.calls import InnerRequest

_LOG = logging.getLogger(__name__)
# Parts of an answer that wait for a client; a stream then waits, too.
_MAX_PARTS = 4
# A message of this size is converted in a thread.
LARGE_BYTES = 64 << 10


class InnerExchange:
    """One request and its answer: `status` is known inside the block, and `parts` are its body."""

    # The event loop keeps no reference to a task that goes on after its client has left.
    _running: ClassVar[set[asyncio.Task[None]]] = set()

    def __init__(
        self, app: ASGIApp, request: InnerRequest, scope: Scope, message_bytes: int
    ) -> None:
        self.status = 500
        self._app, self._request, self._scope = app, request, scope
        self._large = message_bytes > LARGE_BYTES
        self._gone, self._head = asyncio.Event(), asyncio.Event()
        self._parts: asyncio.Queue[bytes | None] = asyncio.Queue(_MAX_PARTS)
        self._is_read = self._is_over = False

    async def __aenter__(self) -> Self:
        serving: Any = self._app(self._scope, self._receive, self._send)
        task: asyncio.Task[None] = asyncio.create_task(serving)
        self._running.add(task)
        task.add_done_callback(self._ended)
        try:
            await self._head.wait()
        except BaseException:
            self.leave()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.leave()

    def leave(self) -> None:
        """Tell the application that the client has gone; what it sends from now on is dropped."""
        self._gone.set()
        while not self._parts.empty():  # lets a `send` go on that waits for room
            self._parts.get_nowait()

    async def parts(self) -> AsyncIterator[bytes]:
        """The parts of the body, as they come."""
        while not (self._is_over and self._parts.empty()):
            part = await self._parts.get()
            if part is None:
                return
            yield part

    async def body(self) -> bytes:
        """The whole body."""
        return b"".join([part async for part in self.parts()])

    async def _receive(self) -> Message:
        if not self._is_read:
            self._is_read = True
            make = self._request.body
            body = await in_thread(make) if self._large else make()
            return {"type": "http.request", "body": body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self._head.set()
        elif not self._gone.is_set():
            if message.get("body"):
                await self._parts.put(message["body"])
            if not message.get("more_body") and not self._gone.is_set():
                await self._parts.put(None)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._is_over = True
        self._head.set()
        error = None if task.cancelled() else task.exception()
        if error is not None:
            said = f"{self._request.verb} {self._request.path}"
            _LOG.error("a bug in %s, asked for over gRPC", said, exc_info=error)
        if not self._gone.is_set() and not self._parts.full():
            self._parts.put_nowait(None)  # the reader waits for nothing
