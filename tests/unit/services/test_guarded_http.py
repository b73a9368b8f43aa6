"""What webhooks may reach: public addresses, resolved once, without redirects, and not for long."""

from __future__ import annotations

import contextlib
import http.server
import threading
from collections.abc import Callable, Iterator

import pytest

from phalanx.errors import UserError
from phalanx.launch.tls.trust import client_context
from phalanx.services.guarded_http import MOST_BYTES, GuardedHttp, is_public

Answer = Callable[[http.server.BaseHTTPRequestHandler], None]


@contextlib.contextmanager
def server(answer: Answer) -> Iterator[tuple[int, list[str]]]:
    """An HTTP server on the loopback interface, and the hosts that requests named."""
    hosts: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            hosts.append(self.headers["host"])
            self.rfile.read(int(self.headers.get("content-length", 0)))
            with contextlib.suppress(OSError):
                answer(self)

        def log_message(self, *args: object) -> None:
            pass

    made = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=made.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield made.server_address[1], hosts
    finally:
        made.shutdown()
        thread.join()
        made.server_close()


def says(status: int, text: bytes = b"ok", **headers: str) -> Answer:
    def answer(to: http.server.BaseHTTPRequestHandler) -> None:
        to.send_response(status)
        for name, value in headers.items():
            to.send_header(name, value)
        to.send_header("content-length", str(len(text)))
        to.end_headers()
        to.wfile.write(text)

    return answer


def guarded(
    *addresses: str, allow: bool = True, clock: Callable[[], float] = lambda: 0.0
) -> GuardedHttp:
    found = list(addresses) or ["127.0.0.1"]
    return GuardedHttp(allow, clock, client_context(""), lambda host, port: found)


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "0.0.0.0"),
        *("100.64.0.1", "224.0.0.1", "255.255.255.255", "::1", "fe80::1", "fc00::1", "::"),
        *("::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "ff02::1"),
        *("fe80::1%eth0", "not an address", ""),
    ],
)
def test_addresses_that_are_not_public(address: str) -> None:
    assert not is_public(address)
    http = guarded(address, allow=False)
    with pytest.raises(UserError, match="not a public one"):
        http.post("https://hooks.example.com/x", b"{}", {})


@pytest.mark.parametrize("address", ["93.184.216.34", "2606:2800:220:1::1", "::ffff:8.8.8.8"])
def test_addresses_that_are_public(address: str) -> None:
    assert is_public(address)


def test_one_private_address_among_public_ones_is_refused() -> None:
    with pytest.raises(UserError, match=r"10\.0\.0\.1"):
        guarded("93.184.216.34", "10.0.0.1", allow=False).post("https://a.example", b"", {})


@pytest.mark.parametrize(
    "url",
    ["http://a.example", "ftp://a.example", "file:///etc/passwd", "https://\x00", "gopher://a"],
)
def test_other_schemes_are_refused(url: str) -> None:
    with pytest.raises(UserError):
        guarded("93.184.216.34", allow=False).post(url, b"", {})


def test_the_connection_goes_to_the_address_that_was_looked_up_once() -> None:
    looked: list[str] = []

    def find(host: str, port: int) -> list[str]:
        looked.append(host)
        return ["127.0.0.1"]

    with server(says(200, b"fine")) as (port, hosts):
        http = GuardedHttp(True, lambda: 0.0, client_context(""), find)
        found = http.post(f"http://user:word@hooks.example.com:{port}/a?b=c", b"{}", {})
    assert (found.status, found.text) == (200, "fine")
    assert looked == ["hooks.example.com"] and hosts == [f"hooks.example.com:{port}"]


def test_redirects_are_not_followed() -> None:
    with server(says(302, location="http://127.0.0.1:1/secret")) as (port, hosts):
        assert guarded().post(f"http://a.example:{port}/", b"{}", {}).status == 302
    assert len(hosts) == 1


def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    with server(says(204, b"")) as (port, _):
        assert guarded().post(f"http://a.example:{port}/", b"{}", {}).status == 204


def test_of_a_long_answer_only_the_beginning_is_read() -> None:
    sent: list[int] = []

    def endless(to: http.server.BaseHTTPRequestHandler) -> None:
        to.send_response(200)
        to.end_headers()
        for _ in range(10_000):
            to.wfile.write(b"x" * 10_000)
            sent.append(10_000)

    with server(endless) as (port, _):
        found = guarded().post(f"http://a.example:{port}/", b"{}", {})
    assert found.status == 200 and len(found.text) == 200
    assert sum(sent) < 10_000 * 10_000 and sum(sent) >= MOST_BYTES // 2


def test_an_answer_that_never_ends_is_left_after_the_limit() -> None:
    times, left = iter([0.0, 11.0]), threading.Event()

    def slow(to: http.server.BaseHTTPRequestHandler) -> None:
        to.send_response(200)
        to.end_headers()
        to.wfile.write(b"x")
        to.wfile.flush()
        left.wait(60)

    with server(slow) as (port, _):
        http = guarded(clock=lambda: next(times, 11.0))
        found = http.post(f"http://a.example:{port}/", b"", {})
        left.set()
    assert (found.status, found.text) == (200, "x")


def test_a_name_without_an_address_and_a_closed_port_are_said() -> None:
    http = GuardedHttp(True, lambda: 0.0, client_context(""))
    with pytest.raises(UserError, match="has no address"):
        http.post("http://name.invalid/", b"", {})
    with server(says(200)) as (port, _):
        pass
    with pytest.raises(UserError, match="does not answer"):
        guarded().post(f"http://a.example:{port}/", b"", {})
