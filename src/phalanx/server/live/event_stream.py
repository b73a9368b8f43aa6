"""Send server-sent events until their source ends, their caller leaves or may no longer see them.

Format: the section "Server-sent events" of the HTML standard.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Hashable
from contextlib import suppress

import anyio
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from phalanx.core.tenancy.principals import Caller
from phalanx.errors import PlatformError, TooManyRequests
from phalanx.server.context import STILL_PERMITTED_KEY, Context, Threads, in_thread
from phalanx.server.notifier import wait_for
from phalanx.services.queries.live import FramedMessage, LivePage

RETRY_MS = 1000
"""After which time a browser connects again."""
_HEARTBEAT_S = 15.0
_TICK_S = 0.25
_DEAF_S = 1.0
_CHECK_S = 60.0
_HEADERS = {
    "Cache-Control": "no-store, no-transform",
    "X-Accel-Buffering": "no",  # nginx would hold events back
}


FramedPage = tuple[LivePage, bytes]
"""A page, and its messages as they are sent."""


def _body(page: LivePage) -> bytes:
    return b"".join(map(frame, page.messages))


def frame(message: FramedMessage) -> bytes:
    """One event. `data` is JSON, which has no line breaks."""
    lines = [f"event: {message.kind}", f"data: {message.data}"]
    if message.cursor:
        lines.insert(0, f"id: {message.cursor}")
    return ("\n".join(lines) + "\n\n").encode()


class EventStream(Response):
    """A response that sends what `read` finds after each publication of `topics`.

    `read` gets the caller, with the roles that it has now, and the place after which it reads.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        here: Context,
        caller: Caller,
        topics: tuple[str, ...],
        place: str,
        read: Callable[[Caller, str], LivePage],
        pool: Threads = Threads.READS,
        share: Callable[[Caller], Hashable] | None = None,
    ) -> None:
        """`share` names all that a read depends on beside the place: equal ones are made once."""
        super().__init__(headers=_HEADERS)
        del self.headers["content-length"]
        self._here, self._caller, self._topics = here, caller, topics
        self._place, self._read, self._pool, self._share = place, read, pool, share

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI. Raises TooManyRequests before the first byte."""
        presence = self._here.presence
        limit = self._here.settings.api.max_streams
        if presence.num_streams >= limit:
            raise TooManyRequests(f"{limit} live views are open, and no more are at a time")
        # What the caller may not read is an error with a status, not a stream that ends.
        first = await in_thread(self._read, self._caller, self._place, pool=self._pool)
        presence.num_streams += 1
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(_until_gone, receive, group.cancel_scope.cancel)
                await send(
                    {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
                )
                reason = await self._send_all(scope, send, (first, _body(first)))
                await _send(send, f'event: end\ndata: {{"reason": "{reason}"}}\n\n'.encode())
                await send({"type": "http.response.body", "body": b"", "more_body": False})
                group.cancel_scope.cancel()
        finally:
            presence.num_streams -= 1

    async def _send_all(self, scope: Scope, send: Send, first: FramedPage) -> str:
        """Send pages until there is a reason to end, and return it."""
        clock, notifier = self._here.clock, self._here.notifier
        began_s = checked_s = clock.monotonic()
        # Streams that began together do not end together.
        lifetime_s = self._here.settings.api.max_stream_s * random.uniform(0.8, 1.0)
        await _send(send, f"retry: {RETRY_MS}\n\n".encode())
        page, body = first
        woken_at = notifier.published
        with notifier.subscribe(*self._topics) as woken:
            while True:
                if body:
                    await _send(send, body)
                elif page.place != self._place:
                    await _send(send, f"id: {page.place}\n\n".encode())
                self._place = page.place
                now_s = clock.monotonic()
                if page.done:
                    return "done"
                if notifier.closed:
                    return "stopping"
                if now_s - began_s >= lifetime_s:
                    return "lifetime"
                if now_s - checked_s >= _CHECK_S:
                    if not await self._is_permitted(scope):
                        return "denied"
                    checked_s = now_s
                if not page.more:
                    woken_at = await self._wait(woken, send)
                page, body = await self._next_page(woken_at)

    async def _next_page(self, woken_at: int) -> FramedPage:
        caller, place = self._caller, self._place

        async def make() -> FramedPage:
            return await in_thread(self._read_framed, caller, place, pool=self._pool)

        try:
            if self._share is None:
                return await make()
            published = self._here.notifier.published
            key = (self._share(caller), place)
            return await self._here.shared_reads.read(key, woken_at, published, make)
        except PlatformError:
            # The database is away, or the job was deleted: the client asks again and is told.
            return LivePage([], place, done=True), b""

    def _read_framed(self, caller: Caller, place: str) -> FramedPage:
        page = self._read(caller, place)
        return page, _body(page)

    async def _wait(self, woken: asyncio.Event, send: Send) -> int:
        """Wait for a publication or a while; returns how many there were when it came."""
        hears = self._here.platform.store.hears_others
        left_s = _HEARTBEAT_S
        while left_s > 0:
            step_s = left_s if hears else min(left_s, _DEAF_S)
            if await wait_for(woken, step_s) or not hears:
                break
            left_s -= step_s
        else:
            await _send(send, b":\n\n")
        woken_at = self._here.notifier.published
        # Changes that follow one another closely are read together.
        await self._here.notifier.pause(_TICK_S)
        # Without notifications of other processes any commit may be new.
        return woken_at if hears else self._here.notifier.published + 1

    async def _is_permitted(self, scope: Scope) -> bool:
        caller = await scope[STILL_PERMITTED_KEY]()
        if caller is not None:
            self._caller = caller
        return caller is not None


async def _send(send: Send, body: bytes) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": True})


async def _until_gone(receive: Receive, stop: Callable[[], None]) -> None:
    """Call `stop` when the client has disconnected."""
    with suppress(OSError):
        while (await receive())["type"] != "http.disconnect":
            pass
    stop()
