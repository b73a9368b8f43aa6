"""Ranks of one gang connect to rank 0 before their framework starts: JSON messages over one port."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from phalanx.errors import TrainingError

MEET_S = 180.0
_RETRY_S = 0.1
# A rank sends its number as soon as it is connected; a client that does not is disconnected.
_FIRST_MESSAGE_S = 20.0
_LONGEST_LINE = 16 << 20


class RankServer:
    """Rank 0's side: one connection to each other rank."""

    def __init__(self, port: int, num_others: int) -> None:
        self._server = socket.create_server(("", port), backlog=max(1, num_others))
        self._num_others = num_others
        self._connections: list[RankConnection] = []

    def gather(self, message: dict[str, Any], wait_s: float = MEET_S) -> None:
        """Wait for every other rank and send it `message`.

        Raises TrainingError when a rank does not connect in time.
        """
        deadline = time.monotonic() + wait_s
        while (missing := self._num_others - len(self._connections)) > 0:
            said = f"{missing} nodes have not connected within {wait_s:g} s"
            connection = RankConnection(_accepted(self._server, deadline, said)[0])
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
        self._server.close()


def _until_end(
    connection: RankConnection, take: Callable[[dict[str, Any]], None], lost: threading.Event
) -> None:
    with contextlib.suppress(OSError, ValueError):
        while (message := connection.receive()) is not None:
            take(message)
    lost.set()


def _accepted(server: socket.socket, deadline: float, said: str) -> tuple[socket.socket, Any]:
    """Return the next connection and its address. Raises TrainingError(said) after the deadline."""
    server.settimeout(max(0.01, deadline - time.monotonic()))
    try:
        return server.accept()
    except TimeoutError:
        raise TrainingError(said) from None


def accept_ranks(
    port: int, num_others: int, wait_s: float = MEET_S
) -> dict[int, tuple[dict[str, Any], RankConnection]]:
    """Wait for all other ranks; returns the first message of each and the connection to it.

    The message holds the sender's `rank` and gets its address as `from`. Other clients are disconnected.
    Raises TrainingError when a rank does not connect in time.
    """
    found: dict[int, tuple[dict[str, Any], RankConnection]] = {}
    deadline = time.monotonic() + wait_s
    with socket.create_server(("", port), backlog=num_others + 16) as server:
        while len(found) < num_others:
            missing = num_others - len(found)
            said = f"{missing} ranks have not connected within {wait_s:g} s"
            line, peer = _accepted(server, deadline, said)
            left_s = max(0.01, deadline - time.monotonic())
            connection = RankConnection(line, min(_FIRST_MESSAGE_S, left_s))
            message = connection.receive()
            rank = message.get("rank") if message is not None else None
            expected = type(rank) is int and 0 < rank <= num_others and rank not in found
            if message is None or type(rank) is not int or not expected:
                connection.close()
                continue
            line.settimeout(None)
            found[rank] = ({**message, "from": peer[0]}, connection)
    return found


class RankConnection:
    """One end of a connection between two ranks: JSON messages, one a line."""

    def __init__(self, line: socket.socket, wait_s: float | None = None) -> None:
        """`wait_s` bounds the wait for a message; None: no bound."""
        line.settimeout(wait_s)
        self._line = line
        self._file = line.makefile("rb")

    @classmethod
    def connect(cls, address: str, port: int, wait_s: float = MEET_S) -> RankConnection:
        """Connect to rank 0. Raises TrainingError when it cannot be reached in time."""
        deadline = time.monotonic() + wait_s
        while True:
            try:
                return cls(socket.create_connection((address, port), timeout=5.0))
            except OSError as error:
                if time.monotonic() > deadline:
                    raise TrainingError(
                        f"rank 0 at {address}:{port} cannot be reached: {error}"
                    ) from error
                time.sleep(_RETRY_S)

    def send(self, body: dict[str, Any]) -> None:
        """Send a message; a closed connection is ignored."""
        with contextlib.suppress(OSError):
            self._line.sendall(json.dumps(body).encode() + b"\n")

    def receive(self) -> dict[str, Any] | None:
        """The next message; None when the connection has ended or the line is no message."""
        try:
            line = self._file.readline(_LONGEST_LINE)
            message = json.loads(line) if line.endswith(b"\n") else None
        except (OSError, ValueError, RecursionError):
            return None
        return message if isinstance(message, dict) else None

    def close(self) -> None:
        """Close the connection."""
        self._file.close()
        self._line.close()
