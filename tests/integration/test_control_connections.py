"""What strangers do with connections: nothing of it keeps a client or a supervisor out."""

from __future__ import annotations

import base64
import contextlib
import os
import select
import socket
import sqlite3
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from integration.rig import spec
from integration.served import TOKEN, Served, served
from phalanx.core.contract.access import Scope
from phalanx.errors import ServerUnavailable, StoreUnavailable
from phalanx.schemas.api.jobs import SubmitRequest
from phalanx.schemas.wire import supervision as wire
from phalanx.sdk import PhalanxClient
from phalanx.server import connections, strict_requests
from phalanx.server.connections import ConnectionLimits
from phalanx.server.settings import ApiSettings, Settings
from phalanx.store import database
from phalanx.supervise.uplink.link import ControlPlaneAddress, SyncConnection
from support.waiting import wait_until

pytestmark = pytest.mark.integration
HEAD = b"GET /api/v1/info HTTP/1.1\r\nHost: 127.0.0.1\r\n"
OPEN_LIMITS = ConnectionLimits(
    header_s=1e6,
    body_s=1e6,
    write_s=1e6,
    max_strangers=10**6,
    max_connections=10**6,
    max_unread_bytes=1 << 40,
)


@pytest.fixture
def serve_with(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Served]]:
    """Start a server with these limits, which are looked at often, and settings."""
    with contextlib.ExitStack() as stack:

        def start(limits: ConnectionLimits, settings: Settings | None = None) -> Served:
            monkeypatch.setattr(connections, "_SWEEP_S", 0.02)
            monkeypatch.setattr(ConnectionLimits, "of_process", classmethod(lambda cls: limits))
            # A path of a Unix socket has at most 107 bytes.
            home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="phx")))
            return stack.enter_context(served(home / "home", settings))

        yield start


def is_closed(sock: socket.socket) -> bool:
    """Whether the other end has closed a connection on which nothing was asked."""
    ready, _, _ = select.select([sock], [], [], 0)
    if not ready:
        return False
    try:
        return sock.recv(65536) == b""
    except OSError:
        return True


def is_served(client) -> bool:
    """Whether a request is answered; a new connection may meet a flood and try again."""
    try:
        return client.info().pid == os.getpid()
    except ServerUnavailable:
        return False


def test_silent_strangers_are_limited_and_the_oldest_gives_way(serve_with) -> None:
    here = serve_with(ConnectionLimits(header_s=1e6, max_strangers=20))
    with here.client() as kept, here.client(local=True) as local:
        assert is_served(kept) and is_served(local)
        silent = [here.connect() for _ in range(200)]
        wait_until(lambda: sum(map(is_closed, silent)) >= 179, "the oldest are closed")
        assert not any(is_closed(one) for one in silent[-15:])
        # A connection that has shown the token stays, and a new client gets in.
        assert is_served(kept) and is_served(local)
        with here.client() as fresh:
            assert is_served(fresh)


def test_without_limits_silent_strangers_stay(serve_with) -> None:
    """The guard of the test above, off: each of them keeps a descriptor of the server."""
    here = serve_with(OPEN_LIMITS)
    silent = [here.connect() for _ in range(60)]
    with here.client() as client:
        assert is_served(client)
    assert not any(is_closed(one) for one in silent)


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"GET / HT",
        HEAD,
        HEAD + b"X: " + b"y" * 2000,
        b"POST /api/v1/supervisors/sync HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\n{",
        b"POST /api/v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer "
        + TOKEN.encode()
        + b"\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{",
    ],
    ids=["nothing", "part of a line", "open head", "long head", "refused body", "body"],
)
def test_a_request_that_does_not_end_is_closed(serve_with, said: bytes) -> None:
    here = serve_with(ConnectionLimits(header_s=0.1, body_s=0.1))
    stranger = here.connect(said)
    wait_until(lambda: is_closed(stranger), "the server closes the connection")
    with here.client() as client:
        assert is_served(client)


@pytest.mark.extras
def test_a_slow_but_steady_body_is_read_to_its_end(serve_with) -> None:
    """The deadline grows with every byte; and a connection that waits for a long poll has none."""
    here = serve_with(ConnectionLimits(header_s=0.1, body_s=5.0))
    body = b'{"client": "x"}'
    head = (
        f"POST /api/v1/clients/hello HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {TOKEN}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode()
    steady = here.connect(head)
    for byte in body:
        steady.sendall(bytes([byte]))
    assert steady.recv(65536).startswith(b"HTTP/1.1 200")
    with here.client() as client:
        num = client.submit(SubmitRequest(spec=spec())).job.num
        last = client.events(num).cursor
        while page := client.events(num, after=last, wait_s=0.5).events:
            last = page[-1].seq
        assert is_served(client)


def poll(job: int, after: int, token: str) -> bytes:
    """A request that waits for the next event."""
    return (
        f"GET /api/v1/jobs/{job}/events?after={after}&wait_s=30 HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        f"Authorization: Bearer {token}\r\n\r\n"
    ).encode()


@pytest.mark.parametrize("limit", [4, 100])
def test_a_token_has_a_number_of_requests_at_a_time(tmp_path: Path, limit: int) -> None:
    """With 100, the guard of the test is off: all eight polls are served at once."""
    settings = Settings(api=ApiSettings(max_requests_per_token=limit))
    with served(tmp_path / "home", settings) as here, here.client() as client:
        num = client.submit(SubmitRequest(spec=spec())).job.num
        wasteful = client.create_token("a", [Scope.READ], None).token
        other = client.create_token("b", [Scope.READ], None).token
        wait_until(lambda: here.executor.started, "the launch")
        last = client.events(num).cursor
        polls = [here.connect(poll(num, last, wasteful)) for _ in range(8)]

        def num_refused() -> int:
            ready, _, _ = select.select(polls, [], [], 0)
            return len(ready)

        expected = max(0, 8 - limit)
        wait_until(lambda: num_refused() >= expected, "the polls over the limit are refused")
        ask = {"url": f"{here.url}/api/v1/info", "timeout": 120}
        again = httpx.get(**ask, headers={"Authorization": f"Bearer {wasteful}"})
        assert num_refused() == expected
        if not expected:
            assert again.status_code == 200
            return
        assert (again.status_code, again.json()["code"]) == (429, "too_many_requests")
        assert again.headers["Retry-After"] == "2"
        # Others are served, and so is this token once its answers have come.
        assert httpx.get(**ask, headers={"Authorization": f"Bearer {other}"}).status_code == 200
        assert is_served(client)
        client.stop(num)
        with PhalanxClient(here.url, wasteful) as waiting:
            assert is_served(waiting)


def test_idle_connections_of_one_token_give_way(serve_with) -> None:
    here = serve_with(ConnectionLimits(max_per_token=5))
    ask = HEAD + b"Authorization: Bearer " + TOKEN.encode() + b"\r\n\r\n"
    leaked = []
    for _ in range(12):
        one = here.connect(ask)
        assert one.recv(65536).startswith(b"HTTP/1.1 200")
        leaked.append(one)
    wait_until(lambda: sum(map(is_closed, leaked[:7])) == 7, "the oldest are closed")
    assert not any(is_closed(one) for one in leaked[7:])


def fill_logs(here: Served, num_bytes: int) -> int:
    """A job with this much output."""
    with here.client() as client:
        num = client.submit(SubmitRequest(spec=spec())).job.num
        wait_until(lambda: here.executor.started, "the launch")
        (started,) = here.executor.started.values()
        line = (b"x" * 1023 + b"\n") * 256
        reports = [
            wire.LogReport(
                seq=seq + 1,
                generation=0,
                rank=0,
                stream="out",
                offset=seq * len(line),
                data=base64.b64encode(line).decode(),
            )
            for seq in range(num_bytes // len(line))
        ]
        uplink = SyncConnection(
            ControlPlaneAddress(here.url, None, here.socket_path), started.token
        )
        request = wire.SyncRequest(job=num, attempt=1, node_rank=0, sent_at=0, reports=reports)
        assert uplink.sync(request).acked == len(reports)
        uplink.close()
    return num


@pytest.mark.extras
@pytest.mark.parametrize(
    "limits",
    [
        ConnectionLimits(write_s=0.1, read_bytes_per_s=1e9),
        ConnectionLimits(write_s=1e6, max_unread_bytes=1 << 20),
    ],
    ids=["deadline", "memory"],
)
def test_followers_that_never_read_are_closed(serve_with, limits) -> None:
    here = serve_with(limits)
    num = fill_logs(here, 4 << 20)
    ask = (
        f"GET /api/v1/jobs/{num}/logs HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        f"Authorization: Bearer {TOKEN}\r\n\r\n"
    ).encode()
    deaf = []
    for _ in range(4):
        one = socket.socket()
        # A small buffer here, so that the answer stays in the memory of the server.
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        one.connect(("127.0.0.1", here.port))
        here.strangers.append(one)
        one.sendall(ask)
        deaf.append(one)

    def num_cut() -> int:
        return sum(_is_reset(one) for one in deaf)

    wait_until(lambda: num_cut() >= 3, "unread answers are dropped")
    with here.client() as client:
        assert len(client.logs(num).lines) > 100


def _is_reset(sock: socket.socket) -> bool:
    return bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)) or _hung_up(sock)


def _hung_up(sock: socket.socket) -> bool:
    poll = select.poll()
    poll.register(sock, select.POLLRDHUP)
    return any(
        event & (select.POLLRDHUP | select.POLLHUP | select.POLLERR) for _, event in poll.poll(0)
    )


def test_a_supervisor_takes_the_socket_and_falls_back_to_the_url(serve_with) -> None:
    here = serve_with(ConnectionLimits())
    num = fill_logs(here, 1 << 20)
    (started,) = here.executor.started.values()
    request = wire.SyncRequest(job=num, attempt=1, node_rank=0, sent_at=0)
    gone = ControlPlaneAddress(here.url, None, here.socket_path + ".gone")
    line = SyncConnection(gone, started.token)
    with pytest.raises(OSError, match="No such file"):
        line.sync(request)
    assert line.sync(request).acked == 4  # by the URL
    line.close()
    assert Path(here.socket_path).stat().st_mode & 0o777 == 0o600


# Bytes that are not HTTP, or not whole: the answer is a refusal or the end of this connection.
GOOD = HEAD + b"Authorization: Bearer " + TOKEN.encode() + b"\r\n"
MALFORMED = {
    "nul": b"\0" * 100,
    "tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + os.urandom(64),
    "h2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0",
    "target": b"GET /\xff\xfe HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "absolute": b"GET http://evil.example/%00 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "path": b"GET /api/v1/jobs/%00%ff%ed%a0%80 " + GOOD[len(b"GET /api/v1/info ") :] + b"\r\n",
    "query": b"GET /api/v1/jobs?before=\xb2 " + GOOD[len(b"GET /api/v1/info ") :] + b"\r\n",
    "name": b"GET /api/v1/nodes/%ed%a0%80 " + GOOD[len(b"GET /api/v1/info ") :] + b"\r\n",
    "cookie": HEAD + b"Cookie: phalanx_session=\xff\xfe\x80\r\n\r\n",
    "token": HEAD + b"Authorization: Bearer \xff\xfe\r\n\r\n",
    "giant": HEAD + b"X: " + b"y" * 200_000 + b"\r\n\r\n",
    "many": HEAD + b"".join(b"X%d: y\r\n" % n for n in range(20_000)) + b"\r\n",
    "length": GOOD + b"Content-Length: \xb2\r\n\r\n",
    "lengths": GOOD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n",
    "huge": GOOD + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n",
    "both": GOOD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunk": GOOD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
    "chunks": GOOD + b"Transfer-Encoding: chunked\r\n\r\n" + b"f" * 30 + b"\r\n",
    "upgrade": GOOD + b"Connection: upgrade\r\nUpgrade: websocket\r\n\r\n",
    "expect": GOOD + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n{}",
    "version": b"GET / HTTP/9.9\r\nHost: 127.0.0.1\r\n\r\n",
    "method": b"\xc3\xa9 / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "cut": b"POST /api/v1/jobs "
    + GOOD[len(b"GET /api/v1/info ") :]
    + b"Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{",
    "pipeline": (GOOD + b"\r\n") * 10,
    "type": b"POST /api/v1/jobs "
    + GOOD[len(b"GET /api/v1/info ") :]
    + b"Content-Type: \xff/\xfe; =\r\nContent-Length: 2\r\n\r\n{}",
}


@pytest.fixture(scope="module")
def running() -> Iterator[Served]:
    with tempfile.TemporaryDirectory(prefix="phx") as folder, served(Path(folder) / "home") as one:
        yield one


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_bytes_end_one_connection_and_nothing_else(
    running: Served, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    stranger = running.connect(MALFORMED[name])
    with contextlib.suppress(OSError):  # it was closed before it had read everything
        stranger.shutdown(socket.SHUT_WR)
    answer = b""
    while part := _received(stranger):
        answer += part
    assert b"HTTP/1.1 5" not in answer and len(answer) < 1 << 20
    assert not [one for one in caplog.records if one.exc_info], caplog.text
    assert httpx.get(f"{running.url}/healthz", timeout=60).status_code == 200


def _received(sock: socket.socket) -> bytes:
    try:
        return sock.recv(65536)
    except OSError:
        return b""


@pytest.fixture
def locked(serve_with) -> Iterator[Served]:
    """A server whose database another process would hold locked for writing."""
    many = Settings(api=ApiSettings(max_requests_per_token=1000))
    here = serve_with(ConnectionLimits(), many)
    with here.client() as client:
        assert is_served(client)
    path = Path(here.socket_path).parent / "db" / "phalanx.sqlite"
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    try:
        yield here
    finally:
        other.close()


def test_reads_are_served_while_writes_wait_for_a_locked_database(
    locked: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the same threads for both, these sixty writes take every thread of the reads."""
    monkeypatch.setattr(database, "_TURN_TIMEOUT_S", 1e6)
    monkeypatch.setattr(database.Store, "_once", _waits_for_ever)
    body = SubmitRequest(spec=spec()).model_dump_json().encode()
    head = (
        f"POST /api/v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {TOKEN}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode()
    writes = [locked.connect(head + body) for _ in range(60)]
    try:
        with locked.client() as client:
            for _ in range(5):
                assert client.jobs().jobs == []
            assert not select.select(writes, [], [], 0)[0], "every write still waits"
    finally:
        _RELEASED.set()


_RELEASED = threading.Event()


def _waits_for_ever(*_: object) -> None:
    _RELEASED.wait()
    raise StoreUnavailable("the database is locked")


@pytest.mark.sqlite
def test_a_write_to_a_locked_database_is_told_to_try_again(
    locked: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "_TURN_TIMEOUT_S", 0.1)
    answer = httpx.post(
        f"{locked.url}/api/v1/jobs",
        content=SubmitRequest(spec=spec()).model_dump_json(),
        headers={"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"},
        timeout=120,
    )
    assert (answer.status_code, answer.json()["code"]) == (503, "store_unavailable")
    assert answer.headers["Retry-After"] == "2"
    assert answer.json()["retryable"]


def test_too_many_waiting_writes_are_refused(
    locked: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strict_requests, "_MAX_WAITING_WRITES", 0)
    answer = httpx.post(
        f"{locked.url}/api/v1/nodes/local/undrain",
        headers={"Authorization": f"Bearer {TOKEN}"},
        timeout=120,
    )
    assert (answer.status_code, answer.json()["code"]) == (429, "too_many_requests")
    assert answer.headers["Retry-After"] == "2"
