"""The built-in notifier: from a failed job to a signed webhook, receivers that die, silences, mail."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import http.server
import itertools
import json
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from typer.testing import CliRunner

from integration.rig import Rig, open_rig
from phalanx.cli.app import app
from phalanx.cli.verbs.monitoring import alerts_live
from phalanx.core.notify.samples import READ
from phalanx.core.notify.signing import RETRY_AFTER_S
from phalanx.errors import NotFound, UserError
from phalanx.launch.tls.trust import client_context
from phalanx.schemas.wire import supervision as wire
from phalanx.server.observe.exposition import Exposition
from phalanx.server.settings import ApiSettings, Settings
from phalanx.server.settings_groups.notify import NotifySettings
from phalanx.services.guarded_http import GuardedHttp
from phalanx.services.notify import evaluation
from phalanx.services.notify.config import MailConfig, NotifyConfig, ReceiverConfig
from phalanx.services.notify.delivery import deliver_step
from phalanx.services.notify.evaluation import AlertHistory, evaluate_step
from phalanx.services.notify.transports import (
    MessageSender,
    SendOutcome,
    SendResult,
    Transports,
)
from phalanx.store.notify import deliveries
from phalanx.store.notify.deliveries import Delivery

pytestmark = pytest.mark.integration
KEY = b"k" * 24
SECRET = "whsec_" + base64.b64encode(KEY).decode()
RECEIVERS = {
    "ops": {"webhook": "https://hooks.example.com/ops", "secrets": [SECRET]},
    "pages": {"slack": "https://chat.example.com/x", "severities": ["page"]},
    "vision": {
        "webhook": "https://hooks.example.com/vision",
        "severities": [],
        "projects": ["vision"],
        "jobs": ["failed", "succeeded"],
    },
}


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    notify = NotifySettings.model_validate({"receivers": RECEIVERS, "cluster": "east"})
    settings = Settings(api=ApiSettings(max_stream_s=0), notify=notify)
    with open_rig(tmp_path / "home", settings=settings) as one:
        yield one


class Loops:
    """The two loops of the notifier on the clock of a rig."""

    def __init__(self, rig: Rig, send: MessageSender | None = None) -> None:
        self.rig, self.config = rig, rig.context.notify
        self.exposition, self.history = Exposition(rig.context), AlertHistory()
        self.sent: list[tuple[str, dict[str, Any], str]] = []
        self.send = send or self._take

    def _take(self, receiver: ReceiverConfig, one: Delivery, at_s: int) -> SendResult:
        self.sent.append((receiver.name, json.loads(one.body), one.id))
        return SendResult(SendOutcome.SENT)

    def minute(self, count: int = 1) -> list[tuple[str, dict[str, Any], str]]:
        """Let minutes pass; returns what was sent within them."""
        self.sent.clear()
        for _ in range(count):
            self.rig.clock.advance(60.0)
            evaluate_step(
                self.rig.platform, self.config, self.history, self.sample, self.rig.clock.now()
            )
            self.deliver()
        return list(self.sent)

    def sample(self, now: int) -> Any:
        return self.exposition.samples(now, READ)

    def deliver(self) -> int | None:
        now = self.rig.clock.now()
        return deliver_step(self.rig.platform, self.config, self.send, lambda: 0.0, now)


def failed(rig: Rig, project: str = "default") -> int:
    num = rig.submit(
        project=project,
        resources={"nodes": 1, "slots_per_node": 1},
        recovery={"start_failed": {"count": 0}},
    )
    rig.turn(1.0)
    rig.turn(1.0)
    supervisor = rig.supervisor(num)
    supervisor.ready()
    rig.turn(0.1)
    supervisor.started()
    failure = supervisor.failure("it is gone", cause="start_failed")
    supervisor.sync(wire.RankFailedReport(seq=supervisor.next_seq(), generation=0, failure=failure))
    supervisor.ended(outcome="failed", failure=failure)
    rig.turn(1.0)
    supervisor.leave()
    for _ in range(3):
        rig.turn(1.0)
    assert rig.job(num).state == "failed"
    return num


def names(data: dict[str, Any]) -> set[str]:
    return {one["alert"] for one in data["data"]["alerts"]}


def test_failed_jobs_are_told_once_and_resolved_once(rig: Rig) -> None:
    loops = Loops(rig)
    assert loops.minute(2) == []
    for _ in range(3):
        failed(rig)
    sent = loops.minute(3)
    assert Counter(name for name, _, _ in sent) == {"ops": 1, "pages": 1}
    _, body, _ = sent[0]
    assert body["type"] == "alerts" and body["data"]["cluster"] == "east"
    assert names(body) >= {"PhalanxJobFailureCascade"}
    (one,) = [x for x in body["data"]["alerts"] if x["alert"] == "PhalanxJobFailureCascade"]
    assert one["summary"] == "3 jobs have failed because of the platform in 10 minutes"
    # A second leader goes on with what the first one stored.
    loops = Loops(rig)
    later = loops.minute(40)
    resolved = [
        (name, x["alert"])
        for name, body, _ in later
        for x in body["data"]["alerts"]
        if x["status"] == "resolved"
    ]
    assert Counter(resolved)["ops", "PhalanxJobFailureCascade"] == 1
    phases = {one.alert: one.phase for one in rig.client.alerts.live().alerts}
    assert phases["PhalanxJobFailureCascade"] == "resolved"


def test_silenced_alerts_live_and_are_not_told(rig: Rig) -> None:
    loops = Loops(rig)
    loops.minute()
    made = rig.client.alerts.silence({"alertname": "Phalanx*"}, 3600, "a drill")
    for _ in range(3):
        failed(rig)
    assert loops.minute(3) == []
    live = [one for one in rig.client.alerts.live().alerts if one.phase == "firing"]
    assert live and all(one.muted for one in live)
    assert [one.comment for one in rig.client.alerts.silences()] == ["a drill"]
    rig.client.alerts.end_silence(made.num)
    with pytest.raises(NotFound):
        rig.client.alerts.end_silence(made.num)
    assert len(loops.minute(2)) == 2


def test_ends_of_jobs_are_told_to_receivers_of_their_project(rig: Rig) -> None:
    failed(rig, "vision")  # before anything was evaluated
    loops = Loops(rig)
    loops.minute()
    num = failed(rig, "vision")
    failed(rig, "text")
    told = [(body, id) for name, body, id in loops.minute() if name == "vision"]
    ((body, id),) = told
    assert body["type"] == "job.failed" and body["data"]["job"] == f"j-{num}"
    assert body["data"]["url"].endswith(f"/jobs/{num}") and id == f"job-{num}-vision"
    assert [x for x in loops.minute() if x[0] == "vision"] == []


def test_all_ends_between_two_evaluations_are_told_however_many(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first evaluation meets a home without any job."""
    monkeypatch.setattr(evaluation, "_EVENTS_AT_A_TIME", 1)
    loops = Loops(rig)
    loops.minute()
    nums = [failed(rig, "vision") for _ in range(3)]
    told = [body["data"]["job"] for name, body, _ in loops.minute() if name == "vision"]
    assert told == [f"j-{num}" for num in nums]


def test_a_job_that_waits_for_long_is_told_once_to_receivers_of_its_project(tmp_path: Path) -> None:
    name = "v" * 63  # the id of a message has room for less
    to = {"webhook": "https://hooks.example.com/v", "waits_s": 600, "projects": ["vision"]}
    settings = Settings(notify=NotifySettings.model_validate({"receivers": {name: to}}))
    with open_rig(tmp_path / "home", settings=settings) as rig:
        big = {"nodes": 1, "slots_per_node": 4}
        rig.submit(project="vision", resources=big)
        rig.turn(1.0)
        loops = Loops(rig)
        waits = rig.submit(project="vision", resources=big)
        rig.submit(project="text", resources=big)
        rig.submit(project="vision", resources=big, depends_on=[f"j-{waits}"])
        rig.turn(1.0)
        assert loops.minute(9) == []
        ((receiver, body, id),) = [one for _ in range(60) for one in loops.minute()]
        assert (receiver, body["type"]) == (name, "job.waiting") and len(id) <= 64
        data = body["data"]
        assert (data["job"], data["state"], data["waited_s"] > 600) == (
            f"j-{waits}",
            "queued",
            True,
        )
        assert data["title"].startswith(f"j-{waits} (") and "has waited for 10m" in data["title"]


def test_failures_are_tried_for_hours_and_then_wait_for_a_hand(rig: Rig) -> None:
    tries: list[int] = []
    down = True

    def send(receiver: ReceiverConfig, one: Delivery, at_s: int) -> SendResult:
        tries.append(at_s)
        return SendResult(SendOutcome.FAILED if down else SendOutcome.SENT, "no answer")

    loops = Loops(rig, send)
    made = rig.client.alerts.test("ops")
    due: int | None = rig.clock.now()
    while due is not None:
        rig.clock.advance(max(0.0, (due - rig.clock.now()) / 1e6))
        due = loops.deliver()
    pauses = [later - before for before, later in itertools.pairwise(tries)]
    assert pauses == list(RETRY_AFTER_S)
    (dead,) = rig.client.alerts.deliveries("dead")
    assert (dead.id, dead.tries, dead.error) == (made.id, len(tries), "no answer")
    down = False
    assert rig.client.alerts.resend(dead.num).state == "open"
    loops.deliver()
    (sent,) = rig.client.alerts.deliveries("sent")
    assert sent.id == made.id
    with pytest.raises(UserError, match="has taken"):
        rig.client.alerts.resend(sent.num)


def test_a_receiver_that_is_gone_gets_nothing_until_it_is_enabled(rig: Rig) -> None:
    outcome = SendOutcome.GONE

    def send(receiver: ReceiverConfig, one: Delivery, at_s: int) -> SendResult:
        return SendResult(outcome, "the receiver answered 410")

    loops = Loops(rig, send)
    rig.client.alerts.test("ops")
    loops.deliver()
    rig.client.alerts.test("ops")
    loops.deliver()
    dead = rig.client.alerts.deliveries("dead")
    assert [one.tries for one in dead] == [0, 1]  # the second one was not even tried
    (gone,) = [one for one in rig.client.alerts.live().receivers if one.gone_at]
    assert (gone.name, gone.message) == ("ops", "the receiver answered 410")
    assert rig.client.alerts.enable("ops").gone_at is None
    outcome = SendOutcome.SENT
    rig.client.alerts.resend(dead[0].num)
    loops.deliver()
    assert len(rig.client.alerts.deliveries("sent")) == 1
    with pytest.raises(NotFound, match="ops"):
        rig.client.alerts.enable("other")


class DyingReceiver:
    """A receiver that dies before or after it has taken a message, again and again, on one port."""

    def __init__(self, kills: int) -> None:
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            self.port = found.getsockname()[1]
        self.kills = kills
        self.taken: list[str] = []  # ids that it has stored
        self.answered: list[str] = []  # ids that it has said so of
        self._server: http.server.ThreadingHTTPServer | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                outer.receive(self, body)

            def log_message(self, *args: object) -> None:
                pass

        class Server(http.server.ThreadingHTTPServer):
            allow_reuse_address = True

        self._server = Server(("127.0.0.1", self.port), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def stop(self) -> None:
        if self._server is not None and self._thread is not None:
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()
            self._server = None

    def receive(self, to: http.server.BaseHTTPRequestHandler, body: bytes) -> None:
        id, at_s = to.headers["webhook-id"], to.headers["webhook-timestamp"]
        signed = f"{id}.{at_s}.".encode() + body
        made = base64.b64encode(hmac.new(KEY, signed, hashlib.sha256).digest()).decode()
        assert to.headers["webhook-signature"] == f"v1,{made}"
        if self.kills > 0:
            self.kills -= 1
            if self.kills % 2:
                self.taken.append(id)  # it dies behind its own commit
            to.close_connection = True
            with contextlib.suppress(OSError):
                to.connection.shutdown(socket.SHUT_RDWR)
            return
        self.taken.append(id)
        self.answered.append(id)
        to.send_response(204)
        to.end_headers()


@pytest.mark.parametrize("kills", [5, pytest.param(50, marks=pytest.mark.proof)])
def test_every_message_reaches_a_receiver_that_is_killed(rig: Rig, kills: int) -> None:
    receiver = DyingReceiver(kills)
    http = GuardedHttp(True, lambda: 0.0, client_context(""), lambda host, port: ["127.0.0.1"])
    url = f"http://hooks.example.com:{receiver.port}/"
    config = rig.context.notify
    ops = replace(config.receivers["ops"], url=lambda: url)
    loops = Loops(rig, Transports(http))
    loops.config = replace(config, receivers={"ops": ops})
    ids = {rig.client.alerts.test("ops").id for _ in range(max(2, kills // 4))}
    receiver.start()
    try:
        due: int | None = rig.clock.now()
        while due is not None:
            left = receiver.kills
            rig.clock.advance(max(0.0, (due - rig.clock.now()) / 1e6))
            due = loops.deliver()
            if receiver.kills < left:  # it comes back on the same port
                receiver.stop()
                receiver.start()
            for dead in rig.client.alerts.deliveries("dead", limit=1000):
                rig.client.alerts.resend(dead.num)
                due = rig.clock.now()
    finally:
        receiver.stop()
    assert receiver.kills == 0
    assert set(receiver.taken) == ids == set(receiver.answered)
    # After the success was stored, none came again.
    assert len(receiver.answered) == len(ids)
    assert len(rig.client.alerts.deliveries("sent", limit=1000)) == len(ids)


def test_slack_gets_text_without_markup_and_mail_one_message_id(rig: Rig) -> None:
    posted: list[bytes] = []

    class Http(GuardedHttp):
        def _send(self, url: Any, host: str, headers: Any, body: bytes) -> Any:
            posted.append(body)
            return type("Answer", (), {"status": 200, "text": ""})()

    mails: list[EmailMessage] = []

    class Server:
        def __init__(self, config: MailConfig) -> None:
            self.said: list[str] = []

        def __enter__(self) -> Server:
            return self

        def __exit__(self, *error: object) -> None:
            pass

        def starttls(self, context: object) -> None:
            self.said.append("starttls")

        def login(self, user: str, password: str) -> None:
            assert self.said == ["starttls"] and (user, password) == ("u", "p")

        def send_message(self, message: EmailMessage) -> None:
            mails.append(message)

    mail = MailConfig("mail.example.com", 587, "phalanx@example.com", True, "u", lambda: "p")
    http = Http(False, lambda: 0.0, client_context(""), lambda host, port: ["93.184.216.34"])
    send = Transports(http, mail, Server)  # type: ignore[arg-type]
    body = json.dumps({"data": {"title": "<!channel>\nj-1 & co", "url": "https://a"}})
    one = Delivery(1, "msg_1", "pages", "test", "open", 0, 0, 0, None, "", body)
    pages = rig.context.notify.receivers["pages"]
    assert send(pages, one, 0).outcome is SendOutcome.SENT
    text = json.loads(posted[0])["text"]
    assert text.startswith("&lt;!channel&gt; j-1 &amp; co\n")
    settings = NotifySettings.model_validate(
        {
            "receivers": {"m": {"mail": ["a@example.com", "b@example.com"]}},
            "smtp_host": "mail.example.com",
            "smtp_from": "phalanx@example.com",
        }
    )
    receiver = settings.resolved("https://p").receivers["m"]
    assert send(receiver, one, 0).outcome is SendOutcome.SENT
    (sent,) = mails
    assert sent["Message-ID"] == "<msg_1@phalanx>" and sent["To"] == "a@example.com, b@example.com"
    assert "\n" not in sent["Subject"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"receivers": {"a": {}}}, "exactly one"),
        ({"receivers": {"a": {"webhook": "https://a", "slack": "https://b"}}}, "exactly one"),
        ({"receivers": {"a": {"webhook": "ftp://a"}}}, "https://"),
        ({"receivers": {"a": {"webhook": "https://a", "secrets": ["short"]}}}, "base64|bytes"),
        ({"receivers": {"a": {"slack": "https://a", "secrets": [SECRET]}}}, "webhooks only"),
        ({"receivers": {"A b": {"webhook": "https://a"}}}, "match pattern"),
        ({"receivers": {"a": {"mail": ["a@example.com"]}}}, "smtp_host"),
        ({"receivers": {"a": {"mail": ["a@b\nBcc: c@d"]}}, "smtp_host": "h"}, "cannot be read"),
        ({"evaluate_s": 1}, "greater than"),
        ({"receivers": {"a": {"webhook": "https://a", "waits_s": 5}}}, "greater than"),
    ],
)
def test_settings_that_make_no_sense_are_refused(given: object, said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        NotifySettings.model_validate(given)


def test_without_receivers_nothing_is_evaluated(rig: Rig) -> None:
    def never(now: int) -> Any:
        raise AssertionError

    evaluate_step(rig.platform, NotifyConfig(), AlertHistory(), never, rig.clock.now())
    assert rig.store.view(deliveries.feed_place) == 0


def test_the_verbs_list_silence_and_send_again(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alerts_live, "connected", lambda ctx: nullcontext(rig.client))
    loops = Loops(rig, lambda *_: SendResult(SendOutcome.GONE, "it is gone"))

    def said(*words: str) -> str:
        done = CliRunner().invoke(app, ["alerts", *words])
        assert done.exit_code == 0, done.output
        return done.output

    assert "no alerts" in said("firing")
    assert "silence 1 until" in said("silence", "alertname=PhalanxNodesLost", "--for", "2h")
    assert "alertname=PhalanxNodesLost" in said("silences")
    assert "is over" in said("unsilence", "1")
    assert "message 1 is made" in said("receivers", "--test", "ops")
    loops.deliver()
    assert "gone: it is gone" in said("receivers")
    assert "dead" in said("deliveries", "--state", "dead")
    assert "gets messages again" in said("receivers", "--enable", "ops")
    assert "is sent again" in said("deliveries", "--resend", "1")
    assert "open" in said("deliveries") and '"receiver"' in said("deliveries", "--json")
    assert "both" in said("list") and "Prometheus" in said("list")
    refused = CliRunner().invoke(app, ["alerts", "silence", "Phalanx", "--for", "2h"])
    assert isinstance(refused.exception, UserError)
