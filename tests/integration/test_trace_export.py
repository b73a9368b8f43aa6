"""Spans of jobs that are sent: at least once, the same ones, and nothing else waits for the endpoint."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from integration.rig import Rig
from integration.test_traces import recovered
from phalanx.errors import PlatformError, ServerUnavailable, SpecInvalid
from phalanx.launch.tls.trust import client_context
from phalanx.server.settings import read_settings
from phalanx.server.settings_groups.traces import TraceSettings
from phalanx.services.tracing.endpoint import OtlpEndpoint
from phalanx.services.tracing.export import ExportProgress, export_step
from phalanx.store.engines.totals import read_totals

pytestmark = pytest.mark.integration
HOUR = 3600.0


@dataclass
class Collector:
    """An OTLP endpoint that answers what it is told to."""

    url: str = ""
    status: int = 200
    body: bytes = b"{}"
    taken: list[dict[str, Any]] = field(default_factory=list)  # spans of requests that succeeded
    headers: list[dict[str, str]] = field(default_factory=list)

    @property
    def ids(self) -> list[str]:
        return [one["spanId"] for one in self.taken]


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()

    class Answers(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            document = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            made.headers.append({**self.headers, "path": self.path})
            if made.status == 200:
                made.taken += document["resourceSpans"][0]["scopeSpans"][0]["spans"]
            self.send_response(made.status)
            self.send_header("Content-Length", str(len(made.body)))
            self.end_headers()
            self.wfile.write(made.body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    made.url = f"http://127.0.0.1:{server.server_address[1]}"
    yield made
    server.shutdown()
    server.server_close()
    thread.join()


class Leader:
    """The loop of one leader, step by step."""

    def __init__(self, rig: Rig, collector: Collector, **settings: Any) -> None:
        config = TraceSettings(endpoint=collector.url, **settings).resolved()
        self.rig, self.config = rig, config
        self.endpoint = OtlpEndpoint(config, client_context(""))
        self.progress = ExportProgress()

    def step(self) -> int | None:
        return export_step(
            self.rig.platform,
            self.endpoint.send,
            self.config.give_up_s,
            self.progress,
            self.rig.clock.now(),
        )

    def run(self) -> None:
        while self.step() is not None:
            pass


def totals(rig: Rig) -> dict[str, float]:
    found = rig.store.view(lambda tx: read_totals(tx.conn))
    return {labels[0]: n for (name, labels), n in found.items() if name == "phalanx_trace_spans"}


def test_what_is_sent_is_what_the_route_shows(
    rig: Rig, collector: Collector, tmp_path: Path
) -> None:
    secret = tmp_path / "token"
    secret.write_text("Bearer s3cret\n")
    leader = Leader(rig, collector, headers={"authorization": f"file:{secret}"})
    leader.run()
    num = recovered(rig)
    leader.run()
    shown = rig.client.traces.otlp(num)["resourceSpans"][0]["scopeSpans"][0]["spans"]
    assert sorted(collector.taken, key=str) == sorted(shown, key=str)
    assert len(collector.ids) == len(set(collector.ids))
    assert totals(rig) == {"sent": len(shown)}
    assert {one["path"] for one in collector.headers} == {"/v1/traces"}
    assert {one["authorization"] for one in collector.headers} == {"Bearer s3cret"}
    leader.run()
    assert len(collector.ids) == len(shown)  # nothing is sent again


def test_what_ended_before_the_first_step_is_not_sent(rig: Rig, collector: Collector) -> None:
    recovered(rig)
    Leader(rig, collector).run()
    assert collector.headers == []


def test_an_endpoint_that_fails_gets_the_same_spans_later(rig: Rig, collector: Collector) -> None:
    leader = Leader(rig, collector)
    leader.run()
    collector.status = 503
    num = recovered(rig)  # the job does not wait for it
    for _ in range(3):
        with pytest.raises(ServerUnavailable, match="answers 503"):
            leader.step()
    assert collector.taken == [] and totals(rig) == {}
    collector.status = 200
    leader.run()
    shown = rig.client.traces.otlp(num)["resourceSpans"][0]["scopeSpans"][0]["spans"]
    assert sorted(collector.taken, key=str) == sorted(shown, key=str)


def test_another_leader_goes_on_with_the_same_identifiers(rig: Rig, collector: Collector) -> None:
    first = Leader(rig, collector)
    first.run()
    num = rig.submit()
    rig.turn(5)
    first.run()
    supervisor = rig.supervisor(num)
    supervisor.ready()
    supervisor.started()
    rig.clock.advance(3)
    supervisor.step(0, 4)
    supervisor.ended(0, "succeeded", step=9)
    supervisor.leave()
    rig.turn(1)
    Leader(rig, collector).run()
    shown = rig.client.traces.otlp(num)["resourceSpans"][0]["scopeSpans"][0]["spans"]
    assert {one["name"] for one in shown} >= {"queued", "first step", "generation", "job"}
    assert sorted(collector.taken, key=str) == sorted(shown, key=str)


def test_a_leader_that_ends_before_the_record_sends_again(
    rig: Rig, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = Leader(rig, collector)
    leader.run()
    recovered(rig)

    def fails(work: Any) -> None:
        raise PlatformError("the lease is lost")

    with monkeypatch.context() as patch:
        patch.setattr(rig.store, "transact", fails)
        with pytest.raises(PlatformError):
            leader.step()
    sent = list(collector.taken)
    Leader(rig, collector).run()
    assert sent and collector.taken == sent * 2


def test_old_spans_and_refused_ones_are_dropped_and_counted(rig: Rig, collector: Collector) -> None:
    leader = Leader(rig, collector)
    leader.run()
    recovered(rig)
    rig.clock.advance(HOUR + 300)
    leader.run()
    assert collector.headers == []
    dropped = totals(rig)["dropped"]
    assert dropped > 10
    collector.status = 400
    recovered(rig)
    leader.run()
    assert totals(rig) == {"dropped": dropped * 2}
    collector.status, collector.body = 200, b'{"partialSuccess": {"rejectedSpans": "3"}}'
    recovered(rig)
    leader.run()
    assert totals(rig) == {"dropped": dropped * 2 + 3, "sent": dropped - 3}


def test_an_endpoint_that_is_not_there_is_named_without_its_secrets(rig: Rig) -> None:
    config = TraceSettings(endpoint="http://user:hunter2@127.0.0.1:9/x?key=hunter2").resolved()
    assert config.url.endswith("/x?key=hunter2")
    with pytest.raises(ServerUnavailable) as caught:
        OtlpEndpoint(config, client_context("")).send({"resourceSpans": []})
    assert "127.0.0.1:9" in str(caught.value) and "hunter2" not in str(caught.value)


def test_settings_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHALANX__TRACES__ENDPOINT", "collector:4318")
    with pytest.raises(SpecInvalid, match="TRACES"):
        read_settings()
    monkeypatch.setenv("PHALANX__TRACES__ENDPOINT", "https://collector:4318/")
    assert read_settings().traces.resolved().url == "https://collector:4318/v1/traces"
