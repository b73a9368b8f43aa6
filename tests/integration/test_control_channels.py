"""Mail of the notifier on a real server of mail, and chat on an endpoint with the rules of Slack."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email import message_from_bytes, policy
from email.message import EmailMessage
from pathlib import Path
from ssl import PROTOCOL_TLS_SERVER, SSLContext
from typing import Any

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session

from integration.rig import Rig, open_rig
from phalanx.core.notify.signing import RETRY_AFTER_S
from phalanx.launch.ports import free_port
from phalanx.launch.tls.trust import client_context
from phalanx.server.settings import ApiSettings, Settings
from phalanx.server.settings_groups.notify import NotifySettings
from phalanx.services.guarded_http import GuardedHttp
from phalanx.services.notify.delivery import deliver_step
from phalanx.services.notify.transports import Transports
from support.certificates import certify

pytestmark = pytest.mark.integration
USER, PASSWORD = "phalanx", "correct horse"


@dataclass
class Mailbox:
    """What a server of mail took. It knows one user, and no address that begins with `gone`."""

    mails: list[EmailMessage] = field(default_factory=list)
    recipients: list[list[str]] = field(default_factory=list)  # of each mail
    over_tls: list[bool] = field(default_factory=list)  # of each mail
    logins: list[tuple[bytes, bytes]] = field(default_factory=list)  # that were tried

    async def handle_RCPT(
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: object
    ) -> str:
        if address.startswith("gone"):
            return "550 no such mailbox"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:
        content = envelope.content
        assert isinstance(content, bytes)
        self.mails.append(message_from_bytes(content, policy=policy.default))  # type: ignore[arg-type]
        self.recipients.append(list(envelope.rcpt_tos))
        self.over_tls.append(session.ssl is not None)
        return "250 taken"

    def login(
        self, server: SMTP, session: Session, envelope: Envelope, way: str, data: LoginPassword
    ) -> AuthResult:
        """Whether these are the user and the password."""
        self.logins.append((data.login, data.password))
        fits = (data.login, data.password) == (USER.encode(), PASSWORD.encode())
        return AuthResult(success=fits, handled=False)


@contextmanager
def serving(box: Mailbox, tls: SSLContext | None) -> Iterator[int]:
    """The port of a server of mail; with TLS it takes nothing without it, and nothing without a login."""
    whole = {"tls_context": tls, "require_starttls": True, "auth_required": True} if tls else {}
    server = Controller(box, "127.0.0.1", free_port(), authenticator=box.login, **whole)
    server.start()
    try:
        yield server.port
    finally:
        server.stop()


@pytest.fixture
def tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SSLContext:
    """The server's side of TLS, with a certificate that this process trusts."""
    trusted = tmp_path / "ca.pem"
    trusted.write_bytes(certify(tmp_path / "mail.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(trusted))
    context = SSLContext(PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "mail.pem")
    return context


@contextmanager
def telling(root: Path, receiver: dict[str, object], **smtp: object) -> Iterator[Rig]:
    """A control plane with the receiver `ops`."""
    notify = NotifySettings.model_validate({"receivers": {"ops": receiver}, **smtp})
    settings = Settings(api=ApiSettings(max_stream_s=0), notify=notify)
    with open_rig(root / "home", settings=settings) as rig:
        yield rig


def mailing(root: Path, port: int, to: tuple[str, ...], **smtp: object) -> Any:
    """A control plane whose receiver `ops` gets mail through one port."""
    given = {"smtp_host": "127.0.0.1", "smtp_port": port, "smtp_from": "phalanx@example.com"}
    login = {"smtp_user": USER, "smtp_password": PASSWORD}
    return telling(root, {"mail": to}, **{**given, **login, **smtp})


def deliver(rig: Rig) -> int | None:
    """Try what is due; returns when the next try is."""
    posts = GuardedHttp(True, lambda: 0.0, client_context(""))
    config = rig.context.notify
    send = Transports(posts, config.mail)
    return deliver_step(rig.platform, config, send, lambda: 0.0, rig.clock.now())


def test_mail_is_sent_over_tls_behind_a_login(tmp_path: Path, tls: SSLContext) -> None:
    box = Mailbox()
    with (
        serving(box, tls) as port,
        mailing(tmp_path, port, ("a@example.com", "b@example.com")) as rig,
    ):
        made = rig.client.alerts.test("ops")
        assert deliver(rig) is None
        (sent,) = rig.client.alerts.deliveries("sent")
        assert (sent.id, sent.tries, sent.error) == (made.id, 1, "")
    (mail,) = box.mails
    assert mail["Subject"] == "[Phalanx] a test of the receiver ops"
    assert mail["Message-ID"] == f"<{made.id}@phalanx>"
    assert box.recipients == [["a@example.com", "b@example.com"]] and box.over_tls == [True]


def test_a_refused_login_is_tried_again_until_the_message_is_dead(
    tmp_path: Path, tls: SSLContext
) -> None:
    box = Mailbox()
    with (
        serving(box, tls) as port,
        mailing(tmp_path, port, ("a@example.com",), smtp_password="wrong-word") as rig,
    ):
        rig.client.alerts.test("ops")
        due: int | None = rig.clock.now()
        while due is not None:
            rig.clock.advance(max(0.0, (due - rig.clock.now()) / 1e6))
            due = deliver(rig)
        (dead,) = rig.client.alerts.deliveries("dead")
        assert dead.tries == len(RETRY_AFTER_S) + 1
        assert dead.error.startswith("the mail server answered 535 ")
        assert "wrong-word" not in dead.error
    assert box.mails == [] and set(box.logins) == {(USER.encode(), b"wrong-word")}


def test_no_password_is_sent_to_a_server_without_tls(tmp_path: Path) -> None:
    box = Mailbox()
    with serving(box, None) as port, mailing(tmp_path, port, ("a@example.com",)) as rig:
        rig.client.alerts.test("ops")
        assert deliver(rig) is not None
        (waiting,) = rig.client.alerts.deliveries("open")
        assert "STARTTLS" in waiting.error
    assert box.logins == [] and box.mails == []


def test_a_server_with_a_certificate_of_strangers_gets_nothing(
    tmp_path: Path, tls: SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE")
    box = Mailbox()
    with serving(box, tls) as port, mailing(tmp_path, port, ("a@example.com",)) as rig:
        rig.client.alerts.test("ops")
        deliver(rig)
        (waiting,) = rig.client.alerts.deliveries("open")
        assert "certificate verify failed" in waiting.error
    assert box.logins == [] and box.mails == []


@pytest.mark.parametrize(
    ("to", "state"), [(("a@example.com", "gone@example.com"), "sent"), (("gone@b.c",), "open")]
)
def test_refused_addresses_are_named(
    tmp_path: Path, tls: SSLContext, to: tuple[str, ...], state: str
) -> None:
    box = Mailbox()
    with serving(box, tls) as port, mailing(tmp_path, port, to) as rig:
        rig.client.alerts.test("ops")
        deliver(rig)
        (found,) = rig.client.alerts.deliveries(state)
        assert found.error == f"the mail server refused {to[-1]}: 550 no such mailbox"
    assert box.recipients == ([["a@example.com"]] if state == "sent" else [])


@dataclass
class ChatEndpoint:
    """An incoming webhook as Slack documents it: what it takes, and what it answers."""

    answers: list[tuple[int, str]] = field(default_factory=list)  # given before it takes anything
    texts: list[str] = field(default_factory=list)  # that it took

    def answer(self, kind: str | None, body: bytes) -> tuple[int, str]:
        """The status and the text for one request."""
        if self.answers:
            return self.answers.pop(0)
        try:
            found = json.loads(body)
        except ValueError:
            found = None
        if kind != "application/json" or not isinstance(found, dict):
            return 400, "invalid_payload"
        text = found.get("text")
        if not isinstance(text, str) or not text.strip() or set(found) - {"text"}:
            return 400, "no_text"
        if len(text) > 40_000:
            return 400, "msg_too_long"
        self.texts.append(text)
        return 200, "ok"


@contextmanager
def chatting(endpoint: ChatEndpoint) -> Iterator[str]:
    """The URL of the endpoint."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            status, text = endpoint.answer(self.headers["content-type"], body)
            self.send_response(status)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/services/T000/B000/XXXX"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_chat_takes_the_payload_and_its_errors_are_told(tmp_path: Path) -> None:
    endpoint = ChatEndpoint([(429, "rate_limited"), (500, "rollup_error")])
    with (
        chatting(endpoint) as url,
        telling(tmp_path, {"slack": url}, allow_private=True) as rig,
    ):
        rig.client.alerts.test("ops")
        errors = []
        while (due := deliver(rig)) is not None:
            (waiting,) = rig.client.alerts.deliveries("open")
            errors.append(waiting.error)
            rig.clock.advance(max(0.0, (due - rig.clock.now()) / 1e6))
        assert errors == [
            f"the receiver answered {said}" for said in ("429: rate_limited", "500: rollup_error")
        ]
        (sent,) = rig.client.alerts.deliveries("sent")
        assert sent.tries == 3 and endpoint.texts == ["a test of the receiver ops\n"]


@pytest.mark.parametrize("said", ["channel_is_archived", "no_service"])
def test_a_channel_that_is_archived_gets_nothing_any_more(tmp_path: Path, said: str) -> None:
    """Slack answers 410 for an archived channel, and 404 for a webhook that was removed."""
    status = 410 if said == "channel_is_archived" else 404
    endpoint = ChatEndpoint([(status, said)])
    with (
        chatting(endpoint) as url,
        telling(tmp_path, {"slack": url}, allow_private=True) as rig,
    ):
        rig.client.alerts.test("ops")
        deliver(rig)
        (receiver,) = rig.client.alerts.live().receivers
        assert (receiver.gone_at is not None) == (status == 410)
        (found,) = rig.client.alerts.deliveries("dead" if status == 410 else "open")
        assert found.error == f"the receiver answered {status}: {said}"
