"""A real control plane on real sockets, in a thread of the test's process, with a fake executor."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from phalanx.schemas.home import HomeLayout
from phalanx.sdk import PhalanxClient
from phalanx.server.app import serve
from phalanx.server.settings import Settings
from phalanx.server.tls import Certificate
from phalanx.standalone.control_plane import bind_local
from phalanx.testing.executors import FakeExecutor

TOKEN = "secret-of-the-home"


@dataclass
class Served:
    port: int
    socket_path: str
    executor: FakeExecutor
    strangers: list[socket.socket] = field(default_factory=list)
    certificate: Certificate | None = None

    @property
    def url(self) -> str:
        return f"{'http' if self.certificate is None else 'https'}://127.0.0.1:{self.port}"

    @property
    def ca(self) -> str:
        return "" if self.certificate is None else self.certificate.authority

    def client(self, *, local: bool = False) -> PhalanxClient:
        return PhalanxClient(self.url, TOKEN, socket=self.socket_path if local else "", ca=self.ca)

    def connect(self, said: bytes = b"") -> socket.socket:
        """A raw connection, which `served` closes."""
        one = socket.create_connection(("127.0.0.1", self.port), 30)
        self.strangers.append(one)
        one.sendall(said)
        return one


@contextlib.contextmanager
def served(
    home: Path, settings: Settings | None = None, certificate: Certificate | None = None
) -> Iterator[Served]:
    """Serve until the block ends; an error of the server fails the test."""
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    ready, trouble = threading.Event(), []
    stops: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []
    local = bind_local(home / "s")
    assert local is not None
    with socket.socket() as sock, local:
        sock.bind(("127.0.0.1", 0))
        found = Served(
            sock.getsockname()[1], str(home / "s"), FakeExecutor(), certificate=certificate
        )

        async def main() -> None:
            stop = asyncio.Event()
            stops.append((asyncio.get_running_loop(), stop))
            await serve(
                home=HomeLayout(home),
                executor=found.executor,
                sock=sock,
                local_sock=local,
                url=found.url,
                token=TOKEN,
                settings=settings or Settings(),
                stop=stop,
                on_ready=ready.set,
                certificate=certificate,
            )

        def work() -> None:
            try:
                asyncio.run(main())
            except BaseException as error:
                trouble.append(error)
                ready.set()

        thread = threading.Thread(target=work, name="served")
        thread.start()
        try:
            assert ready.wait(120) and not trouble, trouble
            yield found
        finally:
            for one in found.strangers:
                one.close()
            if stops and thread.is_alive():
                stops[0][0].call_soon_threadsafe(stops[0][1].set)
            thread.join(120)
    if trouble:
        raise trouble[0]
