"""Limits on HTTP connections, beside those that uvicorn has: deadlines, counts and memory.

A connection is that of a stranger until a request on it has shown a valid token; one over the Unix socket
of the home never is. Where there are too many, the stranger that came first is closed, so that strangers
never keep a supervisor or a client out. Of the idle connections of one token, the oldest are closed where
there are too many: a program that leaks them keeps nothing out either. `sweep` runs once a second and
closes what has passed a deadline.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

_LOG = logging.getLogger(__name__)
SCOPE_KEY = "phalanx.connection"
_SWEEP_S = 1.0
_NO_LINGER = struct.pack("ii", 1, 0)
_MOST_FILES = 65_536
# Descriptors that are kept for the database, logs, processes and archives.
_RESERVED_FILES = 256


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Deadlines in seconds, counts and sizes."""

    header_s: float = 10.0  # for the whole head of a request
    body_s: float = 30.0  # for a body, and a second more for each KiB of it
    write_s: float = 20.0  # for a client to read an answer, beside the time at this rate:
    read_bytes_per_s: float = 65_536.0
    max_strangers: int = 256  # connections without a valid token
    max_connections: int = 8192  # all connections, the Unix socket's excepted
    max_per_token: int = 512  # connections of one token of clients
    max_unread_bytes: int = 64 << 20  # answers that clients have not read, all together

    @classmethod
    def of_process(cls) -> ConnectionLimits:
        """The limits that fit the descriptors this process may open."""
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        left = max(64, files - _RESERVED_FILES)
        return cls(
            max_strangers=min(256, left // 4),
            max_connections=min(8192, left // 2),
            max_per_token=min(512, left // 8),
        )


def raise_file_limit() -> None:
    """Raise the soft limit on open files of this process as far as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class Connections:
    """All connections of one server, oldest first."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self._open: dict[GuardedProtocol, None] = {}
        self._strangers: dict[GuardedProtocol, None] = {}
        self._of_token: dict[str, dict[GuardedProtocol, None]] = {}

    def protocol(self, **of_uvicorn: Any) -> GuardedProtocol:
        """A new connection; uvicorn calls it in place of its own protocol class."""
        return GuardedProtocol(self, **of_uvicorn)

    @property
    def num_strangers(self) -> int:
        """The number of connections without a valid token."""
        return len(self._strangers)

    def admit(self, one: GuardedProtocol) -> None:
        """Count a new connection, and close the oldest stranger where there are too many."""
        self._open[one] = None
        if one.known:
            return
        self._strangers[one] = None
        too_many = len(self._strangers) > self.limits.max_strangers
        if too_many or len(self._open) > self.limits.max_connections:
            next(iter(self._strangers)).abort()

    def recognize(self, one: GuardedProtocol, token: str) -> None:
        """Take a connection for that of a client's token from now on; of a supervisor where it is empty."""
        self._strangers.pop(one, None)
        self._leave(one)
        one.token = token
        if not token:
            return
        others = self._of_token.setdefault(token, {})
        others[one] = None  # the last one now
        if len(others) > self.limits.max_per_token:
            idle = next((other for other in others if other.is_idle), None)
            if idle is not None:
                idle.abort()

    def remove(self, one: GuardedProtocol) -> None:
        """Forget a connection."""
        self._open.pop(one, None)
        self._strangers.pop(one, None)
        self._leave(one)

    def _leave(self, one: GuardedProtocol) -> None:
        others = self._of_token.get(one.token, {})
        others.pop(one, None)
        if not others:
            self._of_token.pop(one.token, None)

    def sweep(self, now: float) -> None:
        """Close the connections that have passed a deadline or hold too much memory."""
        for one in tuple(self._open):
            if one.is_late(now):
                one.abort()
        self.limit_unread()

    def limit_unread(self) -> None:
        """Close the longest stalled ones where unread answers need too much memory."""
        stalled = [one for one in self._open if one.stalled_since is not None]
        unread = sum(one.unread_bytes for one in stalled)
        if unread <= self.limits.max_unread_bytes:
            return
        for one in sorted(stalled, key=lambda found: found.stalled_since or 0.0):
            if unread <= self.limits.max_unread_bytes:
                return
            unread -= one.unread_bytes
            one.abort()

    async def watch(self) -> None:
        """Sweep once a second, for as long as the server runs."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_SWEEP_S)
            try:
                self.sweep(loop.time())
            except Exception:
                _LOG.exception("the sweep of connections failed")


class GuardedProtocol(H11Protocol):
    """One connection with the times that `is_late` compares with the limits."""

    def __init__(self, connections: Connections, **of_uvicorn: Any) -> None:
        super().__init__(**of_uvicorn)
        self.known = False
        self.token = ""  # the id of the client's token, once a request has shown it
        self.stalled_since: float | None = None
        self._connections = connections
        self._waits_since = self.loop.time()
        self._started = False  # a part of the next request is here
        self._served = False  # a request was answered before
        self._body_since = 0.0
        self._body_bytes = 0
        self._unread_at_stall = 0
        self.app = _Marked(self.app, self)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See asyncio."""
        sock = transport.get_extra_info("socket")
        self.known = sock is not None and sock.family == socket.AF_UNIX
        super().connection_made(transport)
        self._connections.admit(self)

    def wait_for_handshake(self, transport: asyncio.Transport) -> None:
        """Count a connection before its TLS handshake; `connection_made` follows it."""
        self.transport = transport
        self._connections.admit(self)

    def leave(self) -> None:
        """Forget this connection, which may have ended before its handshake."""
        self._connections.remove(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio."""
        self.leave()
        super().connection_lost(exc)

    def recognize(self, token: str) -> None:
        """The request that is being served has a valid token; of a supervisor where it is empty."""
        self.known = True
        self._connections.recognize(self, token)

    def data_received(self, data: bytes) -> None:
        """See asyncio."""
        if self.is_idle and not self._started:
            self._started = True
            self._waits_since = self.loop.time()
        self._body_bytes += len(data)
        super().data_received(data)

    def handle_events(self) -> None:
        """Serve what has arrived. A request that uvicorn cannot take ends this connection only."""
        before = self.cycle
        try:
            super().handle_events()
        except (h11.ProtocolError, UnicodeError, ValueError) as error:
            _LOG.warning("a request cannot be read: %s", type(error).__name__)
            self.abort()
        if self.cycle is not before:
            self._body_since, self._body_bytes = self.loop.time(), 0

    def on_response_complete(self) -> None:
        """See uvicorn."""
        self._waits_since = self.loop.time()
        self._started, self._served = False, True
        super().on_response_complete()

    def pause_writing(self) -> None:
        """See asyncio."""
        self.stalled_since = self.loop.time()
        self._unread_at_stall = self.unread_bytes
        super().pause_writing()
        # At once: a hundred answers of megabytes are made in a second.
        self._connections.limit_unread()

    def resume_writing(self) -> None:
        """See asyncio."""
        self.stalled_since = None
        super().resume_writing()

    @property
    def unread_bytes(self) -> int:
        """Bytes of answers that the client has not read."""
        return 0 if self.transport is None else self.transport.get_write_buffer_size()

    @property
    def is_idle(self) -> bool:
        """Whether no request is being served."""
        return self.cycle is None or self.cycle.response_complete

    def is_late(self, now: float) -> bool:
        """Whether a deadline has passed."""
        limits = self._connections.limits
        if self.stalled_since is not None:
            return (
                now - self.stalled_since
                > limits.write_s + self._unread_at_stall / limits.read_bytes_per_s
            )
        if self.is_idle:
            if self.conn.their_state is h11.SEND_BODY:
                # The answer did not need the body, such as a refusal; the client still sends it.
                return now - self._waits_since > limits.header_s
            # uvicorn ends a connection that is idle after an answer.
            late = now - self._waits_since > limits.header_s
            return late and (self._started or not self._served)
        if self.cycle.more_body and not self.flow.read_paused:
            return now - self._body_since > limits.body_s + self._body_bytes / 1024
        return False

    def abort(self) -> None:
        """Close the connection at once; what the kernel holds of an answer goes too."""
        self._connections.remove(self)
        sock = self.transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        self.transport.abort()


class _Marked:
    """The application, with the connection in the scope of every request."""

    def __init__(self, app: Any, connection: GuardedProtocol) -> None:
        self._app = app
        self._connection = connection

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        scope[SCOPE_KEY] = self._connection
        await self._app(scope, receive, send)


@contextmanager
def quiet_loop() -> Iterator[None]:
    """Log errors of the event loop in one line each, such as that no descriptor is left."""
    loop = asyncio.get_running_loop()

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        said = context.get("message", "an error in the event loop")
        if error is None or isinstance(error, OSError):
            _LOG.error("%s: %s", said, error)
        else:
            _LOG.error("%s", said, exc_info=error)

    before = loop.get_exception_handler()
    loop.set_exception_handler(handle)
    try:
        yield
    finally:
        loop.set_exception_handler(before)
