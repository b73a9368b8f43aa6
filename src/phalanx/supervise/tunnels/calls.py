"""The requests of a supervisor for one tunnel: two threads, one for each direction."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlencode, urlsplit

from phalanx.core.tunnels.frames import BadFrame, FrameKind, FrameReader, TunnelFrame, frames_of
from phalanx.launch.tls import trust

PATH = "/api/v1/supervisors/tunnels"
_WAIT_S = 15.0
_ANSWER_S = 30.0
# How long the control plane may be away, or answer from another process, before the tunnel is given up.
_TRIES_S = 20.0
_PAUSE_S = 0.1
_MAX_WAITING = 64
_MAX_BYTES = 1 << 16
_NOT_FOUND = 404

Server = Callable[[], tuple[str, str]]


class TunnelGone(Exception):
    """The tunnel is over, or the control plane does not have it any more."""


class NodeCalls:
    """Authenticated requests of one supervisor. Not safe for several threads."""

    def __init__(self, server: Server, token: str, supervisor: dict[str, int]) -> None:
        """`supervisor` are its job, attempt and node rank."""
        self._server, self._token, self._key = server, token, supervisor
        self._connection: http.client.HTTPConnection | None = None

    def waiting(self) -> list[dict[str, Any]]:
        """The tunnels that wait for this supervisor. Raises OSError."""
        status, body = self._request("GET", PATH, {}, None)
        if status != http.client.OK or not isinstance(body, list):
            raise OSError(f"the control plane answered {status}")
        return body

    def call(self, method: str, tunnel: str, query: dict[str, Any], body: Any = None) -> Any:
        """One request for a tunnel, repeated while its process of the control plane is not found.

        Raises TunnelGone.
        """
        until = time.monotonic() + _TRIES_S
        said = ""
        while time.monotonic() < until:
            try:
                status, answer = self._request(method, f"{PATH}/{tunnel}", query, body)
            except OSError as error:
                said = str(error)
            else:
                if status == http.client.OK:
                    return answer
                said = f"the control plane answered {status}"
                if status != _NOT_FOUND and status < http.client.INTERNAL_SERVER_ERROR:
                    break
                # Another replica: a new connection may reach the one that has it.
                self.close()
            time.sleep(_PAUSE_S)
        raise TunnelGone(said)

    def close(self) -> None:
        """Close the connection; the next call opens a new one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _request(self, method: str, path: str, query: dict[str, Any], body: Any) -> tuple[int, Any]:
        url, ca = self._server()
        if self._connection is None:
            self._connection = trust.connection(url, ca)
        connection = self._connection
        connection.timeout = _WAIT_S + _ANSWER_S
        headers = {"Authorization": f"Bearer {self._token}", "Host": urlsplit(url).netloc}
        content = None
        if body is not None:
            content, headers["Content-Type"] = json.dumps(body).encode(), "application/json"
        try:
            connection.request(method, f"{path}?{urlencode(self._key | query)}", content, headers)
            answer = connection.getresponse()
            data = answer.read()
            return answer.status, json.loads(data) if data else None
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.close()
            raise OSError(trust.told(error, url)) from error


class NodeTunnel:
    """One tunnel: frames from the client are iterated, frames for it are put, in threads of their own."""

    def __init__(self, tunnel: str, calls: Callable[[], NodeCalls]) -> None:
        self.id, self._calls = tunnel, calls
        self._waiting: queue.Queue[TunnelFrame | None] = queue.Queue(_MAX_WAITING)
        self._over = threading.Event()
        self._sender = threading.Thread(target=self._send, name=f"tunnel {tunnel[:8]}", daemon=True)
        self._sender.start()

    @property
    def is_over(self) -> bool:
        """Whether nothing more reaches the client."""
        return self._over.is_set()

    def put(self, kind: FrameKind, channel: int = 0, data: bytes = b"") -> None:
        """Send data; waits for as long as the client is slower. Nothing happens once the tunnel is over."""
        frames = frames_of(kind, channel, data) if data else [TunnelFrame(kind, channel)]
        for one in frames:
            self._put(one)

    def finish(self) -> None:
        """End the tunnel behind everything that was put, and wait until that is sent."""
        self._put(None)
        self._sender.join()

    def frames(self) -> Iterator[TunnelFrame]:
        """Frames from the client, until the tunnel is over."""
        calls, reader, at = self._calls(), FrameReader(), 0
        with contextlib.suppress(TunnelGone, BadFrame), contextlib.closing(calls):
            while not self._over.is_set():
                answer = calls.call("GET", self.id, {"after": at, "wait_s": _WAIT_S})
                data = base64.b64decode(answer["data"])
                at = int(answer["at"]) + len(data)
                yield from reader.take(data)
                if answer["over"]:
                    break
        self._over.set()

    def _put(self, frame: TunnelFrame | None) -> None:
        while not self._over.is_set():
            with contextlib.suppress(queue.Full):
                self._waiting.put(frame, timeout=0.5)
                return

    def _send(self) -> None:
        calls, at = self._calls(), 0
        with contextlib.suppress(TunnelGone), contextlib.closing(calls):
            while not self._over.is_set():
                data, last = self._next()
                at = self._deliver(calls, at, data, last)
                if last:
                    break
        self._over.set()

    def _next(self) -> tuple[bytes, bool]:
        """What waits, in one piece, and whether it is the last."""
        data = bytearray()
        while not self._over.is_set():
            try:
                one = self._waiting.get(timeout=None if data else 0.5, block=not data)
            except queue.Empty:
                if data:
                    break
                continue
            if one is None:
                return bytes(data), True
            data += one.encode()
            if len(data) >= _MAX_BYTES:
                break
        return bytes(data), False

    def _deliver(self, calls: NodeCalls, at: int, data: bytes, last: bool) -> int:
        """Send bytes until all are taken; returns the position behind them. Raises TunnelGone."""
        pause_s = _PAUSE_S / 4
        while not self._over.is_set():
            body = {"at": at, "data": base64.b64encode(data).decode(), "over": last}
            answer = calls.call("POST", self.id, {}, body)
            taken = int(answer["taken"]) - at
            at, data = at + taken, data[taken:]
            if not data:
                return at
            if answer["over"]:
                raise TunnelGone(str(answer["why"]))
            # The client is slower.
            time.sleep(pause_s)
            pause_s = min(1.0, pause_s * 2) if not taken else _PAUSE_S / 4
        return at
