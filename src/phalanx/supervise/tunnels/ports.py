"""Connections to one port of the node's loopback, each a channel of one tunnel."""

from __future__ import annotations

import contextlib
import socket
import threading

from phalanx.core.tunnels.frames import FrameKind, TunnelFrame
from phalanx.core.tunnels.model import TunnelPurpose
from phalanx.supervise.tunnels.calls import NodeTunnel

MAX_CONNECTIONS = 64
"""Most connections of one tunnel at a time."""
_CONNECT_S = 10.0
# A program that reads nothing for so long loses its connection: it would hold up the others.
_STUCK_S = 20.0
_READ_BYTES = 1 << 15
_LOOPBACK = ("127.0.0.1", "::1")


class PortTunnel:
    """Connects to one port for each channel that the client opens. Runs in threads of its own."""

    def __init__(self, tunnel: NodeTunnel, purpose: TunnelPurpose) -> None:
        self._tunnel, self._port = tunnel, purpose.port
        self._channels: dict[int, socket.socket] = {}
        self._lock = threading.Lock()

    def start(self) -> None:
        """Begin to serve the client."""
        threading.Thread(target=self._serve, name="tunnel", daemon=True).start()

    def _serve(self) -> None:
        for frame in self._tunnel.frames():
            if frame.kind is FrameKind.OPEN:
                self._open(frame.channel)
            elif frame.kind is FrameKind.INPUT:
                self._write(frame)
            elif frame.kind is FrameKind.CLOSE:
                self._close_writing(frame.channel)
            elif frame.kind is FrameKind.RESET:
                self._drop(frame.channel)
        for channel in list(self._channels):
            self._drop(channel)

    def _open(self, channel: int) -> None:
        with self._lock:
            full = len(self._channels) >= MAX_CONNECTIONS or channel in self._channels
        if full:
            said = f"{MAX_CONNECTIONS} connections are open, and no more may be"
            self._tunnel.put(FrameKind.RESET, channel, said.encode())
            return
        try:
            made = self._connect()
        except OSError as error:
            said = f"port {self._port} of the node: {error.strerror or error}"
            self._tunnel.put(FrameKind.RESET, channel, said.encode())
            return
        made.settimeout(_STUCK_S)
        with self._lock:
            self._channels[channel] = made
        threading.Thread(
            target=self._read, args=(channel, made), name="tunnel", daemon=True
        ).start()

    def _connect(self) -> socket.socket:
        problem = OSError("no address")
        for host in _LOOPBACK:
            try:
                return socket.create_connection((host, self._port), _CONNECT_S)
            except OSError as error:
                problem = error if host == _LOOPBACK[0] else problem
        raise problem

    def _read(self, channel: int, connection: socket.socket) -> None:
        """Send what the program sends, until it closes."""
        while not self._tunnel.is_over:
            try:
                data = connection.recv(_READ_BYTES)
            except TimeoutError:
                continue
            except OSError as error:
                self._tunnel.put(FrameKind.RESET, channel, str(error.strerror or error).encode())
                self._drop(channel)
                return
            if not data:
                break
            self._tunnel.put(FrameKind.OUTPUT, channel, data)
        self._tunnel.put(FrameKind.CLOSE, channel)

    def _write(self, frame: TunnelFrame) -> None:
        connection = self._find(frame.channel)
        if connection is None:
            return
        try:
            connection.sendall(frame.data)
        except OSError as error:
            self._tunnel.put(FrameKind.RESET, frame.channel, str(error).encode())
            self._drop(frame.channel)

    def _close_writing(self, channel: int) -> None:
        connection = self._find(channel)
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_WR)

    def _find(self, channel: int) -> socket.socket | None:
        with self._lock:
            return self._channels.get(channel)

    def _drop(self, channel: int) -> None:
        with self._lock:
            connection = self._channels.pop(channel, None)
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()
