"""An ASGI app as the network of a synchronous client: no socket, no port, the real routes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
from anyio.from_thread import BlockingPortal, start_blocking_portal


class AsgiTransport(httpx.BaseTransport):
    """Runs each request on the portal's event loop."""

    def __init__(self, app: Any, portal: BlockingPortal) -> None:
        self._inner = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        self._portal = portal

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """One request, answered by the app."""
        content = request.read()
        return self._portal.call(self._handle, request, content)

    async def _handle(self, request: httpx.Request, content: bytes) -> httpx.Response:
        asked = httpx.Request(request.method, request.url, headers=request.headers, content=content)
        answer = await self._inner.handle_async_request(asked)
        # As it was sent: the client decodes it.
        body = b"".join([part async for part in answer.aiter_raw()])
        return httpx.Response(answer.status_code, headers=answer.headers, content=body)


@contextmanager
def asgi_transport(app: Any) -> Iterator[AsgiTransport]:
    """A transport to `app` with an event loop of its own in a thread."""
    with start_blocking_portal() as portal:
        yield AsgiTransport(app, portal)
