"""Small JSON messages with file descriptors between processes of one machine.

A frame is four bytes of length and that many bytes of JSON on a Unix stream socket; descriptors ride
on the first byte. Peers are our own processes: a frame, once begun, arrives whole.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

_LEN = struct.Struct("<I")
MAX_DESCRIPTORS = 16


@dataclass(frozen=True, slots=True)
class WireMessage:
    """One message and the descriptors that came with it; the receiver owns them."""

    body: dict[str, Any]
    descriptors: tuple[int, ...]


class Channel:
    """One end of a connection. Sends and receives whole messages, blocking."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def fileno(self) -> int:
        """The descriptor, for a selector."""
        return self._sock.fileno()

    def send(self, body: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
        """Send one message. Raises OSError when the peer is gone."""
        data = json.dumps(body, separators=(",", ":")).encode()
        head = _LEN.pack(len(data))
        if descriptors:
            socket.send_fds(self._sock, [head], list(descriptors))
        else:
            self._sock.sendall(head)
        self._sock.sendall(data)

    def receive(self) -> WireMessage | None:
        """The next message; None when the peer has closed or died."""
        try:
            head, descriptors, _flags, _addr = socket.recv_fds(
                self._sock, _LEN.size, MAX_DESCRIPTORS
            )
            for descriptor in descriptors:
                os.set_inheritable(descriptor, False)
            head += self._exactly(_LEN.size - len(head)) if head else b""
            if len(head) < _LEN.size:
                return None
            (size,) = _LEN.unpack(head)
            data = self._exactly(size)
        except ConnectionError:
            return None
        if len(data) < size:
            return None
        return WireMessage(json.loads(data), tuple(descriptors))

    def receive_beside(self, wakeup: int, act: Callable[[], None]) -> WireMessage | None:
        """The next message, as `receive`; `act` is called each time when `wakeup` was readable meanwhile.

        `wakeup` is a pipe that does not block; what is in it is read and dropped before `act`.
        """
        poll = select.poll()
        poll.register(self.fileno(), select.POLLIN)
        poll.register(wakeup, select.POLLIN)
        while True:
            ready = {descriptor for descriptor, _ in poll.poll()}
            if wakeup in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(wakeup, 4096)
                act()
            if self.fileno() in ready:
                return self.receive()

    def _exactly(self, size: int) -> bytes:
        parts: list[bytes] = []
        while size > 0:
            part = self._sock.recv(min(size, 1 << 20))
            if not part:
                break
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def detach(self) -> int:
        """Give the descriptor away; the channel is of no use any more."""
        return self._sock.detach()

    def close(self) -> None:
        """Close this end. The peer sees end-of-file."""
        with contextlib.suppress(OSError):
            self._sock.close()


def pair() -> tuple[Channel, socket.socket]:
    """A connection: our end as a channel, and the end to hand to another process."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    return Channel(ours), theirs
