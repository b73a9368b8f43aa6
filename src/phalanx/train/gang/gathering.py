"""Ranks of one gang connect to rank 0 before their framework starts: JSON messages over one port.

Both ends of a connection prove that they know the secret of their generation, and every message is marked
with it: a stranger can neither send a message nor repeat or change one.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from phalanx.errors import TrainingError
from phalanx.launch.authentication import (
    AuthenticatedListener,
    AuthenticatedPeer,
    MessageSeal,
    authenticate,
    listen_on,
    read_secret,
)

MEET_S = 180.0
_RETRY_S = 0.1
_LONGEST_LINE = 16 << 20
_MARK_CHARS = 64
SECRET_VARIABLE = "PHALANX_SECRET_FILE"


def secret_from(env: Mapping[str, str]) -> bytes:
    """The secret of this rank's generation. Raises TrainingError."""
    path = env.get(SECRET_VARIABLE, "")
    if not path:
        raise TrainingError(
            f"{SECRET_VARIABLE} is not set",
            "the launcher writes this file; it holds the secret of the gang's generation",
        )
    try:
        return read_secret(path)
    except OSError as error:
        raise TrainingError(f"the gang's secret cannot be read: {error}") from error


class RankServer:
    """Rank 0's side: one connection to each other rank."""

    def __init__(self, address: tuple[str, int], num_others: int, secret: bytes) -> None:
        """Listen on the interface of `address`. Raises OSError."""
        server = listen_on(*address)
        self._listener = AuthenticatedListener(server, lambda _name: secret)
        self._num_others = num_others
        self._connections: list[RankConnection] = []

    def gather(self, message: dict[str, Any], wait_s: float = MEET_S) -> None:
        """Wait for every other rank and send it `message`; others cannot connect any more.

        Raises TrainingError when a rank does not connect in time.
        """
        deadline = time.monotonic() + wait_s
        with self._listener:
            while (missing := self._num_others - len(self._connections)) > 0:
                said = f"{missing} nodes have not connected within {wait_s:g} s"
                connection = RankConnection(_accepted(self._listener, deadline, said), "server")
                connection.send(message)
                self._connections.append(connection)

    def watch(self, take: Callable[[dict[str, Any]], None], lost: threading.Event) -> None:
        """Pass each message of the ranks to `take`; set `lost` when a rank leaves before the end."""
        for one in self._connections:
            threading.Thread(target=_until_end, args=(one, take, lost), daemon=True).start()

    def close(self, code: int) -> None:
        """Send the script's exit code to every rank."""
        for one in self._connections:
            one.send({"over": code})


def _until_end(
    connection: RankConnection, take: Callable[[dict[str, Any]], None], lost: threading.Event
) -> None:
    with contextlib.suppress(OSError, ValueError):
        while (message := connection.receive()) is not None:
            take(message)
    lost.set()


def _accepted(listener: AuthenticatedListener, deadline: float, said: str) -> AuthenticatedPeer:
    """Return the next authenticated connection. Raises TrainingError(said) after the deadline."""
    try:
        return listener.accept(max(0.01, deadline - time.monotonic()))
    except TimeoutError:
        raise TrainingError(said) from None


def accept_ranks(
    address: tuple[str, int], num_others: int, secret: bytes, wait_s: float = MEET_S
) -> dict[int, tuple[dict[str, Any], RankConnection]]:
    """Wait for all other ranks; returns the first message of each and the connection to it.

    The message holds the sender's `rank` and gets its address as `from`. Other clients are disconnected.
    Raises TrainingError when a rank does not connect in time, OSError.
    """
    found: dict[int, tuple[dict[str, Any], RankConnection]] = {}
    deadline = time.monotonic() + wait_s
    server = listen_on(*address)
    with AuthenticatedListener(server, lambda _name: secret) as listener:
        while len(found) < num_others:
            said = f"{num_others - len(found)} ranks have not connected within {wait_s:g} s"
            peer = _accepted(listener, deadline, said)
            # A rank sends its number together with its proof.
            connection = RankConnection(peer, "server", max(0.01, deadline - time.monotonic()))
            message = connection.receive()
            rank = message.get("rank") if message is not None else None
            expected = type(rank) is int and 0 < rank <= num_others and rank not in found
            if message is None or type(rank) is not int or not expected:
                connection.close()
                continue
            peer.line.settimeout(None)
            found[rank] = ({**message, "from": peer.address}, connection)
    return found


class RankConnection:
    """One end of an authenticated connection between two ranks: marked JSON messages, one a line."""

    def __init__(self, peer: AuthenticatedPeer, side: str, wait_s: float | None = None) -> None:
        """`side` is this one: `client` or `server`. `wait_s` bounds the wait for a message."""
        peer.line.settimeout(wait_s)
        self._line = peer.line
        self._file = peer.line.makefile("rb")
        other = "client" if side == "server" else "server"
        self._own, self._others = MessageSeal(peer.key, side), MessageSeal(peer.key, other)
        self._sending = threading.Lock()

    @classmethod
    def connect(
        cls, address: tuple[str, int], secret: bytes, wait_s: float = MEET_S
    ) -> RankConnection:
        """Connect to rank 0. Raises TrainingError when it cannot be reached in time."""
        deadline = time.monotonic() + wait_s
        while True:
            line = None
            try:
                line = socket.create_connection(address, timeout=5.0)
                return cls(authenticate(line, secret), "client")
            except OSError as error:
                if line is not None:
                    line.close()
                if time.monotonic() > deadline:
                    said = f"rank 0 at {address[0]}:{address[1]} cannot be reached: {error}"
                    raise TrainingError(said) from error
                time.sleep(_RETRY_S)

    def send(self, body: dict[str, Any]) -> None:
        """Send a message; a closed connection is ignored."""
        data = json.dumps(body).encode()
        with self._sending, contextlib.suppress(OSError):
            self._line.sendall(self._own.mark(data).encode() + data + b"\n")

    def receive(self) -> dict[str, Any] | None:
        """The next message; None when the connection has ended or the line is no message of it."""
        try:
            line = self._file.readline(_LONGEST_LINE)
            mark, data = line[:_MARK_CHARS].decode("ascii", "replace"), line[_MARK_CHARS:-1]
            if not line.endswith(b"\n") or not self._others.accepts(mark, data):
                return None
            message = json.loads(data)
        except (OSError, ValueError, RecursionError):
            return None
        return message if isinstance(message, dict) else None

    def close(self) -> None:
        """Close the connection."""
        self._file.close()
        self._line.close()
