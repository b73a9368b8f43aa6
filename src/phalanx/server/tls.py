"""TLS of the control plane's port. The Unix socket of the home stays without: only its user can open it.

A connection counts as that of a stranger from its first byte on, so that the limits on connections hold
during handshakes, too. Plain HTTP is answered with a message that says what to do.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import ssl
from asyncio import sslproto
from collections.abc import Callable
from typing import Any, Protocol

from phalanx.errors import UserError
from phalanx.kit.clock import Clock
from phalanx.schemas.api.body import ErrorView
from phalanx.server.connections import Connections, GuardedProtocol

_LOG = logging.getLogger(__name__)
_RENEW_S = 60.0
_HANDSHAKE = b"\x16"  # the type of the first record of TLS
_NOT_TLS = UserError("this port uses TLS, and the request is plain HTTP", "use an https URL")


class Certificate(Protocol):
    """The certificate of a control plane."""

    @property
    def context(self) -> ssl.SSLContext:
        """The context of new connections."""
        ...

    @property
    def authority(self) -> str:
        """The authority in PEM, for clients and supervisors; empty: one that the system knows."""
        ...

    @property
    def pem(self) -> tuple[bytes, bytes]:
        """The key and the certificate with its chain, in PEM, as they were loaded last."""
        ...

    def renew(self, now: int) -> None:
        """Load a newer certificate into the context where there is one. Raises ServerError."""
        ...


async def keep_valid(certificate: Certificate | None, clock: Clock) -> None:
    """Renew a certificate again and again, for as long as the server runs."""
    while certificate is not None:
        await asyncio.sleep(_RENEW_S)
        try:
            await asyncio.to_thread(certificate.renew, clock.now())
        except Exception as error:
            _LOG.warning("the certificate cannot be renewed: %s", error)


def over(connections: Connections, context: ssl.SSLContext) -> Callable[..., asyncio.Protocol]:
    """What makes the protocol of a new connection: TLS on the port, none on the Unix socket."""

    def protocol(**of_uvicorn: Any) -> asyncio.Protocol:
        return _FirstBytes(connections.protocol(**of_uvicorn), context)

    return protocol


class _FirstBytes(asyncio.Protocol):
    """A connection until its first byte, which tells TLS from plain HTTP."""

    def __init__(self, http: GuardedProtocol, context: ssl.SSLContext) -> None:
        self._http = http
        self._context = context
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        if transport.get_extra_info("socket").family == socket.AF_UNIX:
            transport.set_protocol(self._http)
            self._http.connection_made(transport)
            return
        self._transport = transport
        self._http.wait_for_handshake(transport)

    def data_received(self, data: bytes) -> None:
        transport = self._transport
        assert transport is not None
        if data[:1] != _HANDSHAKE:
            transport.write(_refusal())
            transport.close()
            return
        tls = _Tls(self._http, self._context)
        transport.set_protocol(tls)
        tls.connection_made(transport)
        tls.take(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._http.leave()


class _Tls(sslproto.SSLProtocol):
    """The TLS layer of one connection. A failed handshake is forgotten, too."""

    def __init__(self, http: GuardedProtocol, context: ssl.SSLContext) -> None:
        loop: Any = asyncio.get_running_loop()
        super().__init__(loop, http, context, None, server_side=True)  # type: ignore[arg-type]
        self._guarded = http

    def take(self, data: bytes) -> None:
        """Take the bytes that arrived before this layer was there."""
        while data:
            room = self.get_buffer(len(data))
            part = data[: len(room)]
            room[: len(part)] = part
            self.buffer_updated(len(part))
            data = data[len(part) :]

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        self._guarded.leave()


def _refusal() -> bytes:
    body = json.dumps(ErrorView.of(_NOT_TLS, problems=[]).model_dump()).encode()
    head = (
        f"HTTP/1.1 {_NOT_TLS.http_status} Bad Request\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
