"""Senders of output: every line arrives at endpoints that fail, cut connections, or end in the middle."""

from __future__ import annotations

import http.server
import json
import socket
import struct
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from typer.testing import CliRunner

from integration.rig import Rig, ScriptedSupervisor, open_rig
from phalanx.cli.app import app
from phalanx.launch.tls.trust import client_context
from phalanx.server.loops.log_senders import log_sender_loops
from phalanx.server.observe.exposition import Exposition
from phalanx.server.settings import ApiSettings, Settings
from phalanx.server.settings_groups.log_senders import LogSenderSettings
from phalanx.services.guarded_http import GuardedHttp
from phalanx.services.logs import packing, sending
from phalanx.services.logs.endpoints import LogEndpoints
from phalanx.services.logs.sending import SendingProgress, sending_step
from phalanx.services.retention.work import deletions_step
from phalanx.store.logs import senders

pytestmark = pytest.mark.integration
SMALL = {"nodes": 1, "slots_per_node": 1}


class Killed(BaseException):
    """The process ends here."""


class Endpoint:
    """Loki, Elasticsearch and a collector in one; `script` says what becomes of the next requests."""

    def __init__(self) -> None:
        self.script: list[str] = []
        self.taken: list[tuple[str, Any]] = []  # path and body
        self.headers: list[dict[str, str]] = []
        self.bad = "\0"  # lines with this text are refused
        mine = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                mine.headers.append({name.lower(): one for name, one in self.headers.items()})
                mine.answer(self, self.path, body)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    def answer(self, handler: http.server.BaseHTTPRequestHandler, path: str, body: bytes) -> None:
        what = self.script.pop(0) if self.script else "take"
        if what == "cut":  # before anything is taken
            handler.connection.setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
            )
            handler.close_connection = True
            return
        if what.isdigit():
            self._write(handler, int(what), b"no")
            return
        status, answer = self._take(path, body)
        if what == "garbage":
            answer = b"<html>"
        if what == "lost":  # everything is taken, and the answer is lost
            handler.close_connection = True
            return
        self._write(handler, status, answer)

    def _write(self, handler: http.server.BaseHTTPRequestHandler, status: int, body: bytes) -> None:
        handler.send_response(status)
        handler.send_header("content-length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    def _take(self, path: str, body: bytes) -> tuple[int, bytes]:
        if path.startswith("/_bulk"):
            rows = [json.loads(one) for one in body.splitlines()]
            pairs = list(zip(rows[::2], rows[1::2], strict=True))
            fails = [self.bad in one["message"] for _, one in pairs]
            good = [one for one, failed in zip(pairs, fails, strict=True) if not failed]
            self.taken.append((path, good))
            items = [{"index": {"status": 400 if one else 201}} for one in fails]
            return 200, json.dumps({"errors": any(fails), "items": items}).encode()
        found = json.loads(body)
        if self.bad in body.decode():
            return 400, b"a line is not taken"
        self.taken.append((path, found))
        return 204, b""

    # -- what has arrived ------------------------------------------------------------------------

    def loki(self) -> Counter[tuple[Any, ...]]:
        """Lines as Loki keeps them: one of each stream, time and text."""
        kept = {
            (*sorted(stream["stream"].items()), stamp, text, more["job"], more["rank"])
            for path, body in self.taken
            if path == "/loki/api/v1/push"
            for stream in body["streams"]
            for stamp, text, more in stream["values"]
        }
        unique = {one[:-2]: one for one in kept}  # job and rank make no difference to it
        return Counter((one[-2], one[-1], one[-3]) for one in unique.values())

    def documents(self) -> dict[str, Any]:
        """Documents of Elasticsearch by id: the last one counts."""
        return {
            action["index"]["_id"]: document
            for path, pairs in self.taken
            if path.startswith("/_bulk")
            for action, document in pairs
        }

    def records(self) -> list[tuple[str, str]]:
        """Rank and text of each record of OTLP, as often as it was sent."""
        return [
            (
                next(
                    a["value"]["intValue"] for a in one["attributes"] if a["key"] == "phalanx.rank"
                ),
                one["body"]["stringValue"],
            )
            for path, body in self.taken
            if path == "/v1/logs"
            for resource in body["resourceLogs"]
            for one in resource["scopeLogs"][0]["logRecords"]
        ]


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    one = Endpoint()
    yield one
    one.server.shutdown()
    one.server.server_close()
    one.thread.join()


KINDS = ("loki", "elasticsearch", "otlp")


@pytest.fixture
def rig(tmp_path: Path, endpoint: Endpoint) -> Iterator[Rig]:
    secret = tmp_path / "secret"
    secret.write_text("Bearer hush\n")
    given = {kind: {kind: endpoint.url(), "authorization": f"file:{secret}"} for kind in KINDS}
    given["loki"]["tenant"] = "ml"
    given["vision"] = {"loki": endpoint.url(), "projects": ["vision"]}
    group = {"senders": given, "cluster": "east", "allow_private": True}
    settings = Settings(
        api=ApiSettings(max_stream_s=0), log_senders=LogSenderSettings.model_validate(group)
    )
    with open_rig(tmp_path / "home", settings=settings) as one:
        yield one


class Loops:
    """The steps of the senders on the clock of a rig."""

    def __init__(self, rig: Rig, only: tuple[str, ...] = KINDS) -> None:
        self.rig = rig
        config = rig.context.log_senders
        http = GuardedHttp(config.allow_private, rig.context.clock.monotonic, client_context(""))
        self.send = LogEndpoints(http, config.cluster, lambda: None)
        self.configs = [one for one in config.senders if one.name in only]
        self.restart()
        self.step()

    def restart(self) -> None:
        """Another process leads: what was in memory is gone."""
        self.progress = {one.name: SendingProgress() for one in self.configs}

    def step(self) -> list[int | None]:
        now = self.rig.clock.now()
        return [
            sending_step(self.rig.platform, one, self.send, self.progress[one.name], now)
            for one in self.configs
        ]

    def finish(self) -> int:
        """Until nothing waits; returns the number of steps."""
        for count in range(200):
            due = [one for one in self.step() if one is not None]
            if not due:
                return count
            self.rig.clock.advance(max(0.0, (min(due) - self.rig.clock.now()) / 1e6))
        raise AssertionError("something waits for ever")


def started(rig: Rig, **changes: Any) -> tuple[int, ScriptedSupervisor]:
    num = rig.submit(resources=SMALL, **changes)
    rig.turn(1.0)
    supervisor = rig.supervisor(num)
    supervisor.ready()
    supervisor.started(pids=(1,))
    return num, supervisor


def ended(rig: Rig, supervisor: ScriptedSupervisor) -> None:
    supervisor.ended(0, "succeeded", step=2)
    supervisor.leave()
    rig.turn(1.0)


def test_every_line_arrives_at_endpoints_that_fail(
    rig: Rig, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "PACK_BYTES", 200)
    monkeypatch.setattr(sending, "BATCH_BYTES", 100)
    loops = Loops(rig)
    num, supervisor = started(rig)
    other, second = started(rig)
    expected: Counter[tuple[str, str, str]] = Counter()
    troubles = ["cut", "lost", "500", "429", "garbage", "401", "take", "take", "take"]
    at = [0, 0, 0]
    for part in range(24):
        for rank, one, job in ((0, supervisor, num), (1, supervisor, num), (2, second, other)):
            # The same text at the same time from two ranks, and twice in a row.
            text = f"step {part}: größer ∂ \n\nthe same\nthe same\n".encode()
            one.log(at[rank], text, rank=rank)
            at[rank] += len(text)
            for line in text.decode().splitlines():
                expected[str(job), str(rank), line] += 1
        if part % 5 == 4:
            packing.pack_job(rig.platform, num, rig.clock.now())
        endpoint.script = [troubles[(part + skip) % len(troubles)] for skip in range(3)]
        loops.step()
        if part % 7 == 0:
            loops.restart()
    loops.finish()
    assert endpoint.loki() == expected
    documents = endpoint.documents()
    found = Counter(
        (str(one["phalanx"]["job"]), str(one["phalanx"]["rank"]), one["message"])
        for one in documents.values()
    )
    assert found == expected and len(documents) == sum(expected.values())
    records = Counter(endpoint.records())
    assert set(records) == {(rank, line) for _, rank, line in expected}
    for (_, rank, line), count in expected.items():
        assert records[rank, line] >= count
    # Nothing is sent again once it was recorded.
    num_requests = len(endpoint.taken)
    loops.restart()
    assert loops.finish() == 0 and len(endpoint.taken) == num_requests


@pytest.mark.parametrize("before", [True, False])
def test_a_control_plane_that_ends_between_an_answer_and_its_record_sends_again(
    rig: Rig, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, before: bool
) -> None:
    loops = Loops(rig)
    _, supervisor = started(rig)
    supervisor.log(0, b"one\ntwo\nthr")
    move = senders.move

    def killed(*given: Any) -> None:
        if not before:
            move(*given)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(senders, "move", killed)
        for config in loops.configs:
            with pytest.raises(Killed):
                sending_step(rig.platform, config, loops.send, SendingProgress(), rig.clock.now())
    assert len(endpoint.taken) == 3
    supervisor.log(11, b"ee\n")
    loops.restart()
    loops.finish()
    assert sum(endpoint.loki().values()) == 3
    assert [one["message"] for one in endpoint.documents().values()] == ["one", "two", "three"]
    assert Counter(endpoint.records()) == {("0", "one"): 2, ("0", "two"): 2, ("0", "three"): 1}


def test_what_is_sent_has_the_form_of_each_endpoint(rig: Rig, endpoint: Endpoint) -> None:
    loops = Loops(rig)
    num, supervisor = started(rig)
    supervisor.log(0, b"ERROR it is \xff\r\nopen")
    now = rig.clock.now()
    loops.finish()
    ended(rig, supervisor)
    loops.finish()
    by_path = {path.partition("?")[0]: body for path, body in reversed(endpoint.taken)}
    (stream,) = by_path["/loki/api/v1/push"]["streams"]
    project = rig.job(num).project
    assert stream["stream"] == {"cluster": "east", "project": project, "stream": "out"}
    ((stamp, text, more),) = stream["values"]
    assert text == "ERROR it is \ufffd\r" and int(stamp) // 1_000_000 == now // 1000
    facts = {"job": str(num), "attempt": "1", "generation": "0", "rank": "0", "offset": "0"}
    assert more == {**facts, "level": "error"} and isinstance(stamp, str)
    ((action, document),) = by_path["/_bulk"]
    assert action == {"index": {"_index": "phalanx-logs", "_id": f"east:{num}-1-0-0-out-0"}}
    assert (document["message"], document["log"]) == (text, {"level": "error"})
    assert document["phalanx"]["offset"] == 0 and document["@timestamp"].endswith("+00:00")
    (resource,) = by_path["/v1/logs"]["resourceLogs"]
    assert {"key": "phalanx.job", "value": {"intValue": str(num)}} in resource["resource"][
        "attributes"
    ]
    (record,) = resource["scopeLogs"][0]["logRecords"]
    assert record["timeUnixNano"] == str(now * 1000) and record["severityNumber"] == 17
    # The last line has no end; the end of the job ends it.
    assert sorted(one["message"] for one in endpoint.documents().values()) == [text, "open"]
    assert {one.get("authorization") for one in endpoint.headers} == {"Bearer hush"}
    assert {one.get("x-scope-orgid") for one in endpoint.headers} == {"ml", None}


def test_lines_that_an_endpoint_refuses_are_counted_and_the_others_arrive(
    rig: Rig, endpoint: Endpoint
) -> None:
    loops = Loops(rig)
    _, supervisor = started(rig)
    lines = [f"line {one}" for one in range(50)]
    lines[17] = lines[40] = "bad words"
    supervisor.log(0, "".join(f"{one}\n" for one in lines).encode())
    endpoint.bad = "bad words"
    loops.finish()
    assert sum(endpoint.loki().values()) == len(endpoint.documents()) == 48
    assert len(set(endpoint.records())) == 48
    shown = {one.name: one for one in rig.client.log_senders()}
    assert [(shown[one].sent_lines, shown[one].refused_lines) for one in KINDS] == [(48, 2)] * 3


def test_how_far_a_sender_is_behind_is_shown(
    rig: Rig, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    loops = Loops(rig, ("loki",))
    _, supervisor = started(rig)
    supervisor.log(0, b"waits\n")
    endpoint.script = ["503"] * 2
    (again_at,) = loops.step()
    assert again_at == rig.clock.now() + 1_000_000
    rig.clock.advance(0.5)
    assert loops.step() == [again_at] and not endpoint.taken
    rig.clock.advance(29.5)
    (again_at,) = loops.step()
    assert again_at == rig.clock.now() + 2_000_000
    (one,) = [one for one in rig.client.log_senders() if one.name == "loki"]
    assert (one.tries, one.lag_s, one.sent_lines) == (2, 30.0, 0)
    assert one.error == "the endpoint answered 503: no"
    text = Exposition(rig.context).scrape(rig.clock.now()).decode()
    assert 'phalanx_log_sender_lag_seconds{sender="loki"} 30' in text
    assert 'phalanx_log_sender_failures{sender="loki"} 2' in text
    assert "hush" not in text + repr(rig.context.log_senders) + repr(rig.context.settings)
    rig.clock.advance(2.0)
    loops.finish()
    (one,) = [one for one in rig.client.log_senders() if one.name == "loki"]
    assert (one.tries, one.lag_s, one.sent_lines, one.error) == (0, 0.0, 1, "")
    text = Exposition(rig.context).scrape(rig.clock.now()).decode()
    assert 'phalanx_log_sender_lines_total{sender="loki"} 1' in text


def test_a_sender_begins_with_jobs_that_print_later_and_stays_in_its_projects(
    rig: Rig, endpoint: Endpoint
) -> None:
    over, first = started(rig)
    first.log(0, b"long ago\n")
    running, second = started(rig)
    second.log(0, b"before\n")
    loops = Loops(rig, ("loki", "vision"))
    loops.finish()
    assert not endpoint.taken
    second.log(7, b"after\n")
    loops.finish()
    assert set(endpoint.loki()) == {
        (str(running), "0", "before"),
        (str(running), "0", "after"),
    }
    assert over != running and len(endpoint.taken) == 1


def test_missing_bytes_are_told_in_their_place(rig: Rig, endpoint: Endpoint) -> None:
    loops = Loops(rig, ("elasticsearch",))
    _, supervisor = started(rig)
    supervisor.log(0, b"one\n")
    supervisor.log(10, b"two\n")
    loops.finish()
    gap, *_ = [one for one in endpoint.documents().values() if "gap" in one["phalanx"]]
    assert (gap["phalanx"]["gap"], gap["phalanx"]["missing_bytes"]) == ("limit", 6)
    assert gap["message"].startswith("[6 bytes are missing here") and len(endpoint.documents()) == 3


def test_private_addresses_are_refused_unless_a_setting_allows_them(
    rig: Rig, endpoint: Endpoint
) -> None:
    loops = Loops(rig, ("loki",))
    _, supervisor = started(rig)
    supervisor.log(0, b"waits\n")
    context = rig.context
    object.__setattr__(context.log_senders, "allow_private", False)
    (loop,) = [one for one in log_sender_loops(context, rig.platform) if "loki" in one.name]
    assert loop.step(rig.clock.now()) is not None and not endpoint.headers
    (one,) = [one for one in rig.client.log_senders() if one.name == "loki"]
    assert one.error == "the URL of the receiver does not begin with https://"
    object.__setattr__(context.log_senders, "allow_private", True)
    rig.clock.advance(2.0)
    loops.finish()
    assert len(endpoint.taken) == 1


def test_positions_of_a_deleted_job_go_with_it(rig: Rig, endpoint: Endpoint) -> None:
    loops = Loops(rig, ("loki",))
    num, supervisor = started(rig)
    supervisor.log(0, b"one\n")
    loops.finish()
    ended(rig, supervisor)
    rig.client.retention.delete(num)
    deletions_step(rig.platform, rig.clock.now())
    query = senders.log_positions.select()
    assert not rig.store.view(lambda tx: tx.conn.execute(query).all())


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "needs exactly one of"),
        ({"loki": "https://a.example.com", "otlp": "https://b.example.com"}, "needs exactly one"),
        ({"loki": "https://user:pass@a.example.com"}, "without user and query"),
        ({"elasticsearch": "ftp://a.example.com"}, "has a URL"),
        ({"elasticsearch": "https://a.example.com", "index": "Big"}, "index"),
    ],
)
def test_a_bad_sender_is_named(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        LogSenderSettings.model_validate({"senders": {"x": given}})


def test_the_command_line_lists_senders(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    from contextlib import nullcontext

    from phalanx.cli.verbs import platform

    monkeypatch.setattr(platform, "connected", lambda _: nullcontext(rig.client))
    shown = CliRunner().invoke(app, ["admin", "log-senders"])
    assert shown.exit_code == 0, shown.output
    assert [one.split()[:2] for one in shown.output.splitlines()[1:]] == [
        ["elasticsearch", "elasticsearch"],
        ["loki", "loki"],
        ["otlp", "otlp"],
        ["vision", "loki"],
    ]
