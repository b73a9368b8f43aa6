"""A control plane with TLS on real sockets: what clients and supervisors accept, and what they refuse."""

from __future__ import annotations

import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
from typer.testing import CliRunner

from integration.served import TOKEN, Served, served
from phalanx.cli.app import app
from phalanx.cli.verbs import platform
from phalanx.errors import NotFound, ServerError, ServerUnavailable, UserError
from phalanx.executors.node_files import CodeSource, CodeUnavailable, fetch
from phalanx.launch.tls.trust import client_context, connection
from phalanx.schemas.home import HomeLayout
from phalanx.schemas.wire.supervision import SyncRequest
from phalanx.sdk import PhalanxClient
from phalanx.server.settings import Settings, TlsSettings
from phalanx.standalone.certificates import (
    CERTIFICATE_DAYS,
    GeneratedCertificate,
    GivenCertificate,
    fingerprint,
)
from phalanx.standalone.control_plane import ControlPlaneOptions, _certificate, _tls_settings
from phalanx.supervise.secret_values import secret_values
from phalanx.supervise.uplink.link import ControlPlaneAddress, SyncConnection

pytestmark = pytest.mark.integration

NOW = time.time_ns() // 1000
DAY = 86_400_000_000
LOCAL = ("127.0.0.1", "localhost")


def made(folder: Path, names: tuple[str, ...] = LOCAL, now: int = NOW) -> GeneratedCertificate:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    one = GeneratedCertificate(HomeLayout(folder), names)
    one.renew(now)
    return one


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    root = tmp_path_factory.mktemp("tls")
    with served(root / "home", certificate=made(root / "home")) as found:
        yield found


def refused(client: PhalanxClient) -> ServerUnavailable:
    with client, pytest.raises(ServerUnavailable) as caught:
        client.info()
    return caught.value


def test_client_with_the_pinned_authority_is_served_and_the_unix_socket_has_no_tls(
    tls: Served,
) -> None:
    with tls.client() as client, tls.client(local=True) as local:
        assert client.info().version == local.info().version
        assert client.url.startswith("https://")


def test_another_authority_is_refused_and_so_is_that_of_the_system(
    tls: Served, tmp_path: Path
) -> None:
    other = made(tmp_path / "other").authority
    for ca in (other, ""):
        said = refused(PhalanxClient(tls.url, TOKEN, ca=ca))
        assert "is not from the accepted authority" in said.message
        assert said.hint is not None and "--ca-file" in said.hint


def test_plain_http_to_the_port_gets_one_clear_message(tls: Served) -> None:
    with (
        PhalanxClient(f"http://127.0.0.1:{tls.port}", TOKEN) as client,
        pytest.raises(UserError, match="this port uses TLS") as caught,
    ):
        client.info()
    assert caught.value.hint == "use an https URL"


def test_silent_strangers_are_closed_before_their_handshake_and_clients_are_served(
    tls: Served,
) -> None:
    silent = [tls.connect() for _ in range(300)]
    with tls.client() as client:
        assert client.is_healthy()
    silent[0].settimeout(60)
    assert is_closed(silent[0])  # more than `max_strangers` came after it


def is_closed(one: socket.socket) -> bool:
    try:
        return one.recv(1) == b""
    except ConnectionResetError:
        return True


# -- other servers -----------------------------------------------------------------------------------


class Impostor:
    """A server with a certificate of its own, or without TLS; it counts what it could read."""

    def __init__(self, context: ssl.SSLContext | None) -> None:
        self.context, self.read = context, b""
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.thread = threading.Thread(target=self.work)
        self.thread.start()

    def work(self) -> None:
        while True:
            try:
                one, _ = self.listener.accept()
            except OSError:
                return
            with one:
                try:
                    line = one if self.context is None else self.wrapped(one)
                    self.read += line.recv(65536)
                    line.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
                    line.close()
                except OSError:
                    continue

    def wrapped(self, one: socket.socket) -> socket.socket:
        assert self.context is not None
        return self.context.wrap_socket(one, server_side=True)

    def close(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.thread.join()


@pytest.fixture
def impostor() -> Iterator[Callable[[ssl.SSLContext | None], Impostor]]:
    started: list[Impostor] = []

    def start(context: ssl.SSLContext | None) -> Impostor:
        started.append(Impostor(context))
        return started[-1]

    yield start
    for one in started:
        one.close()


Start = Callable[[ssl.SSLContext | None], Impostor]


def wrong_certificates(root: Path) -> dict[str, tuple[str, ssl.SSLContext]]:
    """Message, and what a server has that is not the right one; the pinned authority is in `root`."""
    return {
        "expired": ("has expired", made(root, now=NOW - (CERTIFICATE_DAYS + 1) * DAY).context),
        "name": ("is not for 127.0.0.1", made(root, ("elsewhere.example",)).context),
        "address": ("is not for 127.0.0.1", made(root, ("10.1.2.3",)).context),
        "early": ("is not valid yet", made(root, now=NOW + DAY).context),
        "other": ("is not from the accepted authority", made(root / "between").context),
    }


@pytest.mark.parametrize("case", ["expired", "name", "address", "early", "other"])
def test_wrong_certificate_is_refused_with_one_message_before_a_token_is_sent(
    tmp_path: Path, impostor: Start, case: str
) -> None:
    # The authority is older than every certificate by it.
    ca = made(tmp_path, now=NOW - 60 * DAY).authority
    said, context = wrong_certificates(tmp_path)[case]
    server = impostor(context)
    url = f"https://127.0.0.1:{server.port}"
    assert said in refused(PhalanxClient(url, TOKEN, ca=ca)).message

    line = SyncConnection(ControlPlaneAddress(url, None, ca=ca), "token-of-a-supervisor")
    request = SyncRequest(job=1, attempt=1, node_rank=0, sent_at=0)
    with pytest.raises(OSError, match=said):
        line.sync(request)
    with pytest.raises(CodeUnavailable, match=said):
        fetch(CodeSource(url, "0" * 64, "token", 1, 1, 0, ca), tmp_path / "code.tar")
    with pytest.raises(NotFound, match=said):
        secret_values(assignment(url, ca))
    assert server.read == b""


@pytest.fixture(autouse=True)
def no_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phalanx.supervise.secret_values._TRY_FOR_S", -1.0)


def assignment(url: str, ca: str) -> dict[str, object]:
    gang = {"job": {"num": 1}, "attempt": 1}
    return {
        "server_url": url,
        "server_ca": ca,
        "token": "token",
        "secrets": ["KEY"],
        "gang": gang,
        "node_rank": 0,
    }


def test_https_url_of_a_server_without_tls_is_refused(tmp_path: Path, impostor: Start) -> None:
    ca, server = made(tmp_path).authority, impostor(None)
    said = refused(PhalanxClient(f"https://127.0.0.1:{server.port}", TOKEN, ca=ca))
    assert "does not use TLS" in said.message
    assert TOKEN.encode() not in server.read


def test_supervisors_and_ray_nodes_reach_the_server_over_tls(tls: Served, tmp_path: Path) -> None:
    line = SyncConnection(ControlPlaneAddress(tls.url, None, ca=tls.ca), "wrong")
    with pytest.raises(OSError, match="401"):  # an answer: the handshake went well
        line.sync(SyncRequest(job=1, attempt=1, node_rank=0, sent_at=0))
    line.close()
    with pytest.raises(CodeUnavailable, match="refused to send the code"):
        fetch(CodeSource(tls.url, "0" * 64, "wrong", 1, 1, 0, tls.ca), tmp_path / "code.tar")
    with pytest.raises(NotFound, match="refused to send the secrets"):
        secret_values(assignment(tls.url, tls.ca))


def test_supervisor_reads_a_new_authority_from_the_server_file(tmp_path: Path) -> None:
    file = tmp_path / "server.json"
    address = ControlPlaneAddress("http://127.0.0.1:1", str(file), ca="old")
    file.write_text(json.dumps({"url": "https://127.0.0.1:2", "ca": "new"}))
    address.refresh()
    assert (address.url, address.ca) == ("https://127.0.0.1:2", "new")


# -- the server's certificates -----------------------------------------------------------------------


def serial(port: int, ca: str) -> str:
    line = connection(f"https://127.0.0.1:{port}", ca, 30)
    line.connect()
    assert isinstance(line.sock, ssl.SSLSocket)
    found = line.sock.getpeercert()
    line.close()
    assert found is not None
    return str(found["serialNumber"])


def test_certificate_is_renewed_without_a_restart_and_only_in_time(tls: Served) -> None:
    certificate = tls.certificate
    assert isinstance(certificate, GeneratedCertificate)
    first = serial(tls.port, tls.ca)
    certificate.renew(NOW + (CERTIFICATE_DAYS * 2 // 3 - 1) * DAY)
    assert serial(tls.port, tls.ca) == first
    certificate.renew(NOW + (CERTIFICATE_DAYS * 2 // 3 + 1) * DAY)
    with pytest.raises(ssl.SSLCertVerificationError, match="not yet valid"):
        serial(tls.port, tls.ca)  # the one of that day is served
    certificate._until = 0
    certificate.renew(NOW)
    assert serial(tls.port, tls.ca) != first


def test_replicas_share_the_authority_and_no_file_shows_a_key(tmp_path: Path) -> None:
    one, two = made(tmp_path), made(tmp_path)
    assert one.authority == two.authority
    assert fingerprint(one.authority).startswith("sha256:")
    modes = {
        path.name: path.stat().st_mode & 0o777 for path in HomeLayout(tmp_path).tls_dir.iterdir()
    }
    assert modes["ca.key"] == 0o600
    assert set(modes) == {"ca.key", "ca.pem", "lock"}


def given(tmp_path: Path, now: int = NOW) -> GivenCertificate:
    """A certificate and its key in two files, as an administrator has them."""
    from phalanx.standalone.certificates import _authority, _signed

    folder = tmp_path / "tls"
    folder.mkdir(mode=0o700, exist_ok=True)
    ca, ca_key = _authority(folder, NOW - 60 * DAY)
    key, cert, _ = _signed(ca, ca_key, LOCAL, now)
    (tmp_path / "c.pem").write_bytes(cert)
    (tmp_path / "c.key").touch(0o600)
    (tmp_path / "c.key").write_bytes(key)
    return GivenCertificate(tmp_path / "c.pem", tmp_path / "c.key", folder / "ca.pem")


def test_given_certificate_is_read_again_when_its_files_change(tmp_path: Path) -> None:
    one = given(tmp_path)
    one.renew(NOW)
    with served(tmp_path / "home", certificate=one) as found:
        first = serial(found.port, one.authority)
        one.renew(NOW)
        assert serial(found.port, one.authority) == first
        given(tmp_path, NOW - DAY)
        one._loaded = (0.0, 0.0)  # the clock of the file system may not have moved on
        one.renew(NOW)
        assert serial(found.port, one.authority) != first


def test_given_certificate_that_cannot_be_used_is_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match=r"expired at .* UTC"):
        given(tmp_path, NOW - (CERTIFICATE_DAYS + 1) * DAY).renew(NOW)
    other = given(tmp_path)
    key = other.key.read_bytes()
    given(tmp_path)
    other.key.write_bytes(key)
    with pytest.raises(ServerError, match="are not a certificate and its key"):
        other.renew(NOW)
    other.key.chmod(0o644)
    with pytest.raises(ServerError, match="all users can read"):
        other.renew(NOW)
    with pytest.raises(ServerError, match="cannot be read"):
        GivenCertificate(tmp_path / "none.pem", other.key, None).renew(NOW)
    with pytest.raises(ssl.SSLError):
        client_context("no certificate")


# -- what `up` takes ---------------------------------------------------------------------------------


def chosen(tmp_path: Path, settings: Settings | None = None, **options: object) -> object:
    setup = ControlPlaneOptions(tmp_path, **options)  # type: ignore[arg-type]
    home = HomeLayout(tmp_path)
    return _certificate(
        home, setup, Settings(tls=_tls_settings((settings or Settings()).tls, setup)), NOW
    )


def test_port_for_other_machines_without_tls_is_refused_unless_it_is_wanted(tmp_path: Path) -> None:
    for host in ("0.0.0.0", "10.0.0.1", "::", "name.example"):
        with pytest.raises(UserError, match="would cross the network in clear") as caught:
            chosen(tmp_path, host=host)
        assert caught.value.hint is not None and "--tls generate" in caught.value.hint
        assert chosen(tmp_path, host=host, plain_http=True) is None
    wanted = Settings(tls=TlsSettings(plain_http=True))
    assert chosen(tmp_path, wanted, host="0.0.0.0") is None
    for host in ("127.0.0.1", "localhost"):
        assert chosen(tmp_path, host=host) is None


def test_options_of_tls_that_do_not_fit_together_are_refused(tmp_path: Path) -> None:
    one = given(tmp_path)
    with pytest.raises(UserError, match="belong together"):
        chosen(tmp_path, tls_cert=one.cert)
    with pytest.raises(UserError, match="is to be made"):
        chosen(tmp_path, tls="generate", tls_cert=one.cert, tls_key=one.key)
    with pytest.raises(UserError, match="is not an https URL"):
        chosen(tmp_path, tls="generate", advertise="http://phalanx.example:7000")
    found = chosen(
        tmp_path, Settings(tls=TlsSettings(generate=True)), tls_cert=one.cert, tls_key=one.key
    )
    assert isinstance(found, GivenCertificate)  # the command line replaces the settings
    found = chosen(
        tmp_path, tls="generate", advertise="https://phalanx.example:7000", host="0.0.0.0"
    )
    assert isinstance(found, GeneratedCertificate)
    assert {"phalanx.example", "127.0.0.1", "localhost"} <= set(found.names)
    assert "0.0.0.0" not in found.names


def test_doctor_checks_a_control_plane_and_names_the_end_of_its_certificate(
    tls: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tls.client() as client:
        monkeypatch.setattr(platform, "connected", lambda ctx: nullcontext(client))
        done = CliRunner().invoke(app, ["doctor", "--server", "--json"], catch_exceptions=False)
        found = {one["subject"]: one for one in json.loads(done.stdout)}
        assert {"reachable", "database", "loops", "leader", "token", "version", "clock"} <= set(
            found
        )
        assert found["certificate"]["said"].startswith("valid until 20")
        assert found["database"]["verdict"] == found["leader"]["verdict"] == "ok"
        failed = any(one["verdict"] == "FAIL" for one in found.values())
        assert done.exit_code == int(failed)
        both = CliRunner().invoke(app, ["doctor", "--server", "--network"])
        assert isinstance(both.exception, UserError)
