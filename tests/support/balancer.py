"""A load balancer for connections: each new one goes to the next server that takes it."""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
from collections.abc import Sequence

_BYTES = 1 << 16


class Balancer:
    """Passes connections to the ports of `servers` in turn; a server that refuses is passed over."""

    def __init__(self, servers: Sequence[int] = ()) -> None:
        self.servers = list(servers)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._turn = itertools.count()
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._begin(self._accept)

    def close(self) -> None:
        """Close everything, and wait for the threads."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._threads[0].join(30)
        for one in list(self._open):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(30)
        for one in self._open:
            one.close()

    def _begin(self, work, *args) -> None:
        thread = threading.Thread(target=work, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = self._connect()
            if server is None:
                client.close()
                continue
            self._open |= {client, server}
            self._begin(self._pass, client, server)
            self._begin(self._pass, server, client)

    def _connect(self) -> socket.socket | None:
        for _ in range(len(self.servers)):
            port = self.servers[next(self._turn) % len(self.servers)]
            with contextlib.suppress(OSError):
                return socket.create_connection(("127.0.0.1", port), 10)
        return None

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            source.settimeout(None)
            while data := source.recv(_BYTES):
                target.sendall(data)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
