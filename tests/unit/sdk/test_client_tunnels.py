"""The client's side of a tunnel where another replica answers, and where the one that has it is killed."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator

import httpx
import pytest

from phalanx.core.tunnels.frames import FrameKind, TunnelFrame
from phalanx.errors import PlatformError
from phalanx.schemas.wire.tunnels import OpenTunnelRequest, TunnelView
from phalanx.sdk import tunnels
from phalanx.sdk.tunnels import ClientTunnel, TunnelCalls
from phalanx.server.tunnels.registry import NodeKey, TunnelRegistry

pytestmark = pytest.mark.unit
URL = "http://balancer"
WANTED = OpenTunnelRequest(kind="exec", command=["cat"])
KEY = NodeKey(1, 1, 0)


class TwoReplicas:
    """A load balancer in front of two processes, of which the second has the tunnel.

    A new connection goes to the next process that lives, as with a Service of Kubernetes.
    """

    def __init__(self) -> None:
        self.registry = TunnelRegistry(lambda: 0.0)
        self.tunnel = self.registry.open(KEY, "ada", WANTED.to_core()).id
        self.registry.join(KEY)
        self.has_it, self.at, self.killed = 1, 0, set[int]()
        self.asked = list[int]()
        self._lock = threading.Lock()

    def answer(self, request: httpx.Request) -> httpx.Response:
        with self._lock:
            at = self.at
            if request.headers.get("connection") == "close" or at in self.killed:
                self.at = 1 - at
            if self.at in self.killed:
                self.at = 1 - self.at
            self.asked.append(at)
            if at in self.killed:
                raise httpx.ReadError("the connection was reset", request=request)
            if at != self.has_it:
                body = {"code": "not_found", "message": "this process has no such tunnel"}
                return httpx.Response(404, json=body)
            return httpx.Response(200, json=self._transfer(request))

    def _transfer(self, request: httpx.Request) -> dict[str, object]:
        try:
            if request.method == "GET":
                after = int(request.url.params["after"])
                done = self.registry.client_reads(self.tunnel, 1, "ada", after, 1 << 17)
                data = base64.b64encode(done.data).decode()
                return {"at": done.at, "data": data, "over": done.over, "why": done.why}
            body = httpx.Response(200, content=request.content).json()
            data_in = base64.b64decode(body["data"])
            done = self.registry.client_sends(self.tunnel, 1, "ada", body["at"], data_in)
        except PlatformError as error:
            raise AssertionError(str(error)) from error
        return {"taken": done.at, "over": done.over, "why": done.why}

    def prints(self, frame: TunnelFrame, at: int, *, over: bool = False) -> int:
        return self.registry.node_sends(self.tunnel, KEY, at, frame.encode(), over=over).at


@pytest.fixture
def replicas(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[TwoReplicas, ClientTunnel]]:
    monkeypatch.setattr(tunnels, "_TRIES_S", 0.5)
    made = TwoReplicas()
    with httpx.Client(base_url=URL, transport=httpx.MockTransport(made.answer)) as http:
        view = TunnelView(tunnel=made.tunnel, job=1, attempt=1, node_rank=0, rank=0)
        yield made, ClientTunnel(TunnelCalls(URL, http), view)


def test_another_connection_reaches_the_replica_that_has_the_tunnel(replicas) -> None:
    both, tunnel = replicas
    at = both.prints(TunnelFrame(FrameKind.OUTPUT, 0, b"hello"), 0)
    tunnel.send(TunnelFrame(FrameKind.INPUT, 0, b"in"))
    both.prints(TunnelFrame(FrameKind.EXITED, 0, b"0"), at, over=True)
    both.at = 0  # the next connection meets the other one again
    found = [(one.kind, one.data) for one in tunnel.frames()]
    assert found == [(FrameKind.OUTPUT, b"hello"), (FrameKind.EXITED, b"0")]
    assert (tunnel.why, set(both.asked)) == ("", {0, 1})
    frame = TunnelFrame(FrameKind.INPUT, 0, b"in").encode()
    assert both.registry.node_reads(both.tunnel, KEY, 0, 100).data == frame


def test_a_killed_replica_ends_both_directions_with_one_message(replicas) -> None:
    both, tunnel = replicas
    both.prints(TunnelFrame(FrameKind.OUTPUT, 0, b"hello"), 0)
    found = []
    for frame in tunnel.frames():
        found.append(frame.data)
        both.killed.add(1)
        tunnel.send(TunnelFrame(FrameKind.INPUT, 0, b"lost"))  # returns: nothing is waited for
    assert found == [b"hello"]
    assert tunnel.is_over
    assert "process of the control plane that had it" in tunnel.why
    tunnel.send(TunnelFrame(FrameKind.INPUT, 0, b"later"))


def test_a_control_plane_that_is_away_ends_it_too(replicas) -> None:
    both, tunnel = replicas
    both.killed |= {0, 1}
    assert list(tunnel.frames()) == []
    assert tunnel.why
