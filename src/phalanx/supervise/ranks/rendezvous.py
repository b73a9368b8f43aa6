"""The rendezvous of Horovod's ranks: a key-value store behind HTTP, beside the ranks of node 0.

`python -m phalanx.supervise.ranks.rendezvous` serves on the listening socket on its standard input, and
ends with its generation.
"""

from __future__ import annotations

import os
import re
import socket
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from phalanx.kit.interpreter import own_python
from phalanx.launch.authentication import listen_on
from phalanx.supervise.processes import LaunchRequest, ProcessObserver, ProcessTree

_PATH = re.compile(r"/([^/]+)/([^/]+)")
_MOST_DIGITS = 8
_MODULE = "phalanx.supervise.ranks.rendezvous"


class KeyValueStore:
    """Values by scope and key. A scope is deleted when every key that was put there has left it.

    A rank leaves a scope after it has read the other keys; other ranks may not have read its key yet.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._scopes: dict[str, dict[str, bytes]] = {}
        self._left: dict[str, set[str]] = {}

    def put(self, scope: str, key: str, value: bytes) -> None:
        """Set a value."""
        with self._lock:
            self._scopes.setdefault(scope, {})[key] = value

    def get(self, scope: str, key: str) -> bytes | None:
        """A value; None while it is not set."""
        with self._lock:
            return self._scopes.get(scope, {}).get(key)

    def leave(self, scope: str, key: str) -> None:
        """Record that the owner of `key` needs the scope no more."""
        with self._lock:
            left = self._left.setdefault(scope, set())
            left.add(key)
            if left >= self._scopes.get(scope, {}).keys():
                self._scopes.pop(scope, None)
                self._left.pop(scope)


def start(
    processes: ProcessTree, address: tuple[str, int], folder: str, guarded: Mapping[str, str]
) -> None:
    """Start the store in a process of its own that listens at `address`. Raises OSError.

    Horovod's ranks cannot authenticate: `guarded` has the variables that keep strangers out.
    """
    listening = listen_on(*address)
    log = Path(folder, "rendezvous.log")
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    launch = LaunchRequest(guarded, folder, (listening.detach(), output, output))
    command = own_python("-P", "-m", _MODULE)
    # Nothing follows from its end: without it the ranks fail by themselves, with their own message.
    processes.start_command(command, launch, ProcessObserver(), folder)


class RendezvousRequest(BaseHTTPRequestHandler):
    """Serves GET, PUT and DELETE of `/scope/key`."""

    keys: KeyValueStore
    timeout = 60.0  # of a request that does not come to its end

    def do_GET(self) -> None:
        """A value, or 404."""
        found = _PATH.fullmatch(self.path)
        value = self.keys.get(found[1], found[2]) if found else None
        self._answer(404 if value is None else 200, value or b"")

    def do_PUT(self) -> None:
        """Set a value."""
        length = self.headers.get("Content-Length", "0")
        if not length.isdecimal() or len(length) > _MOST_DIGITS:
            self._answer(413, b"")
            return
        value = self.rfile.read(int(length))
        if found := _PATH.fullmatch(self.path):
            self.keys.put(found[1], found[2], value)
        self._answer(200 if found else 400, b"")

    def do_DELETE(self) -> None:
        """Leave a scope."""
        if found := _PATH.fullmatch(self.path):
            self.keys.leave(found[1], found[2])
        self._answer(200 if found else 400, b"")

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: ranks poll a hundred times a second until all are there."""


def serve(listening: socket.socket) -> None:
    """Serve until the process is killed."""
    handler = type("Served", (RendezvousRequest,), {"keys": KeyValueStore()})
    server = ThreadingHTTPServer(listening.getsockname()[:2], handler, bind_and_activate=False)
    server.socket.close()
    server.socket = listening
    server.serve_forever()


if __name__ == "__main__":
    serve(socket.socket(fileno=os.dup(0)))
