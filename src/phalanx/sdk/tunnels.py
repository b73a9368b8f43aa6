"""Tunnels to ranks of running jobs: commands in their environment, and ports of their nodes."""

from __future__ import annotations

import base64
import contextlib
import threading
import time
from collections.abc import Iterator

import httpx

from phalanx.core.tunnels.frames import FrameReader, TunnelFrame
from phalanx.errors import NotFound, PlatformError, ServerUnavailable
from phalanx.schemas.wire.tunnels import (
    MAX_CHUNK_BYTES,
    OpenTunnelRequest,
    TunnelChunk,
    TunnelData,
    TunnelTaken,
    TunnelView,
)
from phalanx.sdk.transport import V1, Transport, encode, raise_for, read

_WAIT_S, _ANSWER_S = 15.0, 30.0
# How long the server may be away, or answer from another process, before a tunnel is given up.
_TRIES_S = 20.0
_PAUSE_S = 0.1
_FULL_S = 0.02


class TunnelCalls(Transport):
    """One method for each route about tunnels; `client.tunnels`, on the connection of the client."""

    def __init__(self, url: str, http: httpx.Client) -> None:
        self.url, self._http = url, http

    @contextlib.contextmanager
    def connect(self, job: int, wanted: OpenTunnelRequest) -> Iterator[ClientTunnel]:
        """Open a tunnel, and close it with what it runs at the end. Raises as `open`."""
        tunnel = ClientTunnel(self, self.open(job, wanted))
        try:
            yield tunnel
        finally:
            tunnel.close()

    def open(self, job: int, wanted: OpenTunnelRequest) -> TunnelView:
        """Open a tunnel. Raises NotFound, and Conflict where the rank does not run."""
        return self._post(f"{V1}/jobs/{job}/tunnels", wanted, TunnelView)

    def receive(
        self, job: int, tunnel: str, after: int, wait_s: float = 0.0, *, fresh: bool = False
    ) -> TunnelChunk:
        """The next bytes from the node, waiting for some; those before `after` are confirmed.

        `fresh` closes the connection afterwards: another one may reach another replica.
        """
        params = {"after": after, "wait_s": wait_s}
        path = f"{V1}/jobs/{job}/tunnels/{tunnel}"
        response = self._send(
            "GET", path, params=params, headers=_headers(fresh), timeout=_ANSWER_S + wait_s
        )
        raise_for(response)
        return read(TunnelChunk, response)

    def send(
        self, job: int, tunnel: str, at: int, data: bytes, *, fresh: bool = False
    ) -> TunnelTaken:
        """Send bytes to the node; fewer may be taken. Repeated ones are passed over."""
        body = TunnelData(at=at, data=base64.b64encode(data).decode())
        path = f"{V1}/jobs/{job}/tunnels/{tunnel}"
        response = self._send("POST", path, content=encode(body), headers=_headers(fresh))
        raise_for(response)
        return read(TunnelTaken, response)

    def end(self, job: int, tunnel: str) -> None:
        """End a tunnel with what it runs; may be repeated."""
        self._delete(f"{V1}/jobs/{job}/tunnels/{tunnel}")


def _headers(fresh: bool) -> dict[str, str]:
    return {"Content-Type": "application/json"} | ({"Connection": "close"} if fresh else {})


def _gone(error: PlatformError) -> str:
    """Why a tunnel is given up: it lives in the memory of one process of the control plane."""
    if isinstance(error, NotFound):
        return "the process of the control plane that had it does not answer any more"
    return error.message


class ClientTunnel:
    """The client's side of one tunnel: `frames` in one thread, `send` in others."""

    def __init__(self, calls: TunnelCalls, view: TunnelView) -> None:
        self._calls, self._view = calls, view
        self._lock = threading.Lock()
        self._sent = 0
        self._over = threading.Event()
        self.why = ""  # why it ended before its time; empty: it did not

    @property
    def is_over(self) -> bool:
        """Whether nothing more goes through."""
        return self._over.is_set()

    def frames(self) -> Iterator[TunnelFrame]:
        """Frames from the node, until the tunnel is over. Raises BadFrame."""
        reader, after = FrameReader(), 0
        until, fresh = time.monotonic() + _TRIES_S, False
        while not self._over.is_set():
            job, tunnel = self._view.job, self._view.tunnel
            try:
                chunk = self._calls.receive(job, tunnel, after, _WAIT_S, fresh=fresh)
            except (NotFound, ServerUnavailable) as error:
                # Another replica answered, or none: a new connection may reach the one that has it.
                if time.monotonic() > until:
                    self._end(_gone(error))
                    return
                time.sleep(_PAUSE_S)
                fresh = True
                continue
            until, fresh = time.monotonic() + _TRIES_S, False
            data = base64.b64decode(chunk.data)
            after = chunk.at + len(data)
            yield from reader.take(data)
            if chunk.over:
                self._end(chunk.why)

    def send(self, *frames: TunnelFrame) -> None:
        """Send frames in order; waits for as long as the node is slower. Nothing once it is over."""
        data = b"".join(one.encode() for one in frames)
        with self._lock:
            while data and not self._over.is_set():
                taken = self._deliver(data[:MAX_CHUNK_BYTES])
                data = data[taken:]

    def close(self) -> None:
        """End it with what it runs."""
        self._over.set()
        with contextlib.suppress(PlatformError):
            self._calls.end(self._view.job, self._view.tunnel)

    def _deliver(self, data: bytes) -> int:
        until, fresh = time.monotonic() + _TRIES_S, False
        while not self._over.is_set():
            job, tunnel = self._view.job, self._view.tunnel
            try:
                done = self._calls.send(job, tunnel, self._sent, data, fresh=fresh)
            except (NotFound, ServerUnavailable) as error:
                if time.monotonic() > until:
                    self._end(_gone(error))
                time.sleep(_PAUSE_S)
                fresh = True
                continue
            if done.over:
                return len(data)  # the reader learns why
            taken = done.taken - self._sent
            self._sent = done.taken
            if taken:
                return taken
            time.sleep(_FULL_S)
        return len(data)

    def _end(self, why: str) -> None:
        self.why = self.why or why
        self._over.set()
