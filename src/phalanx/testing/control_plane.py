"""A test control plane with only the `sync` call: it records reports and returns set orders."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeVar

from phalanx.core.jobs.desired import Action
from phalanx.schemas.wire.supervision import Heartbeat, Orders, Report, SyncRequest, SyncResponse

R = TypeVar("R")
WAIT_S = 60.0
_WAITING = Orders(version="wait:0", action=Action.WAIT)


class FakeControlPlane:
    """Serves any number of supervisors on loopback; orders are per node rank.

    `away` closes the socket; `come_back` opens another one, on another port.
    """

    def __init__(self, token: str = "token") -> None:
        self.token = token
        self._changed = threading.Condition()
        self._orders: dict[int, Orders] = {}
        self._reports: dict[int, dict[int, Report]] = {}
        self._heartbeats: dict[int, Heartbeat] = {}
        self.num_requests = 0
        self.traceparents: set[str] = set()  # of all calls
        self.forget_acks = False
        self._server: ThreadingHTTPServer | None = None
        self.come_back()

    @property
    def url(self) -> str:
        """The URL of the current port."""
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def come_back(self) -> None:
        """Listen on a new port."""
        self._server = _serve(self)

    def away(self) -> None:
        """Stop listening and end waiting calls."""
        server, self._server = self._server, None
        if server is not None:
            with self._changed:
                self._changed.notify_all()
            server.shutdown()
            server.server_close()

    def order(self, orders: Orders, node_rank: int = 0) -> None:
        """Set the orders of one node."""
        with self._changed:
            self._orders[node_rank] = orders
            self._changed.notify_all()

    def reports(self, kind: type[R], node_rank: int = 0) -> list[R]:
        """Reports of one kind, in the order of their numbers, each once."""
        with self._changed:
            found = self._reports.get(node_rank, {})
            return [one for _, one in sorted(found.items()) if isinstance(one, kind)]

    def all_reports(self, node_rank: int = 0) -> list[Report]:
        """Every report of one node, in the order of their numbers."""
        with self._changed:
            return [one for _, one in sorted(self._reports.get(node_rank, {}).items())]

    def heartbeat(self, node_rank: int = 0) -> Heartbeat:
        """The newest one."""
        with self._changed:
            return self._heartbeats.get(node_rank, Heartbeat())

    def wait_for(self, found: Callable[[], R], timeout_s: float = WAIT_S) -> R:
        """The first truthy result of `found`; AssertionError with all reports when none comes."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while not (result := found()):
                left = deadline - time.monotonic()
                if left <= 0:
                    raise AssertionError(f"timed out; reports: {self._summary()}")
                self._changed.wait(min(left, 0.5))
            return result

    def _summary(self) -> str:
        lines = []
        for node, found in self._reports.items():
            for seq, one in sorted(found.items()):
                lines.append(f"{node}/{seq}: {str(one)[:600]}")
        return "\n".join(lines)

    # -- the server's side -------------------------------------------------------------------------

    def sync(self, request: SyncRequest) -> SyncResponse:
        """One call."""
        node = request.node_rank
        server = self._server
        deadline = time.monotonic() + request.wait_s
        with self._changed:
            self.num_requests += 1
            stored = self._reports.setdefault(node, {})
            for report in request.reports:
                stored.setdefault(report.seq, report)
            if request.heartbeat.generation or request.heartbeat.step is not None:
                self._heartbeats[node] = request.heartbeat
            self._changed.notify_all()
            while self._orders.get(node, _WAITING).version == request.seen:
                left = deadline - time.monotonic()
                if left <= 0 or self._server is not server:
                    break
                self._changed.wait(left)
            acked = 0
            while acked + 1 in stored:
                acked += 1
            orders = self._orders.get(node, _WAITING)
        return SyncResponse(
            acked=0 if self.forget_acks else acked, orders=orders, server_now=time.time_ns() // 1000
        )


def _serve(plane: FakeControlPlane) -> ThreadingHTTPServer:
    class Answers(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            data = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers["Authorization"] != f"Bearer {plane.token}":
                self._answer(401, b"{}")
                return
            plane.traceparents.add(self.headers["traceparent"] or "")
            response = plane.sync(SyncRequest.model_validate_json(data))
            if plane._server is not self.server:
                self.close_connection = True
                return
            self._answer(200, response.model_dump_json().encode())

        def _answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            self.close_connection = self.close_connection or plane._server is not self.server

        def log_message(self, format: str, *args: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: Any, client_address: Any) -> None:
            """Print nothing: tests kill supervisors during a call."""

    server = Server(("127.0.0.1", 0), Answers)
    server.daemon_threads = True
    server.block_on_close = False
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    return server
