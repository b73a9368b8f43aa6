"""What counts as contact with the control plane, and what does not."""

import http.server
import json
import threading

import pytest

from phalanx.core.contract.job import WarmStart
from phalanx.core.contract.records import MetricPoint
from phalanx.core.jobs.desired import Action
from phalanx.errors import StoreUnavailable
from phalanx.kit.clock import ManualClock
from phalanx.schemas.wire.assignments import Assignment
from phalanx.schemas.wire.report_bytes import ACCEPTED, REPORTS_TYPE, decode_request
from phalanx.schemas.wire.supervision import MetricsReport, Orders, SyncRequest, SyncResponse
from phalanx.supervise.uplink.link import (
    ControlPlaneAddress,
    ControlPlaneLink,
    Outbox,
    SyncConnection,
)
from phalanx.testing.executors import gang_contract

pytestmark = pytest.mark.unit
FULL = {"code": StoreUnavailable.code, "message": "the disk is full"}


def assignment(url):
    gang = gang_contract(1, grace_s=5.0)
    return Assignment(
        gang=gang,
        node_rank=0,
        node_dir="/n",
        workdir="/w",
        cwd="/w",
        command=["x"],
        env={},
        warm=WarmStart(enabled=False, imports=()),
        cpus=1,
        server_url=url,
        token="t",
    )


@pytest.fixture
def server():
    class Answers(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            data = self.rfile.read(int(self.headers["Content-Length"]))
            kind = self.headers["Content-Type"]
            self.server.received.append((kind, data))
            status, body = self.server.answer
            if kind in self.server.refused:
                status, body = self.server.refused[kind], b"{}"
            self.send_response(status)
            if self.server.accepts:
                self.send_header("Accept-Post", self.server.accepts)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args):
            pass

    made = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    made.received, made.refused, made.accepts = [], {}, ""
    threading.Thread(target=made.serve_forever, args=(0.01,), daemon=True).start()
    yield made
    made.shutdown()
    made.server_close()


@pytest.mark.parametrize(
    ("status", "body", "contact"),
    [
        (503, json.dumps(FULL).encode(), True),
        (503, b"<html>the proxy has lost its server</html>", False),
        (403, json.dumps({**FULL, "code": "permission_denied"}).encode(), False),
        (500, json.dumps({**FULL, "code": "bug"}).encode(), False),
    ],
)
def test_only_a_control_plane_that_cannot_store_is_contact_all_the_same(
    tmp_path, server, status, body, contact
):
    server.answer = (status, body)
    url, clock = f"http://127.0.0.1:{server.server_port}", ManualClock()
    link = ControlPlaneLink(assignment(url), Outbox(tmp_path), clock, lambda orders: None)
    line = SyncConnection(link._address, "t")
    for failures in range(2):
        clock.advance(300)
        assert link._exchange(line, failures, wait_s=0.0, reports=list) == failures + 1
    assert (link.silent_s < 1) is contact
    line.close()


def call(line):
    point = MetricPoint(0, 1, 2, {"loss": 0.5})
    report = MetricsReport(seq=1, generation=0, points=[point])
    line.sync(SyncRequest(job=1, attempt=1, node_rank=0, sent_at=0, reports=[report]))


def test_metrics_travel_as_bytes_once_the_control_plane_takes_them(server):
    orders = Orders(version="1", action=Action.WAIT)
    said = SyncResponse(acked=1, orders=orders, server_now=0).model_dump_json().encode()
    server.answer, server.accepts = (200, said), ACCEPTED
    line = SyncConnection(ControlPlaneAddress(f"http://127.0.0.1:{server.server_port}", None), "t")
    call(line)
    call(line)
    line.close()
    call(line)
    kinds = [kind for kind, _ in server.received]
    assert kinds == ["application/json", REPORTS_TYPE, "application/json"], "a new connection asks"
    found = SyncRequest.model_validate(decode_request(server.received[1][1], json.loads))
    assert found.reports[0].metrics == [("loss", 1)]
    line.close()


@pytest.mark.parametrize("status", [400, 415, 422])
def test_a_control_plane_that_takes_no_bytes_gets_json_at_once(server, status):
    """As after a return to the release before, behind the same address and on the same connection."""
    orders = Orders(version="1", action=Action.WAIT)
    said = SyncResponse(acked=1, orders=orders, server_now=0).model_dump_json().encode()
    server.answer, server.accepts = (200, said), ACCEPTED
    line = SyncConnection(ControlPlaneAddress(f"http://127.0.0.1:{server.server_port}", None), "t")
    call(line)
    server.accepts, server.refused = "", {REPORTS_TYPE: status}
    call(line)
    call(line)
    kinds = [kind for kind, _ in server.received]
    assert kinds == ["application/json", REPORTS_TYPE, "application/json", "application/json"]
    line.close()
