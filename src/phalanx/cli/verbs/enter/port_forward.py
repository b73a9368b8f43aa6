"""`phalanx port-forward`: reach a port of the node of a rank from this machine."""

from __future__ import annotations

import contextlib
import itertools
import re
import socket
import threading
from typing import TYPE_CHECKING, Annotated

import typer

from phalanx.cli.client.session import connected, job_number
from phalanx.cli.terminal import output
from phalanx.cli.terminal.options import JobName
from phalanx.cli.verbs.enter.exec import Rank
from phalanx.core.tunnels.frames import FrameKind, TunnelFrame, frames_of
from phalanx.errors import UserError

if TYPE_CHECKING:
    from phalanx.sdk.tunnels import ClientTunnel

_READ_BYTES = 1 << 15
_PORTS = re.compile(r"(?:(?P<local>\d{1,5}):)?(?P<remote>\d{1,5})")
_HIGHEST = 65535


def port_forward(
    ctx: typer.Context,
    job: JobName,
    ports: Annotated[
        str,
        typer.Argument(metavar="[LOCAL:]REMOTE", help="Port of this machine, and of the node."),
    ],
    rank: Rank = 0,
) -> None:
    """Listen on a port of this machine's loopback, and connect it to one of the loopback of a rank's node.

    It ends with Ctrl-C, and with the ranks. Every program of this machine can use the port meanwhile.
    """
    from phalanx.schemas.wire.tunnels import OpenTunnelRequest

    local, remote = _ports(ports)
    wanted = OpenTunnelRequest(kind="forward", rank=rank, port=remote)
    with _listener(local) as listener:
        number = listener.getsockname()[1]
        with connected(ctx) as client, client.tunnels.connect(job_number(job), wanted) as tunnel:
            output.note(f"http://127.0.0.1:{number} is port {remote} of the node of rank {rank}")
            connections = LocalConnections(tunnel)
            threading.Thread(target=connections.accept, args=(listener,), daemon=True).start()
            with contextlib.suppress(KeyboardInterrupt):
                connections.serve()
            if tunnel.why:
                raise UserError(f"the forwarding ended: {tunnel.why}")


def _ports(text: str) -> tuple[int, int]:
    """The local and the remote port. Raises UserError."""
    found = _PORTS.fullmatch(text)
    if found is None:
        raise UserError(f"{text}: write LOCAL:REMOTE, such as 8080:6006, or one port for both")
    remote = int(found["remote"])
    local = int(found["local"] or remote)
    if not 0 < remote <= _HIGHEST or local > _HIGHEST:
        raise UserError(f"{text}: ports are 1 to {_HIGHEST}")
    return local, remote


def _listener(port: int) -> socket.socket:
    try:
        return socket.create_server(("127.0.0.1", port))
    except OSError as error:
        raise UserError(
            f"port {port} of this machine: {error.strerror}", "choose another one"
        ) from None


class LocalConnections:
    """The connections to the local port, each a channel of the tunnel."""

    def __init__(self, tunnel: ClientTunnel) -> None:
        self._tunnel = tunnel
        self._numbers = itertools.count(1)
        self._open: dict[int, socket.socket] = {}

    def accept(self, listener: socket.socket) -> None:
        """Take connections until the listener is closed."""
        while not self._tunnel.is_over:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            channel = next(self._numbers)
            self._open[channel] = connection
            self._tunnel.send(TunnelFrame(FrameKind.OPEN, channel))
            threading.Thread(target=self._read, args=(channel, connection), daemon=True).start()

    def serve(self) -> None:
        """Pass on what the node sends, until the tunnel is over."""
        for frame in self._tunnel.frames():
            connection = self._open.get(frame.channel)
            if frame.kind is FrameKind.REFUSED:
                raise UserError(f"nothing is forwarded: {frame.text}")
            if connection is None:
                continue
            if frame.kind is FrameKind.OUTPUT:
                try:
                    connection.sendall(frame.data)
                except OSError:
                    self._drop(frame.channel)
                    self._tunnel.send(TunnelFrame(FrameKind.RESET, frame.channel))
            elif frame.kind is FrameKind.CLOSE:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_WR)
            elif frame.kind is FrameKind.RESET:
                output.note(f"a connection was closed: {frame.text}")
                self._drop(frame.channel)

    def _read(self, channel: int, connection: socket.socket) -> None:
        while not self._tunnel.is_over:
            try:
                data = connection.recv(_READ_BYTES)
            except OSError:
                self._tunnel.send(TunnelFrame(FrameKind.RESET, channel))
                return
            if not data:
                self._tunnel.send(TunnelFrame(FrameKind.CLOSE, channel))
                return
            self._tunnel.send(*frames_of(FrameKind.INPUT, channel, data))

    def _drop(self, channel: int) -> None:
        connection = self._open.pop(channel, None)
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()
