"""A reverse proxy that serves a control plane below a prefix, as an ingress does."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

PREFIX = "/ml/phalanx"
_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "date", "server"})


class _Server(ThreadingHTTPServer):
    daemon_threads = False  # waits for its threads when it is closed


@contextmanager
def prefixed(url: str) -> Iterator[str]:
    """The address of a control plane below the prefix; everything else is 404."""
    target, upstreams = urlsplit(url), set[http.client.HTTPConnection]()

    class Proxy(BaseHTTPRequestHandler):
        def _pass(self) -> None:
            if not self.path.startswith(f"{PREFIX}/"):
                self.send_error(404)
                return
            size = int(self.headers.get("Content-Length", 0))
            upstream = http.client.HTTPConnection(str(target.hostname), target.port, timeout=60)
            upstreams.add(upstream)
            with contextlib.closing(upstream), contextlib.suppress(OSError, HTTPException):
                path, body = self.path.removeprefix(PREFIX), self.rfile.read(size)
                upstream.request(self.command, path, body, dict(self.headers.items()))
                answer = upstream.getresponse()
                self.send_response(answer.status)
                for name, value in answer.getheaders():
                    if name.lower() not in _HOP:
                        self.send_header(name, value)
                self.send_header("Connection", "close")
                self.end_headers()
                with answer:
                    while part := answer.read1(65536):
                        self.wfile.write(part)
                        self.wfile.flush()
            upstreams.discard(upstream)

        do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = _pass

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with _Server(("127.0.0.1", 0), Proxy) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}{PREFIX}"
        finally:
            server.shutdown()
            thread.join()
            for one in list(upstreams):  # streams that go on
                if one.sock is not None:
                    with contextlib.suppress(OSError):
                        one.sock.shutdown(socket.SHUT_RDWR)
