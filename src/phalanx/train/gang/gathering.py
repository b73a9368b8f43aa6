"""Ranks of one gang meet at rank 0 before their framework does: lines of JSON over one port."""

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
_AGAIN_S = 0.1
# A rank says who it is as soon as it is through; whoever does not is a stranger.
_HELLO_S = 20.0
_LONGEST_LINE = 16 << 20


class Table:
    """Rank 0's side: one line to each other rank."""

    def __init__(self, port: int, num_others: int) -> None:
        self._server = socket.create_server(("", port), backlog=max(1, num_others))
        self._num_others = num_others
        self._lines: list[socket.socket] = []

    def gather(self, message: dict[str, Any], wait_s: float = MEET_S) -> None:
        """Wait for every other rank and tell it `message`. Raises TrainingError when one stays away."""
        deadline = time.monotonic() + wait_s
        while len(self._lines) < self._num_others:
            self._server.settimeout(max(0.01, deadline - time.monotonic()))
            try:
                line, _ = self._server.accept()
            except TimeoutError:
                missing = self._num_others - len(self._lines)
                raise TrainingError(f"{missing} nodes have not come within {wait_s:g} s") from None
            line.sendall(json.dumps(message).encode() + b"\n")
            self._lines.append(line)

    def watch(self, take: Callable[[dict[str, Any]], None], lost: threading.Event) -> None:
        """Take what the ranks pass on; set `lost` when one leaves before it was told to."""
        for line in self._lines:
            threading.Thread(target=_until_end, args=(line, take, lost), daemon=True).start()

    def close(self, code: int) -> None:
        """Tell everybody how the script ended."""
        for line in self._lines:
            with contextlib.suppress(OSError):
                line.sendall(json.dumps({"over": code}).encode() + b"\n")
        self._server.close()


def _until_end(
    line: socket.socket, take: Callable[[dict[str, Any]], None], lost: threading.Event
) -> None:
    with contextlib.suppress(OSError, ValueError), line.makefile("rb") as file:
        for one in file:
            take(json.loads(one))
    lost.set()


def expect(
    port: int, num_others: int, wait_s: float = MEET_S
) -> dict[int, tuple[dict[str, Any], Seat]]:
    """Wait for all other ranks: what each has told first (with its `rank`, and `from`, its address), and

    the line to it. Whoever else connects is sent away. Raises TrainingError when a rank stays away.
    """
    found: dict[int, tuple[dict[str, Any], Seat]] = {}
    deadline = time.monotonic() + wait_s
    with socket.create_server(("", port), backlog=num_others + 16) as server:
        while len(found) < num_others:
            server.settimeout(max(0.01, deadline - time.monotonic()))
            try:
                line, peer = server.accept()
            except TimeoutError:
                missing = num_others - len(found)
                raise TrainingError(f"{missing} ranks have not come within {wait_s:g} s") from None
            seat = Seat(line, min(_HELLO_S, max(0.01, deadline - time.monotonic())))
            told = seat.hear()
            rank = told.get("rank") if told is not None else None
            expected = type(rank) is int and 0 < rank <= num_others and rank not in found
            if told is None or type(rank) is not int or not expected:
                seat.close()
                continue
            line.settimeout(None)
            found[rank] = ({**told, "from": peer[0]}, seat)
    return found


class Seat:
    """One end of a line to another rank."""

    def __init__(self, line: socket.socket, wait_s: float | None = None) -> None:
        """`wait_s` is how long its end is waited for; None: for ever."""
        line.settimeout(wait_s)
        self._line = line
        self._file = line.makefile("rb")

    @classmethod
    def at(cls, address: str, port: int, wait_s: float = MEET_S) -> Seat:
        """A line to rank 0. Raises TrainingError when it cannot be reached in time."""
        deadline = time.monotonic() + wait_s
        while True:
            try:
                return cls(socket.create_connection((address, port), timeout=5.0))
            except OSError as error:
                if time.monotonic() > deadline:
                    raise TrainingError(f"the head at {address}:{port} is away: {error}") from error
                time.sleep(_AGAIN_S)

    def tell(self, body: dict[str, Any]) -> None:
        """Say something, as far as the other end is there."""
        with contextlib.suppress(OSError):
            self._line.sendall(json.dumps(body).encode() + b"\n")

    def hear(self) -> dict[str, Any] | None:
        """The next message; None when the other end has gone without one, or what it says is none."""
        try:
            line = self._file.readline(_LONGEST_LINE)
            told = json.loads(line) if line.endswith(b"\n") else None
        except (OSError, ValueError, RecursionError):
            return None
        return told if isinstance(told, dict) else None

    def close(self) -> None:
        """Leave."""
        self._file.close()
        self._line.close()
